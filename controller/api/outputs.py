"""The outputs of jobs as REST: what is there, and each attempt's as one tar that can be resumed."""

from __future__ import annotations

from aiohttp import web

from controller.api.documents import OutputFileView, OutputsAnswer, OutputsView
from controller.api.routes import Call, Query, Route
from controller.service.job_access import find_job
from controller.service.outputs import JobOutputs

TAR = "application/x-tar"


class OutputsQuery(Query, frozen=True):
    """`job` and `attempt` as in the log's query; without `job` those of all jobs, without their
    files."""

    job: str | None = None
    attempt: str | None = None


async def list_outputs(call: Call) -> OutputsAnswer:
    query: OutputsQuery = call.query
    runs = call.service.runs
    state = await runs.get(call.path("run"))
    one = query.job is not None or query.attempt is not None or len(state.jobs) == 1
    jobs = [query.job] if one else [job.id for job in state.jobs]
    views = []
    for job in jobs:
        attempt = await runs.attempt(state, job, query.attempt)
        if attempt is not None:
            found = await call.service.outputs.find(state, attempt)
            views.append(_view(found, with_files=one))
    return OutputsAnswer(outputs=tuple(views))


async def read_outputs(call: Call) -> web.StreamResponse:
    query: OutputsQuery = call.query
    state = await call.service.runs.get(call.path("run"))
    job = None if query.job is None else find_job(state, query.job).id
    attempt = await call.service.runs.attempt(state, job, query.attempt)
    path = await call.service.outputs.archive(state, attempt)
    headers = {
        "Content-Type": TAR,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return web.FileResponse(path, headers=headers)


def _view(found: JobOutputs, *, with_files: bool) -> OutputsView:
    stored, kept = found.stored, found.attempt.outputs
    files = None
    if with_files and stored is not None:
        files = tuple(OutputFileView(name=file.name, size=file.size) for file in stored.files)
    return OutputsView(
        job_id=found.job.id,
        group=found.job.group,
        cookie=found.job.cookie,
        attempt_id=found.attempt.id,
        attempt=found.attempt.number,
        state=found.state,
        removed=found.removed,
        count=0 if kept is None else kept.files,
        size=0 if kept is None else kept.size,
        left_out=0 if kept is None else kept.left_out,
        left_out_size=0 if kept is None else kept.left_out_size,
        archive_size=None if stored is None else stored.length,
        files=files,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/runs/{run}/outputs",
        summary="What the jobs left in their output folders; the files of one job",
        handler=list_outputs,
        query=OutputsQuery,
        answer=OutputsAnswer,
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}/outputs/archive",
        summary="The outputs of one attempt as a tar; `Range` goes on where a download stopped",
        handler=read_outputs,
        query=OutputsQuery,
        media=TAR,
    ),
)
