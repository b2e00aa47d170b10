"""A follower passes requests on to the leader: as they came, and never twice if that may harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer

from common.proxy.headers import CLIENT
from common.proxy.upstream import ReplicaConnection
from controller import relay
from controller.api.http.errors import leads_no_more, leaves, not_known_to_be_done
from controller.api.http.holding import Room
from controller.daemon.lease import Leading
from controller.forwarding import forwarder
from controller.forwarding.credentials import LinkTls, link_tls
from controller.forwarding.follower import Follower
from controller.forwarding.follower_links import (
    HELD,
    LINK_PATH,
    NOT_DONE,
    ONLY_FIND,
    PERHAPS_DONE,
    PROTOCOL,
    FollowerLinks,
)
from controller.forwarding.leader_links import LeaderLinks
from controller.relay import Leader, Relay, leader_at
from controller.tls import own_certificate
from controller.web.assets import Assets
from fairlead.connections.keepalives import GONE_SECONDS
from fairlead.connections.order_keys import ORDER_KEY
from tests.support.waiting import LONG, eventually

BIG = b"x" * (1 << 20)


class ALeader:
    """Says what it sees of each request. `follow`: what ends the stream of `/log`."""

    def __init__(self, tls: LinkTls | None, name: str = "one") -> None:
        self.name = name
        self.links = None if tls is None else FollowerLinks(tls.leader)
        self.lead: Leading | None = None
        self.refuses: Callable[[], web.Response] | None = None
        self.writes = 0
        self.order_keys: list[str | None] = []
        self.goes_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.flood_ended = asyncio.Event()
        app = web.Application(
            middlewares=[] if self.links is None else [self.links.middleware],
            client_max_size=1 << 30,
        )
        app.router.add_route("*", "/seen{rest:.*}", self._seen)
        app.router.add_get("/log", self._log)
        app.router.add_get("/long", self._long)
        app.router.add_get("/flood", self._flood)
        app.router.add_get("/ws", self._ws)
        app.router.add_get("/wait", self._wait)
        app.router.add_post("/v1/{what:.*}", self._write)
        app.router.add_put("/v1/blobs/{digest}", self._put)
        if self.links is not None:
            self.links.mount(app)
        self.runner = web.AppRunner(app, auto_decompress=False, shutdown_timeout=0.1)
        if self.links is not None:
            self.links.serve_with(self.runner)

    async def _seen(self, request: web.Request) -> web.Response:
        body = await request.read()
        seen = {
            "by": self.name,
            "remote": request.remote,
            "scheme": request.scheme,
            "host": request.host,
            "path": request.raw_path,
            "method": request.method,
            "length": len(body),
            "headers": [[name.lower(), value] for name, value in request.headers.items()],
        }
        return web.json_response(seen, headers={"X-Own": "1", "Set-Cookie": "a=b"})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await self.goes_on.wait()
        await response.write(b"second")
        return response

    async def _long(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "11"})
        await response.prepare(request)
        await response.write(b"first")
        self.begun.set()
        await self.goes_on.wait()
        await response.write(b"second")
        return response

    async def _flood(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            while True:
                await response.write(BIG)
        finally:
            self.flood_ended.set()

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["fairlead"])
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"{request.remote} {message.data}")
        return socket

    async def _wait(self, request: web.Request) -> web.StreamResponse:
        self.begun.set()
        await self.goes_on.wait()
        return web.Response(text=self.name)

    async def _put(self, request: web.Request) -> web.StreamResponse:
        self.begun.set()
        await self.goes_on.wait()
        return web.Response(text=str(len(await request.read())))

    async def _write(self, request: web.Request) -> web.StreamResponse:
        if self.lead is not None and not await self.lead.until_known(LONG):
            return leads_no_more()
        await request.read()
        if self.refuses is not None:
            self.begun.set()
            return self.refuses()
        self.order_keys.append(request.headers.get(ORDER_KEY))
        self.writes += 1
        self.begun.set()
        await self.goes_on.wait()
        return web.Response(text=self.name)


class Bed:
    """A follower, and whom it takes for the leader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls = link_tls(b"secret", folder)
        self.closing = contextlib.AsyncExitStack()
        self.session = aiohttp.ClientSession()
        self.url = ""

    async def leader(self, name: str = "one", tls: LinkTls | None = None) -> ALeader:
        made = ALeader(tls or self.tls, name)
        await self.serve(made)
        return made

    async def serve(self, made: ALeader) -> None:
        await made.runner.setup()
        self.closing.push_async_callback(made.runner.cleanup)
        self.closing.callback(made.goes_on.set)
        await web.TCPSite(made.runner, "127.0.0.1", 0).start()

    async def follow(self, hold_seconds: float = 30.0) -> None:
        self.follower = Follower(LeaderLinks(self.tls.follower), None)
        self.follower.forwarder._hold_seconds = hold_seconds
        await self.follower.start()
        self.closing.push_async_callback(self.follower.close)
        self.relay = Relay(hold_seconds, self.follower)
        self.listening = listening = socket.create_server(("127.0.0.1", 0))
        self.closing.callback(listening.close)
        self.closing.push_async_callback(self.relay.close)
        await self.relay.listen(listening)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def lead_to(self, leader: ALeader) -> None:
        self.relay.lead_to(at(leader))


def at(leader: ALeader) -> Leader:
    host, port = leader.runner.addresses[0][:2]
    return leader_at(f"http://{host}:{port}", leader.name)


@pytest.fixture
async def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    # However busy the machine is: a kept link is still used.
    monkeypatch.setattr("common.proxy.upstream.IDLE_SECONDS", 3600.0)
    made = Bed(tmp_path)
    await made.follow()
    yield made
    await made.session.close()
    await made.closing.aclose()


async def test_a_request_comes_as_its_client_sent_it(bed: Bed) -> None:
    bed.lead_to(await bed.leader())
    headers = {"Authorization": "Bearer t", "Origin": "https://page", "X-Twice": "ä"}
    async with bed.session.put(
        bed.url + "/seen/a%2Fb?q=%20", data=BIG, headers=headers, skip_auto_headers=["User-Agent"]
    ) as answer:
        seen = await answer.json()
        assert answer.headers["X-Own"] == "1"
        assert answer.headers["Set-Cookie"] == "a=b"
        assert "Transfer-Encoding" not in answer.headers
    assert (seen["remote"], seen["scheme"], seen["method"]) == ("127.0.0.1", "http", "PUT")
    assert (seen["path"], seen["length"]) == ("/seen/a%2Fb?q=%20", len(BIG))
    assert bed.url == f"http://{seen['host']}"
    for name, value in headers.items():
        assert [name.lower(), value] in seen["headers"]


async def test_no_client_can_name_another_address(bed: Bed) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    forged = {CLIENT: "https 10.9.9.9", CLIENT.lower(): "https 10.9.9.8"}
    async with bed.session.get(bed.url + "/seen", headers=forged) as answer:
        seen = await answer.json()
    assert (seen["remote"], seen["scheme"]) == ("127.0.0.1", "http")
    told = [value for name, value in seen["headers"] if name == CLIENT.lower()]
    assert told == ["http 127.0.0.1"]
    # To the leader itself, without the key: what is in the header counts for nothing.
    there = f"http://127.0.0.1:{at(leader).port}/seen"
    async with bed.session.get(there, headers=forged) as answer:
        seen = await answer.json()
    assert (seen["remote"], seen["scheme"]) == ("127.0.0.1", "http")


async def test_no_client_asks_the_leader_in_a_followers_place(bed: Bed) -> None:
    bed.lead_to(await bed.leader())
    async with bed.session.get(bed.url + "/seen", headers={ONLY_FIND: "1"}) as answer:
        seen = await answer.json()
    assert ONLY_FIND.lower() not in [name for name, _ in seen["headers"]]


async def test_a_link_without_the_key_of_the_installation_carries_nothing(
    bed: Bed, tmp_path: Path
) -> None:
    leader = await bed.leader()
    wrong = link_tls(b"another secret", tmp_path).follower
    for context in (wrong, _without_certificate()):
        reader, writer = await asyncio.open_connection("127.0.0.1", at(leader).port)
        asked = f"GET {LINK_PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        writer.write(f"{asked}Upgrade: {PROTOCOL}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        # The leader notices what is wrong after the client's own handshake has ended (TLS 1.3).
        with contextlib.suppress(OSError):
            await writer.start_tls(context)
            writer.write(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert await reader.read() == b""
        writer.transport.abort()
    assert leader.writes == 0


async def test_a_follower_that_left_before_its_link_was_opened_is_no_error(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await bed.leader()
    asked = asyncio.Event()

    async def find_it_gone(*_: object) -> None:
        asked.set()
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(web.StreamResponse, "prepare", find_it_gone)
    reader, writer = await asyncio.open_connection("127.0.0.1", at(leader).port)
    head = f"GET {LINK_PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
    writer.write(f"{head}Upgrade: {PROTOCOL}\r\n\r\n".encode())
    await asked.wait()
    assert await reader.read() == b""
    writer.close()
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def _without_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_connections_to_a_leader_with_another_key_are_carried_by_bytes(
    bed: Bed, tmp_path: Path
) -> None:
    bed.lead_to(await bed.leader(tls=link_tls(b"another secret", tmp_path)))
    async with bed.session.get(bed.url + "/seen", headers={CLIENT: "https 10.9.9.9"}) as answer:
        seen = await answer.json()
    assert (seen["remote"], seen["scheme"]) == ("127.0.0.1", "http")


async def test_connections_to_a_leader_of_an_earlier_version_are_carried_by_bytes(
    bed: Bed,
) -> None:
    old = ALeader(None)
    await bed.serve(old)
    bed.lead_to(old)
    async with bed.session.get(bed.url + "/seen") as answer:
        assert (await answer.json())["by"] == "one"


async def test_a_health_check_of_http_1_0_without_a_host_is_answered(bed: Bed) -> None:
    bed.lead_to(await bed.leader())
    where = bed.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*where.split(":"))
    writer.write(b"GET /seen HTTP/1.0\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ")
    assert json.loads(body)["host"] == "127.0.0.1"
    writer.close()
    await writer.wait_closed()


async def test_a_small_body_that_does_not_come_is_refused(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "HEAD_SECONDS", 0.1)
    leader = await bed.leader()
    bed.lead_to(leader)
    reader, writer = await asyncio.open_connection(*bed.url.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nbegun")
    assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    # The server reads for a while what still comes, and closes.
    writer.write(b"late")
    assert b"body_too_slow" in await reader.read()
    assert leader.writes == 0
    writer.close()
    await writer.wait_closed()


async def test_an_answer_is_passed_on_while_it_comes(bed: Bed) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    async with bed.session.get(bed.url + "/log") as answer:
        assert await answer.content.read(5) == b"first"
        leader.goes_on.set()
        assert await answer.content.read() == b"second"


async def test_websockets_are_passed_on(bed: Bed) -> None:
    bed.lead_to(await bed.leader())
    async with bed.session.ws_connect(bed.url + "/ws", protocols=["fairlead"]) as there:
        assert there.protocol == "fairlead"
        await there.send_str("a")
        assert await there.receive_str() == "127.0.0.1 a"


async def test_connections_to_the_leader_are_used_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    opened = 0
    own = bed.follower._links._open

    async def counted(to: Leader, over: asyncio.Event) -> ReplicaConnection:
        nonlocal opened
        opened += 1
        return await own(to, over)

    monkeypatch.setattr(bed.follower._links, "_open", counted)
    for _ in range(5):
        async with bed.session.get(bed.url + "/seen") as answer:
            await answer.read()
    # The first one asks whether the leader opens links at all.
    assert opened == 2


async def test_a_connection_whose_client_left_while_its_request_was_sent_is_not_used_again(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that is paused reads nothing, so that sending takes until it goes on."""
    leader = await bed.leader()
    bed.lead_to(leader)
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    has_sent, send = asyncio.Event(), ReplicaConnection.send

    async def stuck(connection: ReplicaConnection, data: bytes) -> None:
        await send(connection, data)
        has_sent.set()
        await asyncio.get_running_loop().create_future()

    with monkeypatch.context() as patched:
        patched.setattr(ReplicaConnection, "send", stuck)
        leaving = asyncio.create_task(bed.session.get(bed.url + "/wait"))
        await has_sent.wait()
        leaving.cancel()
        await eventually(lambda: not bed.follower.forwarder._hang_ups.in_flight)
    # The next one on it would get the answer that comes when the leader goes on.
    term = bed.follower._links._term
    assert term is not None
    assert not term.kept


async def test_a_request_waits_until_somebody_leads(bed: Bed) -> None:
    first = await bed.leader()
    bed.lead_to(first)
    async with bed.session.get(bed.url + "/seen") as answer:
        assert (await answer.json())["by"] == "one"
    bed.relay.lead_to(None)
    waiting = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    second = await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(second)
    assert await (await waiting).text() == "two"
    assert first.writes == 0


async def test_nobody_waits_for_a_connection_to_a_leader_that_is_followed(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that vanished takes no connection: all would wait, one after the other."""
    vanished, second = leader_at("http://vanished:1", "one"), await bed.leader("two")
    has_asked, links = asyncio.Event(), bed.follower._links
    own = links._open

    async def never(to: Leader, over: asyncio.Event) -> ReplicaConnection:
        if to != vanished:
            return await own(to, over)
        has_asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(links, "_open", never)
    bed.relay.lead_to(vanished)
    waiting = [asyncio.create_task(bed.session.get(bed.url + "/seen")) for _ in range(3)]
    await has_asked.wait()
    bed.lead_to(second)
    for task in waiting:
        assert (await (await task).json())["by"] == "two"


async def test_a_request_that_no_leader_takes_in_time_is_refused_as_not_done(bed: Bed) -> None:
    bed.lead_to(await bed.leader())
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    bed.relay.lead_to(None)
    bed.follower.forwarder._hold_seconds = 0.0
    async with bed.session.post(bed.url + "/v1/runs") as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "leads_no_more"


async def test_a_new_connection_while_nobody_leads_is_told_so(bed: Bed) -> None:
    bed.follower.forwarder._hold_seconds = 0.0
    # A leader that has just died is still the last one that was seen.
    for last in (None, leader_at("http://127.0.0.1:1", "dead")):
        bed.relay.lead_to(last)
        async with (
            aiohttp.ClientSession() as session,
            session.post(bed.url + "/v1/runs") as answer,
        ):
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert "no controller leads" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/stop", b"{}"),
        ("/v1/runs", b"{}"),
        ("/v1/runs", b"no json"),
        ("/v1/runs:yaml", b"{}"),
        ("/v1/runs", BIG),
        ("/v1/runs:batch", b'{"runs": [{"client_key": "a"}, {"name": "b"}]}'),
        ("/v1/runs:batch", b'{"runs": []}'),
        ("/v1/runs/together", b'{"runs": [{"client_key": ""}]}'),
        ("/v1/stop", b'{"runs": [{"client_key": "a"}]}'),
        # By then it may be the name of another run, or the next attempt of the job.
        ("/v1/runs/train/stop", b"{}"),
        ("/v1/runs/0123456789abcdef/jobs/j/abort", b"{}"),
        ("/v1/runs/0123456789abcdef/stop", BIG),
    ],
)
async def test_a_write_whose_leader_died_is_never_sent_to_the_next_one(
    bed: Bed, path: str, body: bytes
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    sending = asyncio.create_task(bed.session.post(bed.url + path, data=body))
    await first.begun.wait()
    _abort(first)
    bed.lead_to(second)
    with pytest.raises(aiohttp.ClientConnectionError):
        await sending
    assert second.writes == 0


@pytest.mark.parametrize("is_paused", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/runs", {"client_key": "k", "more": 1}),
        ("/v1/runs:yaml", {"client_key": "k", "source": "type: task"}),
        ("/v1/runs:batch", {"runs": [{"client_key": "a", "more": 1}, {"client_key": "b"}]}),
        ("/v1/runs/together", {"runs": [{"client_key": "a"}]}),
        ("/v1/runs/0123456789abcdef/stop", {"abort": False}),
        ("/v1/runs/0123456789abcdef/scale", {"group": "main", "nodes": 2}),
    ],
)
async def test_a_write_that_may_be_done_twice_and_a_read_go_to_the_next_leader(
    bed: Bed, path: str, body: dict[str, object], *, is_paused: bool
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    sending = asyncio.create_task(bed.session.post(bed.url + path, json=body))
    reading = asyncio.create_task(bed.session.get(bed.url + "/wait"))
    await eventually(lambda: first.writes == 1 and first.begun.is_set())
    if not is_paused:
        _abort(first)
    bed.lead_to(second)
    for task in (sending, reading):
        assert await (await task).text() == "two"


@pytest.mark.parametrize("given", [None, "clients"])
async def test_a_repeated_order_has_the_same_key_at_each_leader(
    bed: Bed, given: str | None
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    url = f"{bed.url}/v1/runs/0123456789abcdef/suspend"
    headers = {} if given is None else {ORDER_KEY: given}
    sending = asyncio.create_task(bed.session.post(url, data=b"{}", headers=headers))
    await first.begun.wait()
    _abort(first)
    bed.lead_to(second)
    assert await (await sending).text() == "two"
    await bed.session.post(url, data=b"{}", headers=headers)
    (key,) = first.order_keys
    assert key == second.order_keys[0] is not None
    assert (second.order_keys[1] == key) is (given is not None)
    await bed.session.post(f"{bed.url}/v1/runs/train/suspend", data=b"{}")
    assert second.order_keys[2] is None


def _abort(leader: ALeader) -> None:
    assert leader.runner.server is not None
    for connection in leader.runner.server.connections:
        assert connection.transport is not None
        connection.transport.abort()


async def test_a_leader_that_leaves_does_nothing_more_and_its_requests_go_to_the_next_one(
    bed: Bed,
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    begun = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    await first.begun.wait()
    async with bed.session.get(bed.url + "/seen") as answer:
        assert (await answer.json())["by"] == "one"
    assert first.links is not None
    await first.links.leave()
    late = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    await eventually(lambda: bed.follower._links._left == at(first))
    # What the database shows is still the leader that leaves.
    bed.lead_to(first)
    first.goes_on.set()
    assert await (await begun).text() == "one"
    bed.lead_to(second)
    answer = await late
    assert await answer.text() == "two"
    assert NOT_DONE not in answer.headers
    assert (first.writes, second.writes) == (1, 1)


async def in_doubt(bed: Bed, name: str = "one") -> tuple[ALeader, Leading]:
    """Return a leader that could not renew its lease for a while."""
    leader, lead = await bed.leader(name), Leading(5.0, lambda: 0.0)
    leader.lead = lead
    leader.goes_on.set()
    return leader, lead


async def held_change(bed: Bed, leader: ALeader, lead: Leading) -> asyncio.Task[ClientResponse]:
    """Return a change without a client key that this leader, in doubt, holds."""
    bed.lead_to(leader)
    held = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    await eventually(lambda: lead._known is not None)
    return held


async def test_a_change_that_a_leader_in_doubt_holds_is_done_there_when_it_is_sure_again(
    bed: Bed,
) -> None:
    first, lead = await in_doubt(bed)
    held = await held_change(bed, first, lead)
    assert first.writes == 0
    lead.renewed(0.0)
    assert await (await held).text() == "one"
    # It is still the leader to its follower.
    async with bed.session.post(bed.url + "/v1/stop", data=b"{}") as answer:
        assert await answer.text() == "one"


async def test_a_change_that_a_leader_held_to_its_end_goes_to_the_next_one(bed: Bed) -> None:
    """It has no client key: the leader says that nothing of it was done."""
    first, lead = await in_doubt(bed)
    second = await bed.leader("two")
    second.goes_on.set()
    held = await held_change(bed, first, lead)
    bed.lead_to(second)
    lead.end()
    answer = await held
    assert await answer.text() == "two"
    assert HELD not in answer.headers
    assert (first.writes, second.writes) == (0, 1)


async def test_a_change_that_was_held_for_long_is_refused_if_nobody_else_leads(bed: Bed) -> None:
    first, lead = await in_doubt(bed)
    held = await held_change(bed, first, lead)
    lead.end()
    answer = await held
    assert answer.status == 503
    assert (await answer.json())["error"]["code"] == "leads_no_more"
    assert HELD not in answer.headers


async def test_a_change_that_a_leader_held_until_it_left_waits_for_the_next_one(bed: Bed) -> None:
    first, lead = await in_doubt(bed)
    second = await bed.leader("two")
    second.goes_on.set()
    held = await held_change(bed, first, lead)
    assert first.links is not None
    leaving = asyncio.create_task(first.links.leave())
    await asyncio.sleep(0)
    lead.end()
    await eventually(lambda: bed.follower._links._left == at(first))
    await leaving
    bed.lead_to(second)
    assert await (await held).text() == "two"
    assert first.writes == 0


async def test_a_change_that_a_leader_held_for_all_its_time_still_goes_to_the_next_one(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader can't reach its database, so it does not know that another one leads."""
    monkeypatch.setattr(forwarder, "_AGAIN_SECONDS", LONG)
    first, lead = await in_doubt(bed)
    second = await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    # The link that is kept takes no time.
    bed.follower.forwarder._hold_seconds = 0.0
    held = await held_change(bed, first, lead)
    bed.lead_to(second)
    lead.end()
    assert await (await held).text() == "two"
    assert (first.writes, second.writes) == (0, 1)


async def test_a_change_of_which_a_replaced_leader_did_nothing_goes_to_the_next_one(
    bed: Bed,
) -> None:
    """It has no client key, and the follower has not yet seen that another one leads."""
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    first.refuses = leaves
    bed.lead_to(first)
    sending = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    await eventually(lambda: bed.follower._links._left == at(first))
    bed.lead_to(second)
    answer = await sending
    assert await answer.text() == "two"
    assert NOT_DONE not in answer.headers


async def test_a_change_that_a_leader_may_have_done_goes_to_the_next_one_if_it_may_be_sent_twice(
    bed: Bed,
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    first.refuses = not_known_to_be_done
    bed.lead_to(first)
    keyed = asyncio.create_task(
        bed.session.post(bed.url + "/v1/runs", json={"client_key": "k", "more": 1})
    )
    await first.begun.wait()
    async with bed.session.post(bed.url + "/v1/runs", json={}) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "store_unavailable"
        assert PERHAPS_DONE not in answer.headers
    assert not keyed.done()
    bed.lead_to(second)
    assert await (await keyed).text() == "two"
    assert second.writes == 1


async def test_a_change_that_a_leader_may_have_done_is_answered_if_nobody_else_leads(
    bed: Bed,
) -> None:
    first = await bed.leader()
    first.refuses = not_known_to_be_done
    bed.lead_to(first)
    bed.follower.forwarder._hold_seconds = 0.1
    async with bed.session.post(bed.url + "/v1/runs", json={"client_key": "k"}) as answer:
        assert (await answer.json())["error"]["code"] == "store_unavailable"


async def test_what_waits_for_a_leader_at_a_follower_is_bounded(bed: Bed) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    # Two connections that the follower serves: a new one is held before it can say anything.
    both = [asyncio.create_task(bed.session.get(bed.url + "/wait")) for _ in range(2)]
    await eventually(lambda: bed.follower.forwarder._hang_ups.in_flight == 2)
    leader.goes_on.set()
    for task in both:
        await (await task).read()
    bed.relay.lead_to(None)
    room = bed.follower.forwarder._room = Room(1)
    held = asyncio.create_task(bed.session.get(bed.url + "/seen"))
    await eventually(lambda: room.held == 1)
    async with bed.session.post(bed.url + "/v1/runs") as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "leads_no_more"
    held.cancel()
    await eventually(lambda: room.held == 0)


async def test_an_answer_that_is_cut_is_cut_for_the_client_too(bed: Bed) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    async with bed.session.get(bed.url + "/log") as answer:
        assert await answer.content.read(5) == b"first"
        _abort(leader)
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()


async def test_a_client_that_leaves_ends_its_request_at_the_leader(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    server = leader.runner.server
    assert server is not None
    before = len(server.connections)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bed.url.rpartition(":")[2]))
    writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readexactly(1 << 16)
    assert len(server.connections) > before
    writer.transport.abort()
    await leader.flood_ended.wait()
    assert [one for one in caplog.records if one.name.startswith("controller")] == []


async def test_a_client_that_stops_reading_for_a_while_is_not_cut(bed: Bed) -> None:
    """The follower reads no more of the leader then. The kernel of the leader ends a connection for
    that after GONE_SECONDS, if it is told to."""
    leader = await bed.leader()
    bed.lead_to(leader)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bed.url.rpartition(":")[2]))
    writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readexactly(1 << 16)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(GONE_SECONDS + 2):
            await leader.flood_ended.wait()
    await reader.readexactly(64 << 20)
    writer.transport.abort()
    await leader.flood_ended.wait()


async def _pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // len(BIG)):
        yield BIG


async def _stuck(bed: Bed, first: ALeader, size: int) -> asyncio.Task[ClientResponse]:
    """An upload that a leader has begun to read, and reads no further."""
    bed.lead_to(first)
    data: bytes | AsyncIterator[bytes] = b"x" * size if size < len(BIG) else _pieces(size)
    put = bed.session.put(bed.url + "/v1/blobs/d", data=data)
    sending = asyncio.create_task(put)
    await first.begun.wait()
    return sending


async def test_an_upload_waits_for_a_leader_that_reads_nothing_for_a_while(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk may be slow. Nothing looks whether it leads on before it takes all."""
    monkeypatch.setattr(relay, "LEFT_SECONDS", 0.01)
    leader = await bed.leader()
    sending = await _stuck(bed, leader, 24 << 20)
    term = bed.follower._links._term
    assert term is not None
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        return False

    monkeypatch.setattr(term.over, "is_set", is_over)
    await eventually(lambda: looks > 2)
    leader.goes_on.set()
    assert await (await sending).text() == str(24 << 20)


async def test_an_upload_leaves_a_leader_that_takes_no_more_and_was_replaced(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be paused. The client has the bytes, and begins again at its next address."""
    monkeypatch.setattr(relay, "LEFT_SECONDS", 0.01)
    monkeypatch.setattr(forwarder, "UPLOAD_SECONDS", 0.01)
    first, second = await bed.leader(), await bed.leader("two")
    sending = await _stuck(bed, first, 24 << 20)
    bed.lead_to(second)
    with pytest.raises(aiohttp.ClientError):
        await sending


@pytest.mark.parametrize("answers", [True, False])
async def test_a_replaced_leader_that_has_an_upload_whole_may_answer_for_a_while(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    monkeypatch.setattr(forwarder, "UPLOAD_SECONDS", LONG if answers else 0.01)
    first, second = await bed.leader(), await bed.leader("two")
    sending = await _stuck(bed, first, 100_000)
    bed.lead_to(second)
    # This client sends a PUT whose connection is cut once more by itself.
    (first if answers else second).goes_on.set()
    assert await (await sending).text() == "100000"
    assert second.begun.is_set() is not answers


async def test_a_small_upload_goes_to_the_next_leader(bed: Bed) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    sending = await _stuck(bed, first, 1000)
    bed.lead_to(second)
    assert await (await sending).text() == "1000"
    assert second.begun.is_set()


async def test_the_dashboards_files_are_answered_without_a_leader(bed: Bed) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    bed.relay.lead_to(None)
    async with bed.session.get(bed.url + Assets().address("states.css")) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/css"


async def test_one_that_leads_now_serves_what_was_open_and_lets_it_come_again(bed: Bed) -> None:
    first = await bed.leader()
    bed.lead_to(first)
    async with bed.session.get(bed.url + "/seen") as answer:
        assert answer.headers.get("Connection") != "close"
        await answer.read()
    own = await bed.leader("own")
    bed.relay.hand_over(f"http://127.0.0.1:{at(own).port}")
    async with bed.session.get(bed.url + "/seen") as answer:
        assert (await answer.json())["by"] == "own"
        assert answer.headers["Connection"] == "close"


async def test_tls_ends_at_the_follower(bed: Bed, tmp_path: Path) -> None:
    context, _ = await asyncio.to_thread(own_certificate, tmp_path)
    secure = Bed(tmp_path)
    leader = ALeader(secure.tls)
    await leader.runner.setup()
    await web.TCPSite(leader.runner, "127.0.0.1", 0, ssl_context=context).start()
    await secure.follow()
    secure.follower._certificate = context
    port = leader.runner.addresses[0][1]
    secure.relay.lead_to(leader_at(f"https://127.0.0.1:{port}", "one"))
    there = secure.url.replace("http:", "https:") + "/seen"
    async with secure.session.get(there, ssl=False) as answer:
        seen = await answer.json()
    assert (seen["remote"], seen["scheme"], seen["by"]) == ("127.0.0.1", "https", "one")
    await secure.session.close()
    await secure.closing.aclose()
    await leader.runner.cleanup()


async def test_a_read_that_the_leader_does_not_begin_to_answer_in_time_is_given_up(
    bed: Bed,
) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    # A link that is kept, which needs no time.
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    late = []

    async def read(request: web.Request) -> web.StreamResponse:
        try:
            return await bed.follower.forwarder.forward(request, 0.0)
        except forwarder.LeaderLate:
            late.append(request.path)
            return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/wait", read)
    async with TestClient(TestServer(app)) as client, client.get("/wait") as answer:
        assert answer.status == 503
    assert late == ["/wait"]
    # The answer that comes later is nobody's.
    leader.goes_on.set()
    async with bed.session.get(bed.url + "/seen") as answer:
        assert (await answer.json())["by"] == "one"
