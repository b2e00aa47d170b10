"""One node's session against a link and a shim that misbehave, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec
import pytest

from controller.clock import Chance
from controller.lifecycle import reports
from controller.lifecycle.inventory import DEFAULT_NODE_FAILURE, NodeFailure
from controller.lifecycle.model import Limits, Node, NodeStatus, RunState
from controller.lifecycle.reasons import Reason
from controller.lifecycle.statuses import AllocationState, AttemptStatus, RunStatus
from controller.links.base import HostKeyRefused, LinkError, NodeConnection
from controller.nodes import session as session_module
from controller.nodes.handshakes import Handshakes
from controller.nodes.session import NodeSession, Settings
from controller.nodes.stock import report_gone
from controller.nodes.strays import StrayTasks
from controller.pipelines.convert import View
from controller.pipelines.submitted import JobSubmittedPipeline
from controller.pipelines.turns import Turns
from controller.scheduling.fit import room
from controller.store.memory import MemoryDatabase, MemoryStore
from shim.client import ShimError, ShimUnavailable
from shim.schemas import (
    AllocationInfo,
    DrainRequest,
    Event,
    EventType,
    Fence,
    Health,
    TaskInfo,
    TaskStatus,
)
from tests.support.waiting import eventually
from tests.unit.pipelines.fakes import HEALTH, FakeConnection, FakeShim
from tests.unit.pipelines.parts import (
    NOW,
    Clock,
    Ids,
    a_node,
    attempt_of,
    node_info,
    placed,
    steady_chance,
    submitted,
    task_of,
)

R = TypeVar("R")
FENCE = Fence(1, 1)


class FakeLink:
    """Gives `connection` unless `refusal` is set."""

    def __init__(self) -> None:
        self.shim = FakeShim()
        self.connections: list[FakeConnection] = []
        self.refusal: Exception | None = None
        self.tries = 0

    async def connect(self) -> NodeConnection:
        self.tries += 1
        if self.refusal is not None:
            raise self.refusal
        self.connections.append(FakeConnection(self.shim))
        return self.connections[-1]


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

    async def stray_task(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> None:
        self.strays.append(info.id)
        await self._strays.settle(node_id, connection, info)

    async def idle_places(self, node_id: str, connection: NodeConnection) -> None:
        await self._strays.release_idle(connection)


class NotingTurns(Turns):
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
        self.clock = Clock()
        self.link = FakeLink()
        self.chance: Chance = steady_chance()
        store = MemoryStore(database)
        self.store = store
        self.turns = NotingTurns(store, self.clock, self.chance, JobSubmittedPipeline(Ids()))
        self.turns.posted = []
        self.turns.restore(states, [node, a_node("n2", status=NodeStatus.CONNECTING)])
        for state in states:
            database.runs[state.run.id] = state
        self.collected: list[str] = []
        self.full: OSError | None = None
        self.strays = StrayTasks(self.turns, store, FENCE, self._collect, restored=restored)
        self.listener = Listener(self.strays)
        self.session = NodeSession(
            node.id,
            lambda _: self.link,
            self.turns,
            self.listener,
            self.clock,
            self.chance,
            Handshakes(),
            Settings(fence=FENCE, monotonic=self.clock.now, failure=failure),
        )

    async def _collect(self, view: View, connection: NodeConnection) -> None:
        assert view.attempt.container_gone
        assert view.attempt.id in self.shim.listing, "a log is read before its task is removed"
        if self.full is not None:
            raise self.full
        self.collected.append(view.attempt.id)

    @property
    def shim(self) -> FakeShim:
        return self.link.shim

    @property
    def node(self) -> Node:
        return self.turns.nodes["n1"]

    def run(self, state: RunState) -> RunState:
        return self.turns.runs.get(state.run.id) or self.database.runs[state.run.id]

    async def connected(self, times: int = 1) -> None:
        await eventually(lambda: self.listener.connections >= times)

    async def lose_connection(self) -> None:
        self.shim.stream.put_nowait(ShimUnavailable("cut"))
        await eventually(lambda: self.session.connection is None)

    def event(self, kind: EventType, task: TaskInfo | None = None) -> None:
        self.shim.stream.put_nowait(Event(cursor="e.1", type=kind, task=task))


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(session_module, "MOST_WAIT_SECONDS", 0.002)


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
    tasks = [asyncio.create_task(it.turns.run()), asyncio.create_task(it.session.run())]
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


# -- connecting -----------------------------------------------------------------------------


async def test_a_node_that_is_reached_tells_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as it:
        await it.connected()
        assert it.session.connection is it.link.connections[0]
        assert it.session.up.is_set()
        assert (it.node.status, it.node.message) == (NodeStatus.CONNECTED, None)
        assert (it.node.boot_id, it.node.install_id) == ("boot", "inst")
        assert it.node.capacity.cpu == 64.0
        await it.turns.settled()
        assert it.database.nodes["n1"] == it.node
    assert caplog.text == ""


async def test_a_node_that_cannot_be_reached_is_tried_again_and_says_why() -> None:
    def refuse(it: World) -> None:
        it.link.refusal = LinkError("nobody listens")

    async with world(before=refuse) as it:
        await eventually(lambda: it.link.tries >= 3)
        assert (it.node.status, it.node.message) == (NodeStatus.CONNECTING, "nobody listens")
        it.clock.time += DEFAULT_NODE_FAILURE.unreachable_after
        await eventually(lambda: it.node.status is NodeStatus.UNREACHABLE)
        it.link.refusal = None
        await it.connected()
        assert it.node.status is NodeStatus.CONNECTED


async def test_a_refused_host_key_makes_the_node_unreachable_at_once() -> None:
    def refuse(it: World) -> None:
        it.link.refusal = HostKeyRefused("SHA256:a presented, SHA256:b pinned")

    async with world(before=refuse) as it:
        await eventually(lambda: it.node.status is NodeStatus.UNREACHABLE)
        assert it.node.message == "SHA256:a presented, SHA256:b pinned"


@pytest.mark.parametrize("where", ["link", "shim"])
async def test_a_mistake_of_ours_does_not_end_the_session(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def break_it(it: World) -> None:
        if where == "link":
            it.link.refusal = ValueError("ours")
        else:
            it.shim.stream.put_nowait(ValueError("ours"))

    async with world(before=break_it) as it:
        await eventually(lambda: "ours" in caplog.text)
        it.link.refusal = None
        await it.connected(1 if where == "link" else 2)
        assert it.node.status is NodeStatus.CONNECTED


async def test_a_shim_whose_stream_ends_at_once_is_tried_again() -> None:
    def silence(it: World) -> None:
        it.shim.silent = True

    async with world(before=silence) as it:
        await eventually(lambda: it.link.tries >= 3)
        assert it.session.connection is None
        assert all(connection.closed.is_set() for connection in it.link.connections[:2])
        it.shim.silent = False
        await it.connected()
        assert it.node.status is NodeStatus.CONNECTED


async def test_the_session_ends_with_its_node() -> None:
    async with world() as it:
        await it.connected()
        await it.turns.save_node(None, "n1")
        session = next(task for task in asyncio.all_tasks() if "NodeSession.run" in repr(task))
        it.shim.stream.put_nowait(None)
        await asyncio.wait_for(session, 30)
        assert "n1" not in it.turns.nodes


@pytest.mark.parametrize("steps", range(12))
async def test_a_session_that_is_ended_while_its_connection_breaks_ends_too(steps: int) -> None:
    async with world() as it:
        await it.connected()
        session = next(task for task in asyncio.all_tasks() if "NodeSession.run" in repr(task))
        it.shim.stream.put_nowait(ShimUnavailable("cut"))
        for _ in range(steps):
            await asyncio.sleep(0)
        session.cancel()
        await asyncio.wait({session}, timeout=30)
        assert session.cancelled()


# -- the link breaks ------------------------------------------------------------------------


async def test_jobs_of_a_lost_connection_are_disconnected_until_it_is_back() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        it.link.refusal = LinkError("cut")
        await it.lose_connection()
        await it.turns.settled()
        assert attempt_of(it.run(state)).disconnected
        assert attempt_of(it.run(state)).status is AttemptStatus.RUNNING
        assert it.link.connections[0].closed.is_set()
        it.link.refusal = None
        await it.connected(2)
        await it.turns.settled()
        assert not attempt_of(it.run(state)).disconnected


async def test_nobody_is_given_a_connection_that_is_about_to_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def drain_and_linger(order: DrainRequest) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            await let_go.wait()

    async with world() as it:
        await it.connected()
        monkeypatch.setattr(it.shim, "drain", drain_and_linger)
        it.turns.set_node(msgspec.structs.replace(it.node, draining=True), "n1")
        await asked.wait()
        try:
            await it.lose_connection()
            assert not it.session.up.is_set()
            assert not it.link.connections[0].closed.is_set()
        finally:
            let_go.set()
        await it.link.connections[0].closed.wait()


async def test_after_a_restart_the_limits_stand_still_while_the_node_is_away() -> None:
    state = placed(AttemptStatus.PROVISIONING)

    def refuse(it: World) -> None:
        it.link.refusal = LinkError("away")

    async with world(state, before=refuse) as it:
        await eventually(lambda: it.link.tries >= 2)
        await it.turns.settled()
        assert attempt_of(it.run(state)).disconnected
        assert len(it.turns.count(reports.NodeDisconnected)) == 1


async def test_a_node_silent_for_too_long_is_lost_once_and_its_jobs_with_it() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        it.link.refusal = LinkError("away")
        await it.lose_connection()
        it.clock.time += Limits().node_lost_after + NodeFailure().probe_every
        await eventually(lambda: it.node.status is NodeStatus.LOST)
        tries = it.link.tries
        await eventually(lambda: it.link.tries > tries + 2)
        await it.turns.settled()
        (gone,) = it.turns.count(reports.NodeGone)
        assert not gone.cleanup_confirmed
        lost = it.run(state)
        assert lost.jobs[0].attempts[0].cleanup_unknown
        assert lost.allocations[0].state is AllocationState.ORPHANED


async def test_a_heartbeat_is_life() -> None:
    async with world() as it:
        await it.connected()
        it.clock.time += 1000
        it.event(EventType.HEARTBEAT)
        await eventually(it.shim.stream.empty)
        it.link.refusal = LinkError("away")
        await it.lose_connection()
        await eventually(lambda: it.node.message == "away")
        assert it.node.status is NodeStatus.CONNECTING


# -- who is there ---------------------------------------------------------------------------


def known(**changes: str) -> Node:
    return a_node(boot_id="boot", install_id="inst", status=NodeStatus.CONNECTING, **changes)


def says(health: Health) -> Callable[[World], None]:
    def set_it(it: World) -> None:
        it.shim.says = health

    return set_it


async def test_a_shim_that_another_node_has_already_is_not_taken_for_two() -> None:
    other = a_node("n2", install_id="inst", status=NodeStatus.CONNECTED)
    async with world(before=lambda it: it.turns.set_node(other, "n2")) as it:
        await eventually(lambda: (it.node.message or "").startswith("its shim is that of node"))
        assert it.node.status is NodeStatus.CONNECTING
        assert it.listener.connections == 0


async def test_a_task_whose_attempt_lives_on_another_node_is_left_alone() -> None:
    state = placed(AttemptStatus.RUNNING)
    info = task_of(state)
    node = a_node("n1", status=NodeStatus.CONNECTING)
    moved = msgspec.structs.replace(attempt_of(state), node_id="n2")
    (job,) = state.jobs
    elsewhere = msgspec.structs.replace(
        state, jobs=(msgspec.structs.replace(job, attempts=(moved,)),)
    )
    async with world(elsewhere, node=node, before=listing(info)) as it:
        await it.connected()
        assert it.listener.strays == []
        assert it.shim.asked == []


@pytest.mark.parametrize(
    "state",
    [submitted(), placed(AttemptStatus.PROVISIONING, node="n2")],
    ids=["waits", "elsewhere"],
)
async def test_an_attempt_that_a_node_has_from_before_a_restore_is_not_started_elsewhere(
    state: RunState,
) -> None:
    async with world(state, before=listing(task_of(state)), restored=True) as it:
        await it.connected()
        await it.turns.settled()
        first = it.run(state).jobs[0].attempts[0]
        assert first.reason is Reason.INSTANCE_UNREACHABLE
        assert first.message == "node node-n1 has had it since before the database was restored"


async def test_a_task_left_alone_is_a_stray_once_its_attempt_has_ended_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "LOOK_AGAIN_SECONDS", 0.001)
    state = placed(AttemptStatus.RUNNING)
    info = task_of(state)
    moved = msgspec.structs.replace(attempt_of(state), node_id="n2")
    (job,) = state.jobs
    elsewhere = msgspec.structs.replace(
        state, jobs=(msgspec.structs.replace(job, attempts=(moved,)),)
    )
    async with world(elsewhere, before=listing(info)) as it:
        await it.connected()
        report_gone(it.turns, "n2", "it was removed", lambda _: True, removed=True)
        await eventually(lambda: ("terminate", info.id) in it.shim.asked)
        assert set(it.listener.strays) == {info.id}


async def test_a_node_that_was_restarted_has_lost_its_jobs_and_holds_no_place() -> None:
    state = placed(AttemptStatus.RUNNING)
    rebooted = msgspec.structs.replace(HEALTH, boot_id="another")
    async with world(state, node=known(), before=says(rebooted)) as it:
        await it.connected()
        await it.turns.settled()
        (gone,) = it.turns.count(reports.NodeGone)
        assert (gone.cleanup_confirmed, gone.message) == (True, "the node was restarted")
        assert it.run(state).allocations[0].state is AllocationState.RELEASED
        assert it.node.boot_id == "another"


@pytest.mark.parametrize("empty", [True, False])
async def test_a_shim_installed_anew_has_lost_its_jobs(empty: bool) -> None:
    state, other = placed(AttemptStatus.RUNNING), placed(AttemptStatus.RUNNING, "other")

    def before(it: World) -> None:
        says(msgspec.structs.replace(HEALTH, install_id="another"))(it)
        if not empty:
            listing(task_of(other))(it)

    async with world(state, node=known(), before=before) as it:
        await it.connected()
        await it.turns.settled()
        (gone,) = it.turns.count(reports.NodeGone)
        assert gone.cleanup_confirmed is empty
        assert it.node.install_id == "another"


async def test_tasks_left_from_before_a_restart_are_cleared_away() -> None:
    state = placed(AttemptStatus.RUNNING)
    left = task_of(state, TaskStatus.TERMINATED)

    def before(it: World) -> None:
        says(msgspec.structs.replace(HEALTH, boot_id="another"))(it)
        listing(left)(it)

    async with world(state, node=known(), before=before) as it:
        await it.connected()
        assert it.listener.strays == [left.id]
        assert it.shim.listing == {}


async def test_the_same_node_again_has_lost_nothing() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, node=known(), before=listing(task_of(state))) as it:
        await it.connected()
        await it.turns.settled()
        assert it.turns.count(reports.NodeGone) == []
        assert attempt_of(it.run(state)).status is AttemptStatus.RUNNING


# -- taking stock ---------------------------------------------------------------------------


async def test_what_the_node_has_is_reported_before_it_counts_as_connected() -> None:
    state = placed(AttemptStatus.PROVISIONING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        await it.turns.settled()
        assert [info.id for info in it.listener.seen] == [attempt_of(state).id]
        assert attempt_of(it.run(state)).status is AttemptStatus.PULLING
        assert it.turns.count(reports.TaskMissing) == []


async def test_an_acknowledged_task_that_the_node_has_not_is_missing() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state) as it:
        await it.connected()
        (missing,) = it.turns.count(reports.TaskMissing)
        assert missing.attempt_id == attempt_of(state).id


async def test_a_task_that_was_never_acknowledged_is_not_missing() -> None:
    state = placed(AttemptStatus.PROVISIONING)
    async with world(state) as it:
        await it.connected()
        assert it.turns.count(reports.TaskMissing) == []
        assert attempt_of(it.run(state)).status is AttemptStatus.PROVISIONING


async def test_a_task_accepted_while_the_list_was_asked_for_is_not_missing() -> None:
    state = placed(AttemptStatus.PROVISIONING)

    def hold(it: World) -> None:
        it.shim.may_list.clear()

    async with world(state, before=hold) as it:
        await it.shim.listed.wait()
        it.turns.post(reports.TaskAccepted(run_id=state.run.id, attempt_id=attempt_of(state).id))
        await it.turns.settled()
        assert attempt_of(it.run(state)).status is AttemptStatus.PULLING
        it.shim.may_list.set()
        await it.connected()
        assert it.turns.count(reports.TaskMissing) == []


async def test_a_resync_reads_the_whole_node_again() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        it.shim.listing.clear()
        it.event(EventType.RESYNC)
        await eventually(lambda: it.turns.count(reports.TaskMissing))
        assert it.listener.connections == 1


async def test_a_changed_node_is_read_again() -> None:
    async with world() as it:
        await it.connected()
        it.shim.info = node_info(cpu=3.0)
        it.event(EventType.NODE)
        await eventually(lambda: it.node.capacity.cpu == 3.0)
        assert it.node.status is NodeStatus.CONNECTED


async def test_a_task_event_of_a_live_attempt_is_reported() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        it.event(EventType.TASK, task_of(state, TaskStatus.TERMINATED, exit_code=3))
        await eventually(lambda: attempt_of(it.run(state)).container_gone)
        assert attempt_of(it.run(state)).exit_code == 3
        assert it.listener.strays == []


# -- strays ---------------------------------------------------------------------------------


async def test_a_task_whose_attempt_has_ended_is_stopped_then_removed() -> None:
    finished = placed(AttemptStatus.FAILED)
    finished = msgspec.structs.replace(
        finished, run=msgspec.structs.replace(finished.run, status=RunStatus.FAILED)
    )
    stray = task_of(finished)

    def before(it: World) -> None:
        listing(stray)(it)
        it.database.runs[finished.run.id] = finished

    async with world(before=before) as it:
        await it.connected()
        assert it.shim.asked == [("terminate", stray.id)]
        it.event(EventType.TASK, it.shim.listing[stray.id])
        await eventually(lambda: it.shim.listing == {})
        assert ("release", stray.allocation_id) in it.shim.asked
        assert it.collected == [stray.id]


async def test_a_task_whose_log_cannot_be_stored_now_stays_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    finished = placed(AttemptStatus.FAILED)
    stray = task_of(finished, TaskStatus.TERMINATED)

    def before(it: World) -> None:
        listing(stray)(it)
        it.database.runs[finished.run.id] = finished
        it.full = OSError(28, "No space left on device")

    async with world(before=before) as it:
        await it.connected()
        await eventually(lambda: "could not be stored" in caplog.text)
        assert it.shim.listing == {stray.id: stray}
        it.full = None
        it.event(EventType.TASK, stray)
        await eventually(lambda: it.shim.listing == {})
        assert it.collected == [stray.id]


async def test_a_log_that_is_complete_is_not_read_again() -> None:
    finished = placed(AttemptStatus.FAILED, logs_complete=True)

    def before(it: World) -> None:
        listing(task_of(finished, TaskStatus.TERMINATED))(it)
        it.database.runs[finished.run.id] = finished

    async with world(before=before) as it:
        await it.connected()
        assert it.shim.listing == {}
        assert it.collected == []


async def test_a_stray_that_is_gone_frees_its_orphaned_place() -> None:
    state = placed(AttemptStatus.RUNNING)
    lost = placed(AttemptStatus.FAILED, cleanup_unknown=True)
    both = msgspec.structs.replace(
        state,
        jobs=(
            msgspec.structs.replace(
                state.jobs[0],
                attempts=(
                    msgspec.structs.replace(
                        attempt_of(lost), job_id=state.jobs[0].id, finished_at=1.0
                    ),
                    msgspec.structs.replace(attempt_of(state), node_id="n2", number=1),
                ),
            ),
        ),
        allocations=(
            msgspec.structs.replace(
                lost.allocations[0],
                run_id=state.run.id,
                job_id=state.jobs[0].id,
                state=AllocationState.ORPHANED,
            ),
            msgspec.structs.replace(state.allocations[0], node_id="n2"),
        ),
    )
    stray = task_of(lost, TaskStatus.TERMINATED, run_id=state.run.id)
    async with world(both, before=listing(stray)) as it:
        await it.connected()
        await eventually(lambda: it.shim.listing == {})
        await it.turns.settled()
        occupied = {
            place.node_id: place.state
            for place in it.run(both).allocations
            if place.state is not AllocationState.RELEASED
        }
        assert occupied == {"n2": AllocationState.HELD}


async def test_a_task_of_a_run_that_nobody_here_knows_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign = task_of(placed(AttemptStatus.RUNNING))
    async with world(before=listing(foreign)) as it:
        await it.connected()
        it.event(EventType.RESYNC)
        await eventually(lambda: len(it.listener.strays) == 2)
        assert it.shim.asked == []
        assert it.shim.listing == {foreign.id: foreign}
    assert caplog.text.count("left running") == 1


async def test_a_stray_that_cannot_be_cleared_now_does_not_stop_the_session() -> None:
    finished = placed(AttemptStatus.FAILED)

    def before(it: World) -> None:
        listing(task_of(finished))(it)
        it.database.runs[finished.run.id] = finished
        it.shim.refusal = ShimError("busy", "not now", 409)

    async with world(before=before) as it:
        await it.connected()
        assert it.node.status is NodeStatus.CONNECTED
        assert it.shim.asked == []


@pytest.mark.parametrize(
    ("state", "released"),
    [(AllocationState.RELEASED, True), (AllocationState.HELD, False)],
)
async def test_a_place_without_a_task_is_given_back_once_nobody_holds_it(
    state: AllocationState, released: bool
) -> None:
    run = placed(AttemptStatus.FAILED)
    (place,) = run.allocations
    run = msgspec.structs.replace(run, allocations=(msgspec.structs.replace(place, state=state),))

    def before(it: World) -> None:
        it.database.runs[run.run.id] = run
        it.shim.places.append(
            AllocationInfo(id=place.id, run_id=run.run.id, cpu=1.0, memory=1, disk=0)
        )

    async with world(before=before) as it:
        await it.connected()
        assert (("release", place.id) in it.shim.asked) is released


@pytest.mark.parametrize("restored", [True, False])
async def test_an_idle_place_of_an_unknown_run_goes_back_after_a_restore_only(
    restored: bool,
) -> None:
    def before(it: World) -> None:
        it.shim.places.append(AllocationInfo(id="a", run_id="b", cpu=1.0, memory=1, disk=0))

    async with world(before=before, restored=restored) as it:
        await it.connected()
        assert (("release", "a") in it.shim.asked) is restored


# -- drain ----------------------------------------------------------------------------------


async def test_a_shim_learns_of_a_drain_when_it_is_reached() -> None:
    node = known(drain_reason="disk")
    async with world(node=msgspec.structs.replace(node, draining=True)) as it:
        await it.connected()
        (order,) = await eventually(lambda: it.shim.drained)
        assert (order.draining, order.reason) == (True, "disk")


async def test_a_shim_learns_of_a_drain_and_of_its_end_while_it_is_connected() -> None:
    async with world() as it:
        await it.connected()
        drained = msgspec.structs.replace(it.node, draining=True, drain_reason="disk")
        await it.turns.save_node(drained, "n1")
        await eventually(lambda: it.shim.info.draining)
        it.event(EventType.NODE)
        await it.turns.save_node(msgspec.structs.replace(it.node, draining=False), "n1")
        await eventually(lambda: not it.shim.info.draining)
        assert [order.draining for order in it.shim.drained] == [True, False]


# -- silence on a connection ----------------------------------------------------------------


async def test_a_connection_on_which_nothing_comes_is_given_up_after_three_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "SHORTEST_LOOK_SECONDS", 0.01)
    failure = NodeFailure(probe_every=0.01, unreachable_after=0.1)
    async with world(failure=failure) as it:
        await it.connected()
        it.shim.deaf = True
        it.link.refusal = LinkError("away")
        it.clock.time += 0.09
        probed = it.shim.probed
        await eventually(lambda: it.shim.probed >= probed + 5)
        assert it.node.status is NodeStatus.CONNECTED
        it.clock.time += failure.unreachable_after
        await eventually(lambda: it.session.connection is None)
        await eventually(lambda: it.node.status is NodeStatus.UNREACHABLE)


async def test_bytes_on_other_channels_are_life_though_no_probe_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "SHORTEST_LOOK_SECONDS", 0.01)
    async with world(failure=NodeFailure(probe_every=0.01, unreachable_after=0.0)) as it:
        await it.connected()
        it.shim.deaf = True
        it.clock.time += 1000.0
        connection = it.link.connections[0]
        bytes_at = itertools.count(it.clock.time - 12.0, 0.001)
        monkeypatch.setattr(connection, "heard_at", lambda: next(bytes_at))
        probed = it.shim.probed
        await eventually(lambda: it.shim.probed >= probed + 5 or it.session.connection is None)
        assert it.session.connection is connection


async def test_a_controller_is_heard_by_a_job_that_would_be_stopped_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "SHORTEST_LOOK_SECONDS", 0.01)
    state = placed(AttemptStatus.RUNNING)
    (job,) = state.jobs
    spec = msgspec.structs.replace(job.spec, stop_when_unheard=0.1)
    wants = msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, spec=spec),))
    async with world(wants, before=listing(task_of(wants))) as it:
        await eventually(lambda: len(it.shim.greetings) >= 3)
        assert set(it.shim.greetings) == {FENCE}


async def test_nobody_else_is_greeted() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        assert it.shim.greetings == []


async def test_a_restarted_controller_goes_on_counting_where_the_silence_began() -> None:
    state = placed(AttemptStatus.RUNNING)
    gone = a_node(status=NodeStatus.UNREACHABLE, last_seen_at=NOW - 290.0)

    def refuse(it: World) -> None:
        it.link.refusal = LinkError("away")

    async with world(state, node=gone, before=refuse) as it:
        await eventually(lambda: it.link.tries >= 4)
        assert it.node.status is NodeStatus.UNREACHABLE
        it.clock.time += DEFAULT_NODE_FAILURE.unreachable_after
        await eventually(lambda: it.node.status is NodeStatus.LOST)


async def test_when_it_was_last_heard_is_stored_when_the_link_breaks() -> None:
    async with world() as it:
        await it.connected()
        it.clock.time += 7.0
        it.link.refusal = LinkError("away")
        await it.lose_connection()
        await it.turns.settled()
        assert it.node.last_seen_at == NOW


async def test_a_word_in_a_connection_that_is_not_made_yet_is_stored_for_the_next_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would otherwise give the node up too early."""
    gone = a_node(status=NodeStatus.UNREACHABLE, last_seen_at=NOW - 290.0)

    async def fail() -> None:
        raise ShimUnavailable("cut")

    def greet_and_fail(it: World) -> None:
        monkeypatch.setattr(it.shim, "node", fail)

    async with world(placed(AttemptStatus.RUNNING), node=gone, before=greet_and_fail) as it:
        await eventually(lambda: it.link.tries >= 2)
        await it.turns.settled()
        assert (it.node.status, it.node.last_seen_at) == (NodeStatus.UNREACHABLE, NOW)


# -- quarantine -----------------------------------------------------------------------------


def place_of(info: TaskInfo) -> AllocationInfo:
    return AllocationInfo(
        id=info.allocation_id, run_id=info.run_id, cpu=8.0, memory=1 << 30, disk=5, gpus=("GPU-1",)
    )


async def test_an_unknown_task_is_listed_and_its_place_is_occupied() -> None:
    foreign = task_of(placed(AttemptStatus.RUNNING))

    def before(it: World) -> None:
        listing(foreign)(it)
        it.shim.places = [place_of(foreign)]

    async with world(before=before) as it:
        await it.connected()
        (task,) = it.node.quarantine
        assert (task.id, task.cpu, task.gpus, task.stopping) == (foreign.id, 8.0, ("GPU-1",), False)
        free = room(it.node, ())
        assert (free.cpu, free.empty) == (56.0, False)


async def test_after_a_restore_an_attempt_made_since_the_backup_is_kept_running() -> None:
    state = placed(AttemptStatus.RUNNING)
    later = task_of(placed(AttemptStatus.RUNNING), run_id=state.run.id)
    async with world(state, before=listing(task_of(state), later), restored=True) as it:
        await it.connected()
        assert [task.id for task in it.node.quarantine] == [later.id]
        assert it.shim.asked == []


async def test_without_a_restore_such_an_attempt_is_stopped() -> None:
    state = placed(AttemptStatus.RUNNING)
    later = task_of(placed(AttemptStatus.RUNNING), run_id=state.run.id)
    async with world(state, before=listing(task_of(state), later)) as it:
        await it.connected()
        assert it.node.quarantine == ()
        assert it.shim.asked == [("terminate", later.id)]


async def test_an_admin_may_end_a_task_in_quarantine() -> None:
    foreign = task_of(placed(AttemptStatus.RUNNING))
    async with world(before=listing(foreign)) as it:
        await it.connected()
        marked = msgspec.structs.replace(it.node.quarantine[0], stopping=True)
        await it.turns.save_node(msgspec.structs.replace(it.node, quarantine=(marked,)), "n1")
        await eventually(lambda: it.shim.asked == [("terminate", foreign.id)])
        it.event(EventType.TASK, it.shim.listing[foreign.id])
        await eventually(lambda: it.shim.listing == {})
        it.shim.stream.put_nowait(Event(cursor="e.2", type=EventType.REMOVED, task_id=foreign.id))
        await eventually(lambda: it.node.quarantine == ())


async def test_a_task_that_is_gone_leaves_the_quarantine() -> None:
    foreign = task_of(placed(AttemptStatus.RUNNING))
    async with world(before=listing(foreign)) as it:
        await it.connected()
        it.shim.listing.clear()
        it.event(EventType.RESYNC)
        await eventually(lambda: it.node.quarantine == ())


# -- order ----------------------------------------------------------------------------------


async def test_stale_tasks_are_stopped_before_the_node_counts_as_connected() -> None:
    finished = placed(AttemptStatus.FAILED)
    asked_while: list[NodeStatus] = []

    def before(it: World) -> None:
        listing(task_of(finished))(it)
        it.database.runs[finished.run.id] = finished
        order = it.shim._order

        def noted(verb: str, name: str) -> None:
            asked_while.append(it.node.status)
            order(verb, name)

        it.shim._order = noted  # type: ignore[method-assign]

    async with world(before=before) as it:
        await it.connected()
        assert asked_while == [NodeStatus.CONNECTING]


async def test_a_node_that_is_not_fit_says_why_and_is_taken_back() -> None:
    async with world(before=lambda it: setattr(it.shim, "info", node_info(disk_free=1))) as it:
        await it.connected()
        assert "are free on its disk" in (it.node.unfit or "")
        it.shim.info = node_info(disk_free=1 << 40)
        it.event(EventType.NODE)
        await eventually(lambda: it.node.unfit is None)
