"""Stops a container when its task has to end for good.

The runner is told how long the job may go on. It then kills what is left and records how the job
ended; a kill of the whole container would lose that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from common.files import task_folder
from common.files.task_folder import STOP_ORDER_NAME
from shim.access import runner_socket
from shim.engines.base import EngineUnavailable
from shim.errors import EngineError
from shim.files import safe_files
from shim.tasks.steps.base import StepContext

log = logging.getLogger(__name__)
LAST_WORDS = 5.0
"""Seconds for the runner between the end of a job's grace and the kill of its container."""
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 5.0


async def stop_when_asked(ctx: StepContext) -> None:
    """Return once the container was told to end for good."""
    await ctx.task.stop_wanted.wait()
    came = asyncio.Event()
    if await runner_socket.is_open(ctx.task.info, ctx.executor):
        return await _stop(ctx, came)
    waiting = asyncio.create_task(_wait_for_the_runner(ctx, came))
    try:
        await _stop(ctx, came)
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})


async def _stop(ctx: StepContext, came: asyncio.Event) -> None:
    task = ctx.task
    announced: float | None = None
    while (left := _seconds_left(ctx, announced)) > 0:
        # Nothing is awaited between this and the look at `kill_at`: no newer order is missed.
        task.stop_hurried.clear()
        if announced is None or _kill_at(ctx) < announced or came.is_set():
            came.clear()
            announced = _kill_at(ctx)
            await _signal(ctx, announced)
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await task.stop_hurried.wait()
    await repeat_until_done(ctx, lambda: ctx.engine.kill(task.info.container_id or ""))


async def _wait_for_the_runner(ctx: StepContext, came: asyncio.Event) -> None:
    """Wait for the runner, and send the signal again if it came too late for the first.

    The kernel withholds a signal from a container's first process if it has no handler; the handler
    exists before the socket.
    """
    try:
        await runner_socket.until_it_listens(ctx.settings, ctx.task.info)
    except OSError as error:
        log.warning("task %s: the runner may not hear of its stop: %s", ctx.task.info.id, error)
        return
    came.set()
    ctx.task.stop_hurried.set()


def _kill_at(ctx: StepContext) -> float:
    order = ctx.task.record.stop
    return order.kill_at if order else 0.0


def _seconds_left(ctx: StepContext, announced: float | None) -> float:
    """Return the seconds for last words: none if the runner was not told before the job is
    killed."""
    kill_at = _kill_at(ctx)
    return kill_at - time.time() + (LAST_WORDS if announced == kill_at else 0.0)


async def _signal(ctx: StepContext, kill_at: float) -> None:
    folder = ctx.settings.job_folder(ctx.task.info.id)
    content = msgspec.json.encode(task_folder.StopOrder(kill_at=kill_at))
    try:
        await asyncio.get_running_loop().run_in_executor(
            ctx.executor, safe_files.replace_file, folder, STOP_ORDER_NAME, content
        )
    except OSError as error:
        log.warning("task %s: its grace cannot be sent: %s", ctx.task.info.id, error)
    await repeat_until_done(ctx, lambda: ctx.engine.signal_stop(ctx.task.info.container_id or ""))


async def repeat_until_done(ctx: StepContext, act: Callable[[], Awaitable[None]]) -> None:
    """Repeat the act until it works; the pauses grow while the engine refuses."""
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
    """Yield growing seconds between tries."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, _MAX_PAUSE)
