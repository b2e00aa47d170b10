"""A machine that vanishes with data that it has not read: its connection ends in time, though the
kernel alone would repeat what was sent for a quarter of an hour."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.connections.keepalives import GONE_SECONDS
from fairlead.connections.vanished import end_when_vanished
from tests.support.daemons import inside, run
from tests.support.machines import Switch
from tests.support.waiting import LONG, eventually

_READER = """\
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    print(len(connection.recv(1)), flush=True)
    while sys.argv[3] == "reads" and connection.recv(1 << 20):
        pass
    sys.stdin.read()
"""
_PIECE = b"x" * (1 << 20)


@pytest.fixture
def cable() -> Iterator[tuple[Switch, str]]:
    """And the network of the machine at its first port."""
    switch = Switch()
    switch.build()
    namespace, _ = switch.connect(1)
    yield switch, namespace
    run(["ip", "netns", "delete", namespace])
    switch.remove()


@contextlib.asynccontextmanager
async def a_reader(switch: Switch, namespace: str, how: str) -> AsyncIterator[asyncio.StreamWriter]:
    """A process there that was sent its first byte; this end of its connection."""
    came: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    address = f"{switch.network}.254"
    server = await asyncio.start_server(lambda _, writer: came.set_result(writer), address, 0)
    port = server.sockets[0].getsockname()[1]
    argv = [*inside(namespace), sys.executable, "-c", _READER, address, str(port), how]
    process = await asyncio.create_subprocess_exec(
        *map(str, argv), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    writer = await came
    end_when_vanished(writer.transport)
    writer.write(b"x")
    assert process.stdout is not None
    assert process.stdin is not None
    await process.stdout.readline()
    yield writer
    process.kill()
    await process.wait()
    process.stdin.close()
    writer.transport.abort()
    server.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _flood(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while True:
            writer.write(_PIECE)
            await writer.drain()


@pytest.mark.parametrize("how", ["reads", "reads nothing"])
async def test_a_machine_that_vanishes_while_it_is_written_to_is_noticed(
    cable: tuple[Switch, str], how: str
) -> None:
    switch, namespace = cable
    async with a_reader(switch, namespace, how) as writer:
        flood = asyncio.create_task(_flood(writer))
        await eventually(lambda: writer.transport.get_write_buffer_size() > len(_PIECE) / 2)
        # Before: the command that cuts it may end late.
        began = time.monotonic()
        switch.cut(1)
        await asyncio.wait_for(flood, LONG)
        assert time.monotonic() - began >= GONE_SECONDS - 1


async def test_a_process_that_reads_nothing_is_left_alone(cable: tuple[Switch, str]) -> None:
    switch, namespace = cable
    async with a_reader(switch, namespace, "reads nothing") as writer:
        flood = asyncio.create_task(_flood(writer))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(flood), 2 * GONE_SECONDS + 1)
        switch.cut(1)
        await asyncio.wait_for(flood, LONG)
