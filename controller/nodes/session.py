"""A session keeps one node connected: connect, greet, follow events, judge silence, connect again.

Only a few nodes shake hands at a time, so that the return of all of them delays nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from common.links.errors import HostKeyRefused, LinkError
from controller.aio import Backoff, Flag, Slot, Slots
from controller.clock import Chance, Clock
from controller.lifecycle import reports
from controller.lifecycle.inventory import NodeFailure
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.model import Node, NodeAddress, NodeStatus
from controller.links.base import NodeConnection, NodeLink, ShimApi
from controller.nodes.host_keys import FreshHostKey
from controller.nodes.images import NodeImages
from controller.nodes.silence import Attendance, Silence, Silent, silent_before
from controller.nodes.sync import NodeSync, SessionListener, ShimTaken, report_gone
from controller.pipelines import from_node, to_node
from controller.pipelines.run_pipeline import RunPipeline
from controller.store.errors import StoreError
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from fairlead.wire.shim import DrainRequest, EventType, Fence
from shim.client import ShimError, ShimUnavailable

log = logging.getLogger(__name__)
AT_ONCE = 12
# A machine that is off lets a connection attempt wait for long: it must not keep its slot.
LENT_SECONDS = 2.0
FIRST_WAIT_SECONDS = 0.5
MAX_WAIT_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 30.0


class NodeSession:
    """The session of one node. `connection` is the live one or None; `up` is set while there is
    one."""

    def __init__(
        self,
        node_id: str,
        make_link: Callable[[Node], NodeLink],
        pipeline: RunPipeline,
        listener: SessionListener,
        clock: Clock,
        chance: Chance,
        handshakes: Handshakes,
        settings: Settings,
    ) -> None:
        self._node_id = node_id
        self._make_link = make_link
        self._pipeline = pipeline
        self._listener = listener
        self._clock = clock
        self._handshakes = handshakes
        self._fence = settings.fence
        self._images = settings.images
        self._was_sent = settings.was_sent
        self._failure = settings.failure
        # Each failed connection counts as a failed probe, so none may come later than a probe does.
        max_wait = min(MAX_WAIT_SECONDS, self._failure.probe_every)
        self._backoff = Backoff(FIRST_WAIT_SECONDS, max_wait, chance.jitter)
        self._silence = Silence(
            settings.monotonic or asyncio.get_running_loop().time,
            self._failure,
            silent_before(pipeline.nodes[node_id], clock.now()),
        )
        self._reported_disconnected: bool | None = None
        self.connection: NodeConnection | None = None
        self.up = Flag()
        self.look: Callable[[], None] = lambda: None
        """Look again at what the node is to be told."""

    async def run(self) -> None:
        """Keep the node connected until it is removed.

        A bug of this program is logged and tried again like any failure: a session that ended would
        leave its node alone forever.
        """
        while (node := self._pipeline.nodes.get(self._node_id)) is not None:
            async with self._handshakes.slot() as slot:
                try:
                    connection = await self._connect(self._make_link(node))
                except LinkError as error:
                    self._not_connected(str(error), refused=isinstance(error, HostKeyRefused))
                # asyncssh raises what it meets in a peer's bytes, also errors of other modules:
                # none may end the session's loop.
                except Exception as error:
                    log.exception("the link to node %s could not be made", node.name)
                    self._not_connected(f"the link could not be made: {error}")
                else:
                    await self._live(connection, slot, node.address)
            await self._backoff.wait()

    async def _connect(self, link: NodeLink) -> NodeConnection:
        """Connect; while that takes longer than a probe may, count failed probes.

        A machine that is off lets a connection attempt wait for long.
        """
        attempt = asyncio.ensure_future(link.connect())
        try:
            # asyncio.wait leaves the attempt running at its timeout; wait_for would cancel it.
            while not (await asyncio.wait((attempt,), timeout=self._failure.probe_every))[0]:
                node = self._pipeline.nodes.get(self._node_id)
                self._not_connected((node and node.message) or "it has not answered yet")
        except asyncio.CancelledError:
            attempt.cancel()
            # It may have been connected in the moment of the cancellation.
            for connection in await asyncio.gather(attempt, return_exceptions=True):
                if not isinstance(connection, BaseException):
                    await connection.close()
            raise
        return attempt.result()

    async def _live(self, connection: NodeConnection, slot: Slot, address: NodeAddress) -> None:
        sync = NodeSync(
            self._node_id,
            self._pipeline,
            self._listener,
            self._clock,
            connection,
            self._fence,
            wake=lambda: self.look(),
        )
        attendance = Attendance(
            self._node_id,
            self._pipeline,
            connection,
            self._silence,
            self._failure,
            self._fence,
            self._heard,
        )
        message = "the connection was lost"
        try:
            async with asyncio.TaskGroup() as group:
                attending = group.create_task(attendance.attend())
                pushing = group.create_task(self._push_changes(connection, sync, address))
                rekeying = group.create_task(self._give_own_key(connection))
                await self._follow(connection, sync, slot)
                # The stream ended without an error: the group would wait for them forever.
                for task in (attending, pushing, rekeying):
                    task.cancel()
        except* (ShimUnavailable, ShimError, ShimTaken, Silent, Readdressed, StoreError) as errors:
            message = _why(errors)
        except* Exception as errors:
            log.exception("the session of node %s failed", self._node_id)
            message = f"the session failed: {_first(errors)}"
        finally:
            # Before the awaits below: no effect may get the dead connection meanwhile.
            self._down()
            await sync.close()
            await connection.close()
        _end_if_cancelled()
        self._not_connected(message)

    async def _follow(self, connection: NodeConnection, sync: NodeSync, slot: Slot) -> None:
        async with contextlib.aclosing(connection.shim.events()) as events:
            # The shim's first event comes at once, and shows that the stream is open.
            if await anext(events, None) is None:
                return
            self._heard()
            # The event stream is open before the node is read, so no change falls between the two.
            await sync.take()
            slot.give_back()
            self._heard()
            # Jobs may have been placed there that were told nothing.
            self._reported_disconnected = None
            self.connection = connection
            self.up.set()
            self._backoff.reset()
            self._report_disconnected(False)
            self._listener.connected(self._node_id)
            try:
                async for event in events:
                    self._heard()
                    if event.type is not EventType.HEARTBEAT:
                        await sync.handle(event)
            finally:
                self._down()

    def _down(self) -> None:
        """Forget the connection at once, so that repeated effects wait for the next one."""
        self.connection = None
        self.up.clear()

    # -- beside the events ------------------------------------------------------------------

    async def _push_changes(
        self, connection: NodeConnection, sync: NodeSync, address: NodeAddress
    ) -> None:
        """Push an admin's changes to the node; its shim must know of a drain too, because it
        answers questions about the node itself.

        Raises Readdressed: a connection is not trusted once another host key is pinned.
        """
        await self.up.wait()
        async with self._pipeline.watch(self._node_id) as changed:
            self.look = changed.set
            # Cleared before the node is read: a change during the requests wakes this loop again.
            while True:
                changed.clear()
                node = self._pipeline.nodes.get(self._node_id)
                if node is not None and not _is_trusted(address, node.address):
                    raise Readdressed("its address or host key changed; connecting again")
                if node is not None and node.draining != sync.shim_drains:
                    await self._drain(connection.shim, sync, node)
                if node is not None:
                    await self._ask_for_images(connection.shim, sync, node)
                    await sync.end_quarantined(node)
                await self._until_changed(changed, sync)

    async def _until_changed(self, changed: Flag, sync: NodeSync) -> None:
        with contextlib.suppress(TimeoutError):
            looks_again = sync.has_unsettled or sync.is_unfit
            async with asyncio.timeout(LOOK_AGAIN_SECONDS if looks_again else None):
                await changed.wait()
                return
        await sync.look_again()

    async def _give_own_key(self, connection: NodeConnection) -> None:
        await self.up.wait()
        await FreshHostKey(
            self._node_id, self._pipeline, connection.shim, self._make_link, self._was_sent
        ).run()

    async def _drain(self, shim: ShimApi, sync: NodeSync, node: Node) -> None:
        try:
            await shim.drain(DrainRequest(draining=node.draining, reason=node.drain_reason))
        except ShimError as error:
            log.warning("node %s refused to drain or to resume: %s", node.name, error)
        else:
            sync.shim_drains = node.draining

    async def _ask_for_images(self, shim: ShimApi, sync: NodeSync, node: Node) -> None:
        wanted = None if self._images is None else self._images.wanted(node)
        if wanted is None or self._fence is None or wanted == sync.images_asked:
            return
        try:
            await shim.put_images(wanted, fence=self._fence)
        except ShimError as error:
            log.warning("node %s refused to pull images ahead: %s", node.name, error)
        # Also when it refused: the same list would be refused again and again.
        sync.images_asked = wanted

    # -- what the link itself says ----------------------------------------------------------

    def _heard(self, at: float | None = None) -> None:
        """Note a sign of life; store it at once if the node might be given up soon.

        This controller may end before the node is connected, and the next one counts from the
        stored time.
        """
        silent = self._silence.seconds
        self._silence.heard(at)
        if silent < self._failure.unreachable_after or self._silence.seconds >= silent:
            return
        node = self._pipeline.nodes.get(self._node_id)
        if node is not None and node.status is not NodeStatus.CONNECTED:
            seen = self._clock.now() - self._silence.seconds
            self._pipeline.set_node(msgspec.structs.replace(node, last_seen_at=seen), self._node_id)

    def _not_connected(self, message: str, *, refused: bool = False) -> None:
        node = self._pipeline.nodes.get(self._node_id)
        if node is None:
            return
        message = from_node.readable(message)
        self._silence.probe_failed()
        self._report_disconnected(True)
        status = self._silence.verdict(node.status, refused=refused)
        if self._boots() and not refused:
            # It was never there, so nothing is lost with it; its boot has a limit of its own.
            status = NodeStatus.CONNECTING
        was_up = node.status is not NodeStatus.LOST
        # A turn that was under way may have placed a job there, which the first report missed.
        if status is NodeStatus.LOST and (was_up or self._has_live_attempts()):
            report_gone(
                self._pipeline,
                self._node_id,
                f"node {node.name} was silent for {self._silence.seconds:.0f} s",
            )
        if (status, message) == (node.status, node.message):
            return
        log.warning("node %s: %s", node.name, message)
        seen = node.last_seen_at
        # The time of a connected node is not kept up to date: each heartbeat would be a commit.
        if node.status is NodeStatus.CONNECTED:
            seen = self._clock.now() - self._silence.seconds
        changed = msgspec.structs.replace(node, status=status, message=message, last_seen_at=seen)
        self._pipeline.set_node(changed, self._node_id)

    def _boots(self) -> bool:
        """Return whether it is a rented machine that is no node yet."""
        rentals = self._pipeline.rentals
        machine = None if rentals is None else rentals.committed.get(self._node_id)
        return machine is not None and machine.status is MachineStatus.PROVISIONING

    def _has_live_attempts(self) -> bool:
        return any(
            attempt.node_id == self._node_id and attempt.status not in FINAL_ATTEMPT_STATUSES
            for state in self._pipeline.runs_on(self._node_id)
            for attempt in (context.attempt for context in to_node.live_attempts(state))
        )

    def _report_disconnected(self, disconnected: bool) -> None:
        if disconnected is self._reported_disconnected:
            return
        self._reported_disconnected = disconnected
        for state in self._pipeline.runs_on(self._node_id):
            self._pipeline.post(
                reports.NodeDisconnected(
                    run_id=state.run.id, node_id=self._node_id, disconnected=disconnected
                )
            )


def _is_trusted(connected: NodeAddress, now: NodeAddress) -> bool:
    """Return whether a connection under the one address may go on under the other: a key that is
    accepted as well takes no trust away."""
    return msgspec.structs.replace(connected, next_host_key=None) == msgspec.structs.replace(
        now, next_host_key=None
    )


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all sessions. `fence`: this controller's, sent with its greetings."""

    failure: NodeFailure = NodeFailure()
    fence: Fence | None = None
    monotonic: Callable[[], float] | None = None
    """Seconds that only grow; None: those of the event loop."""
    images: NodeImages | None = None
    """What nodes pull ahead; None: nothing."""
    was_sent: Callable[[Node], bool] = lambda node: False
    """Whether the node's host key was in the user-data of a rented machine."""


class Handshakes:
    """Limits the handshakes at one time."""

    def __init__(self, at_once: int = AT_ONCE, lent: float = LENT_SECONDS) -> None:
        self._slots = Slots(at_once)
        self._lent = lent

    def slot(self) -> Slot:
        """Return a slot; first come, first served."""
        return self._slots.slot(self._lent)


class Readdressed(Exception):
    """The node's address changed, or another host key was pinned."""


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _why(errors: BaseExceptionGroup[BaseException]) -> str:
    match _first(errors):
        case ShimUnavailable() as error:
            return f"the shim does not answer: {error}"
        case ShimError() as error:
            return f"the shim answered: {error}"
        case StoreError() as error:
            return f"the node's reports could not be stored: {error}"
        case error:
            return str(error)


def _end_if_cancelled() -> None:
    """Raise CancelledError if this task is cancelled: a task group whose task fails meanwhile
    reports only the failure."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
