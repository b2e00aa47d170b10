"""Work in a thread is awaited to its end, also by a task that is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from common.threads import to_the_end


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
