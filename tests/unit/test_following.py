"""A controller that waits: when it tries to lead, where it sends others, and what it refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import msgspec
import pytest

from controller import following
from controller.following import Wait
from controller.relay import Relay
from controller.store.base import Peer, Sight
from controller.store.errors import StoreUnavailable, StoreUnusable
from controller.store.peers import Peers


class Planted(Peers):
    """Sees what is planted, one after the other; the last one stays."""

    def __init__(self, *sights: Sight | StoreUnavailable | None) -> None:
        super().__init__(url="http://own:1", version="1", keys="k")
        self.left = list(sights)

    def look(self) -> Sight | None:
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(found, StoreUnavailable):
            raise found
        return found


class NotingRelay(Relay):
    def __init__(self) -> None:
        super().__init__()
        self.led_to: list[str | None] = []

    def lead_to(self, url: str | None) -> None:
        self.led_to.append(url)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "LOOK_SECONDS", 0.001)
        yield


def sight(*, keys: str | None = "k", may_lead: bool = False, now: float | None = None) -> Sight:
    at = time.time() if now is None else now
    leader = Peer(
        id="l", url="http://l:1", version="1", keys=keys, started_at=at, seen_at=at, leads=True
    )
    return Sight(now=at, peers=(leader,), may_lead=may_lead)


async def waited(*sights: Sight | StoreUnavailable | None) -> list[str | None]:
    relay = NotingRelay()
    assert await Wait(Planted(*sights), asyncio.Event()).until_it_may_lead(relay)
    return relay.led_to


async def test_connections_go_to_the_leader_until_it_is_gone() -> None:
    assert await waited(sight(), sight(may_lead=True)) == ["http://l:1", None]


async def test_a_database_that_is_away_changes_nothing_for_now() -> None:
    away = StoreUnavailable("away")
    assert await waited(sight(), away, away, sight(may_lead=True)) == ["http://l:1", None]


async def test_a_database_without_a_table_of_controllers_is_tried() -> None:
    assert await waited(None) == [None]


async def test_a_stop_ends_the_wait() -> None:
    stop = asyncio.Event()
    stop.set()
    assert not await Wait(Planted(sight()), stop).until_it_may_lead(NotingRelay())


@pytest.mark.parametrize("keys", ["other", "k2"])
async def test_other_keys_than_those_of_a_living_controller_are_refused(keys: str) -> None:
    wait = Wait(Planted(sight(keys=keys)), asyncio.Event())
    with pytest.raises(StoreUnusable, match="http://l:1 has other keys: copy id_ed25519"):
        await wait.begin()


async def test_the_keys_of_one_that_has_none_yet_or_is_gone_do_not_count() -> None:
    assert await waited(sight(keys=None, may_lead=True)) == [None]
    gone = msgspec.structs.replace(sight(keys="other").peers[0], seen_at=time.time() - 60)
    assert await waited(Sight(now=time.time(), peers=(gone,), may_lead=True)) == [None]


@pytest.mark.parametrize(("off", "word"), [(-400.0, "ahead of"), (400.0, "behind")])
async def test_a_clock_far_from_the_databases_is_refused(off: float, word: str) -> None:
    wait = Wait(Planted(sight(now=time.time() + off)), asyncio.Event())
    with pytest.raises(StoreUnusable, match=f"clock is .* s {word} the database's"):
        await wait.begin()
