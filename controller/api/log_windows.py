"""Windows of a log for readers who show a part of it: rows near a place, and a search."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from controller.api.logs import shown_time
from controller.api.routes import Call, Offset, Query, Route
from controller.lifecycle.model import Attempt
from controller.logs.search import BadPattern, Wanted
from controller.logs.search import wanted as wanted_in
from controller.logs.windows import MOST_ROWS
from controller.service.errors import Invalid

_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Most = Annotated[int, msgspec.Meta(ge=1, le=1000)]
_Wanted = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class WindowQuery(Query, frozen=True):
    """`job` and `attempt` as in the log's query. One place: `offset` and `before` are exact (the
    `end` and `start` of another window), `near` is any offset, `at` a time; none: the log's end.
    The window ends at about `size` bytes, or at `rows` rows."""

    job: str | None = None
    attempt: str | None = None
    offset: Offset | None = None
    before: Offset | None = None
    near: Offset | None = None
    at: str | None = None
    size: _Size = 64 << 10
    rows: _Most = MOST_ROWS


class SearchQuery(Query, frozen=True):
    """`job` and `attempt` as in the log's query. `text` is found as it is written, ASCII letters in
    both cases; with `regex` it is a regular expression (RE2) for a part of a line, all letters in
    both cases. `exact_case`: not in both. `offset`: the `searched_to` of the answer before."""

    text: _Wanted
    job: str | None = None
    attempt: str | None = None
    offset: Offset = 0
    limit: _Most = 200
    exact_case: bool = False
    regex: bool = False


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one line, of one stream. `starts` and `ends`: whether the line begins and ends with
    it. Bytes that are not UTF-8 become marks."""

    offset: int
    end: int
    at: str
    stream: str
    text: str
    starts: bool
    ends: bool


class LogWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Rows without a gap from `start` to `end`. `first_line`: the number of the first row's line;
    null: not counted yet, ask again. `style`: the terminal's sequences (SGR) that set the colours
    in which the window begins. `log_end`: the end of what is stored."""

    start: int
    end: int
    log_end: int
    first_line: int | None
    style: str
    rows: tuple[LogRow, ...]


class LogMatch(msgspec.Struct, frozen=True, kw_only=True):
    """One line that matches. `offset`: where the match begins; `text`: what is around it, as a
    terminal shows it."""

    offset: int
    at: str
    stream: str
    text: str


class LogSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The matches before `searched_to`; at `log_end` all is searched."""

    matches: tuple[LogMatch, ...]
    searched_to: int
    log_end: int


async def read_log_window(call: Call) -> LogWindow:
    query: WindowQuery = call.query
    places = {
        name: getattr(query, name)
        for name in ("offset", "before", "near", "at")
        if getattr(query, name) is not None
    }
    if len(places) > 1:
        raise Invalid(f"give one place, not {' and '.join(places)}", field=[*places][1])
    attempt = await _attempt(call, query.job, query.attempt)
    if attempt is None:
        return LogWindow(start=0, end=0, log_end=0, first_line=1, style="", rows=())
    logs, near = call.service.logs, query.near
    if query.at is not None:
        near = await logs.offset_at(attempt.id, _time_ns(query.at))
    found = await logs.window(
        attempt.id, query.size, query.rows, start=query.offset, before=query.before, near=near
    )
    rows = (
        LogRow(
            offset=row.offset,
            end=row.end,
            at=shown_time(row.time_ns),
            stream=row.stream.name.lower(),
            text=row.text,
            starts=row.starts,
            ends=row.ends,
        )
        for row in found.rows
    )
    return LogWindow(
        start=found.start,
        end=found.end,
        log_end=found.log_end,
        first_line=found.first_line,
        style=found.style,
        rows=tuple(rows),
    )


async def search_log(call: Call) -> LogSearch:
    query: SearchQuery = call.query
    wanted = _wanted(query)
    attempt = await _attempt(call, query.job, query.attempt)
    if attempt is None:
        return LogSearch(matches=(), searched_to=0, log_end=0)
    found = await call.service.logs.search(attempt.id, wanted, query.offset, query.limit)
    matches = (
        LogMatch(
            offset=match.offset,
            at=shown_time(match.time_ns),
            stream=match.stream.name.lower(),
            text=match.text,
        )
        for match in found.matches
    )
    return LogSearch(matches=tuple(matches), searched_to=found.searched_to, log_end=found.log_end)


def _wanted(query: SearchQuery) -> Wanted:
    try:
        return wanted_in(query.text, exact_case=query.exact_case, is_pattern=query.regex)
    except BadPattern as error:
        raise Invalid(f"this is no regular expression: {error}", field="text") from None


async def _attempt(call: Call, job: str | None, attempt: str | None) -> Attempt | None:
    state = await call.service.runs.get(call.path("run"))
    found = await call.service.runs.attempt(state, job, attempt)
    await call.service.kept_logs.require(state, found)
    return found


def _time_ns(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise Invalid(
            f"{text!r} is not a time with its zone, such as 2026-01-31T12:00:00Z", field="at"
        )
    return int(at.timestamp() * 1e9)


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
