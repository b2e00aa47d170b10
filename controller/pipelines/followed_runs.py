"""FollowedRuns shows what another controller's pipeline has committed; it takes no turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from controller.aio import in_stretches
from controller.clock import Chance, Clock
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.model import Allocation, Fleet, RunState
from controller.lifecycle.renting_reasons import MachineReason
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.renting.settings import RentalSettings
from controller.pipelines.run_pipeline import ANY_NODE, RunPipeline
from controller.pipelines.seams import TurnListener
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.store.base import Snapshot, Store
from controller.store.turns.changed_state import ChangedState
from fairlead.model.statuses import FINAL_RUN_STATUSES, AllocationState


class LostTrack(Exception):
    """What is shown no longer fits what is stored: all of it has to be read again."""


class FollowedRentals(Rentals):
    """The records of machines. `reasons`, `why_never`: what only the leader has in memory."""

    def __init__(
        self,
        placement: JobSubmittedPipeline,
        settings: RentalSettings,
        machines: Iterable[Machine],
        orphans: Iterable[KnownOrphan],
        reasons: Mapping[str, MachineReason],
        ask_leader: Callable[[], None],
    ) -> None:
        super().__init__(placement.index, settings, machines, placement.could_hold, orphans)
        self.reasons = reasons
        self._ask_leader = ask_leader

    def why_never(self, fleet: Fleet) -> str | None:
        self._ask_leader()
        return None

    def out_of_reach(self, orphan: KnownOrphan) -> str | None:
        self._ask_leader()
        return None

    def follow(
        self, machines: Mapping[str, Machine | None], orphans: Mapping[str, KnownOrphan | None]
    ) -> None:
        self._orphans.follow(one for one in orphans.values() if one is not None)
        found = {key: machine for key, machine in machines.items() if machine is not None}
        for machine in found.values():
            self.put(machine)
        self.committed.update(found)


class FollowedRuns(RunPipeline):
    """The live runs, nodes and fleets as they are stored."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        placement: JobSubmittedPipeline,
        rentals: FollowedRentals | None = None,
    ) -> None:
        super().__init__(store, clock, chance, placement, rentals)
        self._followed_rentals = rentals

    def listen(self, listener: TurnListener) -> None:
        """Tell it nothing: the numbers and the nodes are the leader's."""

    def begin_with(self, snapshot: Snapshot, ended: Iterable[RunState]) -> None:
        """Show what is stored. `ended`: the ended runs that still occupy something."""
        self._inventory.restore(snapshot.nodes, snapshot.fleets)
        for state in (*snapshot.runs, *ended):
            self._show(state, ())

    def unseen_ends(self, run_ids: Iterable[str]) -> dict[str, Sequence[str]]:
        """Return the allocations that these runs had when they were read last, unless they were
        released then: what became of them counts as use."""
        return {
            run_id: [
                one.id
                for one in self.known[run_id].allocations
                if one.state is not AllocationState.RELEASED
            ]
            for run_id in run_ids
            if run_id in self.known
        }

    async def follow(self, found: ChangedState) -> None:
        """Show what was read again. Raises LostTrack."""
        for name, fleet in found.fleets.items():
            self._inventory.show_fleet(fleet, name)
        for node_id, node in found.nodes.items():
            self._inventory.show_node(node, node_id)
        if self._followed_rentals is not None:
            self._followed_rentals.follow(found.machines, found.orphans)
        async for run_id, state in in_stretches(found.runs.items()):
            if state is not None:
                self._show(state, found.late.get(run_id, ()))
            elif run_id in self.known:
                raise LostTrack
        of_nodes = (*found.nodes, ANY_NODE) if found.nodes or found.fleets else ()
        self._watchers.wake((*found.runs, *of_nodes, None))

    def _show(self, state: RunState, late: tuple[Allocation, ...]) -> None:
        """`late`: allocations that are over, and were not when the run was read last."""
        run_id = state.run.id
        kept = self._kept(self.known.get(run_id), state)
        # What left the state since then stays counted as use, as when the leader trimmed it.
        whole = replace(state, allocations=(*kept, *late, *state.allocations))
        self._scheduler.run_changed(run_id, whole if kept or late else state)
        if kept or late:
            self._scheduler.run_trimmed(state)
        self._known.show(state, state)
        if state.run.status not in FINAL_RUN_STATUSES:
            self._admissions.restore(state)

    @staticmethod
    def _kept(before: RunState | None, state: RunState) -> tuple[Allocation, ...]:
        """Return the released allocations that left the state."""
        if before is None:
            return ()
        shown = {one.id for one in state.allocations}
        return tuple(
            one
            for one in before.allocations
            if one.id not in shown and one.state is AllocationState.RELEASED
        )
