"""Work is awaited to its end: in a thread, also by a task that is cancelled, or several at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from common.threads import to_the_end, together


async def test_a_cancelled_task_ends_when_its_thread_has_ended() -> None:
    asked, ended = threading.Event(), threading.Event()

    def work() -> None:
        asked.wait()
        ended.set()

    task = asyncio.create_task(to_the_end(_in_thread(work), asked.set))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_an_error_of_abandoned_work_is_not_logged() -> None:
    asked = threading.Event()

    def fail() -> None:
        asked.wait()
        raise OSError("too late")

    task = asyncio.create_task(to_the_end(_in_thread(fail), asked.set))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_its_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await to_the_end(_in_thread(lambda: 1 // 0))


def _in_thread(work: object) -> asyncio.Future[object]:
    assert callable(work)
    return asyncio.ensure_future(asyncio.to_thread(work))


async def test_an_error_is_raised_once_the_other_works_have_ended() -> None:
    ended, failed = [], asyncio.Event()

    async def fail(why: str) -> None:
        failed.set()
        raise ValueError(why)

    async def last() -> None:
        await failed.wait()
        await asyncio.sleep(0)
        ended.append("last")

    with pytest.raises(ValueError, match="first"):
        await together(last(), fail("first"), fail("second"))
    assert ended == ["last"]


async def test_works_that_are_cancelled_have_ended_too() -> None:
    begun, ended = asyncio.Event(), []

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("work")

    waiting = asyncio.create_task(together(work()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["work"]
