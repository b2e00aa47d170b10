"""The simulation's own ground: time that jumps, lives that end without cleanup."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from tests.simulation.virtual import Deadlock, Life, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(Random(1))
    yield loop
    loop.close()


def test_a_day_of_sleep_takes_no_time(loop: VirtualLoop) -> None:
    loop.run_until_complete(asyncio.sleep(86_400.0))
    assert loop.time() == pytest.approx(86_400.0)


def test_waiting_for_what_can_never_happen_is_a_deadlock(loop: VirtualLoop) -> None:
    waiting = loop.create_task(asyncio.Event().wait())
    with pytest.raises(Deadlock):
        loop.run_until_complete(waiting)
    waiting.cancel()
    loop.run_until_complete(asyncio.wait({waiting}))


def test_a_killed_life_takes_no_further_step_and_cleans_nothing_up(loop: VirtualLoop) -> None:
    life, story = Life("victim"), list[str]()

    async def victim() -> None:
        try:
            await asyncio.sleep(1.0)
            story.append("first second")
            await asyncio.sleep(1.0)
            story.append("second second")
        finally:
            story.append("cleanup")

    async def killer() -> list[str]:
        loop.spawn(life, victim())
        await asyncio.sleep(1.5)
        loop.kill(life)
        await asyncio.sleep(10.0)
        left = list(story)
        await loop.bury(life)
        return left

    assert loop.run_until_complete(killer()) == ["first second"]


def test_an_event_that_a_dead_life_waited_for_wakes_nobody(loop: VirtualLoop) -> None:
    life, woken = Life("victim"), list[str]()

    async def killer() -> list[str]:
        bell = asyncio.Event()

        async def victim() -> None:
            await bell.wait()
            woken.append("victim")

        loop.spawn(life, victim())
        await asyncio.sleep(1.0)
        loop.kill(life)
        bell.set()
        await asyncio.sleep(1.0)
        left = list(woken)
        await loop.bury(life)
        return left

    assert loop.run_until_complete(killer()) == []


def test_a_paused_life_goes_on_where_it_was_and_misses_nothing(loop: VirtualLoop) -> None:
    life, story = Life("victim"), list[tuple[float, str]]()
    bell = asyncio.Event()

    async def sleeper() -> None:
        for number in range(3):
            await asyncio.sleep(1.0)
            story.append((loop.time(), f"second {number}"))

    async def listener() -> None:
        await bell.wait()
        story.append((loop.time(), "bell"))

    async def pauser() -> None:
        work = [loop.spawn(life, sleeper()), loop.spawn(life, listener())]
        await asyncio.sleep(1.5)
        loop.pause(life)
        await asyncio.sleep(2.0)
        bell.set()
        await asyncio.sleep(6.5)
        loop.resume(life)
        await asyncio.wait(work)

    loop.run_until_complete(pauser())
    assert story == [(1.0, "second 0"), (10.0, "bell"), (10.0, "second 1"), (11.0, "second 2")]


def test_a_timer_that_is_cancelled_while_its_life_is_paused_stays_cancelled(
    loop: VirtualLoop,
) -> None:
    life, story = Life("victim"), list[str]()
    timers: list[asyncio.TimerHandle] = []

    async def victim() -> None:
        timers.append(asyncio.get_running_loop().call_later(1.0, story.append, "timer"))
        await asyncio.sleep(100.0)

    async def pauser() -> None:
        work = loop.spawn(life, victim())
        await asyncio.sleep(0.5)
        loop.pause(life)
        timers[0].cancel()
        loop.resume(life)
        await asyncio.wait({work})

    loop.run_until_complete(pauser())
    assert story == []


def test_a_life_can_be_killed_between_any_two_of_its_steps(loop: VirtualLoop) -> None:
    async def world() -> list[int]:
        lives = []
        for steps in range(1, 5):
            life, story = Life("victim"), list[int]()

            async def victim(story: list[int] = story) -> None:
                for number in range(9):
                    story.append(number)
                    await asyncio.sleep(0.0)

            loop.after_steps(life, steps, lambda life=life: loop.kill(life))  # type: ignore[misc]
            loop.spawn(life, victim())
            await asyncio.sleep(1.0)
            lives.append(len(story))
            await loop.bury(life)
        return lives

    assert loop.run_until_complete(world()) == [1, 2, 3, 4]


def test_work_for_threads_is_done_and_its_error_arrives(loop: VirtualLoop) -> None:
    async def work() -> list[int]:
        results = [await loop.run_in_executor(None, pow, n, 2) for n in range(50)]
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return results

    assert loop.run_until_complete(work()) == [n * n for n in range(50)]
