"""Connections that are lost together do not wake everybody at once."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec
import pytest

from controller.links.base import NodeConnection, NodeLink
from controller.links.clients import LocalLink
from controller.links.losses import MOST_IN_A_ROUND, Pace
from controller.links.ssh import SshLink
from shim.client import ShimUnavailable
from shim.schemas import Event, EventType
from tests.support.waiting import eventually
from tests.unit.links.sshd import CLIENT_KEY, sshd

STREAMS = 5 * MOST_IN_A_ROUND


class Rounds:
    """Counts those of the loop."""

    def __init__(self) -> None:
        self.now = 0
        self._count()

    def _count(self) -> None:
        self.now += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> None:
        self._next.cancel()


async def test_few_calls_are_made_at_once_the_others_some_in_each_round_in_their_order() -> None:
    pace = Pace(most=2)
    made: list[int] = []
    for number in range(5):
        pace.call(partial(made.append, number))
    seen = [list(made)]
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append(list(made))
    assert seen == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


async def test_after_a_round_of_rest_calls_are_made_at_once_again() -> None:
    pace = Pace(most=1)
    made: list[str] = []
    pace.call(lambda: made.append("first"))
    await asyncio.sleep(0)
    pace.call(lambda: made.append("second"))
    assert made == ["first", "second"]


async def _begin_stream(writer: asyncio.StreamWriter) -> None:
    line = msgspec.json.encode(Event(cursor="e.1", type=EventType.HEARTBEAT)) + b"\n"
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"%x\r\n%b\r\n" % (len(line), line))
    await writer.drain()


class Shims:
    """What listens at `path` begins a stream of events for whoever connects."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._writers: list[asyncio.StreamWriter] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        await _begin_stream(writer)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def shims() -> AsyncIterator[Shims]:
    with tempfile.TemporaryDirectory(prefix="fl") as folder:
        them = Shims(f"{folder}/shim.sock")
        async with await asyncio.start_unix_server(them.answer, them.path):
            yield them
            them.cut()


@contextlib.asynccontextmanager
async def reached(kind: str, them: Shims) -> AsyncIterator[tuple[NodeLink, Callable[[], None]]]:
    """A link to them, and what cuts all that leads there."""
    if kind == "local":
        yield LocalLink(them.path), them.cut
        return
    async with sshd() as server:
        yield SshLink(server.address(them.path), CLIENT_KEY), server.cut


@pytest.mark.parametrize("kind", ["ssh", "local"])
async def test_streams_that_break_together_are_told_so_some_in_each_round(kind: str) -> None:
    woken: list[int] = []
    reading = 0
    rounds: Rounds

    async def read(connection: NodeConnection) -> None:
        nonlocal reading
        async with contextlib.aclosing(connection.shim.events()) as events:
            await anext(events)
            reading += 1
            with pytest.raises(ShimUnavailable):
                await anext(events)
        woken.append(rounds.now)

    async with shims() as them, reached(kind, them) as (link, cut):
        connection = await link.connect()
        tasks = [asyncio.create_task(read(connection)) for _ in range(STREAMS)]
        await eventually(lambda: reading == STREAMS)
        rounds = Rounds()
        cut()
        await asyncio.gather(*tasks)
        rounds.stop()
        await connection.close()
    assert max(Counter(woken).values()) <= MOST_IN_A_ROUND
