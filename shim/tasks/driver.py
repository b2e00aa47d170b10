"""The driver takes one task from its record to its end: set up, watch, stop when asked, report.

Cancelling a driver leaves the container alone: that is how the shim itself ends. `stopping` ends a
task that has to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from common.files.task_folder import EXIT_RECORD_NAME
from common.threads import together
from fairlead.wire.decoders import decoder_of
from fairlead.wire.shim import TaskReason, TaskStatus
from shim.access import runner_socket
from shim.engines.base import EngineUnavailable, Exit, NodeFault
from shim.errors import EngineError
from shim.files import outputs, safe_files
from shim.state.records import StopRecord
from shim.tasks.steps.base import Step, StepContext
from shim.tasks.steps.container import Container, Network, Start
from shim.tasks.steps.folders import Folders
from shim.tasks.steps.image import Image
from shim.tasks.steps.leaves import LeafGiver, Leaves
from shim.tasks.steps.python import Python
from shim.tasks.steps.ssh import Published, Ssh
from shim.tasks.steps.volumes import Volumes
from shim.tasks.stopping import pauses, repeat_until_done, stop_when_asked

log = logging.getLogger(__name__)
_MAX_EXIT_RECORD = 1 << 16
STOPPED_BY_OTHERS = "its container was stopped on the node: by the engine, or by hand"
FELL_WITH_ITS_ENGINE = "its container ended with the engine, which was stopped or killed"
STAGES: tuple[tuple[Step, ...], ...] = (
    (Folders(),),
    (Image(), Ssh(), Network(), Volumes(), Python(), Leaves()),
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
        if ctx.task.info.status is TaskStatus.RUNNING:
            await _watch(ctx)
        elif await _set_up(ctx):
            await _watch(ctx, _store_start(ctx))
    except Exception as error:
        log.exception("task %s: the shim failed", ctx.task.info.id)
        await _give_up(ctx, EngineError.reason, f"the shim failed: {error}")


async def undo_all(ctx: StepContext) -> None:
    """Undo all steps. Raises EngineError or OSError; it may be called again then."""
    for stage in reversed(STAGES):
        # The container goes before what it uses, and the folders go last.
        await together(*(step.undo(ctx) for step in stage))


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
        # A cancelled step waits for its thread: a late effect would come after the clean-up.
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
    # The record of the submission is on disk, and each step that follows may be repeated.
    ctx.task.show_status(TaskStatus.PREPARING)
    for stage in STAGES:
        if len(stage) == 1:
            await _do_when_engine_answers(ctx, stage[0])
            continue
        try:
            async with asyncio.TaskGroup() as group:
                for step in stage:
                    group.create_task(_do_when_engine_answers(ctx, step))
        except ExceptionGroup as errors:
            raise _first_of(errors) from None


async def _do_when_engine_answers(ctx: StepContext, step: Step) -> None:
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
                # `ready` waits for as long as the engine is away, which may be for good.
                async with asyncio.timeout(left):
                    await ctx.engine.ready()


def _first_of(errors: ExceptionGroup[Exception]) -> Exception:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first


async def _give_up(ctx: StepContext, reason: str | None, message: str | None) -> None:
    """End the task. The end is announced once the container is certainly gone, because then its
    allocation is free."""
    await repeat_until_done(ctx, lambda: ctx.engine.remove(ctx.task.info.id))
    await _release_volumes(ctx)
    await _end(ctx, reason=reason, message=message, container_id=None)


async def _release_volumes(ctx: StepContext) -> None:
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


async def _store_start(ctx: StepContext) -> None:
    """Store that the task runs. Nobody waits for it: a container that was started is found by its
    labels."""
    if not await ctx.task.keep():
        log.error("cannot store that task %s is running", ctx.task.info.id)


async def _watch(ctx: StepContext, *more: Coroutine[None, None, None]) -> None:
    """Watch the task to its end, with `more` to do meanwhile."""
    helpers = [
        # First: what is found out here, as the SSH port, is for this life of the shim alone.
        *(asyncio.create_task(work) for work in more),
        asyncio.create_task(stop_when_asked(ctx)),
        asyncio.create_task(_announce_runner(ctx)),
        asyncio.create_task(repeat_until_done(ctx, lambda: Published().do(ctx))),
    ]
    try:
        ended = await _exit_of(ctx)
    finally:
        for task in helpers:
            task.cancel()
        for result in await asyncio.gather(*helpers, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("task %s: %s", ctx.task.info.id, result)
    await _report_end(ctx, ended)


async def _announce_runner(ctx: StepContext) -> None:
    """Let callers reach the task's runner once it listens, and say so: nobody knocks in vain. Then
    bring it what its jobs need.

    It is not stored: after a crash the socket itself tells it.
    """
    task = ctx.task
    is_open = await runner_socket.open_socket(ctx.settings, task.info, ctx.executor)
    # Before anybody can submit the first job, so that each carried one finds its leaf.
    giver = await LeafGiver.connect(ctx) if is_open and task.request.carries_jobs else None
    if is_open and not task.info.runner_listens:
        task.show(runner_listens=True)
    if giver is not None:
        await giver.serve()


async def _exit_of(ctx: StepContext) -> Exit:
    container_id = ctx.task.info.container_id
    if container_id is None:
        return Exit(exit_code=None, gone=True)
    while True:
        try:
            return await ctx.engine.wait(container_id)
        except EngineUnavailable:
            await ctx.engine.ready()


async def _report_end(ctx: StepContext, ended: Exit) -> None:
    task = ctx.task
    reading = asyncio.get_running_loop().run_in_executor(ctx.executor, _what_is_left, ctx)
    # Leaves go also with the task's removal, for which its user may let it wait.
    await together(reading, _release_volumes(ctx), Leaves().undo(ctx))
    changes = reading.result()
    exit_record = changes["exit_record"]
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
        record = decoder_of(_ExitRecord).decode(exit_record or "")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        # The record lies in the job's folder, so it may hold anything, or be missing.
        return ended.oom_killed
    return not record.container_stopped


def _what_is_left(ctx: StepContext) -> dict[str, Any]:
    """Return what the task's folder says of its end. Blocking."""
    folder = ctx.settings.job_folder(ctx.task.info.id)
    return {"exit_record": _read_exit_record(ctx), "has_outputs": outputs.has_any(folder)}


def _read_exit_record(ctx: StepContext) -> str | None:
    folder = ctx.settings.job_folder(ctx.task.info.id)
    data = safe_files.read_small(folder, EXIT_RECORD_NAME, _MAX_EXIT_RECORD)
    try:
        return data.decode() if data else None
    # The job can write this file too: what is no text is none of the runner's.
    except UnicodeDecodeError:
        return None
