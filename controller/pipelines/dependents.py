"""The live runs that wait for others, and what a turn tells them (docs/rules.md 4.17).

A dependent run is decided again in the turn in which something that it waits for changes, so both
are in one commit and no crash comes between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from controller.lifecycle.model import RunState
from controller.lifecycle.predecessors import PredecessorFacts
from controller.lifecycle.reports import Report, SetsRetried
from controller.lifecycle.runs.dependencies import facts, open_ids

FindRun = Callable[[str], RunState | None]


class Dependents:
    """The live runs that wait for each run."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, None]] = {}
        self._of: dict[str, tuple[str, ...]] = {}

    def note(self, state: RunState) -> list[str]:
        """Take over for which runs this one waits now; a run that has ended waits for none. Return
        the ids of those for which no run waits any more."""
        run_id, wanted = state.run.id, open_ids(state.run)
        before = self._of.get(run_id, ())
        if wanted == before:
            return []
        left = self.forget(run_id)
        if wanted:
            self._of[run_id] = wanted
        for predecessor in wanted:
            self._waiting.setdefault(predecessor, {})[run_id] = None
        return [one for one in left if one not in self._waiting]

    def forget(self, run_id: str) -> list[str]:
        """Forget for which runs this one waits. Return the ids of those for which no run waits any
        more."""
        left = []
        for predecessor in self._of.pop(run_id, ()):
            waiting = self._waiting[predecessor]
            del waiting[run_id]
            if not waiting:
                del self._waiting[predecessor]
                left.append(predecessor)
        return left

    def of(self, run_id: str) -> tuple[str, ...]:
        """Return the ids of the runs that wait for this one, in the order in which they came."""
        return tuple(self._waiting.get(run_id, ()))


def facts_for(
    state: RunState, reports: Iterable[Report], find: FindRun
) -> dict[str, PredecessorFacts]:
    """Return what is known of the runs that this one waits for, or will after these reports;
    `find`: as they are now. Of one that itself waits for this run nothing is told."""
    retried = (report.instead for report in reports if isinstance(report, SetsRetried))
    wanted = (now.run_id for several in retried for _, now in several)
    new = (one for one in wanted if not waits_for(one, state.run.id, find))
    found = ((run_id, find(run_id)) for run_id in (*open_ids(state.run), *new))
    return {run_id: facts(one) for run_id, one in found if one is not None}


def waits_for(run_id: str, other: str, find: FindRun) -> bool:
    """Return whether the run waits for the other one, itself or through others."""
    todo, seen = [run_id], set[str]()
    while todo:
        at = todo.pop()
        if at == other:
            return True
        state = None if at in seen else find(at)
        seen.add(at)
        todo.extend(() if state is None else open_ids(state.run))
    return False


def unknown_predecessors(
    states: Iterable[RunState], live: Mapping[str, object]
) -> list[tuple[RunState, str]]:
    """Return the runs that wait for one that is not live, with its id. A commit that the database
    refused for one of both can leave it so when the controller ends."""
    return [
        (state, run_id) for state in states for run_id in open_ids(state.run) if run_id not in live
    ]
