"""Actions: what a user can do to a live run and to single jobs of it.

Each returns when the request is recorded, with the run as it then is; the core decides what
follows. A repeated request changes nothing more; one that is known by its `order_key` changes
nothing either when somebody has ordered something else in between.
"""

from __future__ import annotations

from common.refusals import Conflict, Invalid, NotFound
from controller.lifecycle.model import Attempt, Group, Job, RunState
from controller.lifecycle.reports import (
    CompleteRequested,
    JobAbandonRequested,
    JobAbortRequested,
    JobInterruptRequested,
    Report,
    ResumeRequested,
    ScaleRequested,
    StopRequested,
    SuspendRequested,
)
from controller.lifecycle.sweeps.sets import status_of
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_control
from controller.service.jobs.access import Runs, find_job
from controller.store.accounts import User
from fairlead.model.reasons import RunReason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus, RunStatus
from fairlead.model.sweep import SetStatus

MAX_NODES = 10_000


class ActionService:
    """The actions. Every method raises NotFound, Forbidden, StoreUnavailable.

    All except `stop` also raise Conflict (`ended`, `ending`) for a run that has ended or is ending.
    """

    def __init__(self, pipeline: RunPipeline, runs: Runs) -> None:
        self._pipeline = pipeline
        self._runs = runs

    async def stop(self, key: str, *, abort: bool, user: User, order_key: str = "") -> RunState:
        """Stop the run; to stop a run that has ended changes nothing."""
        state = await self._own(key, user)
        return await self._report(
            StopRequested(run_id=state.run.id, abort=abort, by=user.name, order_key=order_key),
            state,
        )

    async def complete(self, key: str, *, user: User, order_key: str = "") -> RunState:
        """End the run as done now; a run that is done, or about to be, stays so."""
        state = await self._own(key, user)
        if state.run.status is RunStatus.DONE or _is_being_completed(state):
            return state
        if order_key in state.run.order_keys:
            return state
        require_life(state, "completed")
        report = CompleteRequested(run_id=state.run.id, by=user.name, order_key=order_key)
        return await self._report(report, state)

    async def suspend(
        self, key: str, *, abort_running: bool, user: User, order_key: str = ""
    ) -> RunState:
        state = await self._own(key, user)
        if order_key in state.run.order_keys:
            return state
        require_life(state, "suspended")
        report = SuspendRequested(
            run_id=state.run.id, abort_running=abort_running, by=user.name, order_key=order_key
        )
        return await self._report(report, state)

    async def resume(self, key: str, *, user: User, order_key: str = "") -> RunState:
        state = await self._own(key, user)
        if order_key in state.run.order_keys:
            return state
        require_life(state, "resumed")
        report = ResumeRequested(run_id=state.run.id, by=user.name, order_key=order_key)
        return await self._report(report, state)

    async def scale(
        self, key: str, *, group: str, nodes: int, user: User, order_key: str = ""
    ) -> RunState:
        """Set the number of jobs of an independent group. Also raises Conflict (`gang`) and Invalid
        (the number)."""
        state = await self._own(key, user)
        if order_key in state.run.order_keys:
            return state
        require_life(state, "scaled")
        _require_scalable(state, _group(state, group))
        most = MAX_NODES - sum(one.nodes for one in state.run.groups if one.name != group)
        if not 1 <= nodes <= most:
            others = " beside the other groups'" if len(state.run.groups) > 1 else ""
            raise Invalid(
                f"{nodes} is not a number of nodes (allowed: 1 to {most}{others})", field="nodes"
            )
        report = ScaleRequested(
            run_id=state.run.id, group=group, nodes=nodes, by=user.name, order_key=order_key
        )
        return await self._report(report, state)

    async def abort_job(self, key: str, job_key: str, *, user: User) -> RunState:
        """End this job's attempt at once; it comes back uncharged."""
        state, job = await self._job(key, job_key, "aborted", user)
        if _live_attempt(job) is None:
            raise Conflict(
                f"job {_name(job)} ({_standing(job)}) has no attempt that could be aborted",
                code="ended" if job.retry_at is None else "not_running",
                field="job",
            )
        report = JobAbortRequested(run_id=state.run.id, job_id=job.id, by=user.name)
        return await self._report(report, state)

    async def abandon_job(self, key: str, job_key: str, *, user: User) -> RunState:
        """Let the run go on without this job."""
        state, job = await self._job(key, job_key, "abandoned", user)
        if job.abandoned:
            return state
        _require_active_set(state, job)
        report = JobAbandonRequested(run_id=state.run.id, job_id=job.id, by=user.name)
        return await self._report(report, state)

    async def interrupt_job(self, key: str, job_key: str, *, user: User) -> RunState:
        """Ask the job to end by itself; its exit code tells whether it wants to come back."""
        state, job = await self._job(key, job_key, "interrupted", user)
        attempt = _live_attempt(job)
        if attempt is None or attempt.status is not AttemptStatus.RUNNING:
            instead = "" if attempt is None else "; `fairlead job abort` ends it anyway"
            raise Conflict(
                f"job {_name(job)} is not running ({_standing(job)}), so it cannot be interrupted"
                f"{instead}",
                code="not_running",
                field="job",
            )
        report = JobInterruptRequested(run_id=state.run.id, job_id=job.id, by=user.name)
        return await self._report(report, state)

    async def _own(self, key: str, user: User) -> RunState:
        state = await self._runs.get(key)
        require_control(user, state.run)
        return state

    async def _job(self, key: str, job_key: str, done: str, user: User) -> tuple[RunState, Job]:
        state = await self._own(key, user)
        job = find_job(state, job_key)
        require_life(state, done)
        if job.scaled_down and _live_attempt(job) is None:
            raise Conflict(
                f"job {_name(job)} was scaled down and cannot be {done}; `fairlead scale` brings "
                f"it back",
                code="ended",
                field="job",
            )
        return state, job

    async def _report(self, report: Report, state: RunState) -> RunState:
        if state.run.id in self._pipeline.runs:
            await self._pipeline.report(report)
        return await self._runs.get(state.run.id)


def require_life(state: RunState, done: str) -> None:
    """Raise Conflict for a run that has ended or is ending."""
    run = state.run
    if run.finished_at is not None:
        raise Conflict(
            f"run {run.name} has ended ({run.status}) and cannot be {done}",
            code="ended",
            field="run",
        )
    if run.status is RunStatus.TERMINATING:
        raise Conflict(
            f"run {run.name} is ending ({run.reason}) and cannot be {done}",
            code="ending",
            field="run",
        )


def _require_active_set(state: RunState, job: Job) -> None:
    """Raise Conflict for a job of a sweep's set that has ended: the set stays as it is."""
    if state.run.sweep is None:
        return
    ended = status_of(state.run, [one for one in state.all_jobs if one.replica == job.replica])
    if ended is not SetStatus.ACTIVE:
        raise Conflict(
            f"job {_name(job)} is of a parameter set that has ended ({ended}), which stays as it"
            f" is: the run does not wait for it",
            code="ended",
            field="job",
        )


def _is_being_completed(state: RunState) -> bool:
    return state.run.status is RunStatus.TERMINATING and state.run.reason in (
        RunReason.COMPLETED_BY_USER,
        RunReason.ALL_JOBS_DONE,
    )


def _group(state: RunState, name: str) -> Group:
    for group in state.run.groups:
        if group.name == name:
            return group
    names = ", ".join(group.name for group in state.run.groups)
    raise NotFound(
        f"run {state.run.name} has no group {name!r}; it has {names or 'none'}", field="group"
    )


def _require_scalable(state: RunState, group: Group) -> None:
    """Raise Conflict for a gang, and for what is no task. A plain group next to a gang restarts
    with it, so its size cannot change either."""
    if state.run.service is not None:
        raise Conflict(
            f"{state.run.name} is a service, which has as many replicas as its configuration says: "
            f"change `replicas` there, and `fairlead apply` it again",
            code="no_task",
            field="run",
        )
    if state.run.type != "task":
        raise Conflict(f"{state.run.name} has one job", code="no_task", field="run")
    if state.run.sweep is not None:
        raise Conflict(
            f"{state.run.name} is a sweep, which has a job for each parameter set: `fairlead scale "
            f"{state.run.name} --parallel N` changes how many run at once",
            code="sweep",
            field="run",
        )
    if state.run.incarnation is not None:
        what = "is" if group.gang_size is not None else "belongs to a run with"
        raise Conflict(
            f"group {group.name} {what} a gang, whose jobs start and restart together: its number "
            f"of nodes cannot change; submit the run again with another one",
            code="gang",
            field="group",
        )


def _standing(job: Job) -> str:
    """Return the job's state in a few words."""
    if job.attempts and job.attempts[-1].status not in FINAL_ATTEMPT_STATUSES:
        return str(job.attempts[-1].status)
    if job.abandoned:
        return "abandoned"
    if job.retry_at is not None:
        return "waits for its next attempt"
    return str(job.attempts[-1].status) if job.attempts else "not started"


def _live_attempt(job: Job) -> Attempt | None:
    attempt = job.attempts[-1] if job.attempts else None
    if attempt is None or attempt.status in FINAL_ATTEMPT_STATUSES:
        return None
    return attempt


def _name(job: Job) -> str:
    return f"{job.group}/{job.cookie}"
