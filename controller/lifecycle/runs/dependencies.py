"""A run that waits for other runs begins when their conditions come true (docs/rules.md 4.17).

What is known of a predecessor comes with the context of a decision while it lives, and is kept with
the dependent run once it has ended. So nothing is lost when both change in one turn, and a
predecessor's history may be removed. A condition that can no longer come true ends what waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec.structs import replace

from controller.lifecycle.attempts import termination
from controller.lifecycle.attempts.retry import ENDED_FOR_GOOD, Verdict, verdict
from controller.lifecycle.counterparts import own_numbers
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Attempt, Job, Run, RunState
from controller.lifecycle.predecessors import SENTENCES, Predecessor, PredecessorFacts, SetFacts
from controller.lifecycle.ranges import Ranges, common, contains, in_ranges, union, without
from controller.lifecycle.runs import ending
from controller.lifecycle.sweeps import sets
from controller.lifecycle.sweeps.begin import AFTER, Held
from fairlead.model.beginning import SameJob, When
from fairlead.model.reasons import ROWS, Reason, ReasonClass, RunReason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, FINAL_RUN_STATUSES, RunStatus

CAUSE = AFTER


class Prospect(StrEnum):
    """Whether a condition holds."""

    OPEN = "open"
    MET = "met"
    NEVER = "never"
    """It can no longer come true."""


def facts(state: RunState) -> PredecessorFacts:
    """Return what a run that depends on this one must know of it."""
    run = state.run
    if run.sweep is not None:
        of_sets = sets.facts(state)
        return PredecessorFacts(status=run.status, has_run=bool(of_sets.began), sets=of_sets)
    ends = run.status is RunStatus.TERMINATING or run.status in FINAL_RUN_STATUSES
    lasts = [(job, job.attempts[-1]) for job in state.jobs if job.attempts]
    over = {
        job.index
        for job, last in lasts
        if last.status in FINAL_ATTEMPT_STATUSES and (ends or _is_over(state, job))
    }
    if run.status in FINAL_RUN_STATUSES:
        over |= {job.index for job in state.jobs}
    ended = [(job, last) for job, last in lasts if job.index in over]
    return PredecessorFacts(
        status=run.status,
        has_run=any(job.has_run for job in state.jobs),
        done=frozenset(job.index for job, last in ended if last.reason is Reason.DONE_BY_RUNNER),
        failed=frozenset(job.index for job, last in ended if _failed(last)),
        over=frozenset(over),
        began=frozenset(job.index for job in state.jobs if job.has_run),
        jobs=frozenset(job.index for job in state.jobs if not job.scaled_down),
    )


def _is_over(state: RunState, job: Job) -> bool:
    found = verdict(state.run, job, state.jobs)
    return found in ENDED_FOR_GOOD or found in (Verdict.DONE, Verdict.ABANDONED)


def _failed(last: Attempt) -> bool:
    return last.reason is not None and ROWS[last.reason].reason_class is ReasonClass.FAILURE


# -- what a condition says ------------------------------------------------------------------------


def prospect_of_run(when: When, seen: PredecessorFacts) -> Prospect:
    """Return whether a condition about a whole run holds."""
    match when:
        case When.RUNNING:
            met = seen.has_run
        case When.ENDED:
            met = seen.is_final
        case When.DONE:
            met = seen.status is RunStatus.DONE
        case When.FAILED:
            met = seen.status is RunStatus.FAILED
    if met:
        return Prospect.MET
    return Prospect.NEVER if seen.is_final else Prospect.OPEN


def prospect_of_job(when: When, seen: PredecessorFacts, index: int) -> Prospect:
    """Return whether a condition about the predecessor's job with this number holds. Without such
    a job, the condition is about the whole run."""
    if index not in seen.jobs:
        return prospect_of_run(when, seen)
    holds = {
        When.RUNNING: seen.began,
        When.ENDED: seen.over,
        When.DONE: seen.done,
        When.FAILED: seen.failed,
    }[when]
    if index in holds:
        return Prospect.MET
    return Prospect.NEVER if index in seen.over else Prospect.OPEN


def sets_for(when: When, seen: SetFacts) -> tuple[Ranges, Ranges]:
    """Return the sets of a sweep about which a condition holds, and those about which it no longer
    can."""
    met = {
        When.RUNNING: seen.began,
        When.ENDED: seen.over,
        When.DONE: seen.done,
        When.FAILED: seen.failed,
    }[when]
    return met, without(seen.over, met)


def own_sets_for(one: Predecessor, seen: SetFacts) -> tuple[Ranges, Ranges]:
    """Return the sets of the waiting sweep for which the condition holds, and those for which it no
    longer can. One that has waited for it before needs nothing of it."""
    met, lost = sets_for(one.when, seen)
    return (
        union(without(own_numbers(met, one.counterparts), one.lost_for), one.met_for),
        union(without(own_numbers(lost, one.counterparts), one.met_for), one.lost_for),
    )


def waits_for_runs(run: Run) -> bool:
    """Return whether no job of the run may begin yet."""
    return any(not one.met and one.job is SameJob.ALL for one in run.after)


def open_ids(run: Run) -> tuple[str, ...]:
    """Return the ids of the runs of which this one still must learn something."""
    if run.status in FINAL_RUN_STATUSES:
        return ()
    return tuple(
        dict.fromkeys(one.run_id for one in run.after if one.ended is None and not one.met)
    )


def why_waits(run: Run, job: Job | None = None) -> str | None:
    """Return for which runs the run, or this job of it, waits; None: for none."""
    waiting = [
        one
        for one in run.after
        if not (one.met or (job is not None and contains(one.met_for, job.index)))
    ]
    if run.sweep is not None and not waits_for_runs(run):
        sentences = [one.sentence() for one in waiting] if not sets.is_empty(run.sweep) else []
    elif job is None or waits_for_runs(run):
        waiting = [one for one in waiting if one.job is SameJob.ALL]
        sentences = [one.sentence() for one in waiting]
    else:
        sentences = [
            f"after job {job.index} of run {one.name}: waits until {SENTENCES[one.when]}"
            for one in waiting
        ]
    return "; ".join(sentences) or None


# -- what follows ---------------------------------------------------------------------------------


def settle(draft: Draft) -> None:
    """Note which conditions came true, and end the run when one no longer can."""
    if not draft.run.after or draft.run.status is RunStatus.TERMINATING:
        return
    for at, one in enumerate(draft.run.after):
        seen = _seen(draft, one)
        if one.met or seen is None:
            continue
        # A dependent is written with each of its turns: what it does not ask for is left out.
        kept = seen if one.job is SameJob.SAME else replace(seen, sets=None)
        noted = replace(one, ended=kept if seen.is_final else None)
        if one.job is SameJob.SAME:
            _note(draft, at, replace(noted, met=seen.is_final))
            continue
        prospect = prospect_of_run(one.when, seen)
        _note(draft, at, replace(noted, met=prospect is Prospect.MET))
        if prospect is Prospect.MET:
            _record(draft, one, seen)
        elif prospect is Prospect.NEVER:
            message = why_never(one, seen)
            ending.end_run(draft, RunReason.DEPENDENCY_FAILED, CAUSE, message)
            return


def first_attempts(draft: Draft, jobs: Iterable[Job]) -> None:
    """Make the first attempts of those jobs whose own predecessors are there. A job whose
    predecessor's job cannot do so any more ends at once."""
    for job in list(jobs):
        prospects = [_prospect(draft, one, job) for one in draft.run.after]
        lost = next((why for found, why in prospects if found is Prospect.NEVER), None)
        if lost is not None:
            attempt = draft.fresh_attempt(job, CAUSE)
            termination.end(draft, attempt, Reason.DEPENDENCY_FAILED, CAUSE, lost)
        elif all(found is Prospect.MET for found, _ in prospects):
            draft.fresh_attempt(job, CAUSE if draft.run.after else "begin")


def keep_prospects(draft: Draft) -> None:
    """Note what is decided about the jobs that could not begin yet: a predecessor may be scaled
    before they can, and no condition is ever false again."""
    if draft.run.sweep is not None or draft.run.status is RunStatus.TERMINATING:
        return
    waiting = [job for job in draft.jobs if not job.attempts]
    for at, one in enumerate(draft.run.after):
        if one.job is SameJob.ALL or not waiting:
            continue
        found = [(job.index, _prospect(draft, one, job)[0]) for job in waiting]
        met = in_ranges(index for index, prospect in found if prospect is Prospect.MET)
        lost = in_ranges(index for index, prospect in found if prospect is Prospect.NEVER)
        _note(
            draft,
            at,
            replace(one, met_for=union(one.met_for, met), lost_for=union(one.lost_for, lost)),
        )


def held_sets(draft: Draft) -> Held | None:
    """Return which sets of a sweep may begin, as far as they wait for those of other sweeps; None:
    they wait for none."""
    sweep, same = draft.run.sweep, [one for one in draft.run.after if one.job is SameJob.SAME]
    if sweep is None or not same:
        return None
    may: Ranges = ((0, sweep.total - 1),)
    never = []
    for one in same:
        seen = _seen(draft, one)
        known = SetFacts() if seen is None or seen.sets is None else seen.sets
        met, lost = own_sets_for(one, known)
        may = common(may, met)
        why = f"of run {one.name} has ended otherwise than `when: {one.when}` asks for"
        never.append((f"the same parameter set {why}", lost))
    return Held(met=may, never=tuple(never))


def _prospect(draft: Draft, one: Predecessor, job: Job) -> tuple[Prospect, str]:
    if one.job is SameJob.ALL:
        return (Prospect.MET if one.met else Prospect.OPEN), ""
    why = f"job {job.index} of run {one.name} has ended otherwise than `when: {one.when}` asks for"
    if contains(one.met_for, job.index):
        return Prospect.MET, ""
    if contains(one.lost_for, job.index):
        return Prospect.NEVER, why
    seen = _seen(draft, one)
    if seen is None:
        return Prospect.OPEN, ""
    return prospect_of_job(one.when, seen, job.index), why


def why_never(one: Predecessor, seen: PredecessorFacts) -> str:
    """Return why the condition can no longer come true, as a sentence."""
    return f"run {one.name} ended as {seen.status}, and this run begins when {SENTENCES[one.when]}"


def _seen(draft: Draft, one: Predecessor) -> PredecessorFacts | None:
    """Return what is known of a predecessor; None: nothing new."""
    return one.ended or draft.context.predecessors.get(one.run_id)


def _note(draft: Draft, at: int, one: Predecessor) -> None:
    if draft.run.after[at] != one:
        after = list(draft.run.after)
        after[at] = one
        draft.change_run(after=tuple(after))


def _record(draft: Draft, one: Predecessor, seen: PredecessorFacts) -> None:
    draft.record(
        EventKind.AFTER,
        CAUSE,
        to_status="met",
        message=f"run {one.name} is {seen.status}",
    )
