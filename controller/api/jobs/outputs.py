"""The outputs of jobs as REST: what is there, and each attempt's as one tar that can be resumed."""

from __future__ import annotations

from aiohttp import web

from common.refusals import Unavailable
from controller.api.http.routes import Call, Route
from controller.service.jobs.access import find_job
from controller.service.jobs.outputs import Archive, JobOutputs
from fairlead.documents.jobs import OutputFileView, OutputsAnswer, OutputsView
from fairlead.model.statuses import OutputsState
from fairlead.queries import Query
from fairlead.wire.shim import PullProgress

TAR = "application/x-tar"
_HEADERS = {
    "Content-Type": TAR,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class OutputsQuery(Query, frozen=True):
    """`job` and `attempt` as in the log's query; without `job` those of all jobs, without their
    files."""

    job: str | None = None
    attempt: str | None = None


async def list_outputs(call: Call) -> OutputsAnswer:
    query: OutputsQuery = call.query
    runs = call.service.runs.lookup
    state = await runs.get(call.path("run"))
    one = query.job is not None or query.attempt is not None or len(state.jobs) == 1
    jobs = [query.job] if one else [job.id for job in state.jobs]
    views = []
    for job in jobs:
        attempt = await runs.attempt(state, job, query.attempt)
        if attempt is not None:
            found = await call.service.jobs.outputs.find(state, attempt)
            views.append(_view(found, call.service.runs.progress.get(attempt.id), with_files=one))
    return OutputsAnswer(outputs=tuple(views))


async def read_outputs(call: Call) -> web.StreamResponse:
    query: OutputsQuery = call.query
    state = await call.service.runs.lookup.get(call.path("run"))
    job = None if query.job is None else find_job(state, query.job).id
    attempt = await call.service.runs.lookup.attempt(state, job, query.attempt)
    archive = await call.service.jobs.outputs.archive(state, attempt)
    if archive.path is not None:
        return web.FileResponse(archive.path, headers=_HEADERS)
    return await _relay(call, archive)


async def _relay(call: Call, archive: Archive) -> web.StreamResponse:
    """Answer from the bucket, as `FileResponse` answers from a file."""
    request, length = call.request, archive.stored.length
    response = web.StreamResponse(headers={**_HEADERS, "Accept-Ranges": "bytes"})
    try:
        start, end, _ = request.http_range.indices(length)
    except ValueError:
        # aiohttp raises it for a Range that it cannot read, such as one of several parts.
        start, end = length, length
    if start >= end:
        response.set_status(416)
        response.headers["Content-Range"] = f"bytes */{length}"
        await response.prepare(request)
        return response
    if "Range" in request.headers:
        response.set_status(206)
        response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{length}"
    response.content_length = end - start
    pieces = call.service.jobs.outputs.read(archive, start, end)
    first = await anext(pieces)  # before the headers: a refusal is still possible
    await response.prepare(request)
    await response.write(first)
    try:
        async for piece in pieces:
            await response.write(piece)
    except Unavailable:  # only a cut says so now; the client goes on where it stopped
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


def _view(found: JobOutputs, coming: PullProgress | None, *, with_files: bool) -> OutputsView:
    stored, kept = found.stored, found.attempt.seen.outputs
    if found.state is not OutputsState.COLLECTING:
        coming = None
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
        place=None if stored is None or stored.place is None else str(stored.place),
        received=None if coming is None else coming.downloaded,
        total=None if coming is None else coming.total,
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
