from __future__ import annotations

import asyncio

import pytest

from controller.aio import Backoff, Flag
from tests.support.waiting import LONG


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    return waits


async def test_waits_double_up_to_the_most_and_begin_anew_after_a_reset(slept: list[float]) -> None:
    wait = Backoff(1.0, 5.0, lambda: 0.0)
    for _ in range(5):
        await wait.wait()
    wait.reset()
    await wait.wait()
    assert slept == [1.0, 2.0, 4.0, 5.0, 5.0, 1.0]


async def test_jitter_moves_a_wait_by_a_fifth_at_most(slept: list[float]) -> None:
    for jitter in (-1.0, 1.0):
        await Backoff(10.0, 10.0, lambda jitter=jitter: jitter).wait()  # type: ignore[misc]
    assert slept == pytest.approx([8.0, 12.0])


async def test_a_kick_ends_the_wait_and_is_used_up() -> None:
    wait, kick = Backoff(3600.0, 3600.0, lambda: 0.0), Flag()
    kick.set()
    await asyncio.wait_for(wait.wait(kick), LONG)
    assert not kick.is_set()


async def test_without_a_kick_the_wait_ends_by_itself() -> None:
    kick = Flag()
    await asyncio.wait_for(Backoff(0.001, 0.001, lambda: 0.0).wait(kick), LONG)
    assert not kick.is_set()
