"""One stream for each open page: what changed, so that the page asks for its fragments again.

The stream names topics and carries no content. A page that connects again hears that everything may
have changed, so nothing has to be kept for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack

import msgspec
from aiohttp import web

from controller.api.streams import HEARTBEAT_SECONDS, cancel_this, reader_may_leave, registered
from controller.service.errors import Invalid, NotFound
from controller.web.pages import Visit

ANY = "any"
"""The topic of all runs and nodes; other topics are the id of a run."""
PAUSE_SECONDS = 0.2
"""Changes in this time after a line are told together."""
MOST_TOPICS = 8


async def stream(visit: Visit, version: str, headers: Mapping[str, str]) -> web.StreamResponse:
    """Answer a page's stream: `hello` at once, `changed` with a topic, `beat` when nothing changes.

    Raises Invalid.
    """
    topics = await _topics(visit)
    response = web.StreamResponse(
        headers={**headers, "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )
    with registered(visit.request, cancel_this()), reader_may_leave():
        await response.prepare(visit.request)
        await response.write(_line("hello", version))
        async for changed in _changes(visit, topics):
            for topic in changed:
                await response.write(_line("changed", topic))
            if not changed:
                await response.write(_line("beat", ""))
    return response


async def _topics(visit: Visit) -> list[str]:
    topics = list(dict.fromkeys(visit.request.query.getall("topic", ())))
    if len(topics) > MOST_TOPICS:
        raise Invalid(f"a page follows at most {MOST_TOPICS} topics", field="topic")
    return [topic for topic in topics if topic == ANY or await _is_seen(visit, topic)]


async def _is_seen(visit: Visit, topic: str) -> bool:
    """Return whether the user hears of this run. One that expired while its page was open, or that
    is another user's, has nothing to tell."""
    try:
        await visit.service.runs.seen(topic, visit.user)
    except NotFound:
        return False
    return True


async def _changes(visit: Visit, topics: list[str]) -> AsyncIterator[list[str]]:
    """Yield the topics that changed; none: a heartbeat is due."""
    async with AsyncExitStack() as stack:
        events = {
            topic: await stack.enter_async_context(
                visit.service.runs.changes(None if topic == ANY else topic)
            )
            for topic in topics
        }
        while True:
            await _first_of(events.values())
            changed = [topic for topic, event in events.items() if event.is_set()]
            for topic in changed:
                events[topic].clear()
            yield changed
            if changed:
                await asyncio.sleep(PAUSE_SECONDS)


async def _first_of(events: Iterable[asyncio.Event]) -> None:
    """Wait until one is set, or a heartbeat is due."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    if not waiting:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        return
    try:
        await asyncio.wait(waiting, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _line(event: str, data: str) -> bytes:
    return f"event: {event}\ndata: {msgspec.json.encode(data).decode()}\n\n".encode()
