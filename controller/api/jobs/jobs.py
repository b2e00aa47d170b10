"""The jobs of a run as REST: their attempts, actions, use of resources, and the way in by SSH."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import asdict

from common.refusals import Conflict
from controller.api.http.paging import cut, one_more
from controller.api.http.routes import Call, Route
from controller.api.runs.runs import shown_run
from controller.api.views import node_name, past_attempt_view
from controller.clock import iso
from controller.lifecycle.model import Attempt, Job, Node, RunState
from controller.metric_history import KEPT_SECONDS, Point, of_gpu, points
from controller.service.jobs.access import find_job
from controller.service.jobs.metrics import JobUse
from fairlead.documents.jobs import PastAttemptView, SshTarget
from fairlead.documents.metrics import (
    GpuMetricPoint,
    GpuMetricsHistory,
    JobMetricsHistory,
    JobUseView,
    MetricPoint,
    MetricsAnswer,
    MetricsHistoryAnswer,
)
from fairlead.documents.runs import RunView
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus
from fairlead.queries import AttemptQuery, Limit, Query
from fairlead.wire.runner import JobMetrics

PORT_NAME = "ssh"
MAX_SERIES = 64
"""The history of so many jobs is given at once; that of others by their name."""
_LATE_SECONDS = 1.0


class SshQuery(Query, frozen=True):
    """`job` as in the log's query."""

    job: str | None = None


class JobQuery(Query, frozen=True):
    """`job` as in the log's query, else all."""

    job: str | None = None


class HistoryQuery(Query, frozen=True):
    """`job` and `attempt` as in the log's query; without both the latest attempt of each job.
    `seconds`: from so long before the end, or before now; `points`: at most so many of each job.
    `gpus`: also of each GPU."""

    job: str | None = None
    attempt: str | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0, le=KEPT_SECONDS)] = 3600.0
    points: Limit = 120
    gpus: bool = False


class AttemptsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    attempts: tuple[PastAttemptView, ...]
    next_cursor: str | None


async def list_attempts(call: Call) -> AttemptsAnswer:
    query: AttemptQuery = call.query
    runs = call.service.runs.lookup
    found = await runs.attempts(await runs.get(call.path("run")), one_more(query))
    found, cursor = cut(found, query.limit, lambda attempt: attempt.id)
    names = call.service.machines.nodes.names()
    views = tuple(past_attempt_view(attempt, names) for attempt in found)
    return AttemptsAnswer(attempts=views, next_cursor=cursor)


async def find_ssh(call: Call) -> SshTarget:
    query: SshQuery = call.query
    state = await call.service.runs.lookup.get(call.path("run"))
    nodes = {node.id: node for node in call.service.machines.nodes.all()}
    return ssh_target(state, query.job, nodes)


async def abort_job(call: Call) -> RunView:
    actions = call.service.runs.actions
    run, job = call.path("run"), call.path("job")
    return shown_run(call, await actions.abort_job(run, job, user=call.caller))


async def abandon_job(call: Call) -> RunView:
    actions = call.service.runs.actions
    run, job = call.path("run"), call.path("job")
    return shown_run(call, await actions.abandon_job(run, job, user=call.caller))


async def interrupt_job(call: Call) -> RunView:
    actions = call.service.runs.actions
    run, job = call.path("run"), call.path("job")
    return shown_run(call, await actions.interrupt_job(run, job, user=call.caller))


def ssh_target(state: RunState, job_key: str | None, nodes: Mapping[str, Node]) -> SshTarget:
    """Return the target of the job's present attempt. Raises NotFound, and Conflict (`no_ssh`) with
    the reason why there is none."""
    job = find_job(state, job_key)
    attempt = job.attempts[-1] if job.attempts else None
    node = nodes.get(attempt.node_id or "") if attempt else None
    if (
        attempt is None
        or node is None
        or not attempt.task.ssh_host_key
        or PORT_NAME not in attempt.task.ports
    ):
        raise Conflict(_why_not(state, job, attempt), code="no_ssh", field="run")
    if attempt.status in FINAL_ATTEMPT_STATUSES:
        raise Conflict(f"{state.run.name} has ended: {attempt.status}", code="no_ssh", field="run")
    address = node.address
    return SshTarget(
        run_name=state.run.name,
        attempt_id=attempt.id,
        host=attempt.task.ssh_host,
        port=attempt.task.ports[PORT_NAME],
        host_key=attempt.task.ssh_host_key,
        node_host=None if address.local_socket else address.host,
        node_port=address.port,
        node_host_key=address.host_key,
        jump_user=address.jump_user,
    )


def _why_not(state: RunState, job: Job, attempt: Attempt | None) -> str:
    name = state.run.name
    if job.spec.ssh == "off":
        return f"{name} was submitted with `ssh: off`"
    if not job.spec.ssh_keys:
        return (
            f"{name} was submitted without a public key: make one (ssh-keygen), or name one with "
            f"FAIRLEAD_SSH_KEY, and submit it again"
        )
    if attempt is not None and attempt.status is AttemptStatus.RUNNING:
        return f"the node of {name} gives it no SSH: its shim's log says why"
    if attempt is None or attempt.status not in FINAL_ATTEMPT_STATUSES:
        return f"{name} has no container yet ({state.run.status}): try again when it runs"
    return f"{name} has ended: {attempt.status}"


async def run_metrics(call: Call) -> MetricsAnswer:
    query: JobQuery = call.query
    uses = await call.service.jobs.metrics.of(call.path("run"), query.job)
    names = call.service.machines.nodes.names()
    return MetricsAnswer(jobs=tuple(use_view(use, names) for use in uses))


async def metrics_history(call: Call) -> MetricsHistoryAnswer:
    query: HistoryQuery = call.query
    runs, history, until = (
        call.service.runs.lookup,
        call.service.jobs.metric_history,
        call.service.clock.now(),
    )
    state = await runs.get(call.path("run"))
    if query.job is not None or query.attempt is not None:
        attempt = await runs.attempt(state, query.job, query.attempt)
        chosen = [] if attempt is None else [attempt]
    else:
        chosen = [job.attempts[-1] for job in state.jobs[:MAX_SERIES] if job.attempts]
    ended = max((one.finished_at or until for one in chosen), default=until)
    since = ended - query.seconds
    jobs = {job.id: job for job in state.jobs}
    views = []
    for attempt in chosen:
        samples = await asyncio.to_thread(history.read, attempt.id, since)
        found = points(samples, since, ended + _LATE_SECONDS, query.points)
        gpus = []
        for number, uuid in enumerate(attempt.task.gpus if query.gpus else ()):
            of_one = await asyncio.to_thread(history.read, of_gpu(attempt.id, number), since)
            shown = points(of_one, since, ended + _LATE_SECONDS, query.points)
            gpus.append(_gpu_view(uuid, shown))
        views.append(_history_view(jobs[attempt.job_id], attempt, found, gpus))
    return MetricsHistoryAnswer(jobs=tuple(views), until=iso(ended))


def _gpu_view(uuid: str, found: Sequence[Point]) -> GpuMetricsHistory:
    shown = (
        GpuMetricPoint(at=iso(point.at), utilization=point.gpu_utilization, memory=point.gpu_memory)
        for point in found
    )
    return GpuMetricsHistory(uuid=uuid, points=tuple(shown))


def _history_view(
    job: Job, attempt: Attempt, found: Sequence[Point], gpus: Sequence[GpuMetricsHistory]
) -> JobMetricsHistory:
    return JobMetricsHistory(
        job_id=job.id,
        group=job.group,
        cookie=job.cookie,
        rank=attempt.rank,
        attempt_id=attempt.id,
        attempt=attempt.number,
        points=tuple(MetricPoint(**{**asdict(point), "at": iso(point.at)}) for point in found),
        gpus=tuple(gpus),
    )


def use_view(use: JobUse, node_names: Mapping[str, str]) -> JobUseView:
    measured = dict.fromkeys(JobMetrics.__struct_fields__)
    if use.used is not None:
        measured = {**asdict(use.used), "at": iso(use.used.at)}
    del measured["relayed"]
    return JobUseView(
        job_id=use.job.id,
        group=use.job.group,
        cookie=use.job.cookie,
        rank=use.attempt.rank,
        attempt_id=use.attempt.id,
        node=node_name(use.attempt, node_names),
        message=use.message,
        gpus=use.gpus,
        **measured,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/runs/{run}/jobs/{job}/abort",
        summary="End a job's attempt at once; it comes back uncharged (job: as in the log's query)",
        handler=abort_job,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/jobs/{job}/abandon",
        summary="Let the run go on without a job",
        handler=abandon_job,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/jobs/{job}/interrupt",
        summary="Ask a job to end by itself; its restart_exit_code brings it back",
        handler=interrupt_job,
        answer=RunView,
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}/attempts",
        summary="All stored attempts, oldest first; or those of one job, occurrence or incarnation",
        handler=list_attempts,
        query=AttemptQuery,
        answer=AttemptsAnswer,
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}/ssh",
        summary="How the user's ssh reaches a job, and which host keys to expect",
        handler=find_ssh,
        query=SshQuery,
        answer=SshTarget,
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}/metrics",
        summary="What the running jobs use now, or one of them",
        handler=run_metrics,
        query=JobQuery,
        answer=MetricsAnswer,
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}/metrics/history",
        summary="What jobs used in the past, at most a week ago, for plots",
        handler=metrics_history,
        query=HistoryQuery,
        answer=MetricsHistoryAnswer,
    ),
)
