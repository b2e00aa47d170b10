"""JobSubmittedPipeline gives waiting attempts their allocations.

It runs inside the turn, after the reports were decided, so that a job is submitted and placed in
one transaction. `placement.SchedulingPass` decides, as a pure function of the index that this class
keeps. Its results come back into the turn as reports.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from controller.lifecycle.machines.market import Market, Penalties
from controller.lifecycle.model import Fleet, Node, RunState, Use
from controller.scheduling.explain import NameOf, explain, preview
from controller.scheduling.feasibility import Feasibility
from controller.scheduling.index import CapacityIndex
from controller.scheduling.placement import ReportsByRun, SchedulingPass
from controller.scheduling.queue import Unit, in_order
from controller.scheduling.renting.offered_places import offering
from fairlead.model.answers import OfferedPlace, PlannedPlace, Waiting


class JobSubmittedPipeline:
    """The scheduler with its index. `past_use`: the use of runs that the index will never see."""

    def __init__(self, new_id: Callable[[], str], past_use: Iterable[Use] = ()) -> None:
        self.index = CapacityIndex(past_use)
        self._possible = Feasibility()
        self._new_id = new_id
        self._seen_growth = -1
        self._to_see: dict[str, None] = {}
        self.is_unfinished = False
        """Whether another pass should follow at once."""

    def run_changed(self, run_id: str, state: RunState | None) -> None:
        """Use this state from now on. If the commit fails, call this again with the state before
        it."""
        self.index.run_changed(run_id, state)
        self._to_see[run_id] = None

    def run_trimmed(self, state: RunState) -> None:
        """Use the same state with less history."""
        self.index.run_trimmed(state)

    def run_over(self, run_id: str) -> None:
        """Forget a run that is final, committed, and has nothing on any node."""
        self.index.run_over(run_id)

    def node_changed(self, node_id: str, node: Node | None) -> None:
        self.index.node_changed(node_id, node)
        self._possible.node_changed(node_id, node)

    def fleet_changed(self, name: str, fleet: Fleet | None) -> None:
        self.index.fleet_changed(name, fleet)
        self._possible.fleet_changed(name, fleet)

    def place(self, now: float, without: Container[str] = frozenset()) -> ReportsByRun:
        """Return the reports to apply, by run, in this order.

        While no capacity has come free, only units that changed are tried. Units of the runs in
        `without` are left out.
        """
        to_see, self._to_see = self._to_see, {}
        units = None
        if self.index.growth == self._seen_growth:
            units = [unit for run_id in to_see for unit in self.index.units.get(run_id, ())]
        self._seen_growth = self.index.growth
        if not (self.index.units if units is None else units) and not self.index.nominations:
            self.is_unfinished = False
            return {}
        scheduling_pass = SchedulingPass(self.index, now, self._new_id)
        reports = scheduling_pass.decide(units, without)
        # A limit stopped this pass, and no change may come that brings these runs back.
        self._to_see.update(scheduling_pass.left_over)
        self.is_unfinished = bool(scheduling_pass.left_over)
        return reports

    def is_taken(self, node_id: str) -> bool:
        """Return whether an allocation or a nomination is on the node, committed or not."""
        return bool(self.index.taken.get(node_id))

    def why_never(self, state: RunState) -> tuple[str, str] | None:
        """Return the field that asks for more than the nodes could ever hold, and a sentence; None:
        they could."""
        return self._possible.why_never(state)

    def could_hold(self, unit: Unit) -> bool:
        """Return whether the nodes that are known could hold the unit if they were free."""
        return self._possible.could_hold(unit)

    def explain(self, run_id: str, now: float, name_of: NameOf) -> tuple[Waiting, ...]:
        """Return why each waiting job of this run waits."""
        return explain(self.index, run_id, now, name_of)

    def queue(self, now: float) -> list[Unit]:
        """Return all waiting units, the first to place first."""
        every = (unit for units in self.index.units.values() for unit in units)
        return in_order(every, self.index.use, now)

    def used(self, user: str, now: float) -> tuple[int, int]:
        """Return the user's weighted GPU-seconds and CPU-seconds, by which the queue is ordered."""
        return self.index.use.used(user, now)

    def preview(self, state: RunState, now: float, name_of: NameOf) -> tuple[PlannedPlace, ...]:
        """Return where the jobs of this run would go; the run is not submitted."""
        return preview(self.index, state, now, self._new_id, name_of)

    def offering(self, state: RunState, now: float) -> tuple[OfferedPlace, ...]:
        """Return the nodes that have room for the jobs of this run, the first to be tried first."""
        with self.index.with_run(state):
            return offering(self.index, (), Market(penalties=Penalties()), state.run.id, now)

    def nominated(self, state: RunState) -> frozenset[str]:
        """Return the allocations of this run that another run has nominated."""
        return frozenset(
            allocation.id
            for allocation in state.allocations
            if allocation.id in self.index.nomination_on
        )
