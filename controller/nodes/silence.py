"""Silence says when a node is given up: after probes that nothing answers, and after enough time.

`Silence` counts, and `Attendance` listens and probes over one connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from controller.lifecycle.inventory import NodeFailure
from controller.lifecycle.model import Node, NodeStatus
from controller.links.base import NodeConnection
from controller.pipelines.run_pipeline import RunPipeline
from fairlead.wire.shim import Fence
from shim.client import ShimError, ShimUnavailable

MIN_LOOK_SECONDS = 1.0
GREETINGS_PER_PATIENCE = 4
"""The number of greetings to a task with `on_disconnect: stop` within its limit."""
UNREACHABLE_AFTER_PROBES = 3
_ON_ITS_WAY = 0.1
"""A shim sends a heartbeat every 10 s; one that is late by this share is not missed yet."""


class Silence:
    """The time for which a node has been silent.

    `before`: seconds of silence before this controller began to listen. They count towards LOST,
    but they do not replace failed probes: a controller that was away must probe the node before it
    gives it up.
    """

    def __init__(self, monotonic: Callable[[], float], failure: NodeFailure, before: float) -> None:
        self._monotonic = monotonic
        self._failure = failure
        self._before = before
        self._heard_at = monotonic()
        self._failed_probes = 0

    @property
    def seconds(self) -> float:
        return self._before + self.listened

    @property
    def listened(self) -> float:
        """The seconds of silence during which this controller listened."""
        return self._monotonic() - self._heard_at

    @property
    def left(self) -> float:
        """Seconds until a probe is due; 0 or less when it is due."""
        return self._failure.probe_every * (1 + _ON_ITS_WAY) - self.listened

    def heard(self, at: float | None = None) -> None:
        """Note that a byte came, at this time of the same clock. An older time changes nothing."""
        if at is not None and at <= self._heard_at:
            return
        self._heard_at = self._monotonic() if at is None else at
        self._before = 0.0
        self._failed_probes = 0

    def probe_failed(self) -> None:
        self._failed_probes += 1

    @property
    def too_long(self) -> bool:
        return (
            self.listened >= self._failure.unreachable_after
            and self._failed_probes >= UNREACHABLE_AFTER_PROBES
        )

    def verdict(self, now: NodeStatus, *, refused: bool = False) -> NodeStatus:
        """Return the node's status while it has no connection. `refused`: the host key is not the
        pinned one."""
        # Until a probe is due nothing is asked, so this much silence says nothing about the node.
        overdue = self.seconds - self._failure.probe_every
        if self.too_long and overdue >= self._failure.lost_after:
            return NodeStatus.LOST
        # Only a connection makes it better: a further attempt to connect is no sign of life.
        if now in (NodeStatus.LOST, NodeStatus.UNREACHABLE):
            return now
        return NodeStatus.UNREACHABLE if refused or self.too_long else NodeStatus.CONNECTING


def silent_before(node: Node, now: float) -> float:
    """Return the seconds for which a stored node had been silent when this controller started.

    A node that was connected until the former controller ended counts from 0: nobody has listened
    since.
    """
    if node.status is NodeStatus.CONNECTED or node.last_seen_at is None:
        return 0.0
    return max(0.0, now - node.last_seen_at)


class Silent(Exception):
    """Nothing comes from this connection any more."""


class Attendance:
    """Listens to one node over one connection, and probes it when nothing is heard.

    `heard` gets each sign of life: its time on the clock of `silence`, or None for now.
    """

    def __init__(
        self,
        node_id: str,
        pipeline: RunPipeline,
        connection: NodeConnection,
        silence: Silence,
        failure: NodeFailure,
        fence: Fence | None,
        heard: Callable[[float | None], None],
    ) -> None:
        self._node_id = node_id
        self._pipeline = pipeline
        self._connection = connection
        self._silence = silence
        self._failure = failure
        self._fence = fence
        self._heard = heard

    async def attend(self) -> None:
        """Probe the node when nothing is heard. Raises Silent when that lasts for too long."""
        time = asyncio.get_running_loop().time
        began, greeted_at = time(), float("-inf")
        while True:
            patience = self._min_patience()
            greets = patience is not None and time() - greeted_at >= patience
            if greets:
                greeted_at = time()
            if greets or self._silence.left <= 0:
                await self._probe(self._fence if greets else None)
            # A new connection has its whole time, whatever the silence was before it.
            if self._silence.too_long and time() - began >= self._failure.unreachable_after:
                raise Silent(f"it has been silent for {self._silence.listened:.0f} s")
            quiet_for = self._silence.left
            if patience is None and quiet_for > 0:
                await self._until_quiet()
            else:
                pause = quiet_for if patience is None else min(quiet_for, patience)
                # A probe can be due already; without a least pause this would be a busy loop.
                await asyncio.sleep(max(MIN_LOOK_SECONDS, pause))
            self._heard(self._connection.heard_at())

    async def _until_quiet(self) -> None:
        """Wait until nothing was heard for a while, or a job there must be greeted.

        A timer, not a task, watches each of thousands of healthy nodes. All timers are due at full
        seconds, so that the loop wakes once for hundreds of them.
        """
        loop = asyncio.get_running_loop()
        quiet = loop.create_future()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            self._heard(self._connection.heard_at())
            if self._silence.left > 0 and self._min_patience() is None:
                timer = look_again()
            # The task may have been cancelled in this same pass of the loop, and its future with
            # it.
            elif not quiet.done():
                quiet.set_result(None)

        def look_again() -> asyncio.TimerHandle:
            pause = max(MIN_LOOK_SECONDS, self._silence.left)
            return loop.call_at(math.ceil(loop.time() + pause), look)

        timer = look_again()
        try:
            await quiet
        finally:
            timer.cancel()

    async def _probe(self, fence: Fence | None) -> None:
        """Probe the node. Any byte counts as a sign of life, also a refusal or an answer to another
        request."""
        try:
            async with asyncio.timeout(self._failure.probe_every):
                await self._connection.shim.health(fence=fence)
        except (TimeoutError, ShimUnavailable):
            before = self._silence.listened
            self._heard(self._connection.heard_at())
            # Unless something was heard during the probe: then only this answer is slow.
            if self._silence.listened >= before:
                self._silence.probe_failed()
        # A refusal is an answer as well: the shim is there.
        except ShimError:
            self._heard(None)
        else:
            self._heard(None)

    def _leash(self) -> list[float]:
        rentals = self._pipeline.rentals
        machine = None if rentals is None else rentals.committed.get(self._node_id)
        return [] if machine is None or machine.leash is None else [machine.leash]

    def _min_patience(self) -> float | None:
        """Return the seconds between two greetings; None when nothing there must hear from a
        controller: no job, and no rented machine that would power itself off."""
        limits = self._leash()
        if self._pipeline.may_mind_silence(self._node_id):
            limits += [
                job.spec.stop_when_unheard
                for state in self._pipeline.runs_on(self._node_id)
                for job in state.jobs
                if job.spec.stop_when_unheard is not None
            ]
        return min(limits) / GREETINGS_PER_PATIENCE if limits else None
