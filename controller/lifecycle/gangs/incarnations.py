"""The incarnation machine: in which phase a gang run is, and which phase may follow which.

A phase is never stored: it is read off the attempts, so it cannot disagree with them. The run's
incarnation number grows at the moment of the switch; from then on all older attempts are history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from controller.lifecycle.gangs.reading import current_attempts, is_gang_run, is_whole
from controller.lifecycle.model import Job, Run
from controller.lifecycle.occurrences import waits_for_trigger
from controller.lifecycle.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    IllegalMove,
    RunStatus,
)


class Phase(StrEnum):
    GATHERING = "gathering"
    """Its jobs have attempts; not every rank is there yet (`reincarnation_timeout`)."""
    WHOLE = "whole"
    """Every rank is, or was, there: the shim reported `creating` or later."""
    STOPPING = "stopping"
    """Switched: attempts of the old incarnation are not final yet."""
    WAITING = "waiting"
    """Nothing lives; the wait before the new attempts is going, or the run is suspended."""
    OVER = "over"
    """The run is ending or has ended, or a scheduled one waits for its next occurrence."""


PHASE_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset({Phase.WHOLE, Phase.STOPPING, Phase.OVER}),
    Phase.WHOLE: frozenset({Phase.STOPPING, Phase.OVER}),
    Phase.STOPPING: frozenset({Phase.WAITING, Phase.OVER}),
    Phase.WAITING: frozenset({Phase.GATHERING, Phase.OVER}),
    Phase.OVER: frozenset({Phase.GATHERING}),
}


def phase(run: Run, jobs: Sequence[Job]) -> Phase | None:
    """None for a run without a gang."""
    if not is_gang_run(run):
        return None
    if run.status is RunStatus.TERMINATING or run.status in FINAL_RUN_STATUSES:
        return Phase.OVER
    if waits_for_trigger(run):
        return Phase.OVER
    if next(current_attempts(run, jobs), None) is not None:
        return Phase.WHOLE if is_whole(run, jobs) else Phase.GATHERING
    lasts = (job.attempts[-1] for job in jobs if job.attempts)
    live = any(last.status not in FINAL_ATTEMPT_STATUSES for last in lasts)
    return Phase.STOPPING if live else Phase.WAITING


def check_move(source: Phase | None, target: Phase) -> None:
    """Raises IllegalMove unless an incarnation may go from `source` to `target`."""
    if source is None or target not in PHASE_MOVES[source]:
        raise IllegalMove("incarnation", source or Phase.OVER, target)
