"""Replicas: a service has as many as wanted, of its present version.

A replica is a slot (`Job`) with its attempts. A slot that is not wanted is scaled down; it keeps
its history and is used again, for any version, once nothing of it lives. `settle` compares what is
with what should be, in each turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.lifecycle import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.model import Deployment, Group, Job, Run
from controller.lifecycle.reasons import Reason
from controller.lifecycle.services import readiness, rollout
from controller.lifecycle.services.policy import ServicePolicy
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES, RunStatus

CAUSE = "replicas"


def settle(draft: Draft) -> None:
    """Register and unregister replicas, then start and end replicas, and move the rollout."""
    if not draft.run.deployments:
        if draft.run.policy.dev_environment is not None:
            readiness.settle(draft)
        return
    readiness.settle(draft)
    if draft.run.suspended or draft.run.status is RunStatus.TERMINATING:
        return
    rollout.judge(draft)
    deployment = draft.run.deployments[-1]
    for group in deployment.service.groups:
        _settle_group(draft, deployment, group.name)
    rollout.conclude(draft)
    if draft.run.deployments[-1].ended_at is not None:
        _remove_other_groups(draft, deployment.service)
    _name_groups(draft, deployment.service)


def _settle_group(draft: Draft, deployment: Deployment, name: str) -> None:
    """Bring one group towards its wanted number of replicas of the present version.

    Replicas of other versions and on draining nodes are old. They leave as new ones become ready:
    together there are never fewer ready ones than wanted because of this, and never more than
    `surge` replicas beyond the wanted number.
    """
    wanted = rollout.wanted(draft.run, name)
    present = rollout.present(draft.jobs, name)
    new: list[Job] = []
    old: list[Job] = []
    for job in present:
        stays = job.deployment == deployment.number and not _is_on_draining_node(draft, job)
        (new if stays else old).append(job)
    for job in _least_useful(new, len(new) - wanted):
        take_away(draft, job, f"{wanted} replicas are wanted")
        new.remove(job)
    ready = sum(readiness.is_registered(job) for job in new)
    for job in _least_useful(old, len(old) - max(0, wanted - ready)):
        if job.deployment == deployment.number:
            take_away(draft, job, "another replica takes its place", Reason.NODE_DRAINED)
        else:
            take_away(draft, job, f"deployment {deployment.number} takes its place")
        old.remove(job)
    most = wanted + (deployment.service.surge if old else 0)
    waiting = [job for job in new if not readiness.is_registered(job)]
    for job in _least_useful(waiting, min(len(waiting), len(new) + len(old) - most)):
        take_away(draft, job, f"{wanted} replicas are wanted")
        new.remove(job)
    for _ in range(min(wanted - len(new), most - len(new) - len(old))):
        _start(draft, deployment, name)


def _least_useful(jobs: Sequence[Job], count: int) -> list[Job]:
    """Return `count` replicas to end: those without traffic first, then the youngest."""
    if count <= 0:
        return []
    return sorted(jobs, key=lambda job: (readiness.is_registered(job), -job.cookie))[:count]


def _is_on_draining_node(draft: Draft, job: Job) -> bool:
    last = job.attempts[-1] if job.attempts else None
    return last is not None and last.node_id in draft.context.draining_nodes


def take_away(draft: Draft, job: Job, why: str, reason: Reason = Reason.SCALED_DOWN) -> None:
    """End a replica that is not wanted, and keep its slot for later."""
    job = draft.change_job(job, scaled_down=True, retry_at=None)
    last = job.attempts[-1] if job.attempts else None
    if last is not None and last.status not in FINAL_ATTEMPT_STATUSES:
        termination.end(draft, last, reason, CAUSE, why)


def _start(draft: Draft, deployment: Deployment, name: str) -> None:
    """Begin one replica, in a slot that was scaled down if one is free."""
    of_group = [job for job in draft.jobs if job.group == name]
    free = next((job for job in of_group if job.scaled_down and _is_over(job)), None)
    spec, number = deployment.specs[name], deployment.number
    if free is None:
        slot = max((job.cookie for job in of_group), default=-1) + 1
        free = draft.add_job(
            Job(
                id=draft.new_id(),
                group=name,
                replica=slot,
                cookie=slot,
                index=max(job.index for job in draft.jobs) + 1,
                spec=spec,
                deployment=number,
            )
        )
    else:
        free = draft.change_job(
            free, scaled_down=False, abandoned=False, spec=spec, deployment=number
        )
    draft.fresh_attempt(free, CAUSE)


def _is_over(job: Job) -> bool:
    return all(attempt.status in FINAL_ATTEMPT_STATUSES for attempt in job.attempts[-1:])


def _remove_other_groups(draft: Draft, service: ServicePolicy) -> None:
    names = {group.name for group in service.groups}
    for job in list(draft.jobs):
        if job.group not in names and not job.scaled_down:
            take_away(draft, job, f"group {job.group} was removed")


def _name_groups(draft: Draft, service: ServicePolicy) -> None:
    """Show the wanted numbers as the sizes of the groups."""
    names = [group.name for group in service.groups]
    wanted = {name: rollout.wanted(draft.run, name) for name in names}
    groups = [Group(name=name, nodes=wanted[name], share_nodes=True) for name in names]
    left = dict.fromkeys(job.group for job in draft.jobs if job.group not in wanted)
    groups += [Group(name=name, nodes=0, share_nodes=True) for name in left]
    draft.change_run(groups=tuple(groups))


def timers(draft: Draft) -> Iterator[float]:
    """Yield when the service must be looked at again if nothing is reported."""
    if not draft.run.deployments or draft.run.suspended:
        return
    if draft.run.status is RunStatus.TERMINATING:
        return
    gives_up_at = rollout.gives_up_at(draft.run)
    if gives_up_at is not None:
        yield gives_up_at


SLEEPS = "it sleeps without replicas; a request wakes it"


def sleeps(run: Run) -> bool:
    """Return whether the service wants no replica at all."""
    return bool(run.scales) and not any(scale.wanted for scale in run.scales)
