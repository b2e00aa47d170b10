"""Which connections to a replica carry another request: none with bytes that nobody asked for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from common.proxy.forwarding import ProxyLimits
from tests.support.replicas import Serve, a_server
from tests.support.waiting import LONG, eventually
from tests.unit.proxy.bed import Bed, a_bed

SECRET = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
SOON = LONG


class Replica:
    """Answers each request with what the test plants for its path: bytes at once, and bytes that
    come when the test says so. `connections`: how many were opened; `heads`: what was asked."""

    def __init__(self) -> None:
        self.connections = 0
        self.heads: list[bytes] = []
        self.answers: dict[bytes, bytes] = {}
        self.later: dict[bytes, bytes] = {}
        self.go_on = asyncio.Event()
        self.has_gone_on = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            path = head.split(b" ")[1]
            writer.write(self.answers.get(path, FINE))
            if path in self.later:
                await self.go_on.wait()
                writer.write(self.later[path])
                self.has_gone_on.set()


@asynccontextmanager
async def a_replica() -> AsyncIterator[tuple[Bed, Replica]]:
    app = Replica()
    async with a_bed(ProxyLimits()) as bed, a_server(app.serve) as port:
        bed.serve(port)
        yield bed, app


async def ask(bed: Bed, method: str, path: str) -> tuple[int, bytes]:
    async with bed.client.request(method, f"/services/api{path}") as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", SECRET),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nsecret\r\n0\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\n" + SECRET),
        ("HEAD", b"HTTP/1.1 200 OK\r\n\r\n" + SECRET),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 43\r\n\r\n" + SECRET),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 43\r\n\r\n" + SECRET),
        ("GET", FINE + SECRET),
        ("GET", FINE + b"\r\n" + SECRET),
        ("GET", FINE + b"H"),
        ("POST", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECRET),
    ],
)
async def test_what_an_app_sends_beyond_its_answer_reaches_nobody(
    method: str, answer: bytes
) -> None:
    async with a_replica() as (bed, app):
        app.answers[b"/odd"] = answer
        await ask(bed, method, "/odd")
        assert await ask(bed, "GET", "/") == (200, b"fine")
    assert app.connections == 2


@pytest.mark.parametrize(
    ("method", "answer", "later"),
    [
        ("GET", FINE, SECRET),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", b"secret"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 43\r\n\r\n", SECRET),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: a\r\n\r\n", SECRET),
    ],
)
async def test_what_comes_while_a_connection_is_idle_ends_it(
    method: str, answer: bytes, later: bytes
) -> None:
    async with a_replica() as (bed, app):
        app.answers[b"/odd"], app.later[b"/odd"] = answer, later
        await ask(bed, method, "/odd")
        app.go_on.set()
        await app.has_gone_on.wait()
        assert await ask(bed, "GET", "/") == (200, b"fine")
    assert app.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        FINE,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nETag: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_a_connection_whose_answer_is_whole_is_used_again(answer: bytes) -> None:
    async with a_replica() as (bed, app):
        app.answers[b"/"] = answer
        for _ in range(3):
            await ask(bed, "GET", "/")
    assert app.connections == 1


def early(app: Replica) -> Serve:
    """Begins its answer before it has read the body, and ends it when the test says so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        app.connections += 1
        app.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(FINE[:-4])
        await app.go_on.wait()
        writer.write(FINE[-4:])
        while data := await reader.read(1 << 16):
            app.heads.append(data)

    return serve


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (b"Content-Length: 999999", b"half"),
        (b"Transfer-Encoding: chunked", b"4\r\nhalf\r\n"),
    ],
)
async def test_a_request_never_follows_the_half_sent_body_of_another(
    head: bytes, part: bytes
) -> None:
    app = Replica()
    async with a_bed(ProxyLimits()) as bed, a_server(early(app)) as port:
        bed.serve(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", bed.client.port)
        writer.write(b"POST /services/api/ HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b" % (head, part))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        for _ in range(9):  # the proxy hears of it
            await asyncio.sleep(0)
        app.go_on.set()
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)
        assert await ask(bed, "GET", "/after") == (200, b"fine")
    assert app.connections == 2
    assert app.heads[-1].startswith(b"GET /after ")
