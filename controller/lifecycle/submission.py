"""The first state of a run: everything that is decided at the moment a user submits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from controller.lifecycle.model import Attempt, Job, JobSpec, Run, RunPolicy, RunState, RunType
from controller.lifecycle.statuses import AttemptStatus, RunStatus


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job as its configuration asks for it; `cookie` counts from 0 within `group`."""

    group: str = "main"
    replica: int = 0
    cookie: int = 0
    spec: JobSpec


def new_run(
    *,
    name: str,
    user: str,
    jobs: Sequence[PlannedJob],
    now: float,
    new_id: Callable[[], str],
    type: RunType = RunType.TASK,
    policy: RunPolicy | None = None,
    configuration: Mapping[str, object] | None = None,
    client_key: str | None = None,
    parent_id: str | None = None,
) -> RunState:
    """A run that nobody has decided about yet: SUBMITTED, one SUBMITTED attempt for each job.

    `configuration` is shown to people, so secrets must have been taken out of it. Raises ValueError
    without jobs, or when two jobs share group and cookie.
    """
    if not jobs:
        raise ValueError("a run needs at least one job")
    if len({(job.group, job.cookie) for job in jobs}) != len(jobs):
        raise ValueError("two jobs of a group have the same cookie")
    run = Run(
        id=new_id(),
        name=name,
        type=type,
        user=user,
        status=RunStatus.SUBMITTED,
        policy=policy or RunPolicy(),
        configuration=dict(configuration or {}),
        client_key=client_key,
        parent_id=parent_id,
        submitted_at=now,
    )
    made = tuple(_job(index, job, now, new_id) for index, job in enumerate(jobs))
    return RunState(run=run, jobs=made)


def _job(index: int, planned: PlannedJob, now: float, new_id: Callable[[], str]) -> Job:
    job_id = new_id()
    attempt = Attempt(
        id=new_id(), job_id=job_id, number=0, status=AttemptStatus.SUBMITTED, submitted_at=now
    )
    return Job(
        id=job_id,
        group=planned.group,
        replica=planned.replica,
        cookie=planned.cookie,
        index=index,
        spec=planned.spec,
        attempts=(attempt,),
    )
