"""An incarnation begins when all attempts of the previous one are final and the wait is over.

All jobs then start again, finished ones included, in the allocations that survived. A gang's phase
is derived from its attempts and never stored. `reincarnation_timeout` bounds how long a gang may
take until it is whole. A `monitoring_descriptor` names an allocation, or with `monitoring: by-rank`
the rank, so that a successor on another node continues the same series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import count

import msgspec
from msgspec.structs import replace

from controller.lifecycle.attempts import retry
from controller.lifecycle.attempts.limits import covered_seconds
from controller.lifecycle.draft import DecisionContext, Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.gangs.survivors import are_undecided, assign, survivors
from controller.lifecycle.membership.ranks import (
    current_attempts,
    group_of,
    is_gang_run,
    is_whole,
    ranked_attempts,
    was_there,
)
from controller.lifecycle.model import Allocation, Attempt, Job, Run, RunState
from controller.lifecycle.renting_reasons import BuysMachine
from controller.lifecycle.runs.schedules import waits_for_trigger
from fairlead.model.reasons import RetryEvent, SwitchReason
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AttemptStatus,
    IllegalMove,
    RunStatus,
)


class Phase(StrEnum):
    """The phase of a gang's incarnation."""

    GATHERING = "gathering"
    """Its jobs have attempts; some ranks are not there yet (`reincarnation_timeout`)."""
    WHOLE = "whole"
    """Every rank is, or was, there: the shim reported `creating` or later."""
    STOPPING = "stopping"
    """Switched: attempts of the old incarnation are not final yet."""
    WAITING = "waiting"
    """No attempt lives; the wait before the new attempts goes on, or the run is suspended."""
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
    """Return the phase of the run's gang; None for a run without one."""
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
    """Raise IllegalMove unless an incarnation may go from `source` to `target`."""
    if source is None or target not in PHASE_MOVES[source]:
        raise IllegalMove("incarnation", source or Phase.OVER, target)


def is_between(run: Run, jobs: Sequence[Job]) -> bool:
    """Return whether the gang of a run that goes on has stopped, or stops, to begin again."""
    is_quiet = is_gang_run(run) and next(current_attempts(run, jobs), None) is None
    return is_quiet and phase(run, jobs) in (Phase.STOPPING, Phase.WAITING)


class Gathering(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that holds allocations and is not whole.

    `waits_for`: the ranks that are not there, each with what it does. `gives_up_at`: when the gang
    gives its allocations up if there is no progress.
    """

    ranks: int
    waits_for: tuple[str, ...]
    gives_up_at: float

    def __str__(self) -> str:
        there = self.ranks - len(self.waits_for)
        some = "; ".join(self.waits_for[:3])
        more = f"; and {len(self.waits_for) - 3} more" if len(self.waits_for) > 3 else ""
        return f"{there} of {self.ranks} ranks are there: {some}{more}"


def since(run: Run, jobs: Sequence[Job]) -> float | None:
    """Return when the present incarnation got its first allocation for a rank; None: it has
    none."""
    held = [a.provisioned_at for a in ranked_attempts(run, jobs) if a.provisioned_at is not None]
    return min(held, default=None)


def deadline(run: Run, jobs: Sequence[Job]) -> float | None:
    """Return when the gang must be whole or make progress; None: it is whole, or has nothing to
    give up."""
    return _gives_up_at(run, jobs) if _gathers(run, jobs) else None


def patience(run: Run, jobs: Sequence[Job]) -> float:
    """Return the seconds without progress after which a gang that gathers gives up.

    A machine that is on order has a limit of its own, and a gang that gave up before would wait for
    the same machine, and lose its place meanwhile. It counts once: machines that fail one after the
    other would let the gang hold what it has without end.
    """
    limits = (
        attempt.renting.boot_limit
        for attempt in ranked_attempts(run, jobs)
        if attempt.status is AttemptStatus.SUBMITTED and isinstance(attempt.renting, BuysMachine)
    )
    return run.policy.limits.reincarnation_timeout + max(limits, default=0.0)


def _gives_up_at(run: Run, jobs: Sequence[Job]) -> float:
    times = [
        at
        for attempt in ranked_attempts(run, jobs)
        for at in (attempt.provisioned_at, attempt.pull.progressed_at)
        if at is not None
    ]
    return max(*times, run.resumed_at or 0.0) + patience(run, jobs)


def _gathers(run: Run, jobs: Sequence[Job]) -> bool:
    gathers = not run.suspended and phase(run, jobs) is Phase.GATHERING
    return gathers and since(run, jobs) is not None


def gathering(run: Run, jobs: Sequence[Job]) -> Gathering | None:
    """Return the state of a gang that gathers; None: it does not, or is suspended."""
    if not _gathers(run, jobs):
        return None
    ranked = {attempt.job_id: attempt for attempt in ranked_attempts(run, jobs)}
    wanted = [(job, ranked[job.id]) for job in jobs if job.id in ranked and not job.abandoned]
    return Gathering(
        ranks=len(wanted),
        waits_for=tuple(
            f"{job.group}/{job.cookie} {_doing(attempt)}"
            for job, attempt in wanted
            if not was_there(run, job)
        ),
        gives_up_at=_gives_up_at(run, jobs),
    )


def _doing(attempt: Attempt) -> str:
    match attempt.status:
        case AttemptStatus.SUBMITTED if isinstance(attempt.renting, BuysMachine):
            return "waits for a machine that is on order"
        case AttemptStatus.SUBMITTED:
            return "has no allocation"
        case AttemptStatus.PULLING:
            return "pulls its image"
        case AttemptStatus.PROVISIONING:
            return "has an allocation and waits for its node"
        case _:
            return "is tried again"


# A run hears nothing of a connection attempt that fails, so it asks again.
LOOK_AGAIN_SECONDS = 1.0


def restart_if_due(draft: Draft) -> None:
    """Start the waits of a gang without live attempts, and its new attempts when the wait is
    over."""
    if draft.run.suspended or phase(draft.run, draft.jobs) is not Phase.WAITING:
        return
    waiting = [job for job in draft.jobs if not job.abandoned]
    if any(job.retry_at is None for job in waiting):
        waiting = _start_wait(draft, waiting)
    due = all(job.retry_at is not None and draft.now >= job.retry_at for job in waiting)
    if waiting and due and not are_undecided(draft):
        check_move(Phase.WAITING, Phase.GATHERING)
        _restart(draft)


def as_begun(state: RunState, now: float, context: DecisionContext) -> RunState:
    """Return the state of a gang that stops as it will be once its next incarnation has begun, if
    nothing else is lost: so it is known early what it will lack."""
    numbers = count()
    draft = Draft(state, now, lambda: f"next-{next(numbers)}", lambda: 0.0, context)
    _restart(draft)
    return draft.result()


def look_again_at(draft: Draft) -> float | None:
    """Return when to ask again about a link that a restart waits for; None: it waits for none."""
    if phase(draft.run, draft.jobs) is Phase.WAITING and are_undecided(draft):
        return draft.now + LOOK_AGAIN_SECONDS
    return None


def short_incarnations(run: Run, jobs: Sequence[Job]) -> int:
    """Return how many incarnations of this occurrence in a row, the last included, had ranks
    running for less than `short_life`."""
    ranked: dict[int, list[Attempt]] = {}
    for job in jobs:
        for attempt in job.attempts:
            if attempt.incarnation is not None and attempt.occurrence == run.occurrence:
                of_this = ranked.setdefault(attempt.incarnation.number, [])
                of_this += [attempt] if attempt.rank is not None else []
    count = 0
    for number in sorted(ranked, reverse=True):
        if covered_seconds(ranked[number], 0.0) >= run.policy.limits.short_life:
            break
        count += 1
    return count


def _start_wait(draft: Draft, waiting: Sequence[Job]) -> list[Job]:
    last = draft.run.switches[-1] if draft.run.switches else None
    no_capacity = last is not None and last.reason == SwitchReason.NO_CAPACITY
    event = RetryEvent.NO_CAPACITY if no_capacity else None
    lives = short_incarnations(draft.run, draft.jobs)
    wait = retry.jittered(draft, retry.seconds(draft.run.policy.limits, lives, event))
    if wait and waiting:
        message = f"next incarnation in {wait:.0f} s"
        first = waiting[0].attempts[-1]
        draft.record(EventKind.WAIT, "switch", attempt=first, reason=first.reason, message=message)
    return [draft.set_retry_at(job, draft.now + wait) for job in waiting]


def _restart(draft: Draft) -> None:
    surviving = survivors(draft)
    new_ranks = assign(draft.run, draft.jobs, surviving)
    for job in list(draft.jobs):
        if not job.abandoned:
            job = draft.change_job(job, rank=new_ranks[job.id])
            _start_again(draft, job, surviving.get(job.id))


def _start_again(draft: Draft, job: Job, allocation: Allocation | None) -> None:
    attempt = draft.fresh_attempt(job, "new incarnation")
    if allocation is None:
        return
    named = with_descriptor(draft.run, job, attempt.rank, allocation, draft.new_id)
    allocation = draft.change_allocation(
        allocation, monitoring_descriptor=named.monitoring_descriptor
    )
    draft.take_over(attempt, allocation, "new incarnation")


def by_rank(run: Run, job: Job, rank: int | None) -> str | None:
    """Return the descriptor `{run_id}/{rank << b | group_index}`, where b is the number of bits for
    the number of groups.

    None for a job without a rank, or whose group does not ask for it.
    """
    group = group_of(run, job)
    if rank is None or group is None or not group.monitoring_by_rank:
        return None
    bits = (len(run.groups) - 1).bit_length()
    return f"{run.id}/{rank << bits | run.groups.index(group)}"


def with_descriptor(
    run: Run, job: Job, rank: int | None, allocation: Allocation, new_id: Callable[[], str]
) -> Allocation:
    """Return the allocation with the descriptor of a job with this rank; a random name is made
    once."""
    named = by_rank(run, job, rank)
    if named is None:
        known = allocation.monitoring_descriptor
        named = known if known is not None and not known.startswith(f"{run.id}/") else new_id()
    return replace(allocation, monitoring_descriptor=named)
