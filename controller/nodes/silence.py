"""How long a node has said nothing, and what that makes of it (LIFECYCLE.md section 7).

Any byte is life. A node is UNREACHABLE after at least 3 failed probes *and*
`node_failure.unreachable_after`, LOST after `node_failure.after` on top of that, from when its next
byte was due: a slow or cut connection is not a dead job, and a link that was whole a moment ago has
its full time. Seconds are those of a clock that only runs forward, so that an
adjusted wall clock loses no node.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.lifecycle.inventory import NodeFailure
from controller.lifecycle.model import Node, NodeStatus

UNREACHABLE_AFTER_PROBES = 3
_ON_ITS_WAY = 0.1
"""A shim sends a heartbeat every 10 s; by this share later it is not missed yet."""


class Silence:
    """`before`: seconds that the node had been silent already when this controller began to listen.

    They count to LOST, but never in place of probes of its own: a controller that was away has to
    look for itself before it gives a node up."""

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
        """The part of it that this controller has listened to."""
        return self._monotonic() - self._heard_at

    @property
    def left(self) -> float:
        """Seconds until a probe is due; not more than 0 when it is."""
        return self._failure.probe_every * (1 + _ON_ITS_WAY) - self.listened

    def heard(self, at: float | None = None) -> None:
        """A byte came (at this time of the same clock). One that is known already is no news."""
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
        """What the node is while there is no connection to it. `refused`: it was there, and is not
        the one that was pinned."""
        overdue = self.seconds - self._failure.probe_every
        if self.too_long and overdue >= self._failure.lost_after:
            return NodeStatus.LOST
        if now in (NodeStatus.LOST, NodeStatus.UNREACHABLE):
            return now
        return NodeStatus.UNREACHABLE if refused or self.too_long else NodeStatus.CONNECTING


def silent_before(node: Node, now: float) -> float:
    """Seconds that a stored node had been silent when its controller started. One that was heard
    until the former controller ended begins anew: nobody has listened since."""
    if node.status is NodeStatus.CONNECTED or node.last_seen_at is None:
        return 0.0
    return max(0.0, now - node.last_seen_at)
