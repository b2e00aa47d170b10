"""A controller that finds its task on a node alone commands it from then on."""

from __future__ import annotations

from fairlead.model.statuses import AttemptStatus
from fairlead.wire.shim import EventType, TaskStatus
from tests.support.waiting import eventually
from tests.unit.nodes.world import FENCE, listing, world
from tests.unit.pipelines.parts import attempt_of, placed, task_of


async def test_each_live_task_is_claimed_before_the_node_is_connected() -> None:
    running, ended = placed(AttemptStatus.RUNNING), placed(AttemptStatus.FAILED)
    found = listing(task_of(running, TaskStatus.RUNNING), task_of(ended, TaskStatus.TERMINATED))
    async with world(running, before=found) as it:
        await it.connected()
        assert it.shim.claims == [(attempt_of(running).id, FENCE, 0)]


async def test_a_task_that_lives_elsewhere_is_not_claimed() -> None:
    elsewhere = placed(AttemptStatus.RUNNING, node_id="n2")
    async with world(elsewhere, before=listing(task_of(elsewhere, TaskStatus.RUNNING))) as it:
        await it.connected()
        assert it.shim.claims == []


async def test_after_a_restore_unknown_tasks_are_claimed_once_in_the_incarnation_known_here() -> (
    None
):
    state = placed(AttemptStatus.RUNNING)
    later = task_of(placed(AttemptStatus.RUNNING), run_id=state.run.id, incarnation=7)
    foreign = task_of(placed(AttemptStatus.RUNNING), incarnation=3)
    async with world(state, before=listing(later, foreign), restored=True) as it:
        await it.connected()
        it.event(EventType.TASK, later)
        it.event(EventType.TASK, foreign)
        await eventually(lambda: len(it.listener.strays) == 4)
        assert it.shim.claims == [(later.id, FENCE, 0), (foreign.id, FENCE, 3)]
        assert len(it.node.quarantine) == 2


async def test_another_installations_task_is_not_claimed() -> None:
    foreign = task_of(placed(AttemptStatus.RUNNING))
    async with world(before=listing(foreign)) as it:
        await it.connected()
        assert [task.id for task in it.node.quarantine] == [foreign.id]
        assert it.shim.claims == []
