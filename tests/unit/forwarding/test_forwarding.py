"""A follower passes requests on to the leader, and answers back, as they came."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from common.proxy.headers import CLIENT
from controller.forwarding import forwarder
from controller.forwarding.follower_links import (
    ONLY_FIND,
)
from controller.relay import leader_at
from controller.tls import own_certificate
from controller.web.assets import Assets
from fairlead.connections.keepalives import GONE_SECONDS
from tests.unit.forwarding.passing import BIG, ALeader, Bed, abort, at


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


async def test_an_answer_that_is_cut_is_cut_for_the_client_too(bed: Bed) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    async with bed.session.get(bed.url + "/log") as answer:
        assert await answer.content.read(5) == b"first"
        abort(leader)
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
