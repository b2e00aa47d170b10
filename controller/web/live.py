"""One stream for each browser: what changed, so that its open pages ask for their fragments again.

The stream names topics and carries no content of them. A document says at which mark it was made;
its stream is told which of its topics changed since, so a document is not fetched a second time
when nothing did. A mark of another controller, or none, counts as the oldest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec
from aiohttp import web

from common.refusals import Invalid, NotFound
from controller.aio import Flag, Watch
from controller.api.http.streams import (
    HEARTBEAT_SECONDS,
    Heartbeat,
    cancel_this,
    reader_may_leave,
    registered,
)
from controller.clock import Clock
from controller.service import ControllerService
from controller.service.runs.lookup import RunReader
from controller.store.accounts import User

ANY = "any"
"""The topic of all runs and nodes; other topics are the id of a run."""
PAUSE_SECONDS = 0.2
"""Changes in this time after a line are told together."""
_FOR_BROKEN = ""
"""Is no topic of a page: any change may be one of what is broken."""
MAX_TOPICS = 64
"""All pages of a browser share its stream."""


class Source(Protocol):
    """What tells of changes: the services of the leader, or what it tells a follower."""

    @property
    def started(self) -> str | None:
        """Differs for each start of a leader."""

    @property
    def revision(self) -> int: ...
    @property
    def broken(self) -> Mapping[str, int]:
        """How many things of each entry of the navigation need a person."""

    def changes(self, key: str | None) -> Watch: ...
    def changed_since(self, key: str | None, revision: int) -> bool: ...


class OwnChanges:
    """Those of the controller that leads."""

    def __init__(self, service: ControllerService) -> None:
        self._service = service
        self.started = service.started
        self.changes = service.runs.lookup.changes
        self.changed_since = service.runs.lookup.changed_since

    @property
    def revision(self) -> int:
        return self._service.runs.lookup.revision

    @property
    def broken(self) -> Mapping[str, int]:
        return {"Nodes": len(self._service.machines.faults.broken_nodes())}


class Marks:
    """Writes the revisions of a leader so that those of another one are not taken for its own."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def now(self) -> str:
        return f"{self._source.started}-{self._source.revision}"

    def changed_since(self, topic: str, mark: str) -> bool:
        started, _, revision = mark.partition("-")
        if started != self._source.started or not (revision.isascii() and revision.isdecimal()):
            return True
        return self._source.changed_since(key_of(topic), int(revision))


class Hello(msgspec.Struct, frozen=True):
    """`version`: of the scripts; `now`: the controller's clock (Unix seconds); `broken`: as in
    `Broken`."""

    version: str
    mark: str
    now: float
    broken: Mapping[str, int]


class Changed(msgspec.Struct, frozen=True):
    topic: str
    mark: str


class Broken(msgspec.Struct, frozen=True):
    """How many things of each entry of the navigation need a person."""

    broken: Mapping[str, int]


class Beat(msgspec.Struct, frozen=True):
    mark: str
    now: float


def key_of(topic: str) -> str | None:
    return None if topic in (ANY, _FOR_BROKEN) else topic


async def stream(
    request: web.Request,
    topics: Mapping[str, str],
    version: str,
    source: Source,
    clock: Clock,
    headers: Mapping[str, str],
    before_line: Callable[[], Awaitable[None]] | None = None,
) -> web.StreamResponse:
    """Answer the stream of a browser: `hello` at once, `changed` with a topic, `beat` when nothing
    changes. `topics`: those that the user may follow, with their marks. `before_line`: called
    before each line; may raise ConnectionError to end the stream."""
    response = web.StreamResponse(
        headers={**headers, "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )
    marks = Marks(source)
    with registered(request, cancel_this()), reader_may_leave():
        await response.prepare(request)
        async with AsyncExitStack() as stack:
            events = {
                topic: await stack.enter_async_context(source.changes(key_of(topic)))
                for topic in (*topics, _FOR_BROKEN)
            }
            shown = source.broken
            # After the watches began: a change in between is told twice, and none is missed.
            hello = Hello(version=version, mark=marks.now(), now=clock.now(), broken=shown)
            await response.write(_line("hello", hello))
            for topic, mark in topics.items():
                if marks.changed_since(topic, mark):
                    await response.write(_line("changed", Changed(topic, hello.mark)))
            heartbeat = Heartbeat()
            async for changed, mark in _changes(events, marks):
                if before_line is not None:
                    await before_line()
                lines = []
                if shown != (shown := source.broken):
                    lines.append(_line("broken", Broken(shown)))
                lines += [
                    _line("changed", Changed(topic, mark)) for topic in changed if topic in topics
                ]
                # Others' changes may come all the time, and a page is told nothing of them.
                if not lines and (not changed or heartbeat.is_due):
                    lines.append(_line("beat", Beat(mark, clock.now())))
                if lines:
                    await response.write(b"".join(lines))
                    heartbeat.sent()
    return response


def asked_topics(request: web.Request) -> dict[str, str]:
    """Return the mark that each topic of the request (`TOPIC` or `TOPIC:MARK`) is known at. Raises
    Invalid."""
    given = request.query.getall("topic", ())
    topics = {topic: mark for topic, _, mark in (one.partition(":") for one in given)}
    if len(topics) > MAX_TOPICS:
        raise Invalid(f"a browser follows at most {MAX_TOPICS} topics", field="topic")
    return topics


async def may_follow(runs: RunReader, user: User, topic: str) -> bool:
    """Return whether the user may see the topic's run: one that he may not see must not end the
    stream of all other pages. Raises StoreUnavailable."""
    if topic == ANY:
        return True
    try:
        await runs.seen(topic, user)
    except NotFound:
        return False  # another user's, or one that expired while its page was open
    return True


async def _changes(
    events: Mapping[str, Flag], marks: Marks
) -> AsyncIterator[tuple[list[str], str]]:
    """Yield the topics that changed, and the mark at which they did; none: a heartbeat is due."""
    while True:
        await _first_of(events.values())
        mark = marks.now()
        changed = [topic for topic, event in events.items() if event.is_set()]
        for topic in changed:
            events[topic].clear()
        yield changed, mark
        if changed:
            await asyncio.sleep(PAUSE_SECONDS)


async def _first_of(events: Iterable[Flag]) -> None:
    """Wait until one is set, or a heartbeat is due."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    if not waiting:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        return
    try:
        await asyncio.wait(waiting, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            # Each wait would stay with its event, and every change would add another one.
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _line(event: str, data: Hello | Changed | Broken | Beat) -> bytes:
    return f"event: {event}\ndata: {msgspec.json.encode(data).decode()}\n\n".encode()
