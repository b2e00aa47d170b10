"""Ending closes a run: its last attempts get their reasons, and the run its final status.

A run that has ended keeps no values that may be secret.
"""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.attempts import allocations, termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.membership.ranks import is_reserved
from controller.lifecycle.model import Deployment, Job, JobRepo, JobSpec
from controller.lifecycle.runs import schedules
from fairlead.model.reasons import (
    ATTEMPT_REASON_OF_RUN,
    FINAL_STATUS_OF_RUN,
    Reason,
    RunReason,
)
from fairlead.model.statuses import RunStatus


def end_run(draft: Draft, reason: RunReason, cause: str, message: str | None) -> None:
    """Move the run to TERMINATING and give its active attempts the mapped reason."""
    draft.move_run(RunStatus.TERMINATING, cause, reason=reason, message=message)
    mark_active(draft, reason, cause, message)
    for job in list(draft.jobs):
        draft.set_retry_at(job, None)
    termination.settle(draft)


def mark_active(draft: Draft, reason: RunReason, cause: str, message: str | None) -> None:
    """Give the active attempts the reason that follows from the run's reason.

    Only a user's request changes a job that is already over: that job may be the one that ends the
    run.
    """
    for attempt in draft.live():
        marked = ATTEMPT_REASON_OF_RUN[reason]
        is_over = attempt.seen.runner_exited or attempt.seen.container_gone
        if marked is Reason.TERMINATED_BY_SERVER and attempt.reason is not None and is_over:
            continue
        if marked is Reason.TERMINATED_BY_SERVER and is_reserved(attempt):
            marked = Reason.RELEASED
        termination.end(draft, attempt, marked, cause, message)


def conclude(draft: Draft) -> None:
    """Give a TERMINATING run its final status once all its attempts are final and all its
    allocations given back."""
    reason = draft.run.reason
    if draft.run.status is not RunStatus.TERMINATING or reason is None:
        return
    if next(draft.live(), None) is None and allocations.all_given_back(draft):
        last_word = schedules.close(draft, reason)
        if last_word is not None:
            draft.change_run(finished_at=draft.now, suspended=False, next_triggered_at=None)
            draft.move_run(FINAL_STATUS_OF_RUN[last_word], "all attempts final", reason=last_word)
            forget(draft)


def forget(draft: Draft) -> None:
    """Remove all values that may be secret: no job of the run will be started again."""
    deployments = tuple(_bare_deployment(one) for one in draft.run.deployments)
    draft.change_run(deployments=deployments)
    # Jobs of a group share one spec in memory, and go on sharing its bare copy.
    bare: dict[int, JobSpec] = {}
    for at, job in enumerate(draft.jobs):
        draft.jobs[at] = _bare_job(job, bare)
    if draft.ended.jobs:
        draft.ended = replace(
            draft.ended, jobs=tuple(_bare_job(job, bare) for job in draft.ended.jobs)
        )
    if draft.sweep is not None:
        draft.sweep = replace(draft.sweep, spec=_bare_spec(draft.sweep.spec, bare))


def _bare_job(job: Job, bare: dict[int, JobSpec]) -> Job:
    spec = _bare_spec(job.spec, bare)
    return job if spec is job.spec else replace(job, spec=spec)


def _bare_spec(spec: JobSpec, bare: dict[int, JobSpec]) -> JobSpec:
    if id(spec) not in bare:
        bare[id(spec)] = _without_values(spec)
    return bare[id(spec)]


def _without_values(spec: JobSpec) -> JobSpec:
    """Return the spec without such values; the same object when it has none."""
    repos = tuple(_bare_repo(repo) for repo in spec.repos)
    bare = replace(spec, env={}, secrets={}, registry_auth=None, repos=repos)
    if spec.serves is not None:
        probes = tuple(replace(one, headers=(), body=None) for one in spec.serves.probes)
        bare = replace(bare, serves=replace(spec.serves, probes=probes))
    return spec if bare == spec else bare


def _bare_repo(repo: JobRepo) -> JobRepo:
    """Return it without credentials; some hosts take a token in the query of the URL."""
    url = None if repo.url is None else repo.url.partition("?")[0]
    return replace(repo, url=url, token=None, private_key=None)


def _bare_deployment(deployment: Deployment) -> Deployment:
    specs = {name: _without_values(spec) for name, spec in deployment.specs.items()}
    return replace(deployment, specs=specs, service=replace(deployment.service, headers=()))
