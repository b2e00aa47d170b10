"""A controller whose disk is full leaves the lead to one whose disk has room."""

from __future__ import annotations

import pytest

from controller.store.base import FULL_BYTES, ROOM_BYTES, Peer, Sight, is_full

NOW = 100.0


def peer(name: str, free: int | None, *, seen_at: float = NOW, leads: bool = False) -> Peer:
    return Peer(
        id=name,
        url=f"http://{name}",
        version="1",
        keys="k",
        started_at=0.0,
        seen_at=seen_at,
        leads=leads,
        free=free,
    )


def sight(*others: Peer) -> Sight:
    return Sight(now=NOW, peers=(peer("own", ROOM_BYTES), *others), may_lead=True)


ROOMY = peer("b", ROOM_BYTES)
WITHOUT_ROOM = [
    peer("b", ROOM_BYTES - 1),
    peer("b", None),
    peer("dead", ROOM_BYTES, seen_at=NOW - 3.0),
    peer("former leader", ROOM_BYTES, leads=True),
]


@pytest.mark.parametrize(("free", "full"), [(None, False), (FULL_BYTES, False), (0, True)])
def test_a_full_leader_gives_the_lead_to_one_with_room(free: int | None, full: bool) -> None:
    assert is_full(free) == full
    assert sight(ROOMY).gives_lead_away("own", free, sight()) == full


def test_a_full_leader_hands_over_to_one_that_has_shown_itself_since() -> None:
    """The leader before it may be dead, and its row is as that of a follower."""
    now, later = sight(ROOMY), sight(peer("b", ROOM_BYTES, seen_at=NOW + 1.0))
    assert not now.gives_lead_away("own", 0, now)
    assert later.gives_lead_away("own", 0, now)


@pytest.mark.parametrize("other", WITHOUT_ROOM, ids=lambda other: f"{other.id}: {other.free}")
def test_without_another_that_has_room_the_full_one_leads(other: Peer) -> None:
    assert not sight(other).gives_lead_away("own", 0, sight())
    assert not sight(other).leaves_lead("own", 0)


@pytest.mark.parametrize(
    ("free", "leaves"), [(None, False), (ROOM_BYTES, False), (ROOM_BYTES - 1, True), (0, True)]
)
def test_a_follower_leads_only_with_room_while_another_has_some(
    free: int | None, leaves: bool
) -> None:
    assert sight(ROOMY).leaves_lead("own", free) == leaves
