"""A rollout moves a service to another deployment, and back when that does not become ready.

A deployment holds all that its replicas are made from. A replica that a new deployment would make
the same stays and counts as one of it. The last deployments are kept, so that each can come back; a
rollback is a new deployment with the content of an old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from controller.lifecycle.attempts.retry import ENDED_FOR_GOOD, verdict
from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.membership import members
from controller.lifecycle.model import Deployment, Job, JobSpec, Run
from controller.lifecycle.reports import DeployRequested, RollbackRequested
from controller.lifecycle.services import readiness
from fairlead.model.service import DeploymentState, GroupScale, ServicePolicy
from fairlead.model.statuses import RunStatus

KEPT_DEPLOYMENTS = 10


def wanted(run: Run, group: str) -> int:
    return next((scale.wanted for scale in run.scales if scale.group == group), 0)


def present(jobs: Iterable[Job], group: str) -> list[Job]:
    return [job for job in jobs if job.group == group and not job.scaled_down]


def start_timeout_anew(draft: Draft) -> None:
    """Give a rollout its whole time again: nothing could become ready in a time without a
    controller."""
    now = draft.run.deployments[-1] if draft.run.deployments else None
    if now is not None and now.ended_at is None:
        _put(draft, replace(now, progress_at=draft.now))


def deploy(draft: Draft, requests: Sequence[DeployRequested]) -> None:
    """Begin the deployment that a user asked for; of several in one turn the latest."""
    if not draft.run.deployments or draft.run.status is RunStatus.TERMINATING:
        return
    asked = max(requests, key=lambda one: (one.deployment.at, one.deployment.by), default=None)
    if asked is not None:
        _begin(draft, asked.deployment, type(asked).__name__)


def roll_back(draft: Draft, request: RollbackRequested) -> None:
    """Begin a deployment with the content of an earlier one."""
    target = rollback_target(draft.run, request.to)
    if target is not None and draft.run.status is not RunStatus.TERMINATING:
        again = replace(target, by=request.by, of=target.number, message=None)
        _begin(draft, again, type(request).__name__)


def rollback_target(run: Run, to: int | None) -> Deployment | None:
    """Return the deployment to bring back; None: there is none. `to` None: the latest before the
    present one that was rolled out, and has another content."""
    earlier = run.deployments[:-1]
    if to is not None:
        return next((one for one in earlier if one.number == to), None)
    now = run.deployments[-1] if run.deployments else None
    done = [one for one in earlier if one.state is DeploymentState.DONE and not _same(one, now)]
    return done[-1] if done else None


def _same(one: Deployment, other: Deployment | None) -> bool:
    return other is not None and (one.service, one.specs) == (other.service, other.specs)


def _begin(draft: Draft, content: Deployment, cause: str) -> None:
    run, number = draft.run, draft.run.deployment + 1
    before = run.deployments[-1]
    if before.ended_at is None:
        before = _ended(draft, before, DeploymentState.REPLACED, cause, None)
    made = replace(
        content,
        number=number,
        at=draft.now,
        state=DeploymentState.ROLLING,
        progress_at=draft.now,
        ready=0,
        ended_at=None,
    )
    draft.change_run(
        deployment=number,
        deployments=_kept((*run.deployments[:-1], before, made)),
        scales=_scales(draft, made.service),
        policy=made.policy,
        configuration=made.configuration,
    )
    _record(draft, made, cause)
    for group in made.service.groups:
        for replica in members.replicas(draft.jobs, group.name):
            if _is_made_the_same(replica, made.specs[group.name], group.nodes):
                for job in replica:
                    draft.change_job(job, deployment=number)


def _kept(deployments: Sequence[Deployment]) -> tuple[Deployment, ...]:
    """Return the last deployments, and those to which a rollback goes, however old they are: the
    latest that was rolled out, and before it the latest with another content."""
    done = [one for one in deployments if one.state is DeploymentState.DONE]
    kept = [*deployments[-KEPT_DEPLOYMENTS:], *done[-1:]]
    kept += [one for one in done if not _same(one, done[-1])][-1:]
    numbers = {one.number for one in kept}
    return tuple(one for one in deployments if one.number in numbers)


def _is_made_the_same(replica: Sequence[Job], spec: JobSpec, nodes: int) -> bool:
    return len(replica) == nodes and all(
        same_replica(job.spec, members.spec_of(spec, job.rank)) for job in replica
    )


def same_replica(one: JobSpec, other: JobSpec) -> bool:
    """Return whether both make the same replica. SSH keys do not count: they differ between the
    machines of a user."""
    return replace(one, ssh_keys=()) == replace(other, ssh_keys=())


def _scales(draft: Draft, service: ServicePolicy) -> tuple[GroupScale, ...]:
    """Return the wanted numbers within the ranges of a new deployment."""
    known = {scale.group: scale for scale in draft.run.scales}
    scales = []
    for group in service.groups:
        before = known.get(group.name)
        number = group.least if before is None else before.wanted
        number = min(max(number, group.least), group.most)
        if before is None or before.wanted != number:
            why = "as the deployment says"
            before = GroupScale(group=group.name, wanted=number, at=draft.now, why=why)
        scales.append(before)
    return tuple(scales)


def judge(draft: Draft) -> None:
    """Note progress; give up a deployment that does not become ready: the last good one comes
    back. Without one, and after a rollback of the controller's own, it stays and is failed."""
    now = draft.run.deployments[-1]
    if now.ended_at is not None:
        return
    ready = sum(
        readiness.is_registered(job)
        for job in draft.jobs
        if not job.scaled_down and job.deployment == now.number
    )
    if ready > now.ready:
        now = replace(now, ready=ready, progress_at=draft.now)
        _put(draft, now)
    why = _why_given_up(draft, now)
    if why is None:
        return
    target = _last_good(draft.run)
    # The same content would fail again, and the rollbacks would never end.
    if target is None or _is_automatic(now) or _same(target, now):
        _put(draft, _ended(draft, now, DeploymentState.FAILED, "rollout", why))
        return
    _put(draft, _ended(draft, now, DeploymentState.ROLLED_BACK, "rollout", why))
    again = replace(target, by=now.by, of=target.number, message=why)
    _begin(draft, again, "rollback")


def _is_automatic(deployment: Deployment) -> bool:
    """Return whether the controller began it: it then says why."""
    return deployment.of is not None and deployment.message is not None


def _last_good(run: Run) -> Deployment | None:
    done = [one for one in run.deployments[:-1] if one.state is DeploymentState.DONE]
    return done[-1] if done else None


def _why_given_up(draft: Draft, now: Deployment) -> str | None:
    for job in draft.jobs:
        if job.scaled_down or job.deployment != now.number or not job.attempts:
            continue
        last = job.attempts[-1]
        if last.deployment == now.number and verdict(draft.run, job) in ENDED_FOR_GOOD:
            return f"replica {job.group}/{job.cookie} failed: {last.message or last.reason}"
    at = gives_up_at(draft.run)
    if at is None or draft.now < at:
        return None
    waits = _why_not_ready(draft.jobs, now)
    return f"no further replica became ready in {now.service.rollout_timeout:.0f} s{waits}"


def _why_not_ready(jobs: Sequence[Job], now: Deployment) -> str:
    for job in jobs:
        if job.scaled_down or job.deployment != now.number:
            continue
        if job.rank:
            continue
        why = readiness.why_not_ready(job, job.attempts[-1] if job.attempts else None, jobs)
        if why is not None:
            return f"; {job.group}/{job.cookie}: {why}"
    return ""


def gives_up_at(run: Run) -> float | None:
    """Return when the present rollout is given up; None: nothing is rolled."""
    now = run.deployments[-1]
    if now.ended_at is not None:
        return None
    return max(now.progress_at, run.resumed_at or 0.0) + now.service.rollout_timeout


def conclude(draft: Draft) -> None:
    """End the rollout once all wanted replicas are of its version and ready."""
    now = draft.run.deployments[-1]
    if now.state not in (DeploymentState.ROLLING, DeploymentState.FAILED):
        return
    for group in now.service.groups:
        jobs = present(draft.jobs, group.name)
        new = [job for job in jobs if job.deployment == now.number]
        ready = sum(readiness.is_registered(job) for job in new)
        if len(new) < len(jobs) or ready < wanted(draft.run, group.name):
            return
    if now.state is DeploymentState.FAILED:
        now = replace(now, message=None)
    _put(draft, _ended(draft, now, DeploymentState.DONE, "rollout", None))


def _ended(
    draft: Draft, deployment: Deployment, state: DeploymentState, cause: str, why: str | None
) -> Deployment:
    ended = replace(deployment, state=state, ended_at=draft.now, message=why or deployment.message)
    _record(draft, ended, cause)
    return ended


def _put(draft: Draft, deployment: Deployment) -> None:
    draft.change_run(deployments=(*draft.run.deployments[:-1], deployment))


def _record(draft: Draft, deployment: Deployment, cause: str) -> None:
    about = f"deployment {deployment.number} by {deployment.by}"
    if deployment.of is not None:
        about += f", the content of {deployment.of}"
    if deployment.message:
        about += f": {deployment.message}"
    draft.record(EventKind.DEPLOYMENT, cause, to_status=deployment.state, message=about)
