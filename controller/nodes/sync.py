"""Sync compares what a node has with what it should have, and reports the difference.

On each connect it reads the node first, then the database's state, and then follows events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from controller.clock import Clock
from controller.lifecycle import reports
from controller.lifecycle.model import Node, NodeStatus
from controller.links.base import NodeConnection, ShimApi
from controller.nodes.health import (
    Reading,
    after_health_check,
    after_recall,
    after_task,
    with_another_chance,
)
from controller.nodes.notices import NoticeCarrier
from controller.pipelines import from_node, to_node
from controller.pipelines.run_pipeline import RunPipeline
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.shim import (
    Event,
    EventType,
    Fence,
    Health,
    RefusalCode,
    TaskInfo,
    TaskStatus,
    WantedImages,
)
from shim.client import ShimError

log = logging.getLogger(__name__)
_ACKNOWLEDGED = frozenset({AttemptStatus.PULLING, AttemptStatus.RUNNING, AttemptStatus.TERMINATING})
_NOT_ACKNOWLEDGED = frozenset({AttemptStatus.SUBMITTED, AttemptStatus.PROVISIONING})


class NodeSync:
    """Compares one node, over one connection. `wake` is called when there is something to look at
    again."""

    def __init__(
        self,
        node_id: str,
        pipeline: RunPipeline,
        listener: SessionListener,
        clock: Clock,
        connection: NodeConnection,
        fence: Fence | None,
        wake: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._pipeline = pipeline
        self._listener = listener
        self._clock = clock
        self._connection = connection
        self._fence = fence
        self._wake = wake
        self._notices = NoticeCarrier(connection)
        self._ending: set[str] = set()
        self._unsettled: set[str] = set()
        self._reading = asyncio.Lock()
        self.shim_drains = False
        """Whether the shim was told to drain, as far as known."""
        self.images_asked: WantedImages | None = None
        """What the shim was asked to pull ahead; None: not known."""

    async def close(self) -> None:
        self._connection.runners.close()
        await self._notices.close()

    async def take(self) -> None:
        """Read the node and report all differences. Raises ShimTaken, ShimUnavailable, ShimError,
        StoreUnavailable."""
        shim = self._connection.shim
        health, asked_at = await self._health()
        # First: a copied machine has the install id of its original, and each would end the other's
        # tasks as strays.
        self._refuse_taken(health)
        await self._check_identity(shim, health)
        await self._let_ends_commit()
        # In this order: a task that is accepted in between is in the list and not expected.
        expected = self._acknowledged()
        tasks = await shim.tasks()
        for info in tasks:
            await self._claim(info)
            await self._found(info)
        listed = {info.id for info in tasks}
        for attempt_id in expected.keys() - listed:
            self._report_missing(attempt_id, expected[attempt_id])
        self._let_go_of_quarantined(listed)
        await self._listener.idle_allocations(self._node_id, self._connection)
        # Last: this makes the node CONNECTED, and it must get no job before its tasks are known.
        await self._read_node(health, asked_at)

    async def _let_ends_commit(self) -> None:
        """Wait for the ends of what a node had that was given up. Until then its tasks seem to be
        alive, and no event would tell later that they are strays. Raises StoreUnavailable."""
        node = self._pipeline.nodes.get(self._node_id)
        if node is not None and node.status is NodeStatus.LOST:
            await self._pipeline.settled()

    async def handle(self, event: Event) -> None:
        match event.type:
            case EventType.TASK if event.task is not None:
                await self._found(event.task)
            case EventType.REMOVED if event.task_id is not None:
                # An unsettled one stays so: the answer to its removal may be lost after this event.
                self._connection.runners.forget(event.task_id)
                self._let_go_of_quarantined(self._quarantined() - {event.task_id})
            case EventType.RESYNC:
                await self.take()
            case EventType.NODE:
                await self._read_node(*await self._health())
            case _:
                pass

    # -- tasks ------------------------------------------------------------------------------

    def _report_missing(self, attempt_id: str, run_id: str) -> None:
        self._pipeline.post(reports.TaskMissing(run_id=run_id, attempt_id=attempt_id))

    def _acknowledged(self) -> dict[str, str]:
        """Return attempt id → run id of what this node said it has, or may still have.

        Call it before the list is requested, so that a task accepted meanwhile does not count as
        missing.
        """
        return {
            attempt.id: state.run.id
            for state in self._pipeline.runs_on(self._node_id)
            for job in state.jobs
            for attempt in job.attempts
            if attempt.node_id == self._node_id
            and not attempt.carrier  # it has no task of its own
            and (attempt.cleanup_unknown or attempt.status in _ACKNOWLEDGED)
        }

    async def _claim(self, info: TaskInfo) -> None:
        """Claim the task: a former controller that was paused or cut off may still try to command
        it."""
        context = self._live(info)
        if self._fence is None or context is None or context.attempt.node_id != self._node_id:
            return
        try:
            await self._connection.shim.claim(
                info.id,
                run_id=info.run_id,
                fence=self._fence,
                incarnation=context.run_incarnation,
            )
        except ShimError as error:
            # It was removed since it was listed.
            if error.code != RefusalCode.NOT_FOUND:
                raise

    async def _found(self, info: TaskInfo) -> None:
        self._connection.runners.note(info)
        context = self._live(info)
        self._unsettled.discard(info.id)
        if context is None:
            if await self._listener.stray_task(self._node_id, self._connection, info):
                self._look_again_at(info)
        elif context.attempt.node_id != self._node_id:
            self._found_astray(context, info)
        else:
            # An end that was asked for can make the start fail: the node is not at fault then.
            if context.attempt.reason is None:
                self._count_start(info)
            for report in from_node.task_reports(info):
                self._pipeline.post(report)
            self._listener.task_seen(self._node_id, info)
            self._notices.carry(info)

    def _count_start(self, info: TaskInfo) -> None:
        node = self._pipeline.nodes.get(self._node_id)
        if node is None or (changed := after_task(node, info)) is node:
            return
        if changed.cordoned and not node.cordoned:
            log.warning("node %s takes no work: %s", node.name, changed.cordon_reason)
        self._pipeline.set_node(changed, node.id)

    def _found_astray(self, context: to_node.AttemptContext, info: TaskInfo) -> None:
        """Handle a task whose attempt lives on another node.

        That can happen after a restore: an attempt that waited may have been sent here since the
        backup. The attempt ends before it runs twice, and the task here becomes a stray.
        """
        attempt = context.attempt
        log.warning("task %s lives on another node: left alone here", info.id)
        self._look_again_at(info)
        if attempt.reason is None and attempt.status in _NOT_ACKNOWLEDGED:
            node = self._pipeline.nodes.get(self._node_id)
            where = self._node_id if node is None else node.name
            self._pipeline.post(
                reports.TaskRefused(
                    run_id=info.run_id,
                    attempt_id=attempt.id,
                    reason=Reason.INSTANCE_UNREACHABLE,
                    message=f"node {where} has had it since before the database was restored",
                )
            )

    def _live(self, info: TaskInfo) -> to_node.AttemptContext | None:
        """Return the task's attempt if it is not final."""
        state = self._pipeline.runs.get(info.run_id)
        contexts = () if state is None else to_node.live_attempts(state)
        return next((context for context in contexts if context.attempt.id == info.id), None)

    def _quarantined(self) -> set[str]:
        node = self._pipeline.nodes.get(self._node_id)
        return set() if node is None else {task.id for task in node.quarantine}

    def _let_go_of_quarantined(self, listed: set[str]) -> None:
        node = self._pipeline.nodes.get(self._node_id)
        if node is not None and not self._quarantined() <= listed:
            left = tuple(task for task in node.quarantine if task.id in listed)
            self._pipeline.set_node(msgspec.structs.replace(node, quarantine=left), node.id)

    async def end_quarantined(self, node: Node) -> None:
        """End each task that an admin wants stopped; its later events do the rest.

        Raises ShimUnavailable, ShimError: the node's next connection tries again.
        """
        for task in node.quarantine:
            if task.stopping and task.id not in self._ending:
                self._ending.add(task.id)
                try:
                    await self._found(await self._connection.shim.task(task.id))
                except ShimError as error:
                    # If it is gone by now, the REMOVED event takes it off the list.
                    if error.code != RefusalCode.NOT_FOUND:
                        raise

    @property
    def is_unfit(self) -> bool:
        """Whether the node failed a check. No event may tell that it passes again: a clock that is
        set is no change at the shim, and a shim of an earlier version does not notice an engine
        that was away only when somebody asked."""
        node = self._pipeline.nodes.get(self._node_id)
        return node is not None and node.unfit is not None

    @property
    def has_unsettled(self) -> bool:
        """Whether there are tasks here of which no event may tell that there is more to do.

        A stray's log could not be stored yet. Or the attempt lives on another node, as far as
        known: this machine may have been that node before it was added again, and the end of the
        attempt is no event here.
        """
        return bool(self._unsettled)

    def _look_again_at(self, info: TaskInfo) -> None:
        self._unsettled.add(info.id)
        self._wake()

    async def look_again(self) -> None:
        """Look again at the unsettled tasks, at the allocations that they leave, and at a node that
        is unfit. Raises ShimUnavailable, ShimError.
        """
        for task_id in sorted(self._unsettled):
            self._unsettled.discard(task_id)
            try:
                info = await self._connection.shim.task(task_id)
            except ShimError as error:
                if error.code != RefusalCode.NOT_FOUND:
                    raise
                # It was removed since. If that was asked for here, the answer may have been lost.
                if (run_id := self._acknowledged().get(task_id)) is not None:
                    self._report_missing(task_id, run_id)
            else:
                await self._found(info)
        await self._listener.idle_allocations(self._node_id, self._connection)
        if self.is_unfit:
            await self._read_node(*await self._health())

    # -- the node itself --------------------------------------------------------------------

    async def _health(self) -> tuple[Health, float]:
        asked_at = self._clock.now()
        return await self._connection.shim.health(), asked_at

    async def _read_node(self, health: Health, asked_at: float) -> None:
        # Read before the next request: its time would widen the span by which the clock is judged.
        answered_at = self._clock.now()
        # In turn: an answer that was overtaken by a later one must not replace it.
        async with self._reading:
            info = await self._connection.shim.node()
            # Looked up after the requests: an admin may have changed or removed the node meanwhile.
            node = self._pipeline.nodes.get(self._node_id)
            if node is None:
                return
            reading = Reading(health=health, info=info, asked_at=asked_at, answered_at=answered_at)
            changed = msgspec.structs.replace(
                after_recall(after_health_check(node, reading), info.recall),
                status=NodeStatus.CONNECTED,
                message=None,
                boot_id=health.boot_id,
                install_id=health.install_id,
                last_seen_at=self._clock.now(),
            )
            if changed.unfit not in (None, node.unfit):
                log.warning("node %s takes no work: %s", node.name, changed.unfit)
            self._pipeline.set_node(changed, self._node_id)
            self.shim_drains = info.draining
            if self.images_asked is None and not info.images_asked:
                self.images_asked = WantedImages(images=())

    def _refuse_taken(self, health: Health) -> None:
        """Raise ShimTaken if another node has this shim. A shim that this node had before is not
        checked again."""
        node = self._pipeline.nodes.get(self._node_id)
        if node is None or node.install_id == health.install_id:
            return
        other = self._pipeline.node_with_shim(health.install_id, besides=self._node_id)
        if other is not None:
            raise ShimTaken(
                f"its shim is that of node {other.name} already: remove one of the two "
                f"(`fairlead node remove`), or, should the machine be a copy of the other, "
                f"empty its shim's data folder"
            )

    async def _check_identity(self, shim: ShimApi, health: Health) -> None:
        """End what ran before a new boot id or install id (docs/rules.md 7.6).

        That is committed before the node's tasks are read, so tasks left from before are strays. A
        task that has not ended may still be in its old container, so its allocation is free only
        when it is gone. Raises StoreUnavailable; then the old ids stay and all of this is repeated.
        """
        node = self._pipeline.nodes.get(self._node_id)
        if node is None:
            return
        new = node.boot_id is None
        rebooted = not new and node.boot_id != health.boot_id
        installed = not new and node.install_id != health.install_id
        if rebooted or installed:
            tasks = await shim.tasks()
            if rebooted:
                going_on = {
                    task.run_id for task in tasks if task.status is not TaskStatus.TERMINATED
                }
                message = "the node was restarted"
                report_gone(self._pipeline, node.id, message, lambda run_id: run_id not in going_on)
            else:
                message = "the node's shim was installed again"
                report_gone(self._pipeline, node.id, message, lambda _: not tasks)
            # Committed first: else a crash here would take tasks of the old boot for those of this
            # one.
            await self._pipeline.settled()
        # Looked up again: others may have changed the node while the commit was awaited.
        node = self._pipeline.nodes.get(self._node_id)
        if node is not None and (new or rebooted or installed):
            known = msgspec.structs.replace(
                with_another_chance(node), boot_id=health.boot_id, install_id=health.install_id
            )
            self._pipeline.set_node(known, self._node_id)


class SessionListener(Protocol):
    """Gets what a session learns."""

    def connected(self, node_id: str) -> None:
        """Repeat what is still wanted: a new connection is up and the node's state was read."""

    def task_seen(self, node_id: str, info: TaskInfo) -> None: ...

    async def stray_task(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> bool:
        """Handle a task on the node that no live attempt has; return whether to look at it again
        later, because it may stay without another event."""

    async def idle_allocations(self, node_id: str, connection: NodeConnection) -> None:
        """Release allocations without tasks that no run holds: the node's tasks were read."""


class ShimTaken(Exception):
    """Another node has this same shim: each node would stop the other's tasks as strays."""


def report_gone(
    pipeline: RunPipeline,
    node_id: str,
    message: str,
    is_clean: Callable[[str], bool] = lambda run_id: False,
    *,
    removed: bool = False,
) -> None:
    """Report a lost node to every run that has something there.

    `is_clean` tells, by run id, whether nothing of that run can run there any more. `removed`: the
    node is being removed.
    """
    for state in pipeline.runs_on(node_id):
        pipeline.post(
            reports.NodeGone(
                run_id=state.run.id,
                node_id=node_id,
                reason=Reason.INSTANCE_UNREACHABLE,
                message=message,
                cleanup_confirmed=is_clean(state.run.id),
                removed=removed,
            )
        )
