"""Admissions: new runs from their submission to their first commit, and the names of live runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from controller.lifecycle.model import RunState
from controller.lifecycle.runs.dependencies import open_ids
from controller.pipelines.dependents import Dependents
from controller.pipelines.live_state import Families


class NotAdmitted(Exception):
    """Base of what refuses a new run: `admit_all` collects these, and the runs beside it go on."""


class NameTaken(NotAdmitted):
    """A live run already has this name."""


class ParentGone(NotAdmitted):
    """The run that a new one names as its parent is not live."""


class PredecessorGone(NotAdmitted):
    """A run that a new one waits for is not live, and the new one does not know how it ended."""


class Admissions:
    """Runs that are handed in count as relatives and by name at once; no one else sees them."""

    def __init__(
        self, runs: Mapping[str, RunState], families: Families, dependents: Dependents
    ) -> None:
        """`runs`: the live ones, as they are committed."""
        self.names: dict[str, str] = {}
        """The ids of the live and the new runs, by name."""
        self.new: dict[str, RunState] = {}
        """Those that no turn has taken yet."""
        self._mates: dict[str, frozenset[str]] = {}
        """The runs that are admitted together with each run that is not committed yet."""
        self._runs = runs
        self._families = families
        self._dependents = dependents

    def restore(self, state: RunState) -> None:
        """Take over a live run that the store has."""
        self.names[state.run.name] = state.run.id
        self._families.add(state)
        self._dependents.note(state)

    def take(self, states: Sequence[RunState]) -> None:
        """Take in new runs that are committed together; one may wait for one before it. Raises
        NotAdmitted: then none is taken."""
        mates = frozenset(state.run.id for state in states)
        for state in states:
            self._require_admissible(state, mates if len(states) > 1 else ())
        for state in states:
            # Taken before the commit: two submissions of one name may come in the same turn.
            self.restore(state)
            self.new[state.run.id] = state
            if len(states) > 1:
                self._mates[state.run.id] = mates

    def take_all(self) -> dict[str, RunState]:
        """Take out the new runs, for a turn."""
        new, self.new = self.new, {}
        return new

    def put_back(self, runs: Mapping[str, RunState]) -> None:
        """Keep these new runs for the next turn."""
        self.new = {**runs, **self.new}

    def with_mates(self, run_ids: Collection[str]) -> set[str]:
        """Return these runs and those that are committed together with them or not at all."""
        return set(run_ids).union(*(self._mates.get(run_id, ()) for run_id in run_ids))

    def part(self, states: Iterable[RunState]) -> None:
        """Forget that these were admitted together: they are committed, or will not be."""
        for state in states:
            self._mates.pop(state.run.id, None)

    def forget(self, state: RunState) -> list[str]:
        """Forget a run that was not admitted. Return the ids of those for which no run waits any
        more."""
        del self.names[state.run.name]
        self._families.remove(state)
        return self._dependents.forget(state.run.id)

    def ended(self, state: RunState) -> None:
        """Give back the name of a run that has ended."""
        # A leftover is retired twice, and the second time another run may have its name.
        if self.names.get(state.run.name) == state.run.id:
            del self.names[state.run.name]
        self._families.remove(state)

    def _require_admissible(self, state: RunState, mates: Collection[str]) -> None:
        run = state.run
        if run.name in self.names:
            raise NameTaken(run.name)
        if run.parent_id is not None and run.parent_id not in self._runs:
            raise ParentGone(run.parent_id)
        for predecessor in open_ids(run):
            if not any(predecessor in known for known in (self._runs, self.new, mates)):
                raise PredecessorGone(predecessor)
