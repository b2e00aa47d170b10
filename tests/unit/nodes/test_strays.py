"""Tasks that nobody wants: cleared away, left alone, or kept in quarantine."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from controller.lifecycle.model import NodeStatus, RunState
from controller.nodes import session as session_module
from controller.scheduling.fitting.fit import room
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.wire.node import AllocationInfo
from fairlead.wire.shim import Event, EventType, TaskInfo, TaskStatus
from shim.client import ShimError
from tests.support.waiting import eventually
from tests.unit.nodes.world import World, listing, place_of, world
from tests.unit.pipelines.parts import attempt_of, placed, task_of

# -- strays -------------------------------------------------------------------------------


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


async def test_a_stray_whose_log_was_not_stored_is_cleared_later_without_another_event(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LOOK_AGAIN_SECONDS", 0.001)
    finished = placed(AttemptStatus.FAILED)
    stray = task_of(finished)

    def before(it: World) -> None:
        listing(stray)(it)
        it.database.runs[finished.run.id] = finished
        it.full = OSError(28, "No space left on device")

    async with world(before=before) as it:
        await it.connected()
        it.event(EventType.TASK, it.shim.listing[stray.id])
        await eventually(lambda: "could not be stored" in caplog.text)
        it.full = None
        await eventually(lambda: it.shim.listing == {})
        assert it.collected == [stray.id]


async def test_a_stray_that_its_node_does_not_remove_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "LOOK_AGAIN_SECONDS", 0.001)
    finished = placed(AttemptStatus.FAILED, logs_complete=True)
    stray = task_of(finished, TaskStatus.TERMINATED)

    def before(it: World) -> None:
        listing(stray)(it)
        it.database.runs[finished.run.id] = finished
        it.shim.refusal = ShimError("internal", "no space left", 507)

    async with world(before=before) as it:
        await it.connected()
        assert it.shim.listing == {stray.id: stray}
        it.shim.refusal = None
        await eventually(lambda: it.shim.listing == {})


async def test_a_log_that_is_complete_is_not_read_again() -> None:
    finished = placed(AttemptStatus.FAILED, logs_complete=True)

    def before(it: World) -> None:
        listing(task_of(finished, TaskStatus.TERMINATED))(it)
        it.database.runs[finished.run.id] = finished

    async with world(before=before) as it:
        await it.connected()
        assert it.shim.listing == {}
        assert it.collected == []


async def test_outputs_of_a_stray_are_stored_before_it_is_removed() -> None:
    finished = placed(AttemptStatus.FAILED, logs_complete=True)
    stray = msgspec.structs.replace(task_of(finished, TaskStatus.TERMINATED), has_outputs=True)

    def before(it: World) -> None:
        listing(stray)(it)
        it.database.runs[finished.run.id] = finished

    async with world(before=before) as it:
        await it.connected()
        await eventually(lambda: it.shim.listing == {})
        assert it.collected_outputs == [stray.id]


def orphaned_beside_a_live_one() -> tuple[RunState, RunState]:
    """A run that runs on n2 and has an orphaned place on n1; and that place's state by itself."""
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
    return both, lost


def occupied(it: World, state: RunState) -> dict[str, AllocationState]:
    return {
        place.node_id: place.state
        for place in it.run(state).allocations
        if place.state is not AllocationState.RELEASED
    }


async def test_a_stray_that_is_gone_frees_its_orphaned_place() -> None:
    both, lost = orphaned_beside_a_live_one()
    stray = task_of(lost, TaskStatus.TERMINATED, run_id=both.run.id)
    async with world(both, before=listing(stray)) as it:
        await it.connected()
        await eventually(lambda: it.shim.listing == {})
        await it.pipeline.settled()
        assert occupied(it, both) == {"n2": AllocationState.HELD}


async def test_a_stray_whose_removal_got_no_answer_frees_its_orphaned_place(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection lives on, and the event of the removal came before the answer was given up."""
    monkeypatch.setattr(session_module, "LOOK_AGAIN_SECONDS", 0.001)
    both, lost = orphaned_beside_a_live_one()
    stray = task_of(lost, TaskStatus.TERMINATED, run_id=both.run.id)

    async with world(both, before=listing(stray)) as it:
        it.shim.gives_up = asyncio.Event()
        await it.connected()
        await eventually(lambda: it.shim.listing == {})
        it.shim.stream.put_nowait(Event(cursor="e.1", type=EventType.REMOVED, task_id=stray.id))
        probed = it.shim.probed
        it.event(EventType.NODE)
        await eventually(lambda: it.shim.probed > probed)
        it.shim.gives_up.set()
        await eventually(lambda: "no answer" in caplog.text)
        await eventually(lambda: "n1" not in occupied(it, both))
        assert occupied(it, both) == {"n2": AllocationState.HELD}


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
        it.shim.plant_allocations(
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
        it.shim.plant_allocations(AllocationInfo(id="a", run_id="b", cpu=1.0, memory=1, disk=0))

    async with world(before=before, restored=restored) as it:
        await it.connected()
        assert (("release", "a") in it.shim.asked) is restored


async def test_an_idle_place_of_an_unknown_gang_goes_back_after_its_tasks_were_claimed() -> None:
    claimed = task_of(placed(AttemptStatus.RUNNING), incarnation=2)

    def before(it: World) -> None:
        listing(claimed)(it)
        idle = AllocationInfo(
            id="a", run_id=claimed.run_id, cpu=1.0, memory=1, disk=0, incarnation=2
        )
        own = msgspec.structs.replace(place_of(claimed), task_ids=(claimed.id,))
        it.shim.plant_allocations(own, idle)

    async with world(before=before, restored=True) as it:
        await it.connected()
        assert [task_id for task_id, _, _ in it.shim.claims] == [claimed.id]
        assert (it.shim.asked, it.shim.released_as) == ([("release", "a")], [2])


async def test_a_place_goes_back_with_its_task_of_an_older_incarnation_than_its_runs() -> None:
    old = task_of(placed(AttemptStatus.RUNNING), TaskStatus.TERMINATED, incarnation=1)
    held = msgspec.structs.replace(place_of(old), incarnation=2, task_ids=(old.id,))

    def before(it: World) -> None:
        listing(old)(it)
        it.shim.plant_allocations(held)

    async with world(before=before, restored=True) as it:
        await it.connected()
        marked = msgspec.structs.replace(it.node.quarantine[0], stopping=True)
        await it.pipeline.save_node(msgspec.structs.replace(it.node, quarantine=(marked,)), "n1")
        await eventually(lambda: it.shim.listing == {})
        assert ("release", held.id) in it.shim.asked
        assert it.shim.released_as == [2]


# -- quarantine ---------------------------------------------------------------------------


async def test_an_unknown_task_is_listed_and_its_place_is_occupied() -> None:
    foreign = task_of(placed(AttemptStatus.RUNNING))

    def before(it: World) -> None:
        listing(foreign)(it)
        it.shim.plant_allocations(place_of(foreign))

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
        await it.pipeline.save_node(msgspec.structs.replace(it.node, quarantine=(marked,)), "n1")
        await eventually(lambda: it.shim.asked == [("terminate", foreign.id)])
        it.event(EventType.TASK, it.shim.listing[foreign.id])
        await eventually(lambda: it.shim.listing == {})
        it.shim.stream.put_nowait(Event(cursor="e.2", type=EventType.REMOVED, task_id=foreign.id))
        await eventually(lambda: it.node.quarantine == ())
    assert it.shim.asked[0] == ("terminate", foreign.id)


async def test_an_end_in_quarantine_that_a_refusal_hindered_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign = task_of(placed(AttemptStatus.RUNNING))
    async with world(before=listing(foreign)) as it:
        await it.connected()
        refusals, ask = [ShimError("internal", "not now", 500)], it.shim.task

        async def hindered_once(task_id: str) -> TaskInfo:
            if refusals:
                raise refusals.pop()
            return await ask(task_id)

        monkeypatch.setattr(it.shim, "task", hindered_once)
        marked = msgspec.structs.replace(it.node.quarantine[0], stopping=True)
        await it.pipeline.save_node(msgspec.structs.replace(it.node, quarantine=(marked,)), "n1")
        await eventually(lambda: ("terminate", foreign.id) in it.shim.asked)
        assert refusals == []


async def test_a_task_that_is_gone_leaves_the_quarantine() -> None:
    foreign = task_of(placed(AttemptStatus.RUNNING))
    async with world(before=listing(foreign)) as it:
        await it.connected()
        assert [task.id for task in it.node.quarantine] == [foreign.id]
        it.shim.listing.clear()
        it.event(EventType.RESYNC)
        await eventually(lambda: it.node.quarantine == ())
