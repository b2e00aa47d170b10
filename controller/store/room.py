"""Which controllers have room on their disks: one without it leaves the lead to one that has some.

A leader puts logs and uploads on its disk before they are in a bucket. With a full disk it goes on
with everything else, so it gives the lead away only to a controller that can take them.
"""

from __future__ import annotations

from controller.store.base import Peer, Sight

FULL_BYTES = 64 << 20
"""With fewer free bytes a disk counts as full."""
ROOM_BYTES = 256 << 20
"""With so many free bytes a disk has room. It is more than FULL_BYTES: else the lead would go to
and fro between two disks that are nearly full."""
_FRESH_SECONDS = 3.0
"""Controllers show themselves each second. One that is dead must not be waited for longer."""


def is_full(free: int | None) -> bool:
    """Return whether a disk with so many free bytes is full; None: it is not known."""
    return free is not None and free < FULL_BYTES


def gives_lead_away(free: int | None, sight: Sight, own_id: str) -> bool:
    """Return whether a leader with so many free bytes should let another controller lead."""
    return is_full(free) and _another_has_room(sight, own_id)


def leaves_lead(free: int | None, sight: Sight, own_id: str) -> bool:
    """Return whether a follower with so many free bytes should let another follower lead."""
    has_room = free is None or free >= ROOM_BYTES
    return not has_room and _another_has_room(sight, own_id)


def _another_has_room(sight: Sight, own_id: str) -> bool:
    return any(peer.id != own_id and _can_lead(peer, sight.now) for peer in sight.peers)


def _can_lead(peer: Peer, now: float) -> bool:
    # The row of a leader stays when it is dead.
    is_waiting = not peer.leads and peer.seen_at > now - _FRESH_SECONDS
    return is_waiting and peer.free is not None and peer.free >= ROOM_BYTES
