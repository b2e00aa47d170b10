"""NodeSession: one node's link through its whole life.

Connect, read what the node *has*, compare it with what it should have, act on the difference, then
follow its events; when anything breaks, begin again. Events hint, state decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from controller.backoff import Backoff
from controller.clock import Chance, Clock
from controller.lifecycle import reports
from controller.lifecycle.model import Limits, Node, NodeStatus
from controller.lifecycle.reasons import Reason
from controller.lifecycle.statuses import AttemptStatus
from controller.links.base import HostKeyRefused, LinkError, NodeConnection, NodeLink, ShimApi
from controller.nodes.notices import NoticeCarrier
from controller.pipelines import convert
from controller.pipelines.turns import Turns
from controller.store.base import StoreError
from shim.client import ShimError, ShimUnavailable
from shim.schemas import DrainRequest, Event, EventType, Health, TaskInfo, TaskStatus

log = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 0.5
MOST_WAIT_SECONDS = 10.0
UNREACHABLE_AFTER_SECONDS = 30.0

_ACKNOWLEDGED = frozenset({AttemptStatus.PULLING, AttemptStatus.RUNNING, AttemptStatus.TERMINATING})


class SessionListener(Protocol):
    def connected(self, node_id: str) -> None:
        """A new connection is up and the node's state was read: repeat what is still wanted."""

    def task_seen(self, node_id: str, info: TaskInfo) -> None: ...

    async def stray_task(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> None:
        """The node has a task that no live attempt stands for."""


class ShimTaken(Exception):
    """Another node has this very shim: to each, the other's tasks would be strays to be stopped."""


class NodeSession:
    """`connection` is the live one or None; `up` is set while there is one."""

    def __init__(
        self,
        node_id: str,
        make_link: Callable[[Node], NodeLink],
        turns: Turns,
        listener: SessionListener,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._node_id = node_id
        self._make_link = make_link
        self._turns = turns
        self._listener = listener
        self._clock = clock
        self._backoff = Backoff(FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS, chance.jitter)
        self._last_seen = clock.now()
        self._told_disconnected: bool | None = None
        self._shim_drains = False
        self._notices: NoticeCarrier | None = None
        self.connection: NodeConnection | None = None
        self.up = asyncio.Event()

    async def run(self) -> None:
        """Until the node is removed. A mistake of ours is logged and tried again like any failure:
        a session that ended would leave its node alone for good."""
        while (node := self._turns.nodes.get(self._node_id)) is not None:
            try:
                connection = await self._make_link(node).connect()
            except LinkError as error:
                self._not_connected(str(error), refused=isinstance(error, HostKeyRefused))
            except Exception as error:
                log.exception("no link to node %s could be made", node.name)
                self._not_connected(f"no link could be made: {error}")
            else:
                await self._live(connection)
            await self._backoff.wait()

    async def _live(self, connection: NodeConnection) -> None:
        message = "the connection was lost"
        notices = self._notices = NoticeCarrier(connection)
        try:
            await self._follow(connection)
        except ShimUnavailable as error:
            message = f"the shim does not answer: {error}"
        except ShimError as error:
            message = f"the shim answered: {error}"
        except ShimTaken as error:
            message = str(error)
        except StoreError as error:
            message = f"what the node said could not be stored: {error}"
        except Exception as error:
            log.exception("the session of node %s failed", self._node_id)
            message = f"the session failed: {error}"
        finally:
            self.connection = None
            self.up.clear()
            self._notices = None
            await notices.close()
            await connection.close()
        self._not_connected(message)

    async def _follow(self, connection: NodeConnection) -> None:
        async with contextlib.aclosing(connection.shim.events()) as events:
            if await anext(events, None) is None:
                return
            await self._take_stock(connection)
            self.connection = connection
            self.up.set()
            self._backoff.reset()
            self._report_disconnected(False)
            self._listener.connected(self._node_id)
            draining = asyncio.create_task(self._push_drain_state(connection.shim))
            try:
                async for event in events:
                    self._last_seen = self._clock.now()
                    await self._handle(connection, event)
            finally:
                draining.cancel()
                await asyncio.gather(draining, return_exceptions=True)

    async def _push_drain_state(self, shim: ShimApi) -> None:
        async with self._turns.watch(self._node_id) as changed:
            while True:
                changed.clear()
                await self._match_drain_state(shim)
                await changed.wait()

    async def _match_drain_state(self, shim: ShimApi) -> None:
        """The shim must know it too: it answers whoever asks the node itself."""
        node = self._turns.nodes.get(self._node_id)
        if node is None or node.draining == self._shim_drains:
            return
        try:
            await shim.drain(DrainRequest(draining=node.draining, reason=node.drain_reason))
        except ShimError as error:
            log.warning("node %s refused to drain or to resume: %s", node.name, error)
        else:
            self._shim_drains = node.draining

    async def _handle(self, connection: NodeConnection, event: Event) -> None:
        if event.type is EventType.TASK and event.task is not None:
            await self._found(connection, event.task)
        elif event.type is EventType.RESYNC:
            await self._take_stock(connection)
        elif event.type is EventType.NODE:
            await self._read_node(connection.shim, await connection.shim.health())

    # -- reading the node -------------------------------------------------------------------

    async def _take_stock(self, connection: NodeConnection) -> None:
        shim = connection.shim
        health = await shim.health()
        self._refuse_taken(health)
        await self._check_identity(shim, health)
        await self._read_node(shim, health)
        expected = self._acknowledged()
        tasks = await shim.tasks()
        self._last_seen = self._clock.now()
        for info in tasks:
            await self._found(connection, info)
        for attempt_id in expected.keys() - {info.id for info in tasks}:
            self._turns.post(
                reports.TaskMissing(run_id=expected[attempt_id], attempt_id=attempt_id)
            )

    def _acknowledged(self) -> dict[str, str]:
        """attempt id → run id of what this node said it has, or may still have; taken before the
        list is asked for, so that a task accepted meanwhile is not taken for missing."""
        return {
            attempt.id: state.run.id
            for state in self._turns.runs_on(self._node_id)
            for job in state.jobs
            for attempt in job.attempts
            if attempt.node_id == self._node_id
            and (attempt.cleanup_unknown or attempt.status in _ACKNOWLEDGED)
        }

    def _is_live(self, info: TaskInfo) -> bool:
        state = self._turns.runs.get(info.run_id)
        return state is not None and any(
            view.attempt.id == info.id and view.attempt.node_id == self._node_id
            for view in convert.live_attempts(state)
        )

    def _lives_elsewhere(self, info: TaskInfo) -> bool:
        state = self._turns.runs.get(info.run_id)
        return state is not None and any(
            view.attempt.id == info.id for view in convert.live_attempts(state)
        )

    async def _found(self, connection: NodeConnection, info: TaskInfo) -> None:
        if not self._is_live(info):
            if self._lives_elsewhere(info):
                log.warning("task %s lives on another node: left alone here", info.id)
                return
            await self._listener.stray_task(self._node_id, connection, info)
            return
        for report in convert.task_reports(info):
            self._turns.post(report)
        self._listener.task_seen(self._node_id, info)
        if self._notices is not None:
            self._notices.carry(info)

    async def _read_node(self, shim: ShimApi, health: Health) -> None:
        info = await shim.node()
        node = self._turns.nodes.get(self._node_id)
        if node is None:
            return
        changed = msgspec.structs.replace(
            node,
            status=NodeStatus.CONNECTED,
            message=None,
            boot_id=health.boot_id,
            install_id=health.install_id,
            capacity=convert.capacity(info),
            last_seen_at=self._clock.now(),
        )
        self._turns.set_node(changed, self._node_id)
        self._told_disconnected = None  # from now on jobs are placed here that were told nothing
        self._shim_drains = info.draining
        await self._match_drain_state(shim)

    def _refuse_taken(self, health: Health) -> None:
        for other in self._turns.nodes.values():
            if other.id != self._node_id and other.install_id == health.install_id:
                raise ShimTaken(
                    f"its shim is that of node {other.name} already: remove one of the two "
                    f"(`fairlead node remove`), or, should the machine be a copy of the other, "
                    f"empty its shim's data folder"
                )

    async def _check_identity(self, shim: ShimApi, health: Health) -> None:
        """A new boot or install id: what ran there is gone (LIFECYCLE.md section 7), and committed
        to be so before the node's tasks are read: those left from then are strays. A shim goes on
        with what it had not started yet, so the place of that is free only when it is gone.

        Raises StoreUnavailable; the old ids are kept then, and all of it is repeated."""
        node = self._turns.nodes.get(self._node_id)
        if node is None or node.boot_id is None:
            return
        rebooted = node.boot_id != health.boot_id
        if not rebooted and node.install_id == health.install_id:
            return
        tasks = await shim.tasks()
        if rebooted:
            going_on = {task.run_id for task in tasks if task.status is not TaskStatus.TERMINATED}
            self._report_gone("the node was restarted", lambda run_id: run_id not in going_on)
        else:
            self._report_gone("the node's shim was installed anew", lambda _: not tasks)
        await self._turns.settled()

    # -- what the link itself says ----------------------------------------------------------

    def _not_connected(self, message: str, *, refused: bool = False) -> None:
        node = self._turns.nodes.get(self._node_id)
        if node is None:
            return
        self._report_disconnected(True)
        silent = self._clock.now() - self._last_seen
        status = NodeStatus.CONNECTING
        if silent >= Limits().node_lost_after:
            status = NodeStatus.LOST
        elif refused or silent >= UNREACHABLE_AFTER_SECONDS:
            status = NodeStatus.UNREACHABLE
        if status is NodeStatus.LOST and node.status is not NodeStatus.LOST:
            self._report_gone(f"node {node.name} was silent for {silent:.0f} s")
        if (status, message) != (node.status, node.message):
            log.warning("node %s: %s", node.name, message)
            changed = msgspec.structs.replace(node, status=status, message=message)
            self._turns.set_node(changed, self._node_id)

    def _report_disconnected(self, disconnected: bool) -> None:
        if disconnected is self._told_disconnected:
            return
        self._told_disconnected = disconnected
        for state in self._turns.runs_on(self._node_id):
            self._turns.post(
                reports.NodeDisconnected(
                    run_id=state.run.id, node_id=self._node_id, disconnected=disconnected
                )
            )

    def _report_gone(
        self, message: str, is_clean: Callable[[str], bool] = lambda run_id: False
    ) -> None:
        for state in self._turns.runs_on(self._node_id):
            self._turns.post(
                reports.NodeGone(
                    run_id=state.run.id,
                    node_id=self._node_id,
                    reason=Reason.INSTANCE_UNREACHABLE,
                    message=message,
                    cleanup_confirmed=is_clean(state.run.id),
                )
            )
