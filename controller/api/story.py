"""The events of a run, or of all runs, as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from controller.api.bodies import EventsWatchQuery
from controller.api.documents import EventLine, EventView
from controller.api.routes import NDJSON, Call, Route
from controller.api.streams import HEARTBEAT_SECONDS, cancel_this, reader_may_leave, registered
from controller.api.views import event_view
from controller.lifecycle.statuses import FINAL_RUN_STATUSES

_PAGE = 1000


async def watch_events(call: Call) -> web.StreamResponse:
    """Send the events after the cursor, then those that come; for one run until it has ended."""
    query: EventsWatchQuery = call.query
    runs = call.service.runs
    run_id = None
    if query.run is not None:
        run_id = (await runs.seen(query.run, call.caller)).run.id
    response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-store"})
    await response.prepare(call.request)
    with registered(call.request, cancel_this()), reader_may_leave():
        async for event in _events(call, run_id, query.cursor):
            await response.write(msgspec.json.encode(EventLine(event=event)) + b"\n")
        await response.write_eof()
    return response


async def _events(call: Call, run_id: str | None, after: int) -> AsyncIterator[EventView | None]:
    """Yield events; None is a heartbeat."""
    runs = call.service.runs
    async with runs.changes(run_id) as changed:
        while True:
            ended = run_id is not None and await _has_ended(call, run_id)
            changed.clear()
            page = await runs.events(run_id, after=after, limit=_PAGE, user=call.caller)
            for stored in page:
                yield event_view(stored)
                after = stored.seq
            if len(page) == _PAGE:
                continue
            if ended:
                return
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield None


async def _has_ended(call: Call, run_id: str) -> bool:
    return (await call.service.runs.get(run_id)).run.status in FINAL_RUN_STATUSES


STORY: tuple[Route, ...] = (
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
