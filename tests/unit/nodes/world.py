"""A node's session with a link and a shim that misbehave, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from controller.clock import Chance
from controller.lifecycle import reports
from controller.lifecycle.inventory import DEFAULT_NODE_FAILURE, NodeFailure
from controller.lifecycle.model import Node, NodeStatus, RunState
from controller.links.base import NodeConnection
from controller.nodes.images import NodeImages
from controller.nodes.session import Handshakes, NodeSession, Settings
from controller.nodes.strays import StrayTasks
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext
from controller.scheduling.scheduler import JobSubmittedPipeline
from fairlead.wire.node import AllocationInfo
from fairlead.wire.shim import Event, EventType, Fence, Health, TaskInfo
from shim.client import ShimUnavailable
from tests.doubles.clock import ManualClock
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.doubles.node import FakeLink, FakeShim
from tests.doubles.secrets import GivenSecrets
from tests.support.waiting import eventually
from tests.unit.pipelines.parts import Ids, a_node, steady_chance

R = TypeVar("R")
FENCE = Fence(1, 1)


class Listener:
    def __init__(self, strays: StrayTasks) -> None:
        self._strays = strays
        self.connections = 0
        self.seen: list[TaskInfo] = []
        self.strays: list[str] = []

    def connected(self, node_id: str) -> None:
        self.connections += 1

    def task_seen(self, node_id: str, info: TaskInfo) -> None:
        self.seen.append(info)

    async def stray_task(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> bool:
        self.strays.append(info.id)
        return await self._strays.settle(node_id, connection, info)

    async def idle_allocations(self, node_id: str, connection: NodeConnection) -> None:
        await self._strays.release_idle(connection)


class NotingPipeline(RunPipeline):
    """Decides like the real ones, and notes what was posted."""

    posted: list[reports.Report]

    def post(self, report: reports.Report) -> None:
        self.posted.append(report)
        super().post(report)

    def count(self, kind: type[R]) -> list[R]:
        return [report for report in self.posted if isinstance(report, kind)]


class World:
    def __init__(
        self,
        database: MemoryDatabase,
        node: Node,
        *states: RunState,
        restored: bool = False,
        failure: NodeFailure = DEFAULT_NODE_FAILURE,
    ) -> None:
        self.database = database
        self.clock = ManualClock()
        self.link = FakeLink()
        self.linked_to: list[Node] = []
        """The node as it was when each link to it was made."""
        self.chance: Chance = steady_chance()
        store = MemoryStore(database)
        self.store = store
        self.pipeline = NotingPipeline(store, self.clock, self.chance, JobSubmittedPipeline(Ids()))
        self.pipeline.posted = []
        self.pipeline.restore(states, [node, a_node("n2", status=NodeStatus.CONNECTING)])
        for state in states:
            database.runs[state.run.id] = state
        self.secrets = GivenSecrets()
        self.images = NodeImages(self.pipeline, self.secrets, lambda node_id: self.session.look())
        self.collected: list[str] = []
        self.collected_outputs: list[str] = []
        self.full: OSError | None = None
        self.strays = StrayTasks(
            self.pipeline, store, FENCE, self._collect, self._collect_outputs, restored=restored
        )
        self.listener = Listener(self.strays)
        self.session = NodeSession(
            node.id,
            self._make_link,
            self.pipeline,
            self.listener,
            self.clock,
            self.chance,
            Handshakes(),
            Settings(fence=FENCE, monotonic=self.clock.now, failure=failure, images=self.images),
        )
        self.images.committed(states)
        self.pipeline.listen(self.images)

    def _make_link(self, node: Node) -> FakeLink:
        self.linked_to.append(node)
        return self.link

    async def _collect_outputs(self, context: AttemptContext, connection: NodeConnection) -> None:
        assert context.attempt.id in self.shim.listing, (
            "outputs are read before their task is removed"
        )
        self.collected_outputs.append(context.attempt.id)

    async def _collect(self, context: AttemptContext, connection: NodeConnection) -> None:
        assert context.attempt.seen.container_gone
        assert context.attempt.id in self.shim.listing, "a log is read before its task is removed"
        if self.full is not None:
            raise self.full
        self.collected.append(context.attempt.id)

    @property
    def shim(self) -> FakeShim:
        return self.link.shim

    @property
    def node(self) -> Node:
        return self.pipeline.nodes["n1"]

    def run(self, state: RunState) -> RunState:
        return self.pipeline.runs.get(state.run.id) or self.database.runs[state.run.id]

    async def connected(self, times: int = 1) -> None:
        await eventually(lambda: self.listener.connections >= times)

    async def lose_connection(self) -> None:
        self.shim.stream.put_nowait(ShimUnavailable("cut"))
        await eventually(lambda: self.session.connection is None)

    def event(self, kind: EventType, task: TaskInfo | None = None) -> None:
        self.shim.stream.put_nowait(Event(cursor="e.1", type=kind, task=task))


@contextlib.asynccontextmanager
async def world(
    *states: RunState,
    node: Node | None = None,
    before: Callable[[World], None] = lambda world: None,
    restored: bool = False,
    failure: NodeFailure = DEFAULT_NODE_FAILURE,
) -> AsyncIterator[World]:
    node = node or a_node(status=NodeStatus.CONNECTING)
    it = World(MemoryDatabase(), node, *states, restored=restored, failure=failure)
    before(it)
    await it.store.open()
    tasks = [asyncio.create_task(it.pipeline.run()), asyncio.create_task(it.session.run())]
    try:
        yield it
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await it.strays.close()
        await it.store.close()


def listing(*infos: TaskInfo) -> Callable[[World], None]:
    def fill(it: World) -> None:
        it.shim.listing.update({info.id: info for info in infos})

    return fill


def known(status: NodeStatus = NodeStatus.CONNECTING, **changes: str) -> Node:
    return a_node(boot_id="boot", install_id="inst", status=status, **changes)


def says(health: Health) -> Callable[[World], None]:
    def set_it(it: World) -> None:
        it.shim.says = health

    return set_it


def place_of(info: TaskInfo) -> AllocationInfo:
    return AllocationInfo(
        id=info.allocation_id, run_id=info.run_id, cpu=8.0, memory=1 << 30, disk=5, gpus=("GPU-1",)
    )
