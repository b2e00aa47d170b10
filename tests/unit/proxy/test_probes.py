"""HTTP probes of replicas, with what each failure says."""

import pytest
from aiohttp import web

from controller.proxy import probes
from tests.doubles.proxy import NodeHere
from tests.support.replicas import a_server, an_app, says
from tests.support.ssh_daemon import free_port


async def result(port: int, url: str, method: str = "GET", body: str | None = None) -> str | None:
    connection = await NodeHere().connect("n")
    own = (("X-A", "b"),)
    return await probes.ask(connection, "/s", port, url=url, method=method, headers=own, body=body)


async def test_a_probe_sends_what_it_says_and_wants_a_2xx() -> None:
    seen: list[tuple[str, str, str, bytes]] = []

    async def check(request: web.Request) -> web.Response:
        asked = (request.method, request.path_qs, request.headers["X-A"], await request.read())
        seen.append(asked)
        return web.Response(status=204 if len(seen) == 1 else 503)

    async with an_app(check) as port:
        found = [await result(port, "/ready?deep=1", "POST", "{}") for _ in range(2)]
    assert seen == [("POST", "/ready?deep=1", "b", b"{}")] * 2
    assert found == [None, "POST /ready?deep=1 was answered with status 503"]


async def test_a_port_without_a_listener_is_named() -> None:
    gone = free_port()
    assert await result(gone, "/") == f"port {gone}: nothing listens on port {gone}"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "GET /: the replica closed the connection"),
        (b"hello\r\n\r\n", "GET /: the replica answered with bytes that are not HTTP/1.1"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
            "GET /: the replica closed the connection",
        ),
    ],
)
async def test_a_wrong_answer_fails_with_a_sentence(answer: bytes, message: str) -> None:
    async with a_server(says(answer)) as port:
        assert await result(port, "/") == message
