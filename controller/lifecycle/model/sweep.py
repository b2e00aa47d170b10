"""A sweep: which sets have begun, what their jobs are made from, and what has ended."""

from __future__ import annotations

import msgspec

from controller.lifecycle.model.job import Job
from controller.lifecycle.ranges import Ranges
from fairlead.model.spec import JobSpec
from fairlead.model.sweep import ParameterSets


class Sweep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which sets of a sweep have begun, and what bounds it (docs/rules.md 11)."""

    total: int
    nodes: int = 1
    """The number of jobs of each set."""
    begun: int = 0
    """The sets with lower numbers have begun, or were stopped before."""
    ahead: Ranges = ()
    """The sets with other numbers that have begun: each waited only for its own predecessor."""
    again: tuple[int, ...] = ()
    """The sets that wait to begin again, in their order."""
    stopped: Ranges = ()
    """The sets that were stopped before they began."""
    max_parallel: int | None = None
    stop_after_failures: int | None = None
    reuse_container: bool = False
    """Jobs run one after another in one container (docs/rules.md 11.14)."""


class SweepContent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that the jobs of a sweep are made from. It is stored once and changes only when the run
    has ended, and its values that may be secret are forgotten."""

    sets: ParameterSets
    spec: JobSpec


class EndedSets(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sets of a live sweep of which nothing is left to decide, unless a user retries one.

    It is derived, as `Past` is: so a turn of a sweep costs as much as its live jobs. A set that
    waits to begin again is in none of the ranges but `ran`.
    """

    jobs: tuple[Job, ...] = ()
    done: Ranges = ()
    failed: Ranges = ()
    stopped: Ranges = ()
    ran: Ranges = ()
    """Those of which a job was RUNNING once."""


NOTHING_ENDED = EndedSets()
