"""Many requests at once: they wait in HAProxy for a replica, and none is lost."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.support.gateway_here import GatewayHere, gateway_here
from tests.support.waiting import LONG, eventually

pytestmark = pytest.mark.e2e
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
MANY = 500
SOON = LONG


class Replica:
    """Answers when it is told to. `most`: the most requests that it had at once."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.now = self.most = self.all = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            self.now, self.all = self.now + 1, self.all + 1
            self.most = max(self.most, self.now)
            await self.go_on.wait()
            self.now -= 1
            writer.write(FINE)


async def ask(gateway: GatewayHere) -> bytes:
    reader, writer = await gateway.dial()
    with contextlib.closing(writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: api.apps.test\r\nConnection: close\r\n\r\n")
        return (await reader.read()).split(b" ", 2)[1]


async def test_a_burst_waits_for_its_replica_and_none_of_it_is_lost(tmp_path: Path) -> None:
    replica = Replica()
    replica.go_on.set()
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", replica.serve)
        async with asyncio.timeout(SOON):
            statuses = await asyncio.gather(*(ask(gateway) for _ in range(MANY)))
        assert set(statuses) == {b"200"}
        assert await gateway.past_the_agent() == MANY


async def test_slow_requests_do_not_wait_for_each_other(tmp_path: Path) -> None:
    replica = Replica()
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", replica.serve)
        asking = [asyncio.create_task(ask(gateway)) for _ in range(MANY)]
        await eventually(lambda: replica.now == MANY, SOON)
        replica.go_on.set()
        async with asyncio.timeout(SOON):
            assert set(await asyncio.gather(*asking)) == {b"200"}
