"""JobTerminatingPipeline: the effects of an attempt from its reason to its released allocation.

They ask the runner to stop within the grace, make the shim end the container, and, once the log is
stored, remove the task and release the allocation on the node. The final status is not set here: it
is decided from what these performers report.
"""

from __future__ import annotations

from collections.abc import Awaitable

from controller.clock import Clock
from controller.lifecycle import allocations, reports
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import Attempt
from controller.lifecycle.reasons import ROWS, GraceClass
from controller.links.base import NodeConnection
from controller.pipelines import from_node, to_node
from controller.pipelines.effects import Performer
from controller.pipelines.output_collection import OutputCollector
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater
from runner.client import RunnerError
from shim.client import ShimError
from shim.schemas import Fence, TerminateRequest

LAST_MOMENT = 0.5
"""Seconds that the container has after its job's grace, so that the runner can record how the job
ended. The shim adds a time of its own."""


class JobStopper:
    """Make the runner signal the commands and kill what is left when the grace is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt = context.attempt
        if attempt.remove_at is None:
            return
        grace = max(0.0, attempt.remove_at - self._clock.now())
        runner = connection.runner(to_node.runner_socket(context))
        try:
            await runner.stop(signal=context.job.spec.stop_signal, grace=grace)
        except RunnerError as error:
            raise RetryLater(str(error)) from error


class TaskTerminator:
    """Make the shim end the container when the grace is over; an aborted job's container ends at
    once."""

    def __init__(self, turns: RunPipeline, fence: Fence) -> None:
        self._turns = turns
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
            if error.status != 404:
                raise RetryLater(str(error)) from error
            self._turns.post(reports.TaskMissing(run_id=run_id, attempt_id=attempt.id))
            return
        for report in from_node.task_reports(info):
            self._turns.post(report)


def _moment_left(attempt: Attempt) -> float:
    had_grace = (attempt.remove_at or 0.0) > (attempt.terminating_at or 0.0)
    reasons = (attempt.reason, *attempt.later_reasons)
    aborted = any(ROWS[reason].grace is GraceClass.NONE for reason in reasons if reason)
    return LAST_MOMENT if had_grace and not aborted else 0.0


class TaskRemover:
    """Release the allocation, unless it is kept for a successor, then delete the task; what is
    already gone counts as removed."""

    def __init__(self, turns: RunPipeline, fence: Fence) -> None:
        self._turns = turns
        self._fence = fence

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt, run_id = context.attempt, context.state.run.id
        kept = allocations.is_kept(context.state.run, attempt)
        await remove_from_node(
            connection,
            task_id=attempt.id,
            allocation_id=None if kept else attempt.allocation_id,
            run_id=run_id,
            fence=self._fence,
            incarnation=context.run_incarnation,
        )
        if attempt.runner_socket is not None:
            await connection.forget_runner(attempt.runner_socket)
        removed = reports.TaskRemoved(
            run_id=run_id, attempt_id=attempt.id, allocation_released=not kept
        )
        self._turns.post(removed)


class AllocationReleaser:
    """Release an allocation that outlived its task."""

    def __init__(self, turns: RunPipeline, fence: Fence) -> None:
        self._turns = turns
        self._fence = fence

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        allocation_id, run_id = context.attempt.allocation_id, context.state.run.id
        if allocation_id is None:
            return
        await _gone(
            connection.shim.release_allocation(
                allocation_id,
                run_id=run_id,
                fence=self._fence,
                incarnation=context.run_incarnation,
            )
        )
        self._turns.post(reports.AllocationReleased(run_id=run_id, allocation_id=allocation_id))


async def remove_from_node(
    connection: NodeConnection,
    *,
    task_id: str,
    allocation_id: str | None,
    run_id: str,
    fence: Fence,
    incarnation: int,
) -> None:
    """Release the allocation, then remove the task. Raises RetryLater while the shim does not let
    go.

    The task goes last: if the connection breaks in between, the next look at the node finds it and
    all of this is repeated.
    """
    if allocation_id is not None:
        release = connection.shim.release_allocation(
            allocation_id, run_id=run_id, fence=fence, incarnation=incarnation
        )
        await _gone(release)
    await _gone(
        connection.shim.remove_task(task_id, run_id=run_id, fence=fence, incarnation=incarnation)
    )


async def _gone(removal: Awaitable[None]) -> None:
    try:
        await removal
    except ShimError as error:
        if error.status != 404:
            raise RetryLater(str(error)) from error


class JobTerminatingPipeline:
    """The performers of the effects of attempts that end."""

    def __init__(
        self, turns: RunPipeline, fence: Fence, clock: Clock, collector: OutputCollector
    ) -> None:
        self.performers: dict[EffectKind, Performer] = {
            EffectKind.COLLECT_OUTPUTS: collector,
            EffectKind.STOP_JOB: JobStopper(clock),
            EffectKind.TERMINATE_TASK: TaskTerminator(turns, fence),
            EffectKind.REMOVE_TASK: TaskRemover(turns, fence),
            EffectKind.RELEASE_ALLOCATION: AllocationReleaser(turns, fence),
        }
