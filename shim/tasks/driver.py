"""The driver takes one task from its record to its end: set up, watch, stop when asked, report.

Cancelling a driver leaves the container alone: that is how the shim itself ends. To stop a task,
the driver tells the runner how long the job may go on. The runner then kills what is left and
records how the job ended; a kill of the whole container would lose that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from common import task_folder
from common.task_folder import EXIT_RECORD_NAME, STOP_ORDER_NAME
from shim import outputs, safe_files
from shim.access import runner_socket
from shim.engines.base import EngineUnavailable, Exit, NodeFault
from shim.errors import EngineError
from shim.schemas import TaskReason, TaskStatus
from shim.state.records import StopRecord
from shim.tasks.steps.base import Step, StepContext
from shim.tasks.steps.container import Container, Network, Start
from shim.tasks.steps.folders import Folders
from shim.tasks.steps.image import Image
from shim.tasks.steps.python import Python
from shim.tasks.steps.ssh import Published, Ssh
from shim.tasks.steps.volumes import Volumes

log = logging.getLogger(__name__)
LAST_WORDS = 5.0
"""Seconds for the runner between the end of a job's grace and the kill of its container."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


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


def _seconds_left(ctx: StepContext, told: float | None) -> float:
    """Return the seconds for last words: none if the runner was not told before the job is
    killed."""
    kill_at = _kill_at(ctx)
    return kill_at - time.time() + (LAST_WORDS if told == kill_at else 0.0)


async def _signal(ctx: StepContext, kill_at: float) -> None:
    folder = ctx.settings.job_folder(ctx.task.info.id)
    content = msgspec.json.encode(task_folder.StopOrder(kill_at=kill_at))
    try:
        await asyncio.get_running_loop().run_in_executor(
            ctx.executor, safe_files.replace_file, folder, STOP_ORDER_NAME, content
        )
    except OSError as error:
        log.warning("task %s: its grace cannot be sent: %s", ctx.task.info.id, error)
    await insist(ctx, lambda: ctx.engine.signal_stop(ctx.task.info.container_id or ""))


async def insist(ctx: StepContext, act: Callable[[], Awaitable[None]]) -> None:
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
        pause = min(pause * 2, _LONGEST_PAUSE)


_MOST_EXIT_RECORD = 1 << 16
STOPPED_BY_OTHERS = "its container was stopped on the node: by the engine, or by hand"
FELL_WITH_ITS_ENGINE = "its container ended with the engine, which was stopped or killed"
STAGES: tuple[tuple[Step, ...], ...] = (
    (Folders(),),
    (Image(), Ssh(), Network(), Volumes(), Python()),
    (Container(),),
    (Start(),),
)
"""The steps of one stage are independent of each other and run together."""


class _ExitRecord(msgspec.Struct, frozen=True):
    """The one field of the runner's record that matters here."""

    container_stopped: bool = False


async def drive(ctx: StepContext) -> None:
    """Drive the task; return when it is terminated."""
    try:
        if ctx.task.info.status is TaskStatus.RUNNING or await _set_up(ctx):
            await _watch(ctx)
    except Exception as error:
        log.exception("task %s: the shim failed", ctx.task.info.id)
        await _give_up(ctx, EngineError.reason, f"the shim failed: {error}")


async def undo_all(ctx: StepContext) -> None:
    """Undo all steps. Raises EngineError or OSError; it may be called again then."""
    for stage in reversed(STAGES):
        for step in reversed(stage):
            await step.undo(ctx)


async def _set_up(ctx: StepContext) -> bool:
    """Set the task up; return whether its container was started. Otherwise the task is
    terminated."""
    stop = asyncio.ensure_future(ctx.task.stop_wanted.wait())
    work = asyncio.ensure_future(_do_all(ctx))
    try:
        await asyncio.wait({stop, work}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        if not work.done():
            work.cancel()
        await asyncio.wait({stop, work})
    if work.cancelled():
        order = ctx.task.record.stop or StopRecord(kill_at=0.0)
        await _give_up(ctx, order.reason, order.message)
        return False
    error = work.exception()
    if error is None:
        return True
    await _give_up(ctx, _reason_of(ctx, error), str(error))
    return False


def _reason_of(ctx: StepContext, error: BaseException) -> TaskReason:
    """Return the reason. A disk that refuses is the node's fault. A bug of this program may repeat,
    so it must not be retried forever."""
    if isinstance(error, EngineError):
        return error.reason
    if isinstance(error, OSError):
        log.error("task %s: setting up failed: %s", ctx.task.info.id, error)
        return NodeFault.reason
    log.error("task %s: setting up failed", ctx.task.info.id, exc_info=error)
    return EngineError.reason


async def _do_all(ctx: StepContext) -> None:
    await ctx.task.enter(TaskStatus.PREPARING)
    for stage in STAGES:
        if len(stage) == 1:
            await _patiently(ctx, stage[0])
            continue
        try:
            async with asyncio.TaskGroup() as group:
                for step in stage:
                    group.create_task(_patiently(ctx, step))
        except ExceptionGroup as errors:
            raise _first_of(errors) from None


async def _patiently(ctx: StepContext, step: Step) -> None:
    """Do the step; if the engine is restarting, wait and do it again."""
    deadline = time.monotonic() + ctx.settings.engine_patience
    while True:
        try:
            return await step.do(ctx)
        except EngineUnavailable:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await ctx.engine.ready()


def _first_of(errors: ExceptionGroup[Exception]) -> Exception:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first


async def _give_up(ctx: StepContext, reason: str | None, message: str | None) -> None:
    """End the task. The end is announced once the container is certainly gone, because then its
    allocation is free."""
    await insist(ctx, lambda: ctx.engine.remove(ctx.task.info.id))
    await _let_volumes_go(ctx)
    await _end(ctx, reason=reason, message=message, container_id=None)


async def _let_volumes_go(ctx: StepContext) -> None:
    """Unmount the volumes before the end is announced: the same disk may then be mounted elsewhere.

    A busy volume does not delay the end; the task's removal tries it again.
    """
    try:
        await Volumes().undo(ctx)
    except (EngineError, OSError) as error:
        log.warning("task %s: a volume stays mounted for now: %s", ctx.task.info.id, error)


async def _end(ctx: StepContext, **changes: Any) -> None:
    """Announce the end, even when the disk is full, and store it as soon as possible."""
    is_kept = await ctx.task.finish(**changes)
    waits = pauses()
    while not is_kept:
        await asyncio.sleep(next(waits))
        is_kept = await ctx.task.keep()


async def _watch(ctx: StepContext) -> None:
    open_door = runner_socket.open_door(ctx.settings, ctx.task.info, ctx.executor)
    beside = [
        asyncio.create_task(stop_when_asked(ctx)),
        asyncio.create_task(open_door),
        asyncio.create_task(insist(ctx, lambda: Published().do(ctx))),
    ]
    try:
        ended = await _exit_of(ctx)
    finally:
        for task in beside:
            task.cancel()
        for result in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("task %s: %s", ctx.task.info.id, result)
    await _say_end(ctx, ended)


async def _exit_of(ctx: StepContext) -> Exit:
    container_id = ctx.task.info.container_id
    if container_id is None:
        return Exit(exit_code=None, gone=True)
    while True:
        try:
            return await ctx.engine.wait(container_id)
        except EngineUnavailable:
            await ctx.engine.ready()


async def _say_end(ctx: StepContext, ended: Exit) -> None:
    task = ctx.task
    await _let_volumes_go(ctx)
    exit_record = await asyncio.get_running_loop().run_in_executor(
        ctx.executor, _read_exit_record, ctx
    )
    has_outputs = await asyncio.get_running_loop().run_in_executor(
        ctx.executor, outputs.has_any, ctx.settings.job_folder(task.info.id)
    )
    changes: dict[str, Any] = {"exit_record": exit_record, "has_outputs": has_outputs}
    reason: str | None
    reason, message = _why(ended, exit_record)
    if task.record.stop is not None:
        reason, message = task.record.stop.reason, task.record.stop.message
    elif reason is None and ended.exit_code == 0:
        changes["gpu_fault"] = None
    await _end(ctx, reason=reason, message=message, exit_code=ended.exit_code, **changes)


def _why(ended: Exit, exit_record: str | None) -> tuple[TaskReason | None, str | None]:
    """Return the task's reason and message.

    The runner's exit record is preferred, else the container's end counts. If something outside of
    Fairlead stopped the container, the job did not fail.
    """
    if (ended.stopped or ended.unseen) and not _ended_by_itself(ended, exit_record):
        return NodeFault.reason, STOPPED_BY_OTHERS if ended.stopped else FELL_WITH_ITS_ENGINE
    if exit_record is not None or ended.exit_code == 0:
        return None, None
    if ended.oom_killed:
        return TaskReason.OUT_OF_MEMORY, "the container used more memory than its resources allow"
    if ended.gone:
        message = "the container was removed by another program"
        return TaskReason.CONTAINER_EXITED_WITH_ERROR, message
    code = "unknown" if ended.exit_code is None else ended.exit_code
    return (
        TaskReason.CONTAINER_EXITED_WITH_ERROR,
        f"the container ended (exit code {code}) before the runner could report how the job ended",
    )


def _ended_by_itself(ended: Exit, exit_record: str | None) -> bool:
    """Return whether the job was over before its container was stopped, or fell with its engine."""
    try:
        record = msgspec.json.decode(exit_record or "", type=_ExitRecord)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ended.oom_killed
    return not record.container_stopped


def _read_exit_record(ctx: StepContext) -> str | None:
    folder = ctx.settings.job_folder(ctx.task.info.id)
    data = safe_files.read_small(folder, EXIT_RECORD_NAME, _MOST_EXIT_RECORD)
    try:
        return data.decode() if data else None
    except UnicodeDecodeError:
        return None
