"""What each commit of a service must keep to: requests go to ready replicas only, the jobs of one
replica are all there or all ending, wanted numbers stay within their ranges, and no rollout,
scaling or drain takes away replicas that are needed."""

from __future__ import annotations

from collections.abc import Iterator

from controller.lifecycle.membership import members
from controller.lifecycle.model import Attempt, Job, RunState
from controller.lifecycle.services import rollout
from controller.lifecycle.services.readiness import is_registered, probes_pass
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus


def breaches(before: RunState | None, after: RunState) -> Iterator[str]:
    """Yield what a commit may not do to a service."""
    run = after.run
    for job in after.jobs:
        for attempt in job.attempts:
            if attempt.serving.registered_at is None:
                continue
            ready = attempt.serving.ready and attempt.status is AttemptStatus.RUNNING
            if not ready or attempt.reason is not None:
                yield f"{attempt.id} gets requests: {attempt.status} {attempt.reason}"
    if not run.deployments or run.service is None:
        return
    yield from _apart(after)
    for group in run.service.groups:
        wanted = rollout.wanted(run, group.name)
        if not group.least <= wanted <= group.most:
            yield f"group {group.name} of {run.name} wants {wanted}: {group.least}..{group.most}"
        if before is not None and before.run.deployments:
            yield from _taken(before, after, group.name, wanted)


def _apart(state: RunState) -> Iterator[str]:
    """Yield replicas of several nodes that are there in part."""
    for replica in members.of_several(state.run, state.jobs):
        name = f"replica {replica[0].group}/{replica[0].replica} of {state.run.name}"
        lasts = [job.attempts[-1] for job in replica if job.attempts]
        if len({last.reason is None for last in lasts}) > 1:
            yield f"{name} is there in part: {[last.status for last in lasts]}"
        waiting = {last.status is AttemptStatus.SUBMITTED for last in lasts}
        if len(waiting) > 1 and not any(last.reason for last in lasts):
            yield f"{name} is placed in part: {[last.status for last in lasts]}"
        registered = lasts and lasts[0].serving.registered_at is not None
        if registered and any(last.status is not AttemptStatus.RUNNING for last in lasts):
            yield f"{name} gets requests: {[last.status for last in lasts]}"


def _is_planned(ended: Attempt) -> bool:
    """Return whether the service itself took the replica away; a drain's deadline does not ask."""
    at_deadline = "drain deadline" in (ended.message or "")
    return ended.reason in (Reason.SCALED_DOWN, Reason.NODE_DRAINED) and not at_deadline


def _was_lost(job: Job, ended: Attempt) -> bool:
    """Return whether the replica had lost its traffic by itself before it was ended: the same
    commit says that its probes fail, or that its job is over."""
    return ended.seen.runner_exited or ended.seen.container_gone or not probes_pass(job, ended)


def _taken(before: RunState, after: RunState, group: str, wanted: int) -> Iterator[str]:
    """Yield a sentence when replicas that got requests were ended by plan and too few are left."""
    now = {attempt.id: attempt for job in after.jobs for attempt in job.attempts}
    taken = [
        job
        for job in before.jobs
        if job.group == group and is_registered(job)
        if (ended := now.get(job.attempts[-1].id)) is not None and _is_planned(ended)
        if not _was_lost(job, ended)
        if any(one.id == job.id and one.scaled_down for one in after.jobs)
    ]
    left = sum(is_registered(job) for job in after.jobs if job.group == group)
    if taken and left < wanted:
        yield f"{after.run.name} took {len(taken)} of {group} away and has {left} of {wanted}"
