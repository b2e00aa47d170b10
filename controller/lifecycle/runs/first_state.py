"""A submission makes the first state of a run: everything that is decided when a user submits
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from controller.lifecycle.membership import members
from controller.lifecycle.model import (
    Attempt,
    Deployment,
    Group,
    Incarnation,
    Job,
    JobSpec,
    Run,
    RunPolicy,
    RunState,
    RunType,
    Sweep,
    SweepContent,
    TakenOutputs,
)
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.sweeps.begin import first_jobs
from fairlead.model.service import GroupScale, ServicePolicy
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AttemptStatus, RunStatus
from fairlead.model.sweep import SweepPlan


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job as its configuration asks for it; `cookie` counts from 0 within `group`."""

    group: str = "main"
    replica: int = 0
    cookie: int = 0
    rank: int | None = None
    """Its rank in a replica of several nodes; None: there is no such replica."""
    spec: JobSpec
    scaled_down: bool = False


def new_run(
    *,
    name: str,
    user: str,
    jobs: Sequence[PlannedJob] = (),
    groups: Sequence[PlannedGroup] = (),
    now: float,
    new_id: Callable[[], str],
    type: RunType = RunType.TASK,
    policy: RunPolicy | None = None,
    configuration: Mapping[str, object] | None = None,
    client_key: str | None = None,
    parent_id: str | None = None,
    service: ServicePolicy | None = None,
    after: Sequence[Predecessor] = (),
    outputs_from: Sequence[TakenOutputs] = (),
    sweep: SweepPlan | None = None,
) -> RunState:
    """Make a run: SUBMITTED, with one SUBMITTED attempt for each job. A scheduled run is PENDING
    and has no attempts until its first trigger; so is a service that begins without replicas, and a
    run that waits for a time or for the runs in `after`, which are those of its policy.

    Give either single `jobs`, or `groups` in the order of the configuration; each group makes its
    jobs. A group of a service always has a slot, which is scaled down when no replica is wanted.
    `configuration` is shown to people, so remove secrets from it first. Raises ValueError without
    jobs, when two jobs share group and cookie, and for an impossible gang.
    """
    policy = policy or RunPolicy()
    if jobs and groups:
        raise ValueError("a run has either single jobs or groups")
    of_groups = [planned.group for planned in groups]
    _check_groups(of_groups, policy, is_service=service is not None)
    jobs = jobs or list(_jobs_of(groups) if service is None else _replicas_of(groups, service))
    _check_jobs(jobs)
    is_scheduled = bool(policy.schedule)
    sleeps = policy.is_held_back or all(job.scaled_down for job in jobs)
    has_gang = any(planned.group.gang_size is not None for planned in groups)
    run = Run(
        id=new_id(),
        name=name,
        type=type,
        user=user,
        status=RunStatus.PENDING if is_scheduled or sleeps else RunStatus.SUBMITTED,
        occurrence=0 if is_scheduled else 1,
        incarnation=Incarnation(number=0 if is_scheduled else 1, id=new_id()) if has_gang else None,
        groups=tuple(planned.group for planned in groups),
        policy=policy,
        configuration=dict(configuration or {}),
        client_key=client_key,
        parent_id=parent_id,
        after=tuple(after),
        outputs_from=tuple(outputs_from),
        submitted_at=now,
    )
    if sweep is not None:
        return _with_first_sets(run, sweep, groups[0], now, new_id)
    if service is not None:
        run = _with_first_deployment(run, service, groups)
    made = tuple(_job(run, index, job, now, new_id) for index, job in enumerate(jobs))
    return RunState(run=run, jobs=made)


def _with_first_sets(
    run: Run,
    planned: SweepPlan,
    group: PlannedGroup,
    now: float,
    new_id: Callable[[], str],
) -> RunState:
    sweep = Sweep(
        total=len(planned.sets),
        nodes=group.group.nodes,
        max_parallel=planned.max_parallel,
        stop_after_failures=planned.stop_after_failures,
        reuse_container=planned.reuse_container,
    )
    content = SweepContent(sets=planned.sets, spec=group.spec)
    run, jobs = first_jobs(replace(run, sweep=sweep), content, now, new_id)
    return RunState(run=run, jobs=jobs, sweep=content)


def _with_first_deployment(run: Run, service: ServicePolicy, groups: Sequence[PlannedGroup]) -> Run:
    deployment = Deployment(
        number=run.deployment,
        service=service,
        specs={planned.group.name: planned.spec for planned in groups},
        policy=run.policy,
        configuration=run.configuration,
        by=run.user,
        at=run.submitted_at,
        progress_at=run.submitted_at,
    )
    scales = tuple(
        GroupScale(group=group.name, wanted=group.least, at=run.submitted_at, why="as submitted")
        for group in service.groups
    )
    return replace(run, deployments=(deployment,), scales=scales)


def _check_jobs(jobs: Sequence[PlannedJob]) -> None:
    if not jobs:
        raise ValueError("a run needs at least one job")
    if len({(job.group, job.cookie) for job in jobs}) != len(jobs):
        raise ValueError("two jobs of a group have the same cookie")


def _check_groups(groups: Sequence[Group], policy: RunPolicy, *, is_service: bool) -> None:
    if len({group.name for group in groups}) != len(groups):
        raise ValueError("groups: two groups have the same name")
    for group in groups:
        if group.nodes < 1 and not is_service:
            raise ValueError(f"group {group.name}: nodes must be at least 1")
        if group.gang_size is None:
            continue
        if not 1 <= group.gang_size <= group.nodes:
            raise ValueError(
                f"group {group.name}: gang.size must be between 1 and its {group.nodes} nodes"
            )
        for field in ("fail_on_job_restart", "restart_completed_jobs", "max_failed_jobs"):
            if getattr(policy, field):
                raise ValueError(
                    f"{field}: cannot be set with a gang, whose jobs live and die together"
                )


def _jobs_of(groups: Sequence[PlannedGroup]) -> Iterator[PlannedJob]:
    """Yield the jobs of a task's groups. All jobs of a gang are one replica; each job of another
    group is a replica of its own."""
    for planned in groups:
        group = planned.group
        for cookie in range(group.nodes):
            replica = cookie if group.gang_size is None else 0
            yield PlannedJob(group=group.name, replica=replica, cookie=cookie, spec=planned.spec)


def _replicas_of(groups: Sequence[PlannedGroup], service: ServicePolicy) -> Iterator[PlannedJob]:
    """Yield the jobs of a service's first replicas, at least of one in each group."""
    for planned, group in zip(groups, service.groups, strict=True):
        ranks = members.ranks(group.nodes)
        for replica in range(max(1, planned.group.nodes // len(ranks))):
            for number, rank in enumerate(ranks):
                yield PlannedJob(
                    group=group.name,
                    replica=replica,
                    cookie=replica * len(ranks) + number,
                    rank=rank,
                    spec=members.spec_of(planned.spec, rank),
                    scaled_down=not planned.group.nodes,
                )


def first_rank(run: Run, group_name: str, cookie: int) -> int | None:
    """Return the rank of a job in its first incarnation; None: it has none.

    A gang's first jobs are ranked, the rest reserved. In a plain group next to a gang all jobs have
    ranks. Without a gang no job has one.
    """
    if run.incarnation is None:
        return None
    group = next(group for group in run.groups if group.name == group_name)
    if group.gang_size is None or cookie < group.gang_size:
        return cookie
    return None


def _job(run: Run, index: int, planned: PlannedJob, now: float, new_id: Callable[[], str]) -> Job:
    job_id = new_id()
    rank = planned.rank
    if rank is None:
        rank = first_rank(run, planned.group, planned.cookie)
    waits = bool(run.policy.schedule) or planned.scaled_down or run.policy.is_held_back
    first = () if waits else (_first_attempt(run, job_id, rank, now, new_id),)
    return Job(
        id=job_id,
        group=planned.group,
        replica=planned.replica,
        cookie=planned.cookie,
        index=index,
        rank=rank,
        spec=planned.spec,
        scaled_down=planned.scaled_down,
        attempts=first,
    )


def _first_attempt(
    run: Run, job_id: str, rank: int | None, now: float, new_id: Callable[[], str]
) -> Attempt:
    return Attempt(
        id=new_id(),
        job_id=job_id,
        number=0,
        status=AttemptStatus.SUBMITTED,
        incarnation=run.incarnation,
        rank=rank,
        submitted_at=now,
    )
