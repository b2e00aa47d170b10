"""Sessions begin and end with their nodes, and whoever needs a node waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from controller.lifecycle.model import Node, NodeStatus
from controller.links.base import NodeConnection, NodeLink
from controller.nodes.manager import NodeManager
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from fairlead.wire.shim import TaskInfo
from tests.doubles.clock import ManualClock
from tests.doubles.memory_store import MemoryStore
from tests.doubles.node import HEALTH, FakeConnection
from tests.support.waiting import LONG, eventually
from tests.unit.pipelines.parts import Ids, a_node, steady_chance


class OneLinkEach:
    def __init__(self) -> None:
        self.connections: dict[str, FakeConnection] = {}

    def link_to(self, node: Node) -> NodeLink:
        return _Link(self, node.id)


class _Link:
    def __init__(self, links: OneLinkEach, node_id: str) -> None:
        self._links = links
        self._node_id = node_id

    async def connect(self) -> NodeConnection:
        connection = self._links.connections[self._node_id] = FakeConnection()
        connection.shim.says = msgspec.structs.replace(HEALTH, install_id=self._node_id)
        return connection


class Deaf:
    def connected(self, node_id: str) -> None: ...
    def task_seen(self, node_id: str, info: TaskInfo) -> None: ...
    async def stray_task(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> bool:
        raise AssertionError("there is no task")

    async def idle_allocations(self, node_id: str, connection: NodeConnection) -> None:
        assert not await connection.shim.allocations()


@contextlib.asynccontextmanager
async def supervised(*nodes: Node) -> AsyncIterator[tuple[RunPipeline, NodeManager, OneLinkEach]]:
    store, links = MemoryStore(), OneLinkEach()
    await store.open()
    pipeline = RunPipeline(store, ManualClock(), steady_chance(), JobSubmittedPipeline(Ids()))
    pipeline.restore((), nodes)
    supervisor = NodeManager(pipeline, links.link_to, ManualClock(), steady_chance())
    tasks = [asyncio.create_task(pipeline.run()), asyncio.create_task(supervisor.run(Deaf()))]
    try:
        yield pipeline, supervisor, links
    finally:
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_every_known_node_is_connected_to() -> None:
    async with supervised(a_node("n1"), a_node("n2")) as (pipeline, nodes, links):
        assert await nodes.connection("n1") is links.connections["n1"]
        assert await nodes.connection("n2") is links.connections["n2"]
        assert {node.status for node in pipeline.nodes.values()} == {NodeStatus.CONNECTED}


async def test_a_job_for_a_node_that_is_still_to_come_waits_for_it() -> None:
    async with supervised() as (pipeline, nodes, links):
        waiting = asyncio.create_task(nodes.connection("n1"))
        await pipeline.save_node(a_node("n1"), "n1")
        assert await asyncio.wait_for(waiting, LONG) is links.connections["n1"]


async def test_a_removed_nodes_connection_is_closed() -> None:
    async with supervised(a_node("n1")) as (pipeline, nodes, links):
        await nodes.connection("n1")
        await pipeline.save_node(None, "n1")
        await eventually(links.connections["n1"].closed.is_set)
        assert pipeline.nodes == {}


async def test_stopping_closes_every_connection() -> None:
    async with supervised(a_node("n1"), a_node("n2")) as (_, nodes, links):
        await nodes.connection("n1")
        await nodes.connection("n2")
    assert all(connection.closed.is_set() for connection in links.connections.values())


async def test_a_node_that_was_connected_in_the_last_life_begins_as_connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(self: _Link) -> NodeConnection:
        await asyncio.Event().wait()
        raise AssertionError("never")

    monkeypatch.setattr(_Link, "connect", never)
    async with supervised(a_node("n1", status=NodeStatus.CONNECTED)) as (pipeline, _, _links):
        await eventually(lambda: pipeline.nodes["n1"].status is NodeStatus.CONNECTING)
        await pipeline.settled()
        assert pipeline.nodes["n1"].status is NodeStatus.CONNECTING


async def test_an_expected_node_is_connected_to_when_it_has_come() -> None:
    expected = a_node("n1", status=NodeStatus.EXPECTED)
    async with supervised(expected, a_node("n2")) as (pipeline, nodes, links):
        await nodes.connection("n2")
        assert "n1" not in links.connections
        await pipeline.save_node(a_node("n1"), "n1")
        assert await asyncio.wait_for(nodes.connection("n1"), LONG) is links.connections["n1"]


async def test_the_node_that_has_a_shim_is_known_as_nodes_come_change_and_go() -> None:
    first = a_node("n1", install_id="one", status=NodeStatus.CONNECTED)
    async with supervised(first, a_node("n2")) as (pipeline, _, _links):
        await pipeline.settled()

        def holder(besides: str) -> str | None:
            found = pipeline.node_with_shim("one", besides=besides)
            return None if found is None else found.id

        assert (holder("n2"), holder("n1")) == ("n1", None)
        pipeline.set_node(a_node("n2", install_id="one"), "n2")
        assert holder("n1") == "n2"
        pipeline.set_node(msgspec.structs.replace(pipeline.nodes["n1"], install_id="new"), "n1")
        assert holder("n2") is None
        pipeline.set_node(None, "n2")
        assert holder("n3") is None
