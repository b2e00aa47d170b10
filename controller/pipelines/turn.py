"""A turn in progress: what the core and the scheduler decide before anything is committed.

`Brake` protects the loop of turns from a run that asks for decisions without end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Protocol

from msgspec.structs import replace

from controller.aio import in_stretches
from controller.clock import Chance
from controller.lifecycle.decide import decide
from controller.lifecycle.draft import DecisionContext
from controller.lifecycle.events import Event
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.model import Run, RunState
from controller.lifecycle.predecessors import PredecessorFacts
from controller.lifecycle.reports import Preempted, Report, Tick
from controller.lifecycle.runs.dependencies import facts, open_ids
from controller.pipelines.dependents import Dependents, facts_for
from controller.pipelines.live_state import (
    DecisionContexts,
    Families,
    InventoryChanges,
    removed_keys,
    without_removed,
)
from controller.store.base import Changes

log = logging.getLogger(__name__)
FIRST_BRAKE_SECONDS = 1.0
MAX_BRAKE_SECONDS = 60.0


class TurnInProgress:
    """The decisions of one turn so far. `aside`: runs that must stay as they are."""

    def __init__(
        self,
        runs: Mapping[str, RunState],
        now: float,
        chance: Chance,
        contexts: DecisionContexts,
        scheduler: Placer,
        aside: frozenset[str] = frozenset(),
    ) -> None:
        self.states: dict[str, RunState] = {}
        self.events: list[Event] = []
        self.orphans: Mapping[str, KnownOrphan] = {}
        self.deadlines: dict[str, float | None] = {}
        self.held: list[Report] = []
        """Reports for the runs set aside, to be applied after this turn's commit."""
        self.pass_seconds = 0.0
        """How long the scheduler's pass took."""
        self._runs = runs
        self._now = now
        self._chance = chance
        self._contexts = contexts
        self._scheduler = scheduler
        self._aside = aside
        self._known_facts: dict[str, PredecessorFacts] = {}

    async def begin(
        self, admitted: Mapping[str, RunState], inbox: Mapping[str, Sequence[Report]]
    ) -> None:
        """Decide the new runs, and those of which something was reported."""
        self.states.update(admitted)
        async for run_id in in_stretches(self._predecessors_first((*admitted, *inbox))):
            if run_id in admitted:
                self.decide(run_id, [Tick(run_id=run_id)])
            if run_id in inbox:
                self.decide(run_id, inbox[run_id])

    def _predecessors_first(self, run_ids: Iterable[str]) -> list[str]:
        """Return the runs, each after those of them that it waits for.

        A retry of a set takes back that it has failed. A run that was decided before the one that
        it waits for would begin a set on what this same turn takes back.
        """
        found = dict.fromkeys(run_ids)
        states = (state for run_id in found if (state := self._find(run_id)) is not None)
        edges = {
            state.run.id: among
            for state in states
            if state.run.after and (among := [one for one in open_ids(state.run) if one in found])
        }
        return list(dict.fromkeys((*TopologicalSorter(edges).static_order(), *found)))

    async def decide_all(self, by_run: Mapping[str, Sequence[Report]]) -> None:
        async for run_id, reports in in_stretches(by_run.items()):
            self.decide(run_id, reports)

    async def place(self) -> None:
        began = time.perf_counter()
        by_run = dict(self._scheduler.place(self._now, self._aside))
        self.pass_seconds = time.perf_counter() - began
        for run_id in self._aside & by_run.keys():
            # A report that still holds comes again with the next pass; a victim's comes only once.
            self.held += (one for one in by_run.pop(run_id) if isinstance(one, Preempted))
        await self.decide_all(by_run)

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
                self._context(state, reports),
            )
        except Exception:
            # A fault in one run's decision must not stop all others: that run stays as it is, and
            # what its nodes have to say comes again with their next contact.
            log.exception("run %s (%s) could not be decided", state.run.name, run_id)
            return
        self.states[run_id] = decision.state
        self._scheduler.run_changed(run_id, decision.state)
        self.events.extend(decision.events)
        self.deadlines[run_id] = decision.wake_at

    def _context(self, state: RunState, reports: Sequence[Report]) -> DecisionContext:
        context = self._contexts.of(state, self._now, self._scheduler.nominated(state))
        if not state.run.after:
            return context
        return replace(context, predecessors=facts_for(state, reports, self._find))

    def _find(self, run_id: str) -> RunState | None:
        return self.states.get(run_id) or self._runs.get(run_id)

    def tell_dependents(self, dependents: Dependents) -> bool:
        """Decide the runs again that wait for one of which more is known since this turn. Return
        whether that changed any of them."""
        changed = False
        todo = [run_id for run_id in self.states if dependents.of(run_id)]
        for run_id in todo:  # it grows
            if not self._has_new_facts(run_id):
                continue
            for dependent in dependents.of(run_id):
                if dependent in self._aside:
                    self.held.append(Tick(run_id=dependent))
                    continue
                before = self._find(dependent)
                self.decide(dependent, [Tick(run_id=dependent)])
                changed |= self._find(dependent) is not before
                if dependents.of(dependent):
                    todo.append(dependent)
        return changed

    def _has_new_facts(self, run_id: str) -> bool:
        """Return whether more is known of the run than the runs that wait for it were told, or saw
        when they were last decided. Otherwise each pass over a waiting run would make another."""
        state, committed = self.states[run_id], self._runs.get(run_id)
        if state is committed:
            return False
        seen = facts(state)
        known = self._known_facts.get(run_id)
        if known is None and committed is not None:
            known = facts(committed)
        self._known_facts[run_id] = seen
        return seen != known

    def changes(self, inventory: InventoryChanges, more: Iterable[Event]) -> Changes:
        """Return what the commit of this turn stores, with these changes and events."""
        return Changes(
            runs={
                run_id: (self._runs.get(run_id), state)
                for run_id, state in self.states.items()
                if self._runs.get(run_id) is not state
            },
            nodes=without_removed(inventory.nodes),
            removed_nodes=removed_keys(inventory.nodes),
            fleets=without_removed(inventory.fleets),
            removed_fleets=removed_keys(inventory.fleets),
            machines=inventory.machines,
            orphans=self.orphans,
            events=(*self.events, *more),
        )

    def tell_children(self, families: Families) -> None:
        """Report the end of parents to their children, in the same commit, so that no crash comes
        between."""
        done: set[str] = set()
        while ended := [state for run_id, state in self.states.items() if run_id not in done]:
            for state in ended:
                done.add(state.run.id)
                for report in families.reports_to_children(state):
                    if report.run_id in self._aside:
                        self.held.append(report)
                        continue
                    # A child that ends in this turn too has children of its own to tell.
                    done.discard(report.run_id)
                    self.decide(report.run_id, [report])


class Placer(Protocol):
    """The part of the scheduler that a turn needs."""

    def run_changed(self, run_id: str, state: RunState | None) -> None: ...

    def place(self, now: float, without: Container[str]) -> Mapping[str, Sequence[Report]]:
        """Return the reports to apply by run, in this order, all of a run's together. Nothing is
        placed for the runs in `without`."""

    def nominated(self, state: RunState) -> frozenset[str]:
        """Return the allocations of this run that another run has nominated."""


class Brake:
    """Protects the turn loop from a run that asks to be decided at once, again and again, without a
    change.

    Such a run would take the loop from all other runs. It is a bug of this program: it is logged as
    an error, and the run is looked at less and less often until something changes it. Reports about
    it are decided at once, as always.
    """

    def __init__(self) -> None:
        self._waits: dict[str, float] = {}

    def next_look(
        self, run: Run, wake_at: float | None, now: float, *, changed: bool
    ) -> float | None:
        """Return when to decide the run again, given the time that its decision at `now` asks
        for."""
        if changed or wake_at is None or wake_at > now:
            self._waits.pop(run.id, None)
            return wake_at
        wait = min(MAX_BRAKE_SECONDS, 2 * self._waits.get(run.id, FIRST_BRAKE_SECONDS / 2))
        self._waits[run.id] = wait
        log.error(
            "internal error: run %s (%s) asks for a decision now, and nothing changes; it is "
            "decided again in %g s",
            run.name,
            run.id,
            wait,
        )
        return now + wait
