"""Jobs of a sweep run one after another in the container of another set's job: its *carrier*
(docs/rules.md 11.14).

A carrier's own job has ended and left nothing behind; its attempt stays TERMINATING while its
container is used. An attempt that is carried has no allocation and no task of its own: all that is
known of it comes from the carrier's runner. `carrier`: None, the attempt gets an allocation; a
name, it is in that carrier's batch; `HELD`, it waits for one or the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from controller.lifecycle.attempts import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.model import Attempt
from controller.lifecycle.reports import Carried, LeftClean, NotReusable
from fairlead.model.reasons import ALLOCATION_LOST, Reason
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AttemptStatus,
    RunStatus,
)

HELD = ""
GIVEN_UP = 0.0
"""`carries_until` of a container that carries nothing more and is to end."""
CAUSE = "sweep"
USED_FOR = 60.0
"""Seconds for which a container is used again: then the queue decides who gets its place."""
WORK_AHEAD = 4.0
"""Seconds of work, judged by the carrier's own job, that a batch holds."""
MAX_BATCH = 64
FIRST_BATCH = 8
"""Jobs of the first batch. A container that was left dirty gives back what it has not begun, and
each job that goes to and fro costs the controller as much as one that runs."""
LONG_JOB = 5.0
"""Seconds after which a job that runs is no tiny one; its runner gives back those behind it."""
LATE = 10.0
"""Seconds after a carried job's grace in which its runner must say that it has ended."""
_HARD = ALLOCATION_LOST | {Reason.WAITING_RUNNER_LIMIT_EXCEEDED}


def is_carried(attempt: Attempt) -> bool:
    """Return whether it is in the batch of a carrier."""
    return bool(attempt.carrier)


def is_open(attempt: Attempt) -> bool:
    """Return whether the container of this attempt is used by others, or is about to be."""
    return (
        bool(attempt.carries_until)
        and attempt.status is AttemptStatus.TERMINATING
        and not attempt.seen.container_gone
    )


def begin(draft: Draft, report: LeftClean) -> None:
    """Let the container of a job that has just ended be used by others."""
    attempt = draft.attempt(report.attempt_id)
    if attempt is None or attempt.reason is not None or not _reuses(draft):
        return
    if attempt.status is AttemptStatus.RUNNING and not attempt.seen.container_gone:
        draft.change_attempt(attempt, carries_until=draft.now + USED_FOR)


def note(draft: Draft, report: Carried) -> None:
    """Apply what a runner says about a job that it carries."""
    attempt, carrier = draft.attempt(report.attempt_id), draft.attempt(report.carrier_id)
    if attempt is None or carrier is None or attempt.carrier != report.carrier_id:
        return
    if attempt.status in FINAL_ATTEMPT_STATUSES:
        return
    if report.returned:
        if attempt.status is AttemptStatus.SUBMITTED:
            draft.change_attempt(attempt, carrier=HELD)
        else:
            _nothing_left(draft, attempt)
        return
    # Its ports and its metrics are asked of the runner in whose container it is.
    task = replace(attempt.task, runner_socket=carrier.task.runner_socket)
    attempt = draft.change_attempt(
        attempt, node_id=carrier.node_id, node_name=carrier.node_name, task=task
    )
    if report.started_at is not None and attempt.running_at is None:
        running_at = min(draft.now, max(report.started_at, attempt.submitted_at))
        if attempt.status is AttemptStatus.SUBMITTED:
            seen = replace(attempt.seen, container_started=True, container_started_at=running_at)
            attempt = draft.move_attempt(
                attempt, AttemptStatus.RUNNING, "Carried", running_at=running_at, seen=seen
            )
        elif attempt.terminating_at is not None and running_at <= attempt.terminating_at:
            attempt = draft.change_attempt(attempt, running_at=running_at)
    if report.stored:
        _nothing_left(draft, attempt, outputs_lost=report.outputs_lost)


def not_reusable(draft: Draft, report: NotReusable) -> None:
    carrier = draft.attempt(report.attempt_id)
    if carrier is not None and is_open(carrier):
        _close(draft, carrier)


def settle(draft: Draft) -> None:
    """Close the carriers that must give way, and let nothing hang on those that are gone."""
    if not _reuses(draft):
        return
    for carrier in _carriers(draft):
        if _gives_way(draft, carrier):
            carrier = _close(draft, carrier)
        hard = _HARD.intersection(carrier.later_reasons)
        late = False
        for rider in riders(draft, carrier.id):
            if hard and rider.status is AttemptStatus.RUNNING:
                reason = next(one for one in carrier.later_reasons if one in hard)
                rider = termination.end(draft, rider, reason, CAUSE, carrier.message)
            late |= rider.remove_at is not None and draft.now >= rider.remove_at + LATE
        if late or Reason.WAITING_RUNNER_LIMIT_EXCEEDED in hard:
            draft.change_attempt(carrier, carries_until=GIVEN_UP)
    for rider in list(draft.live()):
        if is_carried(rider) and not _is_there(draft, rider):
            _let_go(draft, rider)


def release(draft: Draft) -> None:
    """End the containers that carry nothing: whatever waits has its place elsewhere."""
    if not _reuses(draft):
        return
    busy = {attempt.carrier for attempt in draft.live()}
    for carrier in _carriers(draft):
        if carrier.id not in busy:
            draft.change_attempt(carrier, carries_until=GIVEN_UP)


def timers(draft: Draft) -> Iterator[float]:
    if not _reuses(draft):
        return
    for attempt in draft.live():
        at = attempt.carries_until if is_open(attempt) else None
        if is_carried(attempt) and attempt.remove_at is not None:
            at = attempt.remove_at + LATE
        # What comes of a time that has passed wakes the run by itself.
        if at is not None and at > draft.now:
            yield at


def room(draft: Draft) -> dict[str, int]:
    """Return how many more jobs each open carrier takes, by its id."""
    found: dict[str, int] = {}
    for carrier in _carriers(draft):
        if is_closed(carrier, draft.now):
            continue
        there = riders(draft, carrier.id)
        longest = max((draft.now - (one.running_at or draft.now) for one in there), default=0.0)
        most = _most(carrier, draft.now)
        if longest < LONG_JOB and len(there) <= most // 2:
            found[carrier.id] = most - len(there)
    return found


def take(draft: Draft, attempt: Attempt, free: dict[str, int]) -> bool:
    """Put the attempt into the batch with the most room; return whether there was any."""
    carrier_id = max(free, key=lambda one: free[one], default=None)
    if carrier_id is None or not free[carrier_id]:
        return False
    free[carrier_id] -= 1
    draft.change_attempt(attempt, carrier=carrier_id, pending_reason=None)
    return True


def riders(draft: Draft, carrier_id: str) -> list[Attempt]:
    """Return the live attempts in this carrier's batch."""
    return [attempt for attempt in draft.live() if attempt.carrier == carrier_id]


def _most(carrier: Attempt, now: float) -> int:
    """Return how many jobs its batch may hold: as much work as `WORK_AHEAD`, but no more than twice
    the work that the container may have done so far."""
    took = 0.0
    if carrier.running_at is not None and carrier.terminating_at is not None:
        took = carrier.terminating_at - carrier.running_at
    took = max(took, 0.05)
    used = now - ((carrier.carries_until or now) - USED_FOR)
    tried = max(FIRST_BATCH, int(2 * used / took))
    return max(1, min(MAX_BATCH, int(WORK_AHEAD / took), tried))


def _reuses(draft: Draft) -> bool:
    return draft.run.sweep is not None and draft.run.sweep.reuse_container


def _carriers(draft: Draft) -> list[Attempt]:
    return [attempt for attempt in draft.live() if is_open(attempt)]


def _gives_way(draft: Draft, carrier: Attempt) -> bool:
    run, context = draft.run, draft.context
    ends = run.status is RunStatus.TERMINATING or run.status in FINAL_RUN_STATUSES
    wanted = context.nominated | context.broken_allocations
    return (
        ends
        or run.suspended
        or bool(carrier.later_reasons)
        or carrier.node_id in context.draining_nodes
        or carrier.allocation_id in wanted
    )


def _close(draft: Draft, carrier: Attempt) -> Attempt:
    """Let it take no more jobs; its runner gives back those that have not begun."""
    until = min(carrier.carries_until or draft.now, draft.now)
    return draft.change_attempt(carrier, carries_until=until)


def is_closed(carrier: Attempt, now: float) -> bool:
    """Return whether what has not begun in this carrier's batch is to be given back."""
    return not carrier.carries_until or carrier.carries_until <= now


def _is_there(draft: Draft, rider: Attempt) -> bool:
    carrier = draft.attempt(rider.carrier or "")
    return (
        carrier is not None
        and carrier.status is AttemptStatus.TERMINATING
        and not carrier.seen.container_gone
    )


def _let_go(draft: Draft, rider: Attempt) -> None:
    """Handle a job whose carrier is gone. If no start of it is known it waits again; its record
    would be of a container that nobody can ask any more."""
    if rider.status is AttemptStatus.SUBMITTED:
        draft.change_attempt(rider, carrier=HELD)
        return
    if rider.reason is None:
        carrier = draft.attempt(rider.carrier or "")
        later = () if carrier is None else carrier.later_reasons
        lost = next((one for one in later if one in _HARD), Reason.INSTANCE_UNREACHABLE)
        if Reason.OUT_OF_MEMORY in later:
            lost = Reason.OUT_OF_MEMORY
        message = "the container in which it ran ended before its own end was known"
        rider = termination.end(draft, rider, lost, CAUSE, message)
    # Each job has an output folder with its parameters at least.
    _nothing_left(draft, rider, outputs_lost=rider.running_at is not None)


def _nothing_left(draft: Draft, attempt: Attempt, *, outputs_lost: bool = False) -> None:
    seen = replace(
        attempt.seen,
        container_gone=True,
        logs_complete=True,
        task_removed=True,
        has_outputs=attempt.seen.has_outputs or outputs_lost,
    )
    draft.change_attempt(attempt, seen=seen)
