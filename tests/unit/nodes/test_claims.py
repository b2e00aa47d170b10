"""What a controller finds on a node and has itself, it alone commands from then on."""

from __future__ import annotations

from controller.lifecycle.statuses import AttemptStatus
from shim.schemas import TaskStatus
from tests.unit.nodes.test_session import FENCE, listing, world
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
