"""Stray tasks and allocations are on a node, but no live attempt has them.

If the run is known, the attempt was given up while the node was away. Its task is stopped, and
removed once the rest of its log is stored.

If the run is unknown, another controller may know it, or a database newer than the backup from
which this one was restored. The task is quarantined: listed and kept running, its allocation
occupied. An admin may have it stopped.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from controller.lifecycle import reports
from controller.lifecycle.model import QuarantinedTask, RunState
from controller.links.base import NodeConnection
from controller.pipelines import to_node
from controller.pipelines.effects import Performer
from controller.pipelines.performers.job_terminating import remove_from_node
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater
from controller.store.base import Store
from fairlead.model.statuses import FINAL_RUN_STATUSES, AllocationState
from fairlead.wire.amounts import amounts_of
from fairlead.wire.node import AllocationInfo
from fairlead.wire.shim import Fence, TaskInfo, TaskStatus, TerminateRequest
from shim.client import ShimError, ShimUnavailable

log = logging.getLogger(__name__)


class StrayTasks:
    """Clears or quarantines stray tasks.

    `collect` stores the log of a task that has ended. `restored`: this database was restored from a
    backup, so runs may have had attempts since then that it does not know.
    """

    def __init__(
        self,
        pipeline: RunPipeline,
        store: Store,
        fence: Fence,
        collect: Performer,
        collect_outputs: Performer,
        *,
        restored: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._fence = fence
        self._collect = collect
        self._collect_outputs = collect_outputs
        self._restored = restored
        self._collecting: dict[str, asyncio.Task[None]] = {}
        self._claimed: set[str] = set()

    async def close(self) -> None:
        tasks = list(self._collecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> bool:
        """Stop, remove or quarantine the task. It is called at every event about the task until the
        task is gone.

        An allocation that was orphaned with it is then free. Return whether to call it again later
        without an event: its log is not stored yet, or the node refused.
        """
        state = self._pipeline.known.get(info.run_id) or await self._store.find_run(info.run_id)
        if self._is_unknown(state, info):
            allocation = await _allocation_of(connection, info)
            if state is None:
                info = _as_heard(info, allocation)
            await self._claim(connection, _as_now(state, info))
            stops = self._quarantine(node_id, info, allocation)
            why = "the controller does not know it, and an admin stopped it"
        else:
            stops, why = True, "its attempt has ended"
        if not stops:
            return False
        # Each event of the node leads here again while its log is being stored.
        if info.id in self._collecting:
            return True
        context = await self._unread(info) if info.status is TaskStatus.TERMINATED else None
        if context is None:
            return not await self._end(connection, state, info, why)
        self._collect_beside(context, connection, info, why)
        return True

    async def _unread(self, info: TaskInfo) -> AttemptContext | None:
        """Return its attempt if the node may have more of its log or outputs than is stored."""
        state = self._pipeline.known.get(info.run_id)
        context = None if state is None else to_node.find(state, info.id)
        if context is None:
            # The live state has only recent attempts (`runs.compaction`); the store has all of
            # them.
            state = await self._store.find_run(info.run_id)
            context = None if state is None else to_node.find(state, info.id)
        if context is None:
            return None
        is_read = context.attempt.seen.logs_complete and not _has_unread(context, info)
        return None if is_read else context

    def _collect_beside(
        self, context: AttemptContext, connection: NodeConnection, info: TaskInfo, why: str
    ) -> None:
        """Collect log and outputs in a task of its own, so that other events of the node go on."""
        task = asyncio.create_task(self._collect_and_end(context, connection, info, why))
        self._collecting[info.id] = task
        task.add_done_callback(lambda _: self._collecting.pop(info.id, None))

    async def _collect_and_end(
        self, context: AttemptContext, connection: NodeConnection, info: TaskInfo, why: str
    ) -> None:
        gone = replace(context.attempt.seen, container_gone=True)
        attempt = replace(context.attempt, seen=gone)
        try:
            await self._collect(AttemptContext(context.state, context.job, attempt), connection)
            if _has_unread(context, info):
                await self._collect_outputs(context, connection)
            # Collecting takes long: the run may have gone on, and its incarnation is a fence.
            state = self._pipeline.known.get(info.run_id, context.state)
            await self._end(connection, state, info, why)
        # It stays unsettled, and is looked at again: what a stray has written may be nowhere else.
        except (ShimError, ShimUnavailable, RetryLater, OSError) as error:
            log.warning("log or outputs of stray task %s could not be stored: %s", info.id, error)
        except Exception:
            log.exception("stray task %s could not be cleared", info.id)

    async def _end(
        self, connection: NodeConnection, state: RunState | None, info: TaskInfo, why: str
    ) -> bool:
        """Return whether the node did it."""
        current = _as_now(state, info)
        kept = _is_held(state, info.allocation_id)
        try:
            await end_task(connection, current, self._fence, why, keeps_allocation=kept)
        except (ShimError, RetryLater) as error:
            log.warning("stray task %s could not be cleared: %s", info.id, error)
            return False
        if info.status is TaskStatus.TERMINATED:
            removed = reports.TaskRemoved(
                run_id=info.run_id, attempt_id=info.id, allocation_released=not kept
            )
            self._pipeline.post(removed)
        return True

    async def release_idle(self, connection: NodeConnection) -> None:
        """Release the allocations on the node that have no task and that no run needs.

        A gang may have kept one beyond its task and given it up while the node was away. A restored
        database does not know some. Raises ShimUnavailable, ShimError.
        """
        for allocation in await connection.shim.allocations():
            if allocation.task_ids:
                continue
            state = await self._run_of(allocation)
            # Unless this database was restored, an unknown run belongs to another controller.
            if not (self._restored if state is None else _is_given_up(state, allocation.id)):
                continue
            try:
                await connection.shim.release_allocation(
                    allocation.id,
                    run_id=allocation.run_id,
                    fence=self._fence,
                    incarnation=_incarnation_of(state, allocation),
                )
            # A task may have come to it since it was listed: then the shim keeps it.
            except ShimError as error:
                log.warning("idle allocation %s could not be released: %s", allocation.id, error)

    async def _run_of(self, allocation: AllocationInfo) -> RunState | None:
        return self._pipeline.known.get(allocation.run_id) or await self._store.find_run(
            allocation.run_id
        )

    async def _claim(self, connection: NodeConnection, info: TaskInfo) -> None:
        """Claim an unknown task after a restore: from now on only this controller may end it.

        The controller from before the restore may only have been paused and still know the task.
        Tasks of another installation stay as they are.
        """
        if not self._restored or info.id in self._claimed:
            return
        try:
            await connection.shim.claim(
                info.id, run_id=info.run_id, fence=self._fence, incarnation=info.incarnation
            )
        except ShimError as error:
            log.warning("unknown task %s could not be claimed: %s", info.id, error)
            return
        self._claimed.add(info.id)

    def _is_unknown(self, state: RunState | None, info: TaskInfo) -> bool:
        return state is None or (self._restored and to_node.find(state, info.id) is None)

    def _quarantine(self, node_id: str, info: TaskInfo, allocation: AllocationInfo | None) -> bool:
        """List the task in the node's quarantine; return whether it must end after all."""
        node = self._pipeline.nodes.get(node_id)
        if node is None:
            return False
        before = next((task for task in node.quarantine if task.id == info.id), None)
        if before is None:
            log.warning(
                "task %s of unknown run %s (%s) is left running on node %s",
                info.id,
                info.run_id,
                info.run_name,
                node.name,
            )
        task = quarantined(info, allocation, before)
        if task != before:
            others = tuple(one for one in node.quarantine if one.id != task.id)
            changed = replace(node, quarantine=(*others, task))
            self._pipeline.set_node(changed, node_id)
        return task.stopping


async def _allocation_of(connection: NodeConnection, info: TaskInfo) -> AllocationInfo | None:
    allocations = await connection.shim.allocations()
    return next(
        (allocation for allocation in allocations if allocation.id == info.allocation_id), None
    )


def _has_unread(context: AttemptContext, info: TaskInfo) -> bool:
    return info.has_outputs and context.attempt.seen.outputs is None


def _as_heard(info: TaskInfo, allocation: AllocationInfo | None) -> TaskInfo:
    """Return the task with the newest incarnation of its unknown run that the shim knows.

    The task's own may be older; with that, the shim would end the task and keep its allocation.
    """
    heard = 0 if allocation is None else allocation.incarnation
    return replace(info, incarnation=max(info.incarnation, heard))


def _as_now(state: RunState | None, info: TaskInfo) -> TaskInfo:
    """Return the task with the run's present incarnation.

    The shim refuses an older incarnation than it knows. A newer one, of a task from after the
    backup, would make it refuse the present one.
    """
    present = info.incarnation if state is None else _present_incarnation(state)
    return replace(info, incarnation=present)


def _incarnation_of(state: RunState | None, allocation: AllocationInfo) -> int:
    """As which its run is spoken for. An unknown run's is the one that the shim knows: the claim of
    a task of it has told the shim that."""
    return allocation.incarnation if state is None else _present_incarnation(state)


def _present_incarnation(state: RunState) -> int:
    incarnation = state.run.incarnation
    return 0 if incarnation is None else incarnation.number


def _is_given_up(state: RunState, allocation_id: str) -> bool:
    return all(
        allocation.state is AllocationState.RELEASED
        for allocation in state.allocations
        if allocation.id == allocation_id
    )


def _is_held(state: RunState | None, allocation_id: str) -> bool:
    """Return whether the run still holds the allocation: a gang's outlives its task, and the run
    releases it later."""
    if state is None or state.run.status in FINAL_RUN_STATUSES:
        return False
    return any(
        allocation.id == allocation_id and allocation.state is AllocationState.HELD
        for allocation in state.allocations
    )


def quarantined(
    info: TaskInfo, allocation: AllocationInfo | None, before: QuarantinedTask | None
) -> QuarantinedTask:
    """Return what the shim alone reports about the task."""
    return QuarantinedTask(
        id=info.id,
        run_id=info.run_id,
        run_name=info.run_name,
        allocation_id=info.allocation_id,
        status=info.status.value,
        **({} if allocation is None else amounts_of(allocation)),
        gpus=() if allocation is None else allocation.gpus,
        whole_node=allocation is not None and allocation.whole_node,
        submitted_at=info.times.submitted_at,
        stopping=before is not None and before.stopping,
    )


async def end_task(
    connection: NodeConnection, info: TaskInfo, fence: Fence, why: str, *, keeps_allocation: bool
) -> None:
    """Stop the task, or remove it if it has ended; called again with each event about it.

    Raises ShimError, ShimUnavailable, RetryLater.
    """
    if info.status is not TaskStatus.TERMINATED:
        log.warning("stopping task %s: %s", info.id, why)
        await connection.shim.terminate(
            info.id,
            # Without a grace: the job's next attempt may run elsewhere already.
            TerminateRequest(grace=0.0, message=why),
            run_id=info.run_id,
            fence=fence,
            incarnation=info.incarnation,
        )
        return
    await remove_from_node(
        connection,
        task_id=info.id,
        allocation_id=None if keeps_allocation else info.allocation_id,
        run_id=info.run_id,
        fence=fence,
        incarnation=info.incarnation,
    )
