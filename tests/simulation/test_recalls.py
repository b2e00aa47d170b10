"""The check of what a recall orders finds what it is there to find."""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.model import Group, RunState
from controller.lifecycle.runs.first_state import new_run
from fairlead.model.reasons import Reason
from fairlead.model.spec import JobSpec, PlannedGroup
from fairlead.model.statuses import AttemptStatus
from tests.simulation.recalls import early_orders, too_many
from tests.simulation.samples import changed
from tests.unit.machines.parts import machine
from tests.unit.scheduling.parts import node


def _stopping(lost: int) -> RunState:
    """Return a gang of three that stops; the machines of so many ranks are taken back."""
    ids = iter(f"{number:016x}" for number in range(100))
    group = Group(name="main", nodes=3, gang_size=3)
    state = new_run(
        name="gang",
        user="ada",
        groups=[PlannedGroup(group=group, spec=JobSpec(image="i"))],
        now=0.0,
        new_id=lambda: next(ids),
    )
    for index in range(3):
        recalled = index < lost
        reason = Reason.INTERRUPTED_BY_NO_CAPACITY if recalled else Reason.INCARNATION_CHANGED
        ends = {"status": AttemptStatus.TERMINATING, "reason": reason, "node_id": f"n{index}"}
        state = changed(state, index, **ends)
    assert state.run.incarnation is not None
    after = replace(state.run.incarnation, number=state.run.incarnation.number + 1, id="next")
    return replace(state, run=replace(state.run, incarnation=after))


def test_machines_for_ranks_that_survive_are_found() -> None:
    state = _stopping(1)
    ordered = [machine("m1", run_id=state.run.id), machine("m2", run_id=state.run.id)]
    nodes = {name: node(name) for name in ("n0", "n1", "n2")}
    assert early_orders(ordered, {state.run.id: state}) == {state.run.id: ordered}
    assert too_many(state, ordered[:1], nodes) is None
    assert too_many(state, ordered, nodes) == "2 machines for 3 ranks, of which 2 survive"
    drained = nodes | {"n1": node("n1", draining=True)}
    assert too_many(state, ordered, drained) is None


def test_orders_of_runs_that_stop_for_no_recall_are_not_taken_for_early_ones() -> None:
    state = _stopping(0)
    assert early_orders([machine(run_id=state.run.id)], {state.run.id: state}) == {}
    assert early_orders([machine(run_id=None)], {state.run.id: state}) == {}
