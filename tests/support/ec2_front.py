"""EC2 in front of moto: it adds what moto does not model, and fails as EC2 does.

- Client tokens: a known one makes no second machine, is refused with other parameters, and refused
  once its machine has ended (boto/boto3 #4406).
- Machines that lists do not show yet, lost answers, refusals, lists that fail after a page.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import parse_qsl, urlencode

import aiohttp
import msgspec
from aiohttp import web

_REGION = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/ec2/")
_ERROR = (
    "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
    "<RequestID>front</RequestID></Response>"
)
_EMPTY = (
    '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
    "<requestId>front</requestId><reservationSet/></DescribeInstancesResponse>"
)
_GONE = (
    '<TerminateInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
    "<requestId>front</requestId><instancesSet><item><instanceId>{instance}</instanceId>"
    "<currentState><code>48</code><name>terminated</name></currentState></item></instancesSet>"
    "</TerminateInstancesResponse>"
)
_ADDRESS = re.compile(
    rb"<(ipAddress|privateIpAddress|publicIp)>[0-9]+[.][0-9]+[.]([0-9]+)[.]([0-9]+)</\1>"
)
_INSTANCE = re.compile(rb"<instanceId>(i-[0-9a-f]+)</instanceId>")
_HISTORY = (
    '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
    "<requestId>front</requestId><spotPriceHistorySet>{items}</spotPriceHistorySet>"
    "</DescribeSpotPriceHistoryResponse>"
)
_SPOT = "DescribeSpotPriceHistory"
_VERSION = "2016-11-15"
_SOLD = ("DescribeInstanceTypes", "DescribeInstanceTypeOfferings")
_NEW = "RunInstances"
_LIST = "DescribeInstances"
_END = "TerminateInstances"


_pages_of_sale: dict[tuple[str, str, str], tuple[int, bytes]] = {}


class Failure(msgspec.Struct, frozen=True):
    code: str
    message: str = "eight are enough"
    status: int = 400


class Computers(Protocol):
    """What boots for the machines of a front. It blocks."""

    def boot(self, instance: str, address: str, wish: Mapping[str, str]) -> None:
        """Turn on a computer for these parameters of RunInstances. It is reached at `address`."""

    def end(self, instance: str) -> None:
        """Cut its power, and keep nothing of it."""

    def powered_off(self) -> frozenset[str]:
        """Return the machines that have turned themselves off, and that nobody has ended."""


class _Made(msgspec.Struct, frozen=True):
    """The answer to a token, and what it came with."""

    wish: Mapping[str, str]
    answer: bytes
    instance: str


class Ec2Front:
    """`calls` counts requests by action and region. `computers`: what its machines are; without
    any they are records."""

    def __init__(self, moto: str, computers: Computers | None = None) -> None:
        self.url = ""
        self.calls: Counter[tuple[str, str]] = Counter()
        self.wishes: list[dict[str, str]] = []
        """The parameters of each RunInstances."""
        self.fails: dict[str, list[Failure]] = {}
        """Refusals of the next calls, by action."""
        self.loses: list[str] = []
        """Actions that do their work once and lose their answer."""
        self.hides = False
        """Whether no list shows a machine, and no call about one knows it."""
        self.ends_once = False
        """Whether a machine that has ended cannot be ended again, as in moto."""
        self.page: int | None = None
        """The most machines on a page of a list."""
        self.cuts = False
        """Whether the next second page of a list fails."""
        self.times: list[tuple[float, str, int]] = []
        """When each call was answered, in seconds of `time.monotonic`, its action and status."""
        self.quotas: dict[str, float] = {}
        """The quotas of the account, by their codes."""
        self.prices: dict[str, dict[str, float]] | None = {}
        """The price list by region and type; None: it is refused."""
        self.spot_prices: dict[str, float] = {}
        """The present price of a spot machine by type in each of `zones`; none: moto's."""
        self.zones: tuple[str, ...] = ()
        self.address: str | None = None
        """That of its only machine; None: each has one of the loopback."""
        self.watcher: Callable[[str], None] | None = None
        """It is told each action that makes or ends a machine, once it is done and before its
        answer."""
        self._moto = moto
        self._computers = computers
        self._tokens: dict[str, _Made] = {}
        self._ended: set[str] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("X-Amz-Target", "").endswith(".GetServiceQuota"):
            return self._quota((await request.json())["QuotaCode"])
        if request.headers.get("X-Amz-Target", "").endswith(".GetProducts"):
            return self._products((await request.json())["Filters"])
        wish = dict(parse_qsl(await request.text(), keep_blank_values=True))
        action = wish["Action"]
        found = _REGION.search(request.headers.get("Authorization", ""))
        self.calls[action, found.group(1) if found else "?"] += 1
        if action == _NEW:
            self.wishes.append(wish)
        if waiting := self.fails.get(action):
            self.times.append((time.monotonic(), action, waiting[0].status))
            return _error(waiting.pop(0))
        refusal = self._refusal(action, wish)
        if refusal is not None:
            return refusal
        status, content = await self._forwarded(request, action, wish)
        self.times.append((time.monotonic(), action, status))
        if action == _END and status == web.HTTPOk.status_code:
            self._ended.add(wish["InstanceId.1"])
            if self._computers is not None:
                await asyncio.to_thread(self._computers.end, wish["InstanceId.1"])
        if self.watcher is not None and action in (_NEW, _END):
            self.watcher(action)
        if action in self.loses:
            self.loses.remove(action)
            # None: the controller that asked was killed meanwhile.
            if request.transport is not None:
                request.transport.abort()
        return web.Response(status=status, body=content, content_type="text/xml")

    def _quota(self, code: str) -> web.Response:
        kind = "application/x-amz-json-1.1"
        if (value := self.quotas.get(code)) is None:
            refusal = {"__type": "NoSuchResourceException", "Message": "no such quota"}
            return web.json_response(refusal, status=400, content_type=kind)
        return web.json_response({"Quota": {"QuotaCode": code, "Value": value}}, content_type=kind)

    def _products(self, filters: list[dict[str, str]]) -> web.Response:
        kind = "application/x-amz-json-1.1"
        if self.prices is None:
            refusal = {"__type": "AccessDeniedException", "Message": "no pricing:GetProducts"}
            return web.json_response(refusal, status=400, content_type=kind)
        chosen = {one["Field"]: one["Value"] for one in filters}
        entries = [
            json.dumps(
                {
                    "product": {"attributes": {"instanceType": name}},
                    "terms": {
                        "OnDemand": {
                            "A.B": {
                                "priceDimensions": {
                                    "A.B.C": {"unit": "Hrs", "pricePerUnit": {"USD": f"{price}"}}
                                }
                            }
                        }
                    },
                }
            )
            for name, price in self.prices.get(chosen["regionCode"], {}).items()
        ]
        return web.json_response({"PriceList": entries}, content_type=kind)

    def _refusal(self, action: str, wish: dict[str, str]) -> web.Response | None:
        if action == _NEW and (made := self._tokens.get(wish["ClientToken"])) is not None:
            if made.wish != wish:
                return _error(Failure("IdempotentParameterMismatch", "the token is known"))
            if made.instance in self._ended:
                return _error(Failure("IdempotentInstanceTerminated", "it has ended"))
        if action == _SPOT and self.spot_prices:
            return self._spot_history()
        if action == _LIST and self.hides:
            return web.Response(text=_EMPTY, content_type="text/xml")
        if action == _END and self.hides:
            return _error(Failure("InvalidInstanceID.NotFound", "there is no such machine"))
        # moto removes the interfaces of a machine that has ended, and then fails.
        ended = self._ended if action == _END and not self.ends_once else set[str]()
        if (instance := wish.get("InstanceId.1", "")) in ended:
            return web.Response(text=_GONE.format(instance=instance), content_type="text/xml")
        if action == _LIST and self.cuts and "NextToken" in wish:
            self.cuts = False
            return _error(Failure("InternalError", "an internal error has occurred", 500))
        return None

    def _spot_history(self) -> web.Response:
        items = "".join(
            f"<item><instanceType>{name}</instanceType><spotPrice>{price:.6f}</spotPrice>"
            f"<availabilityZone>{zone}</availabilityZone></item>"
            for name, price in self.spot_prices.items()
            for zone in self.zones
        )
        return web.Response(text=_HISTORY.format(items=items), content_type="text/xml")

    async def _forwarded(
        self, request: web.Request, action: str, wish: dict[str, str]
    ) -> tuple[int, bytes]:
        if action == _NEW and (made := self._tokens.get(wish["ClientToken"])) is not None:
            return 200, made.answer
        if action == _LIST and self._computers is not None:
            await self._end_those_that_are_off(request, self._computers)
        if action in _SOLD:
            return await self._of_sale(request, wish)
        status, content = await self._asked(request, self._for_moto(action, wish))
        if action == _NEW and status == web.HTTPOk.status_code:
            (found,) = _INSTANCE.findall(content)
            instance = found.decode()
            self._tokens[wish["ClientToken"]] = _Made(wish, content, instance)
            if self._computers is not None:
                address = _address_in(content)
                await asyncio.to_thread(self._computers.boot, instance, address, wish)
        return status, content

    async def _of_sale(self, request: web.Request, wish: Mapping[str, str]) -> tuple[int, bytes]:
        """Return moto's answer, which no act changes: all fronts of it remember these pages, since
        it takes a part of a second for each."""
        region = _REGION.search(request.headers.get("Authorization", ""))
        key = (self._moto, region.group(1) if region else "?", urlencode(wish))
        if key not in _pages_of_sale:
            _pages_of_sale[key] = await self._asked(request, wish)
        return _pages_of_sale[key]

    async def _asked(self, request: web.Request, wish: Mapping[str, str]) -> tuple[int, bytes]:
        """Return moto's answer to the wish, in the region of the request."""
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in ("Authorization", "Content-Type", "X-Amz-Date")
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(self._moto, data=urlencode(wish), headers=headers) as answer,
        ):
            return answer.status, _with_addresses(await answer.read(), self.address)

    async def _end_those_that_are_off(self, request: web.Request, computers: Computers) -> None:
        """With `InstanceInitiatedShutdownBehavior: terminate` a machine ends with its power."""
        for instance in await asyncio.to_thread(computers.powered_off):
            wish = {"Action": _END, "Version": _VERSION, "InstanceId.1": instance}
            await self._asked(request, wish)
            self._ended.add(instance)
            await asyncio.to_thread(computers.end, instance)

    def _for_moto(self, action: str, wish: dict[str, str]) -> dict[str, str]:
        if action != _LIST:
            return wish
        asked = dict(wish)
        if self.page is not None:
            asked["MaxResults"] = str(self.page)
        # moto does not know the filter.
        if asked.get("Filter.1.Name") == "client-token":
            made = self._tokens.get(asked["Filter.1.Value.1"])
            asked["Filter.1.Name"] = "instance-id"
            asked["Filter.1.Value.1"] = "i-0" if made is None else made.instance
        return asked


def _with_addresses(content: bytes, address: str | None) -> bytes:
    """Return the answer with this address, or some of this machine: moto makes up public ones,
    which may be somebody's."""
    ours = rb"127.77.\2.\3" if address is None else address.encode()
    return _ADDRESS.sub(rb"<\1>" + ours + rb"</\1>", content)


def _address_in(content: bytes) -> str:
    """Return the public address of the machine in the answer."""
    found = re.search(rb"<ipAddress>([0-9.]+)</ipAddress>", content)
    assert found is not None, content
    return found.group(1).decode()


def _error(failure: Failure) -> web.Response:
    text = _ERROR.format(code=failure.code, message=failure.message)
    return web.Response(status=failure.status, text=text, content_type="text/xml")


@asynccontextmanager
async def front_of(moto: str, computers: Computers | None = None) -> AsyncIterator[Ec2Front]:
    """Serve a front in this event loop."""
    front = Ec2Front(moto, computers)
    app = web.Application()
    app.router.add_post("/", front.answer)
    runner = web.AppRunner(app, handler_cancellation=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    front.url = f"http://{host}:{port}"
    try:
        yield front
    finally:
        await runner.cleanup()
