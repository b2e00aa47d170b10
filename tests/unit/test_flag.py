"""Flags, and tasks that wait for them."""

from __future__ import annotations

import asyncio
import contextlib

from controller.aio import Flag


async def test_all_that_wait_are_woken_although_it_is_cleared_at_once() -> None:
    flag = Flag()
    waiting = [asyncio.create_task(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    flag.set()
    flag.clear()
    await asyncio.gather(*waiting)
    assert not flag.is_set()


async def test_nobody_waits_for_a_flag_that_is_set() -> None:
    flag = Flag()
    flag.set()
    waiting = flag.wait()
    try:
        waiting.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


async def test_a_cancelled_wait_leaves_the_others() -> None:
    flag = Flag()
    first, second = (asyncio.create_task(flag.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    flag.set()
    await second
    assert first.cancelled()


async def test_a_wait_that_is_cancelled_in_the_moment_of_the_flag_leaves_the_others() -> None:
    flag = Flag()
    first, second = (asyncio.create_task(flag.wait()) for _ in range(2))
    await asyncio.sleep(0)
    flag.set()
    first.cancel()
    flag.set()
    await second
    assert (await asyncio.gather(first, return_exceptions=True))[0] is not None
    assert first.cancelled()
