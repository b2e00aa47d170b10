"""A follower that comes back misses nothing, or is told that it did."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from fairlead.wire.shim import Event, EventType
from shim.state.events import EventLog
from tests.support.waiting import LONG


async def take(log: EventLog, after: str | None, count: int) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(LONG), aclosing(log.follow(after, heartbeat=0.01)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_a_stream_starts_with_the_cursor_of_now() -> None:
    log = EventLog("e")
    log.task_removed("old")
    (first,) = await take(log, None, 1)
    assert (first.type, first.cursor) == (EventType.HEARTBEAT, "e.1")


async def test_events_after_the_cursor_come_in_order() -> None:
    log = EventLog("e")
    for name in "abc":
        log.task_removed(name)
    events = await take(log, "e.1", 3)
    assert [(e.type, e.task_id, e.cursor) for e in events] == [
        (EventType.HEARTBEAT, None, "e.1"),
        (EventType.REMOVED, "b", "e.2"),
        (EventType.REMOVED, "c", "e.3"),
    ]


async def test_a_cursor_of_another_life_means_resync() -> None:
    log = EventLog("e2")
    log.node_changed()
    (first,) = await take(log, "e1.7", 1)
    assert (first.type, first.cursor) == (EventType.RESYNC, "e2.1")


async def test_a_cursor_that_fell_out_of_the_ring_means_resync() -> None:
    log = EventLog("e", capacity=2)
    for _ in range(5):
        log.node_changed()
    assert [(await take(log, f"e.{at}", 1))[0].type for at in (2, 3)] == [
        EventType.RESYNC,
        EventType.HEARTBEAT,
    ]


async def test_a_cursor_from_the_future_means_resync() -> None:
    (first,) = await take(EventLog("e"), "e.9", 1)
    assert first.type is EventType.RESYNC


@pytest.mark.parametrize("cursor", ["", "e", "e.", "e.-1", "e.x", "e.\u0661", "e." + "9" * 5000])
async def test_a_cursor_that_is_none_means_resync(cursor: str) -> None:
    (first,) = await take(EventLog("e"), cursor, 1)
    assert first.type is EventType.RESYNC


async def test_a_quiet_stream_has_heartbeats() -> None:
    events = await take(EventLog("e"), None, 3)
    assert [event.type for event in events] == [EventType.HEARTBEAT] * 3


async def test_a_follower_that_is_overtaken_by_the_ring_is_told_to_resync() -> None:
    log = EventLog("e", capacity=2)
    events = log.follow(None)
    await anext(events)
    for _ in range(5):
        log.node_changed()
    event = await anext(events)
    await events.aclose()
    assert (event.type, event.cursor) == (EventType.RESYNC, "e.5")


async def test_closing_ends_every_follower() -> None:
    log = EventLog("e")
    events = log.follow(None)
    await anext(events)
    log.close()
    assert [event async for event in events] == []
