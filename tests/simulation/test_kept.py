"""The simulation finds a switch's freed place that went to another run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.lifecycle.model import (
    Incarnation,
    Node,
    NodeAddress,
    NodeCapacity,
    RunState,
    Switch,
)
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from tests.simulation.kept import FreedPlaces
from tests.simulation.samples import a_gang, changed, placed


def switched(state: RunState, failed: int, stopped: int) -> RunState:
    """The one failed, the other is being stopped for a new incarnation."""
    assert state.run.incarnation is not None
    new = Incarnation(number=2, id="second")
    switch = Switch(reason="job_failed", attempt_id=None, message=None, at=1.0, incarnation=2)
    run = msgspec.structs.replace(state.run, incarnation=new, switches=(switch,))
    state = msgspec.structs.replace(state, run=run)
    reason = Reason.CONTAINER_EXITED_WITH_ERROR
    state = changed(state, failed, status=AttemptStatus.FAILED, reason=reason)
    reason = Reason.INCARNATION_CHANGED
    return changed(state, stopped, status=AttemptStatus.TERMINATING, reason=reason)


def released(state: RunState, index: int) -> RunState:
    gone = {"state": AllocationState.RELEASED, "released_at": 2.0}
    return msgspec.structs.replace(
        state,
        allocations=tuple(
            msgspec.structs.replace(one, **gone) if one.id == f"a{index}" else one
            for one in state.allocations
        ),
    )


def a_job_on(node_id: str) -> RunState:
    state = placed(msgspec.structs.replace(a_gang(nodes=1, size=1)), 0)
    run = msgspec.structs.replace(state.run, id="other", name="other", incarnation=None)
    place = msgspec.structs.replace(state.allocations[0], id="b", run_id="other", node_id=node_id)
    return msgspec.structs.replace(state, run=run, allocations=(place,))


def small(name: str, **more: Any) -> Node:
    """Room for one job."""
    capacity = NodeCapacity(cpu=1.0, memory=1 << 30)
    address = NodeAddress(shim_socket="/s")
    return Node(id=name, name=name, address=address, capacity=capacity, created_at=0.0, **more)


def story_of(*moments: tuple[RunState, ...], nodes: dict[str, Node] | None = None) -> list[str]:
    """The violations when these are committed one after the other."""
    freed, known = FreedPlaces(), dict[str, RunState]()
    found: list[str] = []
    nodes = nodes or {name: small(name) for name in ("n0", "n1")}
    for states in moments:
        now = known | {state.run.id: state for state in states}
        found += freed.breaches(known, now, nodes)
        known = now
    return found


def gang_amid_a_switch() -> tuple[RunState, RunState, RunState]:
    """Before it, in it, and when the failed rank's place was given back."""
    running = placed(placed(a_gang(nodes=2), 0), 1)
    amid = switched(running, 0, 1)
    return running, amid, released(amid, 0)


def test_a_freed_place_that_another_run_gets_is_found() -> None:
    running, amid, freed = gang_amid_a_switch()
    taken = "a place of gang g on n0 went to other before the gang was whole"
    assert story_of((running,), (amid,), (freed,), (a_job_on("n0"),)) == [taken]
    assert story_of((running,), (amid,), (freed, a_job_on("n0"))) == [taken]
    assert story_of((running,), (amid,), (freed,), (a_job_on("n7"),)) == []


def test_a_freed_place_of_a_node_with_room_for_both_may_have_neighbours() -> None:
    running, amid, freed = gang_amid_a_switch()
    large = msgspec.structs.replace(small("n0"), capacity=NodeCapacity(cpu=2.0, memory=2 << 30))
    nodes = {"n0": large, "n1": small("n1")}
    assert story_of((running,), (amid,), (freed,), (a_job_on("n0"),), nodes=nodes) == []


def test_an_allocation_freed_on_a_node_that_takes_no_work_is_for_nobody() -> None:
    running, amid, freed = gang_amid_a_switch()
    nodes = {"n0": small("n0", draining=True), "n1": small("n1")}
    assert story_of((running,), (amid,), (freed,), (a_job_on("n0"),), nodes=nodes) == []


@pytest.mark.parametrize("change", [{"suspended": True}, {"status": RunStatus.TERMINATING}])
def test_a_gang_that_gave_up_has_no_right_to_what_it_freed(change: dict[str, Any]) -> None:
    running, amid, freed = gang_amid_a_switch()
    over = msgspec.structs.replace(freed, run=msgspec.structs.replace(freed.run, **change))
    assert story_of((running,), (amid,), (freed,), (over,), (a_job_on("n0"),)) == []


def test_a_gang_that_has_its_place_again_has_no_right_to_another() -> None:
    running, amid, freed = gang_amid_a_switch()
    elsewhere = msgspec.structs.replace(running.allocations[0], id="again", created_at=3.0)
    back = msgspec.structs.replace(freed, allocations=(*freed.allocations, elsewhere))
    gone = msgspec.structs.replace(elsewhere, state=AllocationState.RELEASED)
    left = msgspec.structs.replace(freed, allocations=(*freed.allocations, gone))
    story = story_of((running,), (amid,), (freed,), (back,), (left,), (a_job_on("n0"),))
    assert story == []


def test_a_gang_of_which_no_place_survived_has_no_right_to_any() -> None:
    running = placed(placed(a_gang(nodes=2), 0), 1)
    amid = switched(running, 0, 1)
    both = changed(amid, 1, status=AttemptStatus.FAILED, reason=Reason.INSTANCE_UNREACHABLE)
    jobs = []
    for job in both.jobs:
        fresh = msgspec.structs.replace(
            job.attempts[-1],
            id=f"{job.id}-again",
            number=1,
            status=AttemptStatus.PROVISIONING,
            incarnation=both.run.incarnation,
            reason=None,
            allocation_id=f"{job.id}-place",
            provisioned_at=2.0,
        )
        jobs.append(msgspec.structs.replace(job, attempts=(*job.attempts, fresh)))
    elsewhere = tuple(
        msgspec.structs.replace(running.allocations[0], id=f"{job.id}-place", node_id="n5")
        for job in jobs
    )
    gone = released(released(both, 0), 1)
    again = msgspec.structs.replace(
        gone, jobs=tuple(jobs), allocations=(*gone.allocations, *elsewhere)
    )
    assert story_of((running,), (again,), (a_job_on("n0"),)) == []
