"""Windows of a log for readers who show a part of it: rows near a place, and a search."""

from __future__ import annotations

from common.refusals import Invalid
from controller.api.http.routes import Call, Route
from controller.lifecycle.model import Attempt
from controller.logs.search import NOTHING, BadPattern, LogSearch, Wanted, wanted
from controller.logs.windows import EMPTY, LogWindow
from fairlead.queries import SearchQuery, WindowQuery


async def read_log_window(call: Call) -> LogWindow:
    query: WindowQuery = call.query
    attempt = await _attempt(call, query.job, query.attempt)
    return EMPTY if attempt is None else await call.service.jobs.logs.window(attempt.id, query)


async def search_log(call: Call) -> LogSearch:
    query: SearchQuery = call.query
    looked_for = wanted_by(query)
    attempt = await _attempt(call, query.job, query.attempt)
    if attempt is None:
        return NOTHING
    return await call.service.jobs.logs.search(attempt.id, looked_for, query.offset, query.limit)


def wanted_by(query: SearchQuery) -> Wanted:
    """Return what the query looks for. Raises Invalid."""
    try:
        return wanted(query.text, exact_case=query.exact_case, is_pattern=query.regex)
    except BadPattern as error:
        raise Invalid(f"this is no regular expression: {error}", field="text") from None


async def _attempt(call: Call, job: str | None, attempt: str | None) -> Attempt | None:
    state = await call.service.runs.lookup.get(call.path("run"))
    found = await call.service.runs.lookup.attempt(state, job, attempt)
    await call.service.jobs.kept_logs.require(state, found)
    return found


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/runs/{run}/logs/window",
        summary="A part of a log as rows with their line numbers, near an offset or a time",
        handler=read_log_window,
        query=WindowQuery,
        answer=LogWindow,
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}/logs/search",
        summary="Lines of a log with a text or a pattern; a bounded part of it for each request",
        handler=search_log,
        query=SearchQuery,
        answer=LogSearch,
    ),
)
