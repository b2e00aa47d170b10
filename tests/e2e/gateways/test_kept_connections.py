"""HAProxy's kept connections to replicas: what an app sends beyond its answer reaches nobody."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.support.gateway_here import SOON, gateway_here

pytestmark = pytest.mark.e2e
SECRET = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"


class Replica:
    """Answers /odd with `odd`, and every other path with `fine`. Once its answer to /odd is there,
    it sends `later`, and waits until its connection is closed. `connections`: those that carried
    requests."""

    def __init__(self, odd: bytes, later: bytes) -> None:
        self.odd = odd
        self.later = later
        self.connections = 0
        self.go_on = asyncio.Event()
        self.was_closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        used = False
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.connections += not used
            used = True
            if b" /odd " not in head:
                writer.write(FINE[:-4] if head.startswith(b"HEAD ") else FINE)
                continue
            writer.write(self.odd)
            await self.go_on.wait()
            writer.write(self.later)
            await reader.read()
            self.was_closed.set()


async def ask(port: int, method: str, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        lines = f"{method} {path} HTTP/1.1\r\nHost: api.apps.test\r\nConnection: close\r\n\r\n"
        writer.write(lines.encode())
        return await reader.read()


@pytest.mark.parametrize(
    ("method", "odd", "later"),
    [
        ("HEAD", SECRET, b""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 50\r\n\r\n", SECRET),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", SECRET),
        ("GET", FINE + SECRET, b""),
        ("GET", FINE, SECRET),
    ],
)
async def test_what_an_app_sends_beyond_its_answer_reaches_nobody_past_the_agent(
    tmp_path: Path, method: str, odd: bytes, later: bytes
) -> None:
    replica = Replica(odd, later)
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", replica.serve)
        assert (await ask(gateway.http, method, "/odd")).startswith(b"HTTP/1.1 ")
        replica.go_on.set()
        async with asyncio.timeout(SOON):
            await replica.was_closed.wait()
        for _ in range(3):
            after = await ask(gateway.http, "GET", "/")
            assert after.endswith(b"fine")


async def test_head_ends_the_connection_to_the_replica_and_not_the_clients(tmp_path: Path) -> None:
    """The body of an app that breaks the rules may come after the next request was sent."""
    replica = Replica(b"", b"")
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", replica.serve)
        reader, writer = await gateway.dial()
        with contextlib.closing(writer):
            for method in (b"HEAD", b"GET"):
                writer.write(method + b" / HTTP/1.1\r\nHost: api.apps.test\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                assert b"close" not in head
            assert await reader.readexactly(4) == b"fine"
    assert replica.connections == 2
