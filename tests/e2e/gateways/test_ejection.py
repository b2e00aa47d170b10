"""A replica that only fails gets no requests past the agent, for some time."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.support.gateway_here import GatewayHere, gateway_here
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e


class Replica:
    def __init__(self, status: bytes) -> None:
        self.status = status
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            writer.write(b"HTTP/1.1 %b X\r\nContent-Length: 0\r\n\r\n" % self.status)


async def ask(gateway: GatewayHere) -> bytes:
    reader, writer = await gateway.dial()
    with contextlib.closing(writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: api.apps.test\r\nConnection: close\r\n\r\n")
        return (await reader.read()).split(b" ", 2)[1]


async def test_it_is_left_out_and_comes_back_when_it_answers(tmp_path: Path) -> None:
    bad, good = Replica(b"500"), Replica(b"200")
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", bad.serve, good.serve, eject_for=5.0)

        async def is_left_out() -> bool:
            before = bad.asked
            statuses = [await ask(gateway) for _ in range(6)]
            return bad.asked == before and set(statuses) == {b"200"}

        async def is_back() -> bool:
            before = bad.asked
            await ask(gateway)
            return bad.asked > before

        left_out: bool = await eventually(is_left_out)
        bad.status = b"200"
        back: bool = await eventually(is_back)
        assert (left_out, back) == (True, True)
