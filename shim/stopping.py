"""Ends a task's container when that was ordered: the stop signal, the grace, the kill.

The runner is told until when the job may go on: it kills what is left of it then and writes down
how it ended, which a kill of the whole container would lose. For that it has a little time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from shim import doors, safe_files
from shim.engines.base import EngineError, EngineUnavailable
from shim.steps.base import StepContext

log = logging.getLogger(__name__)

LAST_WORDS = 5.0
"""Seconds between the end of a job's grace and the kill of its container, for the runner."""
_STOP_ORDER = "stop.json"
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


async def stop_when_asked(ctx: StepContext) -> None:
    """Returns once the container is told to end for good."""
    await ctx.task.stop_wanted.wait()
    came = asyncio.Event()
    if await doors.is_open(ctx):
        return await _stop(ctx, came)
    waiting = asyncio.create_task(_wait_for_the_runner(ctx, came))
    try:
        await _stop(ctx, came)
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})


async def _stop(ctx: StepContext, came: asyncio.Event) -> None:
    task = ctx.task
    told: float | None = None
    while (left := _seconds_left(ctx, told)) > 0:
        task.stop_hurried.clear()
        if told is None or _kill_at(ctx) < told or came.is_set():
            came.clear()
            told = _kill_at(ctx)
            await _signal(ctx, told)
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await task.stop_hurried.wait()
    await insist(ctx, lambda: ctx.engine.kill(task.info.container_id or ""))


async def _wait_for_the_runner(ctx: StepContext, came: asyncio.Event) -> None:
    """The kernel spares a container's first process each signal that it has no handler for; its
    handler is there before its socket. Whoever came too late to hear the first is told again."""
    try:
        await doors.until_it_listens(ctx)
    except OSError as error:
        log.warning("task %s: its stop may go unheard: %s", ctx.task.info.id, error)
        return
    came.set()
    ctx.task.stop_hurried.set()


def _kill_at(ctx: StepContext) -> float:
    order = ctx.task.record.stop
    return order.kill_at if order else 0.0


def _seconds_left(ctx: StepContext, told: float | None) -> float:
    """Who was not told when the job is killed gets no time for last words."""
    kill_at = _kill_at(ctx)
    return kill_at - time.time() + (LAST_WORDS if told == kill_at else 0.0)


async def _signal(ctx: StepContext, kill_at: float) -> None:
    folder = ctx.settings.job_folder(ctx.task.info.id)
    content = msgspec.json.encode({"kill_at": kill_at})
    try:
        await asyncio.get_running_loop().run_in_executor(
            ctx.executor, safe_files.replace_file, folder, _STOP_ORDER, content
        )
    except OSError as error:
        log.warning("task %s: its grace cannot be told: %s", ctx.task.info.id, error)
    await insist(ctx, lambda: ctx.engine.signal_stop(ctx.task.info.container_id or ""))


async def insist(ctx: StepContext, act: Callable[[], Awaitable[None]]) -> None:
    """Returns once it is done; an engine that refuses is asked again, ever more seldom."""
    waits = pauses()
    while True:
        try:
            return await act()
        except EngineUnavailable:
            await ctx.engine.ready()
        except EngineError as error:
            log.warning("task %s: ending its container: %s", ctx.task.info.id, error)
            await asyncio.sleep(next(waits))


def pauses() -> Iterator[float]:
    """Seconds between tries, ever longer."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE)
