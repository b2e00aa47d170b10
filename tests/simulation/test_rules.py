"""The checks of placement, order and policy find what they are there to find."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.model import (
    Allocation,
    Constraint,
    Group,
    JobSpec,
    Node,
    NodeAddress,
    NodeCapacity,
    NodeStatus,
    Occurrence,
    Operator,
    Resources,
    RunPolicy,
    RunState,
    StartupOrder,
)
from controller.lifecycle.runs.first_state import new_run
from controller.scheduling.nominations import NO_LONGER_FITS
from fairlead.model.reasons import Reason, RunReason
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.wire.engine_abilities import EngineAbility
from tests.simulation.orders import (
    misnamed,
    not_by_policy,
    out_of_order,
    overlong,
    overspent,
)
from tests.simulation.placing import breaches, evicted_in_vain, names_taken_twice


def a_run(
    jobs: int = 2, gang_size: int | None = None, spec: JobSpec | None = None, **policy: Any
) -> RunState:
    ids = iter(f"{number:016x}" for number in range(100))
    group = Group(name="main", nodes=jobs, gang_size=gang_size, monitoring_by_rank=True)
    return new_run(
        name="r",
        user="u",
        groups=[PlannedGroup(group=group, spec=spec or JobSpec(image="i"))],
        now=0.0,
        new_id=lambda: next(ids),
        policy=RunPolicy(**policy),
    )


def a_node(name: str = "n0", **changes: Any) -> Node:
    address = NodeAddress(shim_socket="/s", local_socket=True)
    return replace(
        Node(id=name, name=name, address=address, created_at=0.0, status=NodeStatus.CONNECTED),
        **changes,
    )


def changed(state: RunState, index: int, **changes: Any) -> RunState:
    """With the last attempt of that job replaced."""
    jobs = list(state.jobs)
    last = replace(jobs[index].attempts[-1], **changes)
    jobs[index] = replace(jobs[index], attempts=(*jobs[index].attempts[:-1], last))
    return replace(state, jobs=tuple(jobs))


def placed(state: RunState, index: int, node: str = "n0", **place: Any) -> RunState:
    fields: dict[str, Any] = {"placement": "r0", "monitoring_descriptor": f"m{index}", **place}
    made = Allocation(
        id=f"a{index}",
        run_id=state.run.id,
        job_id=state.jobs[index].id,
        node_id=node,
        state=AllocationState.HELD,
        resources=Resources(),
        created_at=0.0,
        **fields,
    )
    state = replace(state, allocations=(*state.allocations, made))
    held = {"status": AttemptStatus.PROVISIONING, "node_id": node, "allocation_id": made.id}
    return changed(state, index, **held)


def found(before: RunState, after: RunState, *nodes: Node) -> list[str]:
    now = {node.id: node for node in nodes}
    return list(breaches(before, after, now, now))


# -- places ---------------------------------------------------------------------------------


def test_a_place_on_a_node_that_takes_work_breaks_nothing() -> None:
    state = a_run()
    assert found(state, placed(state, 0), a_node()) == []


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (a_node(draining=True), "drains"),
        (a_node(cordoned=True), "is cordoned"),
        (a_node(status=NodeStatus.UNREACHABLE), "is unreachable"),
        (a_node(status=NodeStatus.LOST), "is lost"),
    ],
)
def test_a_place_on_a_node_that_takes_no_work_is_found(node: Node, word: str) -> None:
    state = a_run()
    (text,) = found(state, placed(state, 0), node)
    assert text.endswith(f"got a place on n0, which {word}")


def test_a_drain_that_came_with_the_commit_itself_is_nobodys_fault() -> None:
    state = a_run()
    before, now = {"n0": a_node()}, {"n0": a_node(draining=True)}
    assert list(breaches(state, placed(state, 0), before, now)) == []


def test_a_gang_that_begins_again_in_the_place_it_held_may_do_so_on_a_cordoned_node() -> None:
    state = a_run(gang_size=2)
    held = placed(state, 0, monitoring_descriptor=f"{state.run.id}/0")
    before = changed(held, 0, status=AttemptStatus.SUBMITTED, node_id=None, allocation_id=None)
    assert found(before, held, a_node(cordoned=True)) == []


def test_a_place_in_a_fleet_that_was_not_asked_for_is_found() -> None:
    state = a_run(spec=JobSpec(image="i", fleets=("other",)))
    (text,) = found(state, placed(state, 0), a_node(fleet="fleet"))
    assert text.endswith("on n0: it belongs to fleet fleet, asked was for other")


def test_a_place_on_a_node_whose_engine_lacks_what_the_job_needs_is_found() -> None:
    needs = Resources(engine=(EngineAbility.VOLUMES,))
    state = a_run(spec=JobSpec(image="i", resources=needs))
    lacking = a_node(capacity=NodeCapacity(engine_lacks=tuple(EngineAbility)))
    (text,) = found(state, placed(state, 0), lacking)
    assert text.endswith("got a place on n0, whose engine is another")
    assert found(state, placed(state, 0), a_node()) == []


@pytest.mark.parametrize("changed_node", [True, False])
def test_a_nomination_that_does_not_fit_is_found_unless_its_node_has_changed(
    changed_node: bool,
) -> None:
    state = placed(a_run(), 0)
    job = state.jobs[0]
    ids = {"run_id": state.run.id, "job_id": job.id, "attempt_id": job.attempts[-1].id}
    event = Event(at=1.0, kind=EventKind.ALLOCATION, cause=NO_LONGER_FITS, **ids)
    runs = {state.run.id: state}
    texts = list(evicted_in_vain([event], runs, lambda _: changed_node))
    assert len(texts) == (0 if changed_node else 1)


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        (Operator.EQ, ("2",), True),
        (Operator.NE, ("2",), False),
        (Operator.IN, ("1", "2"), True),
        (Operator.LT, ("2",), False),
        (Operator.LE, ("2",), True),
        (Operator.GT, ("1",), True),
        (Operator.GE, ("3",), False),
        (Operator.EXISTS, (), True),
        (Operator.NOT_EXISTS, (), False),
    ],
)
def test_a_node_that_a_constraint_excludes_is_found(
    operator: Operator, values: tuple[str, ...], fits: bool
) -> None:
    wish = Constraint(attribute="number", operator=operator, values=values)
    state = a_run(spec=JobSpec(image="i", constraints=(wish,)))
    texts = found(state, placed(state, 0), a_node(attributes={"number": "2"}))
    assert (texts == []) is fits


def test_a_cluster_in_two_placement_values_is_found() -> None:
    state = a_run(same_placement=True)
    after = placed(placed(state, 0), 1, placement="r1")
    (text,) = found(state, after, a_node())
    assert text == "run r of one cluster lies in [\"('default', 'r0')\", \"('default', 'r1')\"]"


def test_a_cluster_under_no_placement_value_is_found() -> None:
    state = a_run(same_placement=True)
    (text,) = found(state, placed(state, 0, placement=None), a_node())
    assert text == "run r of one cluster lies under no placement value"


def test_a_cluster_that_grew_from_one_job_may_stay_where_that_one_is() -> None:
    state = changed(a_run(same_placement=True), 1, submitted_at=60.0)
    assert found(state, placed(state, 0, placement=None), a_node()) == []


def test_a_rank_that_is_monitored_under_another_name_is_found() -> None:
    state = a_run(gang_size=2)
    (text,) = found(state, placed(state, 1, monitoring_descriptor=f"{state.run.id}/0"), a_node())
    assert text.endswith(f"is monitored as {state.run.id}/0, not as {state.run.id}/1")


def test_two_places_of_one_name_are_found() -> None:
    state = a_run()
    after = placed(placed(state, 0, monitoring_descriptor="m"), 1, monitoring_descriptor="m")
    assert found(state, after, a_node()) == ["2 places of run r are monitored as m"]


def test_two_live_runs_of_one_name_are_found() -> None:
    one, two = a_run(), a_run()
    ended = replace(two, run=replace(two.run, status=RunStatus.DONE))
    assert list(names_taken_twice({"1": one, "2": ended})) == []
    assert list(names_taken_twice({"1": one, "2": two})) == ["2 live runs have the name r"]


# -- order ----------------------------------------------------------------------------------


def running(state: RunState, index: int, at: float) -> RunState:
    return changed(state, index, status=AttemptStatus.RUNNING, running_at=at)


def test_a_worker_that_runs_before_its_master_is_found() -> None:
    state = a_run(startup_order=StartupOrder.MASTER_FIRST)
    (text,) = out_of_order(state, running(state, 1, 10.0))
    assert text.endswith("(master-first) started before job main/0")
    both = running(running(state, 0, 10.0), 1, 12.0)
    assert list(out_of_order(state, both)) == []


def test_a_master_that_runs_before_a_worker_is_found() -> None:
    state = a_run(3, startup_order=StartupOrder.WORKERS_FIRST)
    one_of_two = running(state, 1, 10.0)
    (text,) = out_of_order(one_of_two, running(one_of_two, 0, 11.0))
    assert text.endswith("(workers-first) started before job main/2")


def test_nobody_waits_for_a_job_that_is_over_or_abandoned_or_came_later() -> None:
    state = a_run(startup_order=StartupOrder.WORKERS_FIRST)
    after = running(state, 0, 10.0)
    abandoned = (after.jobs[0], replace(after.jobs[1], abandoned=True))
    over = changed(after, 1, status=AttemptStatus.FAILED, terminating_at=9.0)
    for other in (replace(after, jobs=abandoned), over, changed(after, 1, submitted_at=20.0)):
        assert list(out_of_order(state, other)) == []


# -- policy ---------------------------------------------------------------------------------


def ended(state: RunState, reason: Reason, at: float, running_at: float | None = None) -> RunState:
    changes = {"reason": reason, "terminating_at": at, "running_at": running_at}
    return changed(state, 0, status=AttemptStatus.TERMINATING, **changes)


def why(state: RunState) -> str | None:
    return not_by_policy(state, state.jobs[0], state.jobs[0].attempts[-1])


@pytest.mark.parametrize(("at", "fits"), [(40.0, True), (30.0, False)])
def test_a_limit_on_the_duration_that_had_not_passed_is_found(at: float, fits: bool) -> None:
    state = ended(a_run(max_duration=30.0), Reason.MAX_DURATION_EXCEEDED, at, 10.0)
    assert (why(state) is None) is fits


@pytest.mark.parametrize(("at", "fits"), [(30.0, True), (20.0, False)])
def test_a_scheduling_timeout_that_had_not_passed_is_found(at: float, fits: bool) -> None:
    state = ended(a_run(scheduling_timeout=30.0), Reason.UNSCHEDULABLE, at)
    assert (why(state) is None) is fits


def test_a_reserved_job_that_gave_up_waiting_is_found() -> None:
    state = a_run(1, gang_size=1, scheduling_timeout=30.0)
    state = ended(changed(state, 0, rank=None), Reason.UNSCHEDULABLE, 40.0)
    assert why(state) == "it is a reserved job, which waits beyond scheduling_timeout"


def test_a_job_that_was_stopped_for_a_sibling_that_never_failed_is_found() -> None:
    state = a_run(gang_size=2)
    state = ended(state, Reason.SIBLING_FAILED, 40.0)
    assert why(state) == "no job of its replica has failed"
    failed = changed(state, 1, reason=Reason.CONTAINER_EXITED_WITH_ERROR)
    assert why(failed) is None


def test_an_end_by_the_controller_of_a_run_that_a_user_ended_is_found() -> None:
    state = ended(a_run(), Reason.TERMINATED_BY_SERVER, 40.0)
    assert why(state) == "its run goes on"
    for reason, text in (
        (RunReason.STOPPED_BY_USER, "its run ends as stopped_by_user"),
        (RunReason.ALL_JOBS_DONE, None),
    ):
        assert why(replace(state, run=replace(state.run, reason=reason))) == text


def test_a_run_that_goes_on_after_its_max_duration_is_found() -> None:
    state = running(a_run(max_duration=30.0), 0, 10.0)
    assert list(overlong(state, 90.0, 60.0)) == []
    assert list(overlong(state, 110.0, 60.0)) == ["run r runs on after its max_duration of 30 s"]


def test_a_run_that_goes_on_after_too_many_failed_attempts_is_found() -> None:
    state = a_run(max_failed_attempts=0)
    assert list(overspent(state)) == []
    failed = changed(state, 0, reason=Reason.CONTAINER_EXITED_WITH_ERROR)
    assert list(overspent(failed)) == ["run r goes on after 1 failed attempts"]


def test_a_run_that_says_that_it_lost_its_nodes_and_did_not_is_found() -> None:
    failed = ended(a_run(), Reason.CONTAINER_EXITED_WITH_ERROR, 40.0)
    lying = replace(failed, run=replace(failed.run, reason=RunReason.WORKER_FAILED))
    assert list(misnamed(lying)) == ["run r ends as worker_failed, its jobs as failed"]
    lost = ended(lying, Reason.INSTANCE_UNREACHABLE, 40.0)
    assert list(misnamed(lost)) == []


@pytest.mark.parametrize(
    ("of_occurrence", "fits"), [(RunReason.JOB_FAILED, True), (RunReason.STOPPED_BY_USER, False)]
)
def test_a_job_of_a_scheduled_run_ends_with_its_occurrence(
    of_occurrence: RunReason, fits: bool
) -> None:
    state = ended(a_run(), Reason.TERMINATED_BY_SERVER, 1.0)
    over = Occurrence(
        number=1,
        status=RunStatus.FAILED,
        reason=of_occurrence,
        message=None,
        started_at=0.0,
        finished_at=1.0,
    )
    run = replace(state.run, reason=RunReason.STOPPED_BY_USER, occurrences=(over,))
    assert (why(replace(state, run=run)) is None) is fits
