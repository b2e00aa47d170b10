"""A node's tasks are compared with those it should have, whenever it is reached."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from controller.lifecycle import reports
from controller.lifecycle.model import NodeStatus, RunState
from controller.nodes import session as session_module
from controller.nodes.sync import report_gone
from controller.store.base import Changes
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus
from fairlead.wire.shim import EventType, TaskStatus, TaskTimes
from tests.doubles.node import HEALTH
from tests.doubles.shim import node_info
from tests.support.waiting import eventually
from tests.unit.nodes.world import (
    World,
    known,
    listing,
    says,
    world,
)
from tests.unit.pipelines.parts import a_node, attempt_of, placed, submitted, task_of

# -- who listens ---------------------------------------------------------------------------


async def test_an_event_that_a_runner_listens_ends_the_wait_for_it() -> None:
    state = placed(AttemptStatus.PULLING)
    info = task_of(state, runner_listens=False)
    async with world(state, before=listing(info)) as it:
        await it.connected()
        (connection,) = it.link.connections
        wait = asyncio.create_task(connection.runners.until_it_listens(info.id))
        it.event(EventType.TASK, msgspec.structs.replace(info, runner_listens=True))
        assert await wait


# -- who is there -------------------------------------------------------------------------


async def test_a_shim_that_another_node_has_already_is_not_taken_for_two() -> None:
    other = a_node("n2", install_id="inst", status=NodeStatus.CONNECTED)
    async with world(before=lambda it: it.pipeline.set_node(other, "n2")) as it:
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
        await it.pipeline.settled()
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
        report_gone(it.pipeline, "n2", "it was removed", lambda _: True, removed=True)
        await eventually(lambda: ("terminate", info.id) in it.shim.asked)
        assert set(it.listener.strays) == {info.id}


async def test_a_node_that_was_restarted_has_lost_its_jobs_and_holds_no_place() -> None:
    state = placed(AttemptStatus.RUNNING)
    rebooted = msgspec.structs.replace(HEALTH, boot_id="another")
    async with world(state, node=known(), before=says(rebooted)) as it:
        await it.connected()
        await it.pipeline.settled()
        (gone,) = it.pipeline.count(reports.NodeGone)
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
        await it.pipeline.settled()
        (gone,) = it.pipeline.count(reports.NodeGone)
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
        await eventually(lambda: it.shim.listing == {})


async def test_a_lost_node_is_read_only_when_the_ends_of_its_jobs_are_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = placed(AttemptStatus.RUNNING)
    left = task_of(state, TaskStatus.TERMINATED)
    may_commit = asyncio.Event()

    def before(it: World) -> None:
        commit = it.store.commit

        async def late(changes: Changes) -> None:
            await may_commit.wait()
            await commit(changes)

        monkeypatch.setattr(it.store, "commit", late)
        listing(left)(it)
        report_gone(it.pipeline, "n1", "it was silent")

    async with world(state, node=known(status=NodeStatus.LOST), before=before) as it:
        await eventually(lambda: bool(it.link.connections))
        for _ in range(100):  # all that the session does without the commit
            await asyncio.sleep(0)
        may_commit.set()
        await eventually(lambda: it.shim.listing == {})
        assert it.listener.strays == [left.id]


async def test_the_same_node_again_has_lost_nothing() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, node=known(), before=listing(task_of(state))) as it:
        await it.connected()
        await it.pipeline.settled()
        assert it.pipeline.count(reports.NodeGone) == []
        assert attempt_of(it.run(state)).status is AttemptStatus.RUNNING


# -- taking stock -------------------------------------------------------------------------


async def test_a_nodes_tasks_are_reported_before_it_counts_as_connected() -> None:
    state = placed(AttemptStatus.PROVISIONING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        await it.pipeline.settled()
        assert [info.id for info in it.listener.seen] == [attempt_of(state).id]
        assert attempt_of(it.run(state)).status is AttemptStatus.PULLING
        assert it.pipeline.count(reports.TaskMissing) == []


async def test_an_acknowledged_task_that_the_node_has_not_is_missing() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state) as it:
        await it.connected()
        (missing,) = it.pipeline.count(reports.TaskMissing)
        assert missing.attempt_id == attempt_of(state).id


async def test_a_task_that_was_never_acknowledged_is_not_missing() -> None:
    state = placed(AttemptStatus.PROVISIONING)
    async with world(state) as it:
        await it.connected()
        assert it.pipeline.count(reports.TaskMissing) == []
        assert attempt_of(it.run(state)).status is AttemptStatus.PROVISIONING


async def test_a_task_accepted_while_the_list_was_asked_for_is_not_missing() -> None:
    state = placed(AttemptStatus.PROVISIONING)

    def hold(it: World) -> None:
        it.shim.may_list.clear()

    async with world(state, before=hold) as it:
        await it.shim.listed.wait()
        it.pipeline.post(reports.TaskAccepted(run_id=state.run.id, attempt_id=attempt_of(state).id))
        await it.pipeline.settled()
        assert attempt_of(it.run(state)).status is AttemptStatus.PULLING
        it.shim.may_list.set()
        await it.connected()
        assert it.pipeline.count(reports.TaskMissing) == []


async def test_a_resync_reads_the_whole_node_again() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        it.shim.listing.clear()
        it.event(EventType.RESYNC)
        await eventually(lambda: it.pipeline.count(reports.TaskMissing))
        assert it.listener.connections == 1


async def test_a_changed_node_is_read_again() -> None:
    async with world() as it:
        await it.connected()
        it.shim.info = node_info(cpu=3.0)
        it.event(EventType.NODE)
        await eventually(lambda: it.node.capacity.cpu == 3.0)
        assert it.node.status is NodeStatus.CONNECTED


async def test_an_unfit_node_is_read_again_also_when_no_event_tells_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "LOOK_AGAIN_SECONDS", 0.001)
    async with world() as it:
        await it.connected()
        it.shim.info = node_info(engine_error="nobody listens")
        it.event(EventType.NODE)
        await eventually(lambda: it.node.unfit == "its engine does not answer: nobody listens")
        it.shim.info = node_info()
        await eventually(lambda: it.node.unfit is None)
        assert it.listener.connections == 1


async def test_a_task_event_of_a_live_attempt_is_reported() -> None:
    state = placed(AttemptStatus.RUNNING)
    async with world(state, before=listing(task_of(state))) as it:
        await it.connected()
        it.event(EventType.TASK, task_of(state, TaskStatus.TERMINATED, exit_code=3))
        await eventually(lambda: attempt_of(it.run(state)).seen.container_gone)
        assert attempt_of(it.run(state)).exit_code == 3
        assert it.listener.strays == []


# -- drain --------------------------------------------------------------------------------


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
        await it.pipeline.save_node(drained, "n1")
        await eventually(lambda: it.shim.info.draining)
        it.event(EventType.NODE)
        await it.pipeline.save_node(msgspec.structs.replace(it.node, draining=False), "n1")
        await eventually(lambda: not it.shim.info.draining)
        assert [order.draining for order in it.shim.drained] == [True, False]


async def test_a_node_that_cannot_start_jobs_is_cordoned_and_stays_so_in_the_database() -> None:
    states = [placed(AttemptStatus.PULLING, name=f"hello-{number}") for number in range(3)]
    failed = [
        msgspec.structs.replace(
            task_of(state),
            status=TaskStatus.TERMINATED,
            reason=Reason.INSTANCE_UNREACHABLE,
            times=TaskTimes(submitted_at=0.0, creating_at=1.0),
        )
        for state in states
    ]
    async with world(*states, before=listing(*failed)) as it:
        await it.connected()
        await eventually(lambda: it.database.nodes["n1"].cordoned)
        assert "3 jobs in a row" in (it.database.nodes["n1"].cordon_reason or "")
