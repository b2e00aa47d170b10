"""JobTerminatingPipeline: from a reason to a place that is free again.

Ask the runner to stop within the grace, make the shim end the container, and, once the log is
stored, remove the task and release the allocation on the node. The final status is not set here: it
is decided from what these performers report.
"""

from __future__ import annotations

from collections.abc import Awaitable

from controller.clock import Clock
from controller.lifecycle import places, reports
from controller.links.base import NodeConnection
from controller.pipelines import convert
from controller.pipelines.convert import View
from controller.pipelines.performing import TryAgain
from controller.pipelines.turns import Turns
from runner.client import RunnerError
from shim.client import ShimError
from shim.schemas import Fence, TerminateRequest

LAST_WORDS = 2.0
"""Seconds, and at most that part of a grace, by which the runner kills the job before the shim
kills the container: so long it has to write down how the job ended."""
_LAST_PART = 0.2


class JobStopper:
    """The runner signals the commands and kills what is left when the grace is nearly over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def __call__(self, view: View, connection: NodeConnection) -> None:
        attempt = view.attempt
        if attempt.remove_at is None:
            return
        left = max(0.0, attempt.remove_at - self._clock.now())
        runner = connection.runner(convert.runner_socket(view))
        grace = left - min(LAST_WORDS, left * _LAST_PART)
        try:
            await runner.stop(signal=view.job.spec.stop_signal, grace=grace)
        except RunnerError as error:
            raise TryAgain(str(error)) from error


class TaskTerminator:
    """The grace is over: the shim kills the container."""

    def __init__(self, turns: Turns, fence: Fence) -> None:
        self._turns = turns
        self._fence = fence

    async def __call__(self, view: View, connection: NodeConnection) -> None:
        attempt, run_id = view.attempt, view.state.run.id
        reason = attempt.reason
        request = TerminateRequest(
            grace=0.0, reason=None if reason is None else reason.value, message=attempt.message
        )
        try:
            info = await connection.shim.terminate(
                attempt.id,
                request,
                run_id=run_id,
                fence=self._fence,
                incarnation=view.spoken_incarnation,
            )
        except ShimError as error:
            if error.status != 404:
                raise TryAgain(str(error)) from error
            self._turns.post(reports.TaskMissing(run_id=run_id, attempt_id=attempt.id))
            return
        for report in convert.task_reports(info):
            self._turns.post(report)


class TaskRemover:
    """Release the allocation, unless it is kept for a successor, then delete the task; what is gone
    already is as good."""

    def __init__(self, turns: Turns, fence: Fence) -> None:
        self._turns = turns
        self._fence = fence

    async def __call__(self, view: View, connection: NodeConnection) -> None:
        attempt, run_id = view.attempt, view.state.run.id
        kept = places.is_kept(view.state.run, attempt)
        await remove_from_node(
            connection,
            task_id=attempt.id,
            allocation_id=None if kept else attempt.allocation_id,
            run_id=run_id,
            fence=self._fence,
            incarnation=view.spoken_incarnation,
        )
        if attempt.runner_socket is not None:
            await connection.forget_runner(attempt.runner_socket)
        removed = reports.TaskRemoved(run_id=run_id, attempt_id=attempt.id, place_released=not kept)
        self._turns.post(removed)


class PlaceReleaser:
    """Release an allocation that outlived its task."""

    def __init__(self, turns: Turns, fence: Fence) -> None:
        self._turns = turns
        self._fence = fence

    async def __call__(self, view: View, connection: NodeConnection) -> None:
        allocation_id, run_id = view.attempt.allocation_id, view.state.run.id
        if allocation_id is None:
            return
        await _gone(
            connection.shim.release_allocation(
                allocation_id,
                run_id=run_id,
                fence=self._fence,
                incarnation=view.spoken_incarnation,
            )
        )
        self._turns.post(reports.PlaceReleased(run_id=run_id, allocation_id=allocation_id))


async def remove_from_node(
    connection: NodeConnection,
    *,
    task_id: str,
    allocation_id: str | None,
    run_id: str,
    fence: Fence,
    incarnation: int,
) -> None:
    """The task goes last: when the connection breaks in between, a later look at the node finds it
    and all of this is repeated. Raises TryAgain while the shim does not let go."""
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
            raise TryAgain(str(error)) from error
