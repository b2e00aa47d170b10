"""Requests through the proxy to real HTTP servers, and what replicas may do wrong."""

import asyncio
import io
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from common.proxy.forwarding import ProxyLimits
from tests.support.replicas import a_server, an_app, echo, says
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, eventually
from tests.unit.proxy.bed import SMALL, a_bed, as_user, replica

SOON = LONG


async def test_a_request_reaches_the_replica_with_its_path_query_headers_and_body() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        async with bed.client.post(
            "/services/api/a%2Fb/../c?x=%20y", data=b"hello", headers={"X-Own": "1"}
        ) as answer:
            seen = await answer.json()
    headers = dict(seen["headers"])
    assert (answer.status, seen["method"], seen["body"]) == (200, "POST", "hello")
    assert headers["x-own"] == "1"
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["x-forwarded-proto"] == "http"
    assert headers["x-forwarded-prefix"] == "/services/api"
    assert headers["content-length"] == "5"


@pytest.mark.parametrize(
    ("asked", "strip", "seen"),
    [
        ("/services/api/v1/x?q=1", True, "/v1/x?q=1"),
        ("/services/api/?q", True, "/?q"),
        ("/services/api/v1/x?q=1", False, "/services/api/v1/x?q=1"),
        ("/services/api//x", True, "//x"),
    ],
)
async def test_the_prefix_is_stripped_unless_the_service_wants_it(
    asked: str, strip: bool, seen: str
) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, strip_prefix=strip)
        async with bed.client.get(asked) as answer:
            assert (await answer.json())["path"] == seen


async def test_a_service_without_a_slash_leads_to_the_one_with_it() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        async with bed.client.get("/services/api?a=1", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (308, "/services/api/?a=1")


async def test_a_service_answers_at_its_host_name() -> None:
    async with a_bed(domain="svc.example") as bed, an_app(echo) as port:
        bed.serve(port)
        async with bed.client.get("/v1/runs", headers={"Host": "api.svc.example:8700"}) as answer:
            seen = await answer.json()
        async with bed.client.get("/v1/runs", headers={"Host": "svc.example"}) as other:
            assert other.status == 404
    assert seen["path"] == "/v1/runs"
    assert "x-forwarded-prefix" not in dict(seen["headers"])


async def test_with_a_domain_a_service_answers_there_alone() -> None:
    async with a_bed(domain="svc.example") as bed, an_app(echo) as port:
        bed.serve(port)
        for name in ("api", "none"):
            seen = {"Host": "fair.example:8700", "Accept": "text/html"}
            path = f"/services/{name}/a?b=c"
            async with bed.client.get(path, headers=seen, allow_redirects=False) as answer:
                there = f"http://{name}.svc.example:8700/services/{name}/a?b=c"
                assert (answer.status, answer.headers["Location"]) == (307, there)
            async with bed.client.get(path, headers={"Host": "fair.example"}) as answer:
                assert (answer.status, f"{name}.svc.example" in await answer.text()) == (404, True)
        async with bed.client.get("/", headers={"Host": "api.localhost"}) as answer:
            assert answer.status == 404


async def test_a_person_on_this_machine_is_led_to_an_origin_of_the_services_own() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        here = f"{bed.client.host}:{bed.client.port}"
        seen = {"Accept": "text/html", "Host": here}
        async with bed.client.get("/services/api/x", headers=seen, allow_redirects=False) as answer:
            there = f"http://api.localhost:{bed.client.port}/services/api/x"
            assert (answer.status, answer.headers["Location"]) == (307, there)
        seen["Host"] = f"api.localhost:{bed.client.port}"
        async with bed.client.get("/services/api/x", headers=seen, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (307, "/x")
        async with bed.client.get("/x", headers=seen) as answer:
            assert (await answer.json())["path"] == "/x"


async def test_a_service_that_knows_its_prefix_keeps_it_at_its_own_host() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, strip_prefix=False)
        seen = {"Accept": "text/html", "Host": "api.localhost"}
        async with bed.client.get("/?a=1", headers=seen, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (307, "/services/api/?a=1")
        async with bed.client.get("/services/api/x", headers=seen) as answer:
            assert (await answer.json())["path"] == "/services/api/x"


@pytest.mark.parametrize("path", ["/services/api/", "/models/v1/chat/completions"])
async def test_on_the_dashboards_origin_an_answer_is_a_document_that_can_do_nothing(
    path: str,
) -> None:
    async def hostile(_: web.Request) -> web.Response:
        return web.Response(
            text="<script>alert(1)</script>",
            content_type="text/html",
            headers={
                "NEL": '{"report_to": "x", "max_age": 99}',
                "Report-To": "{}",
                "Clear-Site-Data": '"cookies"',
                "X-Accel-Redirect": "/etc/passwd",
                "Set-Cookie": "__Host-fairlead-dashboard=x; Path=/; Secure",
                "Content-Security-Policy": "default-src *",
                "X-Request-Id": "7",
            },
        )

    async with a_bed() as bed, an_app(hostile) as port:
        bed.serve(port, model="m")
        far = {"Accept": "text/html", "Host": "fair.example"}
        async with bed.client.post(path, json={"model": "m"}, headers=far) as answer:
            policies = answer.headers.getall("Content-Security-Policy")
            names = {name.lower() for name in answer.headers} - {"date", "server"}
    assert policies == ["default-src *", "sandbox allow-downloads"]
    kept = {"content-type", "content-length", "content-security-policy", "x-request-id"}
    assert names == kept


async def test_a_service_worker_needs_an_origin_of_the_service_alone() -> None:
    worker = {"Service-Worker": "script"}
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        async with bed.client.get("/services/api/sw.js", headers=worker) as refused:
            assert (refused.status, "--service-domain" in await refused.text()) == (403, True)
        own = {**worker, "Host": "api.localhost:8700"}
        async with bed.client.get("/sw.js", headers=own) as answer:
            assert answer.status == 200


async def test_only_at_its_host_name_a_service_widens_the_scope_of_its_worker() -> None:
    async def worker(_: web.Request) -> web.Response:
        return web.Response(headers={"Service-Worker-Allowed": "/"})

    async with a_bed() as bed, an_app(worker) as port:
        bed.serve(port)
        async with bed.client.get("/services/api/sw.js") as below:
            assert "Service-Worker-Allowed" not in below.headers
        async with bed.client.get("/sw.js", headers={"Host": "api.localhost"}) as own:
            assert own.headers["Service-Worker-Allowed"] == "/"


async def test_a_connection_to_the_replica_is_used_again() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        for _ in range(5):
            async with bed.client.post("/services/api/", data=b"x" * 1000) as answer:
                assert answer.status == 200
    assert bed.node.opened == [port]


async def test_a_large_body_is_streamed_both_ways_with_and_without_a_length() -> None:
    async def back(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for data in request.content.iter_any():
            await response.write(data)
        return response

    async def pieces() -> Any:
        for _ in range(20):
            yield b"y" * 50_000

    async with a_bed() as bed, an_app(back) as port:
        bed.serve(port)
        async with bed.client.post("/services/api/", data=b"x" * 900_000) as answer:
            assert await answer.read() == b"x" * 900_000
        async with bed.client.post("/services/api/", data=pieces()) as answer:
            assert await answer.read() == b"y" * 1_000_000


async def test_server_sent_events_come_one_by_one() -> None:
    go_on = asyncio.Event()

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go_on.wait()
        await response.write(b"data: 2\n\n")
        return response

    async with a_bed() as bed, an_app(events) as port:
        bed.serve(port)
        async with bed.client.get("/services/api/") as answer, asyncio.timeout(SOON):
            assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
            go_on.set()
            assert await answer.content.read() == b"data: 2\n\n"


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body_end(method: str, status: int) -> None:
    async def nothing(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"ETag": '"a"'})

    async with a_bed() as bed, an_app(nothing) as port:
        bed.serve(port)
        for _ in range(2):
            async with bed.client.request(method, "/services/api/") as answer:
                assert (answer.status, await answer.read()) == (status, b"")
                assert answer.headers["ETag"] == '"a"'
    assert bed.node.opened == [port]


async def test_the_answer_to_head_has_the_length_and_no_body() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 700)

    async with a_bed() as bed, an_app(page) as port:
        bed.serve(port)
        for _ in range(2):
            async with bed.client.head("/services/api/") as answer:
                assert (answer.headers["Content-Length"], await answer.read()) == ("700", b"")


async def test_nothing_is_added_to_the_headers_of_an_answer() -> None:
    bare = b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nX-A: 1\r\nX-A: 2\r\n\r\nok"
    async with a_bed() as bed, a_server(says(bare)) as port:
        bed.serve(port)
        async with bed.client.get("/", headers={"Host": "api.localhost"}) as answer:
            names = [name for name, _ in answer.headers.items() if name != "Date"]
            assert (answer.reason, await answer.read()) == ("Fine", b"ok")
    assert names == ["Content-Length", "X-A", "X-A"]


async def test_an_interim_answer_is_not_taken_for_the_answer() -> None:
    both = (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    )
    async with a_bed() as bed, a_server(says(both)) as port:
        bed.serve(port)
        async with bed.client.get("/services/api/") as answer:
            assert (answer.status, await answer.read()) == (200, b"ok")
            assert "Link" not in answer.headers


async def test_requests_go_to_the_replica_with_the_fewest() -> None:
    go_on = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await go_on.wait()
        return web.Response(text="slow")

    async def quick(request: web.Request) -> web.Response:
        return web.Response(text="quick")

    async with a_bed() as bed, an_app(slow) as first, an_app(quick) as second:
        bed.serve(first)
        waiting = asyncio.create_task(bed.client.get("/services/api/"))
        await eventually(lambda: bed.proxy.replicas.in_flight(f"at-{first}"), SOON)
        bed.services.put_replicas("api", replica(first), replica(second))
        for _ in range(3):
            async with bed.client.get("/services/api/") as answer:
                assert await answer.text() == "quick"
        go_on.set()
        assert await (await waiting).text() == "slow"


# -- replicas that are gone ---------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_replica_that_is_not_there_costs_no_request(method: str) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(free_port(), port)
        for _ in range(4):
            async with bed.client.request(method, "/services/api/", data=b"x") as answer:
                assert answer.status == 200
    assert bed.node.opened.count(port) == 1


async def test_a_repeatable_request_moves_on_when_a_replica_dies_before_its_answer() -> None:
    async with a_bed() as bed, a_server(says(b"")) as dead, an_app(echo) as port:
        bed.serve(dead, port)
        for _ in range(3):
            async with bed.client.put("/services/api/", data=b"x") as answer:
                assert (answer.status, (await answer.json())["body"]) == (200, "x")


async def test_a_request_that_may_not_be_repeated_is_not() -> None:
    async with a_bed() as bed, a_server(says(b"")) as dead, an_app(echo) as port:
        bed.serve(dead, port)
        async with bed.client.post("/services/api/", data=b"x") as answer:
            assert answer.status == 502
            assert "closed the connection" in (await answer.json())["error"]["message"]
    assert bed.node.opened == [dead]


async def test_without_a_reachable_replica_the_answer_is_502_and_says_why() -> None:
    async with a_bed() as bed:
        port = free_port()
        bed.serve(port)
        async with bed.client.get("/services/api/") as answer:
            error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (502, "replica_failed")
    assert f"nothing listens on port {port}" in error["message"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
        b"\x00" * 100,
    ],
)
async def test_garbage_from_a_replica_is_a_502(garbage: bytes) -> None:
    async with a_bed() as bed, a_server(says(garbage)) as port:
        bed.serve(port)
        async with bed.client.get("/services/api/") as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "replica_failed"


@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
async def test_an_answer_that_breaks_off_breaks_off_for_the_client(part: bytes) -> None:
    async with a_bed() as bed, a_server(says(part)) as port:
        bed.serve(port)
        with pytest.raises(aiohttp.ClientPayloadError):
            async with bed.client.get("/services/api/") as answer:
                await answer.read()
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)
    assert [failed for _, failed, _ in bed.traffic.ended] == [True]


async def test_an_answer_that_ends_with_the_connection_is_whole() -> None:
    async with a_bed() as bed, a_server(says(b"HTTP/1.0 200 OK\r\n\r\nall of it")) as port:
        bed.serve(port)
        async with bed.client.get("/services/api/") as answer:
            assert await answer.read() == b"all of it"


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_while_a_replica_hangs_the_others_answer() -> None:
    async with a_bed() as bed, a_server(hang) as port, an_app(echo) as other:
        bed.serve(port)
        waiting = asyncio.create_task(bed.client.get("/services/api/"))
        await eventually(bed.traffic.in_flight.total, SOON)
        bed.services.put_replicas("api", replica(port), replica(other))
        async with bed.client.get("/services/api/") as answer:
            assert answer.status == 200
        assert not waiting.done()
        waiting.cancel()
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)


async def test_a_replica_that_hangs_gives_504() -> None:
    limits = ProxyLimits(answer_seconds=0.05)
    async with a_bed(limits) as bed, a_server(hang) as port:
        bed.serve(port)
        async with bed.client.get("/services/api/") as answer:
            assert answer.status == 504
            assert "gave no answer in 0.05 s" in (await answer.json())["error"]["message"]


async def test_a_client_that_hangs_up_ends_the_request_to_the_replica() -> None:
    ended = asyncio.Event()

    async def think(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read()
        ended.set()

    limits = ProxyLimits(answer_seconds=60.0)
    async with a_bed(limits) as bed, a_server(think) as port:
        bed.serve(port)
        _, writer = await asyncio.open_connection("127.0.0.1", bed.client.port)
        writer.write(b"GET /services/api/ HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(bed.traffic.in_flight.total, SOON)
        writer.close()
        async with asyncio.timeout(SOON):
            await ended.wait()
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)
    assert [failed for _, failed, _ in bed.traffic.ended] == [False]


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /services/api/ HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\nhalf",
        b"GET /services/api/ HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_client_that_leaves_in_the_middle_is_no_failure_of_ours(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if sent.startswith(b"POST"):
            await reader.read()
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async with a_bed(ProxyLimits()) as bed, a_server(pour) as port:
        bed.serve(port)
        _, writer = await asyncio.open_connection("127.0.0.1", bed.client.port)
        writer.write(sent)
        await eventually(bed.traffic.in_flight.total, SOON)
        writer.transport.abort()
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)
        async with bed.client.get("/services/none/", headers=as_user("ada")) as answer:
            assert answer.status == 404
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_body_that_grows_too_large_ends_an_answer_that_has_begun() -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b"y" * 50_000

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await reader.read()

    async with a_bed() as bed, a_server(early) as port:
        bed.serve(port)

        async def upload() -> None:
            async with bed.client.post("/services/api/", data=pieces()) as answer:
                answer.raise_for_status()
                await answer.read()

        with pytest.raises(aiohttp.ClientError):
            await upload()
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)


async def test_a_body_that_is_too_large_is_refused_with_and_without_a_length() -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b"y" * 50_000

    large = io.BytesIO(b"x" * (SMALL.most_body + 1))
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        async with bed.client.post("/services/api/", data=large) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (413, "too_large")
        async with bed.client.post("/services/api/", data=pieces()) as answer:
            assert answer.status == 413


async def test_a_slow_client_costs_little_memory_and_slows_its_replica() -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    async with a_bed() as bed, a_server(pour) as port:
        bed.serve(port)
        client = socket.create_connection(("127.0.0.1", bed.client.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        with client:
            client.sendall(b"GET /services/api/ HTTP/1.1\r\nHost: x\r\n\r\n")
            await eventually(lambda: sent, SOON)
            before = -1
            while before != sent:
                before = sent
                await asyncio.wait([asyncio.create_task(asyncio.sleep(0.3))])
        assert 0 < sent < 16 << 20
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)


# -- sleeping services --------------------------------------------------------------------------


async def test_a_request_to_a_sleeping_service_is_held_until_a_replica_is_ready() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(is_held=True)
        waiting = asyncio.create_task(bed.client.post("/services/api/", data=b"x"))
        await eventually(lambda: bed.services.woken, SOON)
        bed.services.put_replicas("api", replica(port))
        async with await waiting as answer:
            assert (answer.status, (await answer.json())["body"]) == (200, "x")
    assert bed.traffic.ended == [(None, False, False), (f"at-{port}", False, False)]


async def test_a_request_waits_for_the_node_of_a_replica_that_was_ready() -> None:
    async with a_bed(ProxyLimits(hold_seconds=0)) as bed, an_app(echo) as port:
        bed.serve(reconnects=True)
        waiting = asyncio.create_task(bed.client.get("/services/api/"))
        await eventually(lambda: bed.services.woken, SOON)
        bed.services.put_replicas("api", replica(port))
        async with await waiting as answer:
            assert answer.status == 200


async def test_all_requests_wait_for_the_node_of_a_replica_that_was_ready() -> None:
    """Not as few as may wake a service: they come as fast as they came before."""
    async with a_bed(ProxyLimits(max_held=0, max_reconnecting=2)) as bed, an_app(echo) as port:
        bed.serve(reconnects=True)
        waiting = [asyncio.create_task(bed.client.get("/services/api/")) for _ in range(2)]
        await eventually(lambda: len(bed.services.woken) == 2, SOON)
        async with bed.client.get("/services/api/") as answer:
            assert answer.status == 503
            assert "not reached yet, and 2 requests wait" in await answer.text()
        bed.services.put_replicas("api", replica(port))
        for one in waiting:
            async with await one as answer:
                assert answer.status == 200


async def test_a_node_that_stays_away_holds_requests_for_a_moment_only() -> None:
    async with a_bed(ProxyLimits(reconnect_seconds=0.1)) as bed:
        bed.serve(reconnects=True)
        async with bed.client.get("/services/api/") as answer:
            assert answer.status == 503
            assert "was ready within 0.1 s" in await answer.text()


async def test_only_so_many_requests_are_held() -> None:
    async with a_bed(ProxyLimits(hold_seconds=LONG, max_held=1)) as bed, an_app(echo) as port:
        bed.serve(is_held=True)
        waiting = asyncio.create_task(bed.client.get("/services/api/"))
        await eventually(lambda: bed.services.woken, SOON)
        async with bed.client.get("/services/api/") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
            assert "1 requests wait" in (await answer.json())["error"]["message"]
        bed.services.put_replicas("api", replica(port))
        async with await waiting as answer:
            assert answer.status == 200


async def test_a_request_is_held_only_for_so_long() -> None:
    async with a_bed(ProxyLimits(hold_seconds=0.05)) as bed:
        bed.serve(is_held=True)
        async with bed.client.get("/services/api/") as answer:
            assert answer.status == 503
            assert "within 0.05 s" in (await answer.json())["error"]["message"]


async def test_what_waits_for_a_replica_is_left_to_another_controller_when_this_one_ends() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(is_held=True)
        waiting = asyncio.create_task(bed.client.post("/services/api/", data=b"x"))
        await eventually(lambda: bed.services.woken, SOON)
        bed.proxy.leave()
        late = bed.client.post("/services/api/", data=b"x")
        for one in (await waiting, await late):
            assert (one.status, one.headers["Retry-After"]) == (503, "1")
            assert (await one.json())["error"]["code"] == "leads_no_more"
        # Whatever has a replica still gets its answer.
        bed.services.put_replicas("api", replica(port))
        async with bed.client.post("/services/api/", data=b"x") as answer:
            assert answer.status == 200


async def test_a_held_request_ends_with_its_service() -> None:
    async with a_bed() as bed:
        bed.serve(is_held=True)
        waiting = asyncio.create_task(bed.client.get("/services/api/"))
        await eventually(lambda: bed.services.woken, SOON)
        bed.services.remove("api")
        async with await waiting as answer:
            assert answer.status == 404


async def test_a_service_without_replicas_that_does_not_sleep_is_unavailable_at_once() -> None:
    async with a_bed() as bed:
        bed.serve()
        async with bed.client.get("/services/api/") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "no_replica")


# -- draining -----------------------------------------------------------------------------------


async def test_a_replica_out_of_traffic_gets_no_request_and_ends_its_last_one() -> None:
    go_on = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await go_on.wait()
        return web.Response(text="slow")

    async with a_bed() as bed, an_app(slow) as old, an_app(echo) as new:
        bed.serve(old)
        waiting = asyncio.create_task(bed.client.get("/services/api/"))
        await eventually(lambda: bed.traffic.in_flight[f"at-{old}"], SOON)
        bed.services.put_replicas("api", replica(new))
        for _ in range(3):
            async with bed.client.get("/services/api/") as answer:
                assert (await answer.json())["method"] == "GET"
        assert bed.traffic.in_flight[f"at-{old}"] == 1
        go_on.set()
        assert await (await waiting).text() == "slow"
        assert bed.traffic.in_flight.total() == 0
