"""JobTerminatingPipeline: the effects of an attempt from its reason to its released allocation.

They ask the runner to stop within the grace, make the shim end the container, and, once the log is
stored, remove the task and release the allocation on the node. The final status is not set here: it
is decided from what these performers report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from common.threads import together
from controller.clock import Clock
from controller.lifecycle import reports
from controller.lifecycle.attempts import allocations, end_signal
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import Attempt
from controller.links.base import NodeConnection
from controller.pipelines import from_node, to_node
from controller.pipelines.effects import Performer
from controller.pipelines.performers.job_running import send_signals
from controller.pipelines.performers.output_collection import OutputCollector
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater
from fairlead.model.reasons import ROWS, GraceClass
from fairlead.wire.shim import Fence, TerminateRequest
from runner.client import RunnerError
from shim.client import ShimError

LAST_MOMENT = 0.5
"""Seconds that the container has after its job's grace, so that the runner can record how the job
ended. The shim adds a time of its own."""


class JobStopper:
    """Make the runner signal the commands and kill what is left when the grace is over.

    The stop signal waits if the job gets its `signal` only now (docs/rules.md 4.20).
    """

    def __init__(self, pipeline: RunPipeline, clock: Clock) -> None:
        self._pipeline = pipeline
        self._clock = clock

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt = context.attempt
        if attempt.remove_at is None:
            return
        # Only what is left: a try after a lost answer must not begin the grace again.
        spec, now = context.job.spec, self._clock.now()
        grace = max(0.0, attempt.remove_at - now)
        runner = connection.runner(to_node.runner_socket(context))
        # The answer comes once the runner has it, so the stop signal cannot overtake it.
        await send_signals(context, connection, self._pipeline, now)
        delay = end_signal.stop_delay(context.state.run, attempt, spec.signal, now)
        try:
            await runner.stop(signal=spec.stop_signal, grace=grace, delay=delay)
        except RunnerError as error:
            raise RetryLater(str(error)) from error


class TaskTerminator:
    """Make the shim end the container when the grace is over; an aborted job's container ends at
    once."""

    def __init__(self, pipeline: RunPipeline, fence: Fence) -> None:
        self._pipeline = pipeline
        self._fence = fence

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt, run_id = context.attempt, context.state.run.id
        reason = attempt.reason
        request = TerminateRequest(
            grace=_moment_left(attempt),
            reason=None if reason is None else reason.value,
            message=attempt.message,
        )
        try:
            info = await connection.shim.terminate(
                attempt.id,
                request,
                run_id=run_id,
                fence=self._fence,
                incarnation=context.run_incarnation,
            )
        except ShimError as error:
            # 404: removed by an earlier try whose answer was lost, or by the shim's own retention.
            if error.status != 404:
                raise RetryLater(str(error)) from error
            self._pipeline.post(reports.TaskMissing(run_id=run_id, attempt_id=attempt.id))
            return
        for report in from_node.task_reports(info):
            self._pipeline.post(report)


def _moment_left(attempt: Attempt) -> float:
    had_grace = (attempt.remove_at or 0.0) > (attempt.terminating_at or 0.0)
    reasons = (attempt.reason, *attempt.later_reasons)
    aborted = any(ROWS[reason].grace is GraceClass.NONE for reason in reasons if reason)
    return LAST_MOMENT if had_grace and not aborted else 0.0


class TaskRemover:
    """Release the allocation, unless it is kept for a successor, and delete the task, next to each
    other; what is already gone counts as removed."""

    def __init__(self, pipeline: RunPipeline, fence: Fence) -> None:
        self._pipeline = pipeline
        self._fence = fence

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt, run_id = context.attempt, context.state.run.id
        kept = allocations.is_kept(context.state.run, attempt)
        shim, incarnation = connection.shim, context.run_incarnation
        removal = partial(
            shim.remove_task,
            attempt.id,
            run_id=run_id,
            fence=self._fence,
            incarnation=incarnation,
        )
        works = [_gone(removal)]
        if attempt.allocation_id is not None and not kept:
            release = partial(
                shim.release_allocation,
                attempt.allocation_id,
                run_id=run_id,
                fence=self._fence,
                incarnation=incarnation,
            )
            # First: it is the shorter one, and others wait for what it gives back.
            works.insert(0, _gone(release))
        # Whatever does not arrive is asked for again: the attempt counts as removed after both.
        await together(*works)
        # Its HTTP session would stay open for as long as the node is connected.
        if attempt.task.runner_socket is not None:
            await connection.forget_runner(attempt.task.runner_socket)
        removed = reports.TaskRemoved(
            run_id=run_id, attempt_id=attempt.id, allocation_released=not kept
        )
        self._pipeline.post(removed)


class AllocationReleaser:
    """Release an allocation that outlived its task."""

    def __init__(self, pipeline: RunPipeline, fence: Fence) -> None:
        self._pipeline = pipeline
        self._fence = fence

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        allocation_id, run_id = context.attempt.allocation_id, context.state.run.id
        if allocation_id is None:
            return
        release = partial(
            connection.shim.release_allocation,
            allocation_id,
            run_id=run_id,
            fence=self._fence,
            incarnation=context.run_incarnation,
        )
        await _gone(release)
        self._pipeline.post(reports.AllocationReleased(run_id=run_id, allocation_id=allocation_id))


async def remove_from_node(
    connection: NodeConnection,
    *,
    task_id: str,
    allocation_id: str | None,
    run_id: str,
    fence: Fence,
    incarnation: int,
) -> None:
    """Release the allocation of a task that no record tells of, then remove the task. Raises
    RetryLater while the shim does not let go.

    The task goes last: if the connection breaks in between, the next look at the node finds it and
    all of this is repeated.
    """
    shim = connection.shim
    if allocation_id is not None:
        release = partial(
            shim.release_allocation,
            allocation_id,
            run_id=run_id,
            fence=fence,
            incarnation=incarnation,
        )
        await _gone(release)
    await _gone(
        partial(shim.remove_task, task_id, run_id=run_id, fence=fence, incarnation=incarnation)
    )


async def _gone(removal: Callable[[], Awaitable[None]]) -> None:
    # Called here: a coroutine that was made before would never be awaited if this one is cancelled
    # before it begins.
    try:
        await removal()
    except ShimError as error:
        # 404: it is gone already, as after an answer that was lost.
        if error.status != 404:
            raise RetryLater(str(error)) from error


class JobTerminatingPipeline:
    """The performers of the effects of attempts that end."""

    def __init__(
        self, pipeline: RunPipeline, fence: Fence, clock: Clock, collector: OutputCollector
    ) -> None:
        self.performers: dict[EffectKind, Performer] = {
            EffectKind.COLLECT_OUTPUTS: collector,
            EffectKind.STOP_JOB: JobStopper(pipeline, clock),
            EffectKind.TERMINATE_TASK: TaskTerminator(pipeline, fence),
            EffectKind.REMOVE_TASK: TaskRemover(pipeline, fence),
            EffectKind.RELEASE_ALLOCATION: AllocationReleaser(pipeline, fence),
        }
