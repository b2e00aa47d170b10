"""How connections to a replica are opened: a burst waits for its turn, and fails with its node."""

from __future__ import annotations

import asyncio

import pytest

from common.proxy import upstream
from common.proxy.replicas import MAX_OPENING, Replicas, Unreachable
from common.proxy.upstream import ReplicaConnection
from common.proxy.view import Replica
from common.streams import PortStream
from fairlead.wire.errors import AgentUnavailable
from tests.support.replicas import a_server
from tests.support.waiting import eventually
from tests.unit.proxy.bed import replica

BURST = MAX_OPENING + 20


class Node:
    """Opens connections to a server when the test says so."""

    def __init__(self, port: int) -> None:
        self.opening = self.most = self.asked = 0
        self.answers = asyncio.Event()
        self._port = port

    async def connect(self, _replica: Replica) -> PortStream:
        self.asked += 1
        self.opening += 1
        self.most = max(self.most, self.opening)
        try:
            await self.answers.wait()
            return PortStream(*await asyncio.open_connection("127.0.0.1", self._port))
        finally:
            self.opening -= 1


async def fine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


async def test_a_burst_opens_a_bounded_number_of_connections_at_once() -> None:
    async with a_server(fine) as port:
        node = Node(port)
        replicas = Replicas(node.connect)
        opens = [asyncio.create_task(replicas.open(replica(port))) for _ in range(BURST)]
        await eventually(lambda: node.opening == MAX_OPENING)
        node.answers.set()
        for connection in await asyncio.gather(*opens):
            connection.close()
        assert (node.most, node.asked) == (MAX_OPENING, BURST)


async def test_a_request_that_waits_for_its_turn_takes_a_connection_that_came_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "IDLE_SECONDS", 600.0)  # it is kept, however slow the test is
    async with a_server(fine) as port:
        node, where = Node(port), replica(port)
        replicas = Replicas(node.connect)
        opens = [asyncio.create_task(replicas.open(where)) for _ in range(MAX_OPENING)]
        await eventually(lambda: node.opening == MAX_OPENING)
        late = asyncio.create_task(replicas.open(where))
        kept = await used(PortStream(*await asyncio.open_connection("127.0.0.1", port)))
        replicas.give_back(where, kept)
        node.answers.set()
        for connection in await asyncio.gather(*opens):
            connection.close()
        assert await late is kept
        assert kept.served
        kept.close()
        replicas.close()


async def used(stream: PortStream) -> ReplicaConnection:
    connection = ReplicaConnection(stream)
    await connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await connection.answer("GET")
    return connection


async def test_a_burst_at_a_silent_node_waits_for_it_once() -> None:
    node = Node(1)
    replicas = Replicas(node.connect, connect_seconds=0.01)
    opens = [replicas.open(replica(1)) for _ in range(BURST)]
    found = await asyncio.gather(*opens, return_exceptions=True)
    assert {str(one) for one in found} == {"its node did not answer within 0.01 s"}
    assert node.asked == MAX_OPENING
    replicas.close()


async def test_a_refused_connection_fails_no_other_request_of_the_burst() -> None:
    async with a_server(fine) as port:
        node, refused = Node(port), iter([True])
        node.answers.set()

        async def connect(where: Replica) -> PortStream:
            if next(refused, False):
                raise AgentUnavailable("no")
            return await node.connect(where)

        replicas = Replicas(connect)
        opens = [replicas.open(replica(port)) for _ in range(BURST)]
        found = await asyncio.gather(*opens, return_exceptions=True)
        failed = [one for one in found if isinstance(one, BaseException)]
        assert [type(one) for one in failed] == [Unreachable]
        for one in found:
            if isinstance(one, ReplicaConnection):
                one.close()
        replicas.close()
