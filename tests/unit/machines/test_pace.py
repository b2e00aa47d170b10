"""Calls that a cloud counts begin apart from each other, however many want to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from controller.clouds import pace
from controller.clouds.pace import Pace
from tests.support.waiting import LONG


class Time:
    """A loop's clock, which only sleep moves."""

    def __init__(self) -> None:
        self.now = 100.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def test_one_call_begins_in_that_time_and_all_get_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time, began = Time(), list[tuple[int, float]]()
    loop = SimpleNamespace(time=lambda: time.now)
    played = SimpleNamespace(Lock=asyncio.Lock, sleep=time.sleep, get_running_loop=lambda: loop)
    monkeypatch.setattr(pace, "asyncio", played)
    one = Pace(5.0)

    async def call(number: int) -> None:
        async with one.turn():
            began.append((number, time.now))

    await asyncio.gather(*map(call, range(3)))
    time.now += 60.0
    await call(3)
    assert began == [(0, 100.0), (1, 105.0), (2, 110.0), (3, 170.0)]


async def test_a_call_that_fails_keeps_nobody_out() -> None:
    one = Pace(0.0)
    with pytest.raises(OSError, match="away"):
        async with one.turn():
            raise OSError("away")
    async with asyncio.timeout(LONG), one.turn():
        pass
