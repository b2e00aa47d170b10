"""One turn's decisions, run by run; nothing of them is visible before the commit."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from controller.clock import Chance
from controller.lifecycle.history import Event
from controller.lifecycle.model import RunState
from controller.lifecycle.reports import Preempted, Report, Tick
from controller.lifecycle.turn import decide
from controller.pipelines.around import World
from controller.pipelines.families import Families
from controller.pipelines.stretches import in_stretches

log = logging.getLogger(__name__)


class Placer(Protocol):
    def run_changed(self, run_id: str, state: RunState | None) -> None: ...

    def place(self, now: float, without: Container[str]) -> Mapping[str, Sequence[Report]]:
        """What to tell which runs, in this order, all of a run's at once. Nothing is placed for the
        runs in `without`."""

    def nominated(self, state: RunState) -> frozenset[str]:
        """The places of this run on which another's nomination lies."""


class TurnInProgress:
    """What one turn has decided so far. `aside`: runs that must stay as they are."""

    def __init__(
        self,
        runs: Mapping[str, RunState],
        now: float,
        chance: Chance,
        world: World,
        scheduler: Placer,
        aside: frozenset[str] = frozenset(),
    ) -> None:
        self.states: dict[str, RunState] = {}
        self.events: list[Event] = []
        self.deadlines: dict[str, float | None] = {}
        self.held: list[Report] = []
        """What the runs aside are to be told once this turn is committed."""
        self._runs = runs
        self._now = now
        self._chance = chance
        self._world = world
        self._scheduler = scheduler
        self._aside = aside

    async def admit(self, admitted: Mapping[str, RunState]) -> None:
        self.states.update(admitted)
        await self.decide_all({run_id: [Tick(run_id=run_id)] for run_id in admitted})

    async def decide_all(self, told: Mapping[str, Sequence[Report]]) -> None:
        async for run_id, reports in in_stretches(told.items()):
            self.decide(run_id, reports)

    async def place(self) -> None:
        told = dict(self._scheduler.place(self._now, self._aside))
        for run_id in self._aside & told.keys():
            # The scheduler says all else anew as long as it holds; of victims it speaks once.
            self.held += (one for one in told.pop(run_id) if isinstance(one, Preempted))
        await self.decide_all(told)

    def decide(self, run_id: str, reports: Sequence[Report]) -> None:
        state = self.states.get(run_id) or self._runs.get(run_id)
        if state is None:
            return
        try:
            decision = decide(
                state,
                reports,
                self._now,
                self._chance.new_id,
                self._chance.jitter,
                self._world.around(state, self._now, self._scheduler.nominated(state)),
            )
        except Exception:
            # A fault in one run's decision must not stop all others: that run stays as it is, and
            # what its nodes have to say comes again with their next contact.
            log.exception("run %s (%s) could not be decided on", state.run.name, run_id)
            return
        self.states[run_id] = decision.state
        self._scheduler.run_changed(run_id, decision.state)
        self.events.extend(decision.events)
        self.deadlines[run_id] = decision.wake_at

    def tell_children(self, families: Families) -> None:
        """In the same commit as the end of their parent, so that no crash comes between."""
        told: set[str] = set()
        while ended := [state for run_id, state in self.states.items() if run_id not in told]:
            for state in ended:
                told.add(state.run.id)
                for report in families.told_by(state):
                    if report.run_id in self._aside:
                        self.held.append(report)
                        continue
                    told.discard(report.run_id)
                    self.decide(report.run_id, [report])
