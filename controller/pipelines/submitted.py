"""JobSubmittedPipeline: gives waiting attempts their places.

Runs inside the turn, after the reports were decided, so that a job is submitted and placed in one
transaction. The decision itself is `scheduling.place`, which is pure; its outcome comes back into
the turn as reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from controller.lifecycle.model import Node, RunState
from controller.lifecycle.reports import NotPlaced, Placed
from controller.scheduling.placement import FirstFit


class JobSubmittedPipeline:
    def __init__(self, new_id: Callable[[], str]) -> None:
        self._scheduler = FirstFit(new_id)

    def place(
        self, runs: Iterable[RunState], nodes: Iterable[Node], now: float
    ) -> Sequence[Placed | NotPlaced]:
        return self._scheduler.place(runs, nodes, now)
