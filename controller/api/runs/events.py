"""The events of a run, or of all runs, as they are stored and as they happen."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from controller.api.http.paging import cut, one_more
from controller.api.http.routes import NDJSON, Call, Route
from controller.api.http.streams import Heartbeat, cancel_this, reader_may_leave, registered
from controller.api.views import derived
from controller.lifecycle.events import sentence_of_cause
from controller.store.base import StoredEvent
from fairlead.documents.runs import EventLine, EventView
from fairlead.model.statuses import FINAL_RUN_STATUSES
from fairlead.queries import EventQuery, Offset, Query

_PAGE = 1000


class EventsWatchQuery(Query, frozen=True):
    """`run`: id or name; default: every run that the caller may see. `cursor`: the `seq` of the
    last known event."""

    run: str | None = None
    cursor: Offset = 0


class EventsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[EventView, ...]
    next_cursor: str | None


async def list_events(call: Call) -> EventsAnswer:
    query: EventQuery = call.query
    stored = await call.service.runs.lookup.events(one_more(query), user=call.caller)
    stored, cursor = cut(stored, query.limit, lambda event: str(event.seq))
    return EventsAnswer(events=tuple(event_view(event) for event in stored), next_cursor=cursor)


def event_view(stored: StoredEvent) -> EventView:
    event = stored.event
    because = sentence_of_cause(event.cause)
    return derived(EventView, event, seq=stored.seq, kind=str(event.kind), because=because)


async def watch_events(call: Call) -> web.StreamResponse:
    """Send the events after the cursor, then those that come; for one run until it has ended."""
    query: EventsWatchQuery = call.query
    runs = call.service.runs.lookup
    run_id = None
    if query.run is not None:
        run_id = (await runs.seen(query.run, call.caller)).run.id
    response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-store"})
    with registered(call.request, cancel_this()), reader_may_leave():
        await response.prepare(call.request)
        async for event in _events(call, run_id, query.cursor):
            await response.write(msgspec.json.encode(EventLine(event=event)) + b"\n")
        await response.write_eof()
    return response


async def _events(call: Call, run_id: str | None, after: int) -> AsyncIterator[EventView | None]:
    """Yield events; None is a heartbeat."""
    runs, heartbeat = call.service.runs.lookup, Heartbeat()
    async with runs.changes(run_id) as changed:
        while True:
            # Both before the page is read: it then has all events of the end, and what comes
            # during the read wakes the reader again.
            ended = run_id is not None and await _has_ended(call, run_id)
            changed.clear()
            query = EventQuery(run=run_id, after=after, limit=_PAGE)
            page = await runs.events(query, user=call.caller)
            for stored in page:
                yield event_view(stored)
                after = stored.seq
                heartbeat.sent()
            if len(page) == _PAGE:
                continue
            if ended:
                return
            if not await heartbeat.wait(changed):
                yield None
                heartbeat.sent()


async def _has_ended(call: Call, run_id: str) -> bool:
    return (await call.service.runs.lookup.get(run_id)).run.status in FINAL_RUN_STATUSES


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/events",
        summary="What happened, oldest first",
        handler=list_events,
        query=EventQuery,
        answer=EventsAnswer,
    ),
    Route(
        method="GET",
        path="/v1/events/watch",
        summary="Events as they happen, one JSON line each; those of one run until it has ended",
        handler=watch_events,
        query=EventsWatchQuery,
        answer=EventLine,
        media=NDJSON,
    ),
)
