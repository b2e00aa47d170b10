"""The whole log of an attempt as a file; the viewer itself asks the API for windows."""

from __future__ import annotations

from aiohttp import web

from controller.api.http.streams import cancel_this, reader_may_leave, registered
from controller.api.jobs.logs import formed
from controller.web.page import PageRoute, Visit


async def download(visit: Visit) -> web.StreamResponse:
    """Send the stored output as it was printed. Raises NotFound, Forbidden, Gone."""
    runs = visit.service.runs
    state = await runs.seen(visit.path("run"), visit.user)
    job, key = visit.query("job") or None, visit.query("attempt") or None
    attempt = await runs.attempt(state, job, key)
    await visit.service.kept_logs.require(state, attempt)
    name = f"{state.run.name}-{attempt.id}.log" if attempt else f"{state.run.name}.log"
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        # A browser may show it on this origin: a job's output must run no script there.
        "Content-Security-Policy": "sandbox",
    }
    response = web.StreamResponse(headers=headers)
    with registered(visit.request, cancel_this()), reader_may_leave():
        await response.prepare(visit.request)
        if attempt is not None:
            async for piece in formed(visit.service.logs.read(attempt.id, 0), 0, "text"):
                await response.write(piece)
        await response.write_eof()
    return response


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/runs/{run}/log.txt", handler=download),)
