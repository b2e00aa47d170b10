"""Passes a request on to the leader, as it came: bodies and answers are streamed both ways.

A request is sent again only if nothing of it was done, or if it may be done twice (rule 14.3).
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from aiohttp import web

from common.http import HEAD_SECONDS
from common.proxy.body import Body, body_of
from common.proxy.entry import CLIENT_GONE
from common.proxy.forwarding import FROM_REPLICA, HangUps
from common.proxy.headers import end_to_end, head_of
from common.proxy.tunnel import tunnel
from common.proxy.upstream import NoAnswer, ReplicaConnection, ResponseHead, UpstreamError
from controller.api.http.errors import body_too_slow, nobody_leads
from controller.api.http.holding import HELD_SECONDS, Room, held_size
from controller.forwarding.follower_links import HELD, NOT_DONE, PERHAPS_DONE
from controller.forwarding.leader_links import (
    LeaderLinks,
    Link,
    NobodyLeads,
    NoLink,
    as_its_client_sent_it,
)
from fairlead.connections.order_keys import ORDER_KEY, is_setting, new_order_key

_MAX_BODY = 1 << 62
"""The leader knows what is too large."""
_READING = frozenset(("GET", "HEAD", "OPTIONS"))
HELD_SECONDS_HEADER = "Fairlead-Held-Seconds"
"""Of an answer that waited here for a leader, so that a client sees why it was slow."""
WORTH_TELLING = 0.1
_MAX_HELD = 10_000
"""As many as there may be connections."""
_MAX_HELD_BYTES = 64 << 20
AGAIN_SECONDS = 2.0
"""Beyond the time for which a request is held, it has so long to reach the next leader, after a
leader held it to the end of that time. That leader is known by then."""
UPLOAD_SECONDS = 10.0
"""So long a leader that leads no more has to answer an upload that it has whole: as long as it
has for its answers when it is stopped."""
_UPLOADS = "/v1/blobs/"
_OF_LINKS = frozenset((NOT_DONE.lower(), HELD.lower(), PERHAPS_DONE.lower()))
_OF_ONE = frozenset(("/v1/runs", "/v1/runs:yaml"))
_OF_SEVERAL = frozenset(("/v1/runs:batch", "/v1/runs/together"))


class _Keyed(msgspec.Struct, frozen=True):
    client_key: str | None = None


class _AllKeyed(msgspec.Struct, frozen=True):
    runs: tuple[_Keyed, ...] = ()


class LeaderLate(Exception):
    """The leader has not begun to answer in time. The request only reads."""


class _MayBeSentAgain(Exception):
    """No answer came, and the request may be sent to the next leader."""


class _Exchange(msgspec.Struct, kw_only=True):
    """A request on its way over one link."""

    request: web.Request
    body: Body
    link: Link
    is_upgrade: bool
    order_key: str | None = None
    """Of an order that its client has given none; the same at each leader."""
    held_until: float
    """Until when it waits for a leader, by the loop's clock."""
    until: float | None = None
    """When the answer must have begun, by the loop's clock."""
    held: float = 0.0
    """Seconds for which it has waited for a leader."""
    sending: asyncio.Task[None] | None = None

    @property
    def connection(self) -> ReplicaConnection:
        return self.link.connection

    @property
    def was_sent(self) -> bool:
        """Whether the leader has the whole request. It may answer before, and would take the next
        request on its connection for the rest of this one."""
        sending = self.sending
        return sending is None or (
            sending.done() and not sending.cancelled() and sending.exception() is None
        )


class Forwarder:
    """Carries requests to the leader. `is_leading`: whether this controller leads by now, so that
    its clients' next connections go to the leader's own server."""

    def __init__(self, links: LeaderLinks, hold_seconds: float = HELD_SECONDS) -> None:
        self._links = links
        self._hold_seconds = hold_seconds
        self._hang_ups = HangUps()
        self._room = Room(_MAX_HELD, _MAX_HELD_BYTES)
        self.is_leading = False

    @property
    def hold_seconds(self) -> float:
        """So long a request waits for a leader."""
        return self._hold_seconds

    @property
    def room(self) -> Room:
        """Of all requests that wait for a leader here."""
        return self._room

    async def forward(
        self, request: web.Request, within: float | None = None
    ) -> web.StreamResponse:
        """Return the answer, sent already, or a refusal. `within`: the seconds in which the answer
        to one that reads must begin. Raises LeaderLate, if that is given: nothing was sent."""
        body = await whole_or_streamed(request)
        if isinstance(body, web.Response):
            return body
        seconds = self._hold_seconds if within is None else within
        now, held = asyncio.get_running_loop().time, 0.0
        until = (began := now()) + seconds
        order_key = _order_key(request)
        with self._hang_ups.watched(request):
            while True:
                asked = now()
                try:
                    link = await self._link(body, until)
                except (NobodyLeads, NoLink):
                    if within is not None:
                        raise LeaderLate from None
                    answer: web.StreamResponse = nobody_leads()
                    # The next connection may be carried in another way.
                    answer.force_close()
                    return answer
                held += now() - asked
                exchange = _Exchange(
                    request=request,
                    held=held,
                    body=body,
                    link=link,
                    is_upgrade=_is_websocket(request),
                    order_key=order_key,
                    held_until=until,
                    until=None if within is None else until,
                )
                try:
                    return await self._exchange(exchange)
                except _MayBeSentAgain:
                    if within is None:
                        # From the beginning: it ends although leaders take turns.
                        until = began + seconds + AGAIN_SECONDS
                except ConnectionError:
                    # What goes wrong at the leader is an UpstreamError, so it was the client that
                    # left.
                    return web.Response(status=CLIENT_GONE)

    async def _link(self, body: Body, until: float) -> Link:
        """Return a connection to the leader, for which the request is held. Raises NobodyLeads,
        NoLink."""
        with self._room.place(held_size(body.size)) as has_place:
            left = until - asyncio.get_running_loop().time()
            return await self._links.get(max(left, 0.0) if has_place else 0.0)

    async def _exchange(self, exchange: _Exchange) -> web.StreamResponse:
        try:
            try:
                head = await self._asked(exchange)
            except UpstreamError as error:
                if _may_be_sent_again(exchange):
                    raise _MayBeSentAgain from error
                return cut(exchange.request)
            if _has(head, NOT_DONE):
                self._links.leave(exchange.link)
                if exchange.body.can_be_sent:
                    raise _MayBeSentAgain
            elif _has(head, HELD) and exchange.link.over.is_set() and exchange.body.can_be_sent:
                # The next one leads since then. If nobody does, the request was held long enough.
                raise _MayBeSentAgain
            elif _has(head, PERHAPS_DONE) and await self._may_go_to_the_next(exchange):
                raise _MayBeSentAgain
            if head.status == 101 and exchange.is_upgrade:
                return await tunnel(
                    exchange.request, _for_client(head), exchange.connection.upgraded
                )
            return await self._pass_on(exchange, head)
        finally:
            await _finish(exchange)

    async def _may_go_to_the_next(self, exchange: _Exchange) -> bool:
        """Return whether the request may be sent twice, and another controller leads in time."""
        if exchange.until is not None or not _may_be_sent_again(exchange):
            return False
        return await self.has_next(exchange.link.over, exchange.held_until, exchange.body.size)

    async def has_next(self, over: asyncio.Event, until: float, size: int | None) -> bool:
        """Return whether another controller leads, as soon as that is known, or at this time of the
        loop's clock. `over`: that of the leader so far; `size`: the bytes that wait here."""
        with self._room.place(held_size(size)) as has_place:
            left = until - asyncio.get_running_loop().time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(left, 0.0) if has_place else 0.0):
                    await over.wait()
        return over.is_set()

    async def _asked(self, exchange: _Exchange) -> ResponseHead:
        """Raises UpstreamError, LeaderLate, and aiohttp's errors about the client."""
        now = asyncio.get_running_loop().time()
        left = None if exchange.until is None else exchange.until - now
        asking = asyncio.create_task(_ask(exchange))
        over = asyncio.create_task(exchange.link.over.wait())
        try:
            tasks = (asking, over)
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() and not over.done():
                raise LeaderLate
            # Its successor answers sooner than a leader that is paused.
            if not asking.done() and _may_be_sent_again(exchange):
                raise NoAnswer("leads no more")
            if not asking.done() and _is_upload(exchange.request):
                await _given_time(asking, exchange)
            return await asking
        except BaseException:
            # Also when it is cancelled: the answer would be taken for the next request's.
            exchange.connection.close()
            raise
        finally:
            for task in (asking, over):
                task.cancel()
            await asyncio.gather(asking, over, return_exceptions=True)

    async def _pass_on(self, exchange: _Exchange, head: ResponseHead) -> web.StreamResponse:
        answered = _for_client(head)
        response = web.StreamResponse(status=head.status, reason=head.reason or None)
        for name, value in answered.headers:
            response.headers.add(name, value)
        if exchange.held >= WORTH_TELLING:
            response.headers[HELD_SECONDS_HEADER] = f"{exchange.held:.1f}"
        response[FROM_REPLICA] = frozenset(name.lower() for name, _ in answered.headers)
        if self.is_leading:
            response.force_close()
        try:
            # A client of a stream waits for the head long before its first part.
            await response.prepare(exchange.request)
            while data := await exchange.connection.read():
                await response.write(data)
            await response.write_eof()
        except UpstreamError:
            if exchange.request.transport is not None:
                # A reset: the end of a connection may be the end of a body (RFC 9112, 6.3).
                exchange.request.transport.abort()
        return response


async def whole_or_streamed(request: web.Request) -> Body | web.Response:
    """Return the body, which may be asked for again; or the refusal of one that does not come."""
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            return await body_of(request, _MAX_BODY)
    except TimeoutError:
        # The leader refuses who has no token before his body; here it would wait for ever.
        slow = body_too_slow(HEAD_SECONDS)
        slow.force_close()
        return slow


async def _given_time(asking: asyncio.Task[ResponseHead], exchange: _Exchange) -> None:
    """Let a leader that leads no more answer an upload, which its client may begin again elsewhere.
    Raises NoAnswer."""
    # A link bounds how long it may take nothing.
    while not asking.done() and exchange.sending is not None and not exchange.sending.done():
        await asyncio.wait((asking, exchange.sending), return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait((asking,), timeout=UPLOAD_SECONDS)
    if not asking.done():
        raise NoAnswer("leads no more")


async def _ask(exchange: _Exchange) -> ResponseHead:
    """Send the request; return the head of the answer."""
    request, body, connection = exchange.request, exchange.body, exchange.connection
    head = head_of(request.method, request.raw_path, _headers(exchange))
    if body.data is not None:
        await connection.send(head + body.data)
        return await connection.answer(request.method)
    await connection.send(head)
    exchange.sending = asyncio.create_task(body.stream(connection))
    answering = asyncio.create_task(connection.answer(request.method))
    try:
        await asyncio.wait((exchange.sending, answering), return_when=asyncio.FIRST_COMPLETED)
        if exchange.sending.done():
            error = exchange.sending.exception()
            if error is not None and not isinstance(error, UpstreamError):
                raise error
        # The leader may refuse a body before its end, and close while it is still sent.
        return await answering
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


def _headers(exchange: _Exchange) -> list[tuple[str, str]]:
    kept = as_its_client_sent_it(exchange.request)
    if exchange.is_upgrade:
        kept += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    if exchange.order_key is not None:
        kept.append((ORDER_KEY, exchange.order_key))
    return [*kept, *exchange.body.headers]


def _order_key(request: web.Request) -> str | None:
    """Return a new key if the request is an order without one."""
    has_key = request.method != "POST" or ORDER_KEY in request.headers
    return None if has_key or not is_setting(request.raw_path) else new_order_key()


def _for_client(head: ResponseHead) -> ResponseHead:
    pairs = [pair for pair in end_to_end(head.headers) if pair[0].lower() not in _OF_LINKS]
    return ResponseHead(head.status, head.reason, pairs)


def _is_websocket(request: web.Request) -> bool:
    named = request.headers.get("Connection", "").lower().split(",")
    is_named = any(token.strip() == "upgrade" for token in named)
    return is_named and request.headers.get("Upgrade", "").lower() == "websocket"


def _is_upload(request: web.Request) -> bool:
    """Return whether it puts a file under its digest: sent twice, it is the same file."""
    return request.method == "PUT" and request.path.startswith(_UPLOADS)


def _has(head: ResponseHead, name: str) -> bool:
    return any(found.lower() == name.lower() for found, _ in head.headers)


def _may_be_sent_again(exchange: _Exchange) -> bool:
    request, data = exchange.request, exchange.body.data
    if not exchange.body.can_be_sent:
        return False
    if request.method in _READING or _is_upload(request):
        return True
    if request.method != "POST" or data is None:
        return False
    if is_setting(request.raw_path):
        return True
    # A body that is not understood is not sent again: it may change something.
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if request.raw_path in _OF_ONE:
            return bool(msgspec.json.decode(data, type=_Keyed).client_key)
        if request.raw_path in _OF_SEVERAL:
            runs = msgspec.json.decode(data, type=_AllKeyed).runs
            return bool(runs) and all(one.client_key for one in runs)
    return False


def cut(request: web.Request) -> web.StreamResponse:
    """End the connection without an answer, as the leader's did: nobody knows whether the request
    was done."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


async def _finish(exchange: _Exchange) -> None:
    if exchange.was_sent:
        exchange.link.give_back()
    else:
        exchange.connection.close()
    if exchange.sending is not None:
        # It goes on if the answer came before its end.
        exchange.sending.cancel()
        await asyncio.gather(exchange.sending, return_exceptions=True)
