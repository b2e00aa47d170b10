"""What RunPipeline needs of others: the scheduler that places, and whoever hears of commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from controller.lifecycle.model import Fleet, Node, RunState
from controller.pipelines.turn import Placer
from controller.scheduling.explain import NameOf
from controller.scheduling.queue import Unit
from fairlead.model.answers import OfferedPlace, PlannedPlace, Waiting


class Scheduler(Placer, Protocol):
    """The seam of JobSubmittedPipeline. It gets every change before the commit, and the state
    before it when the commit fails."""

    is_unfinished: bool
    """Whether another turn should follow at once."""

    def is_taken(self, node_id: str) -> bool: ...

    def run_trimmed(self, state: RunState) -> None: ...

    def run_over(self, run_id: str) -> None: ...

    def node_changed(self, node_id: str, node: Node | None) -> None: ...

    def fleet_changed(self, name: str, fleet: Fleet | None) -> None: ...

    def why_never(self, state: RunState) -> tuple[str, str] | None: ...

    def queue(self, now: float) -> Sequence[Unit]: ...

    def used(self, user: str, now: float) -> tuple[int, int]: ...

    def explain(self, run_id: str, now: float, name_of: NameOf) -> Sequence[Waiting]: ...

    def preview(self, state: RunState, now: float, name_of: NameOf) -> Sequence[PlannedPlace]: ...

    def offering(self, state: RunState, now: float) -> tuple[OfferedPlace, ...]: ...


class TurnListener(Protocol):
    """Learns of each committed run."""

    def committed(self, touched: Sequence[RunState]) -> None:
        """Handle runs that were decided and are committed as given; a finished run comes for the
        last time."""
