"""Replicas: a service has as many as wanted, of its present version.

A replica is a slot: one job with its attempts, or one job for each of its nodes (`members`). A slot
that is not wanted is scaled down; it keeps its history and is used again, for any version, once
nothing of it lives. `settle` compares what is with what should be, in each turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from controller.lifecycle.attempts import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.membership import members
from controller.lifecycle.membership.members import Members
from controller.lifecycle.model import Deployment, Group, Job, Run
from controller.lifecycle.services import readiness, rollout
from fairlead.model.reasons import Reason
from fairlead.model.service import DeploymentState, ReplicaGroup, ServicePolicy
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, RunStatus

CAUSE = "replicas"


def settle(draft: Draft) -> None:
    """Register and unregister replicas, then start and end replicas, and move the rollout."""
    if not draft.run.deployments:
        if draft.run.policy.dev_environment is not None:
            readiness.settle(draft)
        return
    _end_together(draft)
    readiness.settle(draft)
    readiness.stop_waiting(draft)
    if draft.run.suspended or draft.run.status is RunStatus.TERMINATING:
        return
    rollout.judge(draft)
    deployment = draft.run.deployments[-1]
    for group in deployment.service.groups:
        _settle_group(draft, deployment, group)
    rollout.conclude(draft)
    if draft.run.deployments[-1].state is DeploymentState.DONE:
        _remove_other_groups(draft, deployment.service)
    _name_groups(draft, deployment.service)


def _end_together(draft: Draft) -> None:
    """End what lives of each replica of which one job has ended."""
    for replica in members.of_several(draft.run, draft.jobs):
        lasts = [job.attempts[-1] for job in replica if job.attempts]
        ended = next((last for last in lasts if last.reason is not None), None)
        if ended is None:
            continue
        job = next(job for job in replica if job.id == ended.job_id)
        message = f"job {job.group}/{job.cookie} of its replica ended"
        message += f": {ended.message or ended.reason}"
        for last in lasts:
            if last.reason is None:
                termination.end(draft, last, Reason.SIBLING_FAILED, CAUSE, message)


def _settle_group(draft: Draft, deployment: Deployment, group: ReplicaGroup) -> None:
    """Bring one group towards its wanted number of replicas of the present version.

    Replicas of other versions and on draining nodes are old. They leave as new ones become ready:
    together there are never fewer ready ones than wanted because of this, and never more than
    `surge` replicas beyond the wanted number.
    """
    wanted = rollout.wanted(draft.run, group.name)
    new: list[Members] = []
    old: list[Members] = []
    for replica in members.replicas(draft.jobs, group.name):
        stays = replica[0].deployment == deployment.number
        (new if stays and not _is_on_draining_node(draft, replica) else old).append(replica)
    for replica in _least_useful(new, len(new) - wanted):
        take_away(draft, replica, f"{wanted} replicas are wanted")
        new.remove(replica)
    ready = sum(_is_registered(replica) for replica in new)
    for replica in _least_useful(old, len(old) - max(0, wanted - ready)):
        if replica[0].deployment == deployment.number:
            take_away(draft, replica, "another replica takes its place", Reason.NODE_DRAINED)
        else:
            take_away(draft, replica, f"deployment {deployment.number} takes its place")
        old.remove(replica)
    most = wanted + (deployment.service.surge if old else 0)
    waiting = [replica for replica in new if not _is_registered(replica)]
    for replica in _least_useful(waiting, min(len(waiting), len(new) + len(old) - most)):
        take_away(draft, replica, f"{wanted} replicas are wanted")
        new.remove(replica)
    for _ in range(min(wanted - len(new), most - len(new) - len(old))):
        _start(draft, deployment, group)


def _is_registered(replica: Members) -> bool:
    return readiness.is_registered(replica[0])


def _least_useful(replicas: Sequence[Members], count: int) -> list[Members]:
    """Return `count` replicas to end: those without traffic first, then the youngest."""
    if count <= 0:
        return []
    return sorted(replicas, key=lambda one: (_is_registered(one), -one[0].replica))[:count]


def _is_on_draining_node(draft: Draft, replica: Members) -> bool:
    lasts = (job.attempts[-1] for job in replica if job.attempts)
    return any(last.node_id in draft.context.draining_nodes for last in lasts)


def take_away(
    draft: Draft, replica: Members, why: str, reason: Reason = Reason.SCALED_DOWN
) -> None:
    """End a replica that is not wanted, and keep its slot for later."""
    away = [draft.change_job(job, scaled_down=True, retry_at=None) for job in replica]
    for job in away:
        last = job.attempts[-1] if job.attempts else None
        if last is not None and last.status not in FINAL_ATTEMPT_STATUSES:
            termination.end(draft, last, reason, CAUSE, why)


def _start(draft: Draft, deployment: Deployment, group: ReplicaGroup) -> None:
    """Begin one replica, in a slot that was scaled down if one is free."""
    of_group = [job for job in draft.jobs if job.group == group.name]
    free = _free_slot(of_group)
    slot = max((job.replica for job in of_group), default=-1) + 1 if not free else free[0].replica
    cookie = max((job.cookie for job in of_group), default=-1) + 1
    started: Members = []
    for at, rank in enumerate(members.ranks(group.nodes)):
        changes: dict[str, Any] = {
            "rank": rank,
            "spec": members.spec_of(deployment.specs[group.name], rank),
            "deployment": deployment.number,
        }
        if at < len(free):
            job = draft.change_job(free[at], scaled_down=False, abandoned=False, **changes)
        else:
            index = max(job.index for job in draft.jobs) + 1
            made = Job(
                id=draft.new_id(),
                group=group.name,
                replica=slot,
                cookie=cookie,
                index=index,
                **changes,
            )
            job, cookie = draft.add_job(made), cookie + 1
        started.append(job)
    for job in started:
        draft.fresh_attempt(job, CAUSE)


def _free_slot(of_group: Sequence[Job]) -> Members:
    """Return the jobs of the first slot that was scaled down and is over; empty: there is none."""
    slots: dict[int, Members] = {}
    for job in of_group:
        slots.setdefault(job.replica, []).append(job)
    free = (one for one in slots.values() if all(job.scaled_down and _is_over(job) for job in one))
    return sorted(next(free, []), key=lambda job: job.cookie)


def _is_over(job: Job) -> bool:
    return all(attempt.status in FINAL_ATTEMPT_STATUSES for attempt in job.attempts[-1:])


def _remove_other_groups(draft: Draft, service: ServicePolicy) -> None:
    names = {group.name for group in service.groups}
    for name in dict.fromkeys(job.group for job in draft.jobs if job.group not in names):
        for replica in members.replicas(draft.jobs, name):
            take_away(draft, replica, f"group {name} was removed")


def _name_groups(draft: Draft, service: ServicePolicy) -> None:
    """Show the wanted numbers of jobs as the sizes of the groups."""
    specs = draft.run.deployments[-1].specs
    groups = [
        Group(
            name=group.name,
            nodes=rollout.wanted(draft.run, group.name) * group.nodes,
            share_nodes=not specs[group.name].resources.whole_node,
        )
        for group in service.groups
    ]
    names = {group.name for group in groups}
    left = dict.fromkeys(job.group for job in draft.jobs if job.group not in names)
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
