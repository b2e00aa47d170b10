"""Sweeps and their parameter sets."""

from __future__ import annotations

from fairlead.documents.base import View
from fairlead.documents.jobs import AttemptOutputsView
from fairlead.model.reasons import Reason
from fairlead.model.sweep import SetStatus


class SetView(View, frozen=True):
    """A parameter set of a sweep. `jobs`: its jobs' ids, by their ranks; empty while it has not
    begun. What follows is of the attempt that decided: the first that failed, else the
    latest of rank 0."""

    number: int
    parameters: dict[str, str | int | float | bool]
    status: SetStatus
    jobs: tuple[str, ...]
    attempt_id: str | None
    attempt: int | None
    node: str | None
    exit_code: int | None
    termination_reason: Reason | None
    message: str | None
    running_at: str | None
    ended_at: str | None
    finished_at: str | None
    outputs: AttemptOutputsView | None


class SweepView(View, frozen=True):
    """A sweep: how many sets there are of each status. `seconds_left`: an estimate from the sets
    that ended last; null: none has ended yet, or nothing runs. `waits_for`: what waiting sets
    wait for before they may begin."""

    names: tuple[str, ...]
    total: int
    nodes: int
    waiting: int
    active: int
    done: int
    failed: int
    stopped: int
    max_parallel: int | None
    stop_after_failures: int | None
    seconds_left: float | None
    waits_for: str | None = None


class SweepPlanView(View, frozen=True):
    """`parallel`: how many sets are active at once at most; null: as many as there is room for.
    `reuse_container`: they run one after another in as many containers."""

    sets: int
    parallel: int | None
    reuse_container: bool
