"""What the jobs of a run use now, as REST."""

from __future__ import annotations

from collections.abc import Mapping

from controller.api.bodies import JobQuery
from controller.api.documents import JobUseView, MetricsAnswer
from controller.api.routes import Call, Route
from controller.api.views import iso, node_name
from controller.service.job_access import JobUse


async def run_metrics(call: Call) -> MetricsAnswer:
    query: JobQuery = call.query
    uses = await call.service.metrics.of(call.path("run"), query.job)
    names = call.service.nodes.names()
    return MetricsAnswer(jobs=tuple(_view(use, names) for use in uses))


def _view(use: JobUse, node_names: Mapping[str, str]) -> JobUseView:
    used = use.used
    return JobUseView(
        job_id=use.job.id,
        group=use.job.group,
        cookie=use.job.cookie,
        rank=use.attempt.rank,
        attempt_id=use.attempt.id,
        node=node_name(use.attempt, node_names),
        message=use.message,
        at=iso(used.at) if used else None,
        cpu_seconds=used.cpu_seconds if used else None,
        memory=used.memory if used else None,
        memory_working_set=used.memory_working_set if used else None,
        memory_peak=used.memory_peak if used else None,
        memory_limit=used.memory_limit if used else None,
        oom_kills=used.oom_kills if used else None,
        connections=used.connections if used else None,
        gpus=use.gpus,
    )


METRICS: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/runs/{run}/metrics",
        summary="What the running jobs use now, or one of them",
        handler=run_metrics,
        query=JobQuery,
        answer=MetricsAnswer,
    ),
)
