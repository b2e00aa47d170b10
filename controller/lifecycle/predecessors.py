"""The runs that must come first for another one, and what is known of them."""

from __future__ import annotations

import msgspec

from controller.lifecycle.counterparts import Pieces
from controller.lifecycle.ranges import Ranges
from fairlead.model.beginning import SameJob, When
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus


class SetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a sweep's sets so far. A user's retry of a set takes back that it has
    failed and is over, never that it is done or began."""

    done: Ranges = ()
    failed: Ranges = ()
    over: Ranges = ()
    """Those that come not back unless a user retries them."""
    began: Ranges = ()


class PredecessorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a run so far. No fact is ever taken back, so the order in which a
    dependent run learns of them does not matter. Only `jobs` may shrink and grow again.

    `done`, `failed`, `over` and `began` are indices of jobs; those that are `over` come not back.
    """

    status: RunStatus
    has_run: bool = False
    """One of its jobs was RUNNING once."""
    done: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()
    began: frozenset[int] = frozenset()
    jobs: frozenset[int] = frozenset()
    """All its jobs but those that were scaled down."""
    sets: SetFacts | None = None
    """None: it is no sweep. A sweep's jobs are in none of the fields above."""

    @property
    def is_final(self) -> bool:
        return self.status in FINAL_RUN_STATUSES


class Predecessor(msgspec.Struct, frozen=True, kw_only=True):
    """A run that must come first. Its name became an id at the submission, so a later run of that
    name means nothing here."""

    run_id: str
    name: str
    when: When = When.DONE
    job: SameJob = SameJob.ALL
    met: bool = False
    """Its condition came true. For `job: same`: the run is over, and nothing more is to come."""
    ended: PredecessorFacts | None = None
    """How it ended, once it has: what remains to be known of it when its history is gone."""
    met_for: Ranges = ()
    """The jobs of the waiting run, by index, for which the condition came true before they could
    begin: a job of the predecessor that is scaled down later takes it back for none of them. In a
    sweep: the sets that have waited for it in an earlier run."""
    lost_for: Ranges = ()
    """Those for which it can no longer come true. In a sweep: the sets that an earlier run has lost
    and that are not in this one."""
    counterparts: Pieces = ()
    """For `job: same` between sweeps: which set there each set waits for. (): the one with its own
    number."""

    def sentence(self) -> str:
        """Return what it waits for, for people."""
        if self.job is SameJob.SAME:
            each = f"each set waits until the one with its parameters {_WORDS[self.when]}"
            return f"after run {self.name}: {each}"
        return f"after run {self.name}: waits until {SENTENCES[self.when]}"


_WORDS = {
    When.DONE: "is done",
    When.ENDED: "has ended",
    When.FAILED: "has failed",
    When.RUNNING: "runs",
}
SENTENCES = {when: f"it {words}" for when, words in _WORDS.items()}
