"""A time limit that can stand still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from runner.job.execution import Countdown
from tests.simulation.virtual import VirtualLoop

Story = Callable[[Countdown], Awaitable[None]]


def ends_of(seconds: float | None, story: Story) -> list[float]:
    """When it was over, by virtual time; an hour is waited for that."""
    loop, ends = VirtualLoop(Random(0)), list[float]()

    async def tell() -> None:
        countdown = Countdown(seconds, lambda: ends.append(loop.time()))
        await story(countdown)
        await asyncio.sleep(3600.0)
        countdown.stop()

    try:
        loop.run_until_complete(tell())
    finally:
        loop.close()
    return ends


async def begin(countdown: Countdown) -> None:
    countdown.start(asyncio.get_running_loop())


def test_it_is_over_after_its_time() -> None:
    assert ends_of(60.0, begin) == [60.0]


def test_without_a_limit_it_is_never_over() -> None:
    assert ends_of(None, begin) == []


def test_the_time_in_which_it_is_held_does_not_count_however_often() -> None:
    async def story(countdown: Countdown) -> None:
        await begin(countdown)
        for held in (True, False, True, False):
            await asyncio.sleep(10.0)
            countdown.hold(held)

    assert ends_of(60.0, story) == [80.0]


def test_a_repeated_order_changes_nothing() -> None:
    async def story(countdown: Countdown) -> None:
        await begin(countdown)
        for held in (True, True, False, False):
            await asyncio.sleep(10.0)
            countdown.hold(held)

    assert ends_of(60.0, story) == [80.0]


def test_held_before_it_begins_it_begins_when_it_may() -> None:
    async def story(countdown: Countdown) -> None:
        countdown.hold(True)
        await begin(countdown)
        await asyncio.sleep(100.0)
        countdown.hold(False)

    assert ends_of(60.0, story) == [160.0]


def test_stopped_it_is_never_over_whatever_is_said_then() -> None:
    async def story(countdown: Countdown) -> None:
        await begin(countdown)
        countdown.stop()
        countdown.hold(True)
        countdown.hold(False)

    assert ends_of(60.0, story) == []
