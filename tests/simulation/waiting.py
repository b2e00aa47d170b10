"""Checks of runs that wait for others (docs/rules.md 4.17), judged by what is committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.lifecycle.model import RunState
from controller.lifecycle.predecessors import Predecessor
from fairlead.model.beginning import When
from fairlead.model.reasons import RunReason
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus


def out_of_turn(
    before: RunState | None, after: RunState, runs: Mapping[str, RunState]
) -> Iterator[str]:
    """A sentence for each condition of the run that this commit disregards. `runs`: as this commit
    has them."""
    run = after.run
    if before is not None and before.run.status in FINAL_RUN_STATUSES:
        return
    begins = any(job.attempts for job in after.jobs)
    for one in run.after:
        status = _status(one, runs)
        if begins and not one.met:
            yield f"run {run.name} began, and {one.name} has not come so far ({one.when})"
        if one.met and status is not None and not _may_be(one.when, status):
            yield f"run {run.name} waits no more until {one.name} is {one.when}: it is {status}"
    lost = [one for one in run.after if not one.met]
    if run.reason is RunReason.DEPENDENCY_FAILED and not any(
        (status := _status(one, runs)) is None or status in FINAL_RUN_STATUSES for one in lost
    ):
        yield f"run {run.name} ended as dependency_failed, and what it waited for may still come"


def _status(one: Predecessor, runs: Mapping[str, RunState]) -> RunStatus | None:
    """None: its history is not known here."""
    if one.ended is not None:
        return one.ended.status
    state = runs.get(one.run_id)
    return None if state is None else state.run.status


def _may_be(when: When, status: RunStatus) -> bool:
    """Whether the condition can have come true for a run that now has this status."""
    match when:
        case When.DONE:
            return status is RunStatus.DONE
        case When.FAILED:
            return status is RunStatus.FAILED
        case When.ENDED:
            return status in FINAL_RUN_STATUSES
        case When.RUNNING:
            return True
