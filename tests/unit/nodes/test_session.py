"""One node's session: connecting, breaking, silence."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from common.links.errors import HostKeyRefused, LinkError
from controller.lifecycle import reports
from controller.lifecycle.inventory import DEFAULT_NODE_FAILURE, NodeFailure
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.model import Limits, NodeStatus
from controller.nodes import silence
from controller.scheduling.index import CapacityIndex
from controller.service.machines.faults import is_broken
from fairlead.model.statuses import AllocationState, AttemptStatus
from fairlead.wire.shim import DrainRequest, EventType
from shim.client import ShimUnavailable
from tests.doubles.clock import NOW
from tests.doubles.shim import node_info
from tests.support.waiting import LONG, eventually
from tests.unit.machines.parts import machine, rentals_of
from tests.unit.nodes.world import FENCE, World, listing, world
from tests.unit.pipelines.parts import a_node, attempt_of, placed, task_of

# -- connecting ---------------------------------------------------------------------------


async def test_a_node_that_is_reached_tells_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as it:
        await it.connected()
        assert it.session.connection is it.link.connections[0]
        assert it.session.up.is_set()
        assert (it.node.status, it.node.message) == (NodeStatus.CONNECTED, None)
        assert (it.node.boot_id, it.node.install_id) == ("boot", "inst")
        assert it.node.capacity.cpu == 64.0
        await it.pipeline.settled()
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


async def test_a_machine_that_is_off_is_unreachable_before_an_attempt_to_connect_gives_up() -> None:
    failure = NodeFailure(probe_every=0.01, unreachable_after=0.1)

    async with world(before=lambda it: it.link.answers.clear(), failure=failure) as it:
        await eventually(lambda: it.node.message == "it has not answered yet")
        assert str(it.node.status) == "connecting"
        it.clock.time += 1.0
        await eventually(lambda: it.node.status is NodeStatus.UNREACHABLE)
        it.link.answers.set()
        await it.connected()
        assert str(it.node.status) == "connected"
        assert it.link.tries == 1


async def test_a_refused_host_key_makes_the_node_unreachable_at_once() -> None:
    def refuse(it: World) -> None:
        it.link.refusal = HostKeyRefused("SHA256:a presented, SHA256:b pinned")

    async with world(before=refuse) as it:
        await eventually(lambda: it.node.status is NodeStatus.UNREACHABLE)
        assert it.node.message == "SHA256:a presented, SHA256:b pinned"


async def test_another_pinned_host_key_ends_the_connection_that_trusts_the_old_one() -> None:
    async with world() as it:
        await it.connected()
        address = msgspec.structs.replace(it.node.address, host_key="ssh-ed25519 NEW")
        await it.pipeline.save_node(msgspec.structs.replace(it.node, address=address), "n1")
        await it.connected(2)
        assert it.link.connections[0].closed.is_set()
        assert it.linked_to[-1].address == address
        assert it.node.status is NodeStatus.CONNECTED


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
        await it.pipeline.save_node(None, "n1")
        session = next(task for task in asyncio.all_tasks() if "NodeSession.run" in repr(task))
        it.shim.stream.put_nowait(None)
        await asyncio.wait_for(session, LONG)
        assert "n1" not in it.pipeline.nodes


@pytest.mark.parametrize("steps", range(12))
async def test_a_session_that_is_ended_while_its_connection_breaks_ends_too(steps: int) -> None:
    async with world() as it:
        await it.connected()
        session = next(task for task in asyncio.all_tasks() if "NodeSession.run" in repr(task))
        it.shim.stream.put_nowait(ShimUnavailable("cut"))
        for _ in range(steps):
            await asyncio.sleep(0)
        session.cancel()
        await asyncio.wait({session}, timeout=LONG)
        assert session.cancelled()


# -- the link breaks ----------------------------------------------------------------------


async def test_jobs_of_a_lost_connection_are_disconnected_until_it_is_back() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        it.link.refusal = LinkError("cut")
        await it.lose_connection()
        await it.pipeline.settled()
        assert attempt_of(it.run(state)).disconnected
        assert attempt_of(it.run(state)).status is AttemptStatus.RUNNING
        assert it.link.connections[0].closed.is_set()
        it.link.refusal = None
        await it.connected(2)
        await it.pipeline.settled()
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
        it.pipeline.set_node(msgspec.structs.replace(it.node, draining=True), "n1")
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
        await it.pipeline.settled()
        assert attempt_of(it.run(state)).disconnected
        assert len(it.pipeline.count(reports.NodeDisconnected)) == 1


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
        await it.pipeline.settled()
        (gone,) = it.pipeline.count(reports.NodeGone)
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


# -- silence on a connection --------------------------------------------------------------


async def test_a_connection_on_which_nothing_comes_is_given_up_after_three_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence, "MIN_LOOK_SECONDS", 0.01)
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
    monkeypatch.setattr(silence, "MIN_LOOK_SECONDS", 0.01)
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
    monkeypatch.setattr(silence, "MIN_LOOK_SECONDS", 0.01)
    state = placed(AttemptStatus.RUNNING)
    (job,) = state.jobs
    spec = msgspec.structs.replace(job.spec, stop_when_unheard=0.1)
    wants = msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, spec=spec),))
    async with world(wants, before=listing(task_of(wants))) as it:
        await eventually(lambda: len(it.shim.greetings) >= 3)
        assert set(it.shim.greetings) == {FENCE}


async def test_a_rented_machine_hears_its_controller_often_enough_for_its_leash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence, "MIN_LOOK_SECONDS", 0.01)
    state = placed(AttemptStatus.RUNNING)

    def is_rented(it: World) -> None:
        it.pipeline.rentals = rentals_of(CapacityIndex(), machine("n1", leash=0.1))

    async with world(state, before=is_rented) as it:
        await eventually(lambda: len(it.shim.greetings) >= 3)
        assert set(it.shim.greetings) == {FENCE}


@pytest.mark.parametrize(
    ("status", "after"),
    [
        (MachineStatus.PROVISIONING, NodeStatus.CONNECTING),
        (MachineStatus.JOINED, NodeStatus.LOST),
    ],
)
async def test_a_machine_that_boots_is_neither_silent_nor_lost(
    status: MachineStatus, after: NodeStatus
) -> None:
    def boots(it: World) -> None:
        it.link.refusal = LinkError("nobody listens")
        it.pipeline.rentals = rentals_of(CapacityIndex(), machine("n1", status=status))

    async with world(before=boots) as it:
        await eventually(lambda: it.link.tries >= 3)
        it.clock.time += 2 * DEFAULT_NODE_FAILURE.lost_after
        tried = it.link.tries
        await eventually(lambda: it.link.tries >= tried + 2)
        assert it.node.status is after
        assert it.node.message == "nobody listens"
        assert is_broken(it.node) is (after is NodeStatus.LOST)
        # It comes as any other.
        it.link.refusal = None
        await it.connected()
        assert it.node.status is NodeStatus.CONNECTED


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
        await it.pipeline.settled()
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
        await it.pipeline.settled()
        assert (it.node.status, it.node.last_seen_at) == (NodeStatus.UNREACHABLE, NOW)


# -- order --------------------------------------------------------------------------------


async def test_stale_tasks_are_stopped_before_the_node_counts_as_connected() -> None:
    finished = placed(AttemptStatus.FAILED)
    asked_while: list[NodeStatus] = []

    def before(it: World) -> None:
        listing(task_of(finished))(it)
        it.database.runs[finished.run.id] = finished
        it.shim.on_order = lambda: asked_while.append(it.node.status)

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
