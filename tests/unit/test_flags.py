"""Small events behave as asyncio's own, and are small."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from controller.aio import Flag, make_small


def small() -> asyncio.Event:
    event = asyncio.Event()
    make_small(event)
    return event


@pytest.mark.parametrize("make", [Flag, small])
async def test_all_who_wait_are_woken_by_set_and_none_before(make: type[asyncio.Event]) -> None:
    event = make()
    waiting = [asyncio.create_task(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    event.set()
    assert await asyncio.gather(*waiting) == [True] * 3
    assert await event.wait()
    event.clear()
    assert not event.is_set()


@pytest.mark.parametrize("make", [Flag, small])
async def test_a_waiter_that_gives_up_disturbs_no_other(make: type[asyncio.Event]) -> None:
    event = make()
    stays, goes = (asyncio.create_task(event.wait()) for _ in range(2))
    await asyncio.sleep(0)
    goes.cancel()
    await asyncio.gather(goes, return_exceptions=True)
    event.set()
    assert await stays


async def test_making_an_event_small_forgets_nobody_who_waits() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    make_small(event)
    event.set()
    assert await waiting


async def test_an_event_that_was_set_stays_so() -> None:
    event = asyncio.Event()
    event.set()
    make_small(event)
    assert event.is_set()


def test_it_takes_a_third_of_the_memory_of_asyncios_own() -> None:
    def bytes_of(kind: type[asyncio.Event]) -> int:
        tracemalloc.start()
        kept = [kind() for _ in range(1000)]
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used // len(kept)

    assert 3 * bytes_of(Flag) < bytes_of(asyncio.Event)
