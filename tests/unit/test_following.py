"""A controller that waits: when it tries to lead, where it sends others, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from controller import following
from controller.daemon import boot, lease, opening, serving
from controller.daemon.hand_over import HandOver
from controller.daemon.lease import Leading
from controller.daemon.options import CannotStart, Options
from controller.disk import Disk
from controller.following import Wait
from controller.relay import Leader, Relay
from controller.store.accounts import StoredSecret
from controller.store.base import Peer, Sight, Snapshot
from controller.store.errors import (
    LeaseHeld,
    LeaseLost,
    OtherTimeline,
    StoreUnavailable,
    StoreUnusable,
)
from controller.store.peers import Peers
from controller.vault import KeyFile, Vault
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import LONG, eventually


class Planted(Peers):
    """Sees what is planted, one after the other; the last one stays."""

    def __init__(self, *sights: Sight | StoreUnavailable | None) -> None:
        super().__init__(url="http://own:1", version="0.2.0", keys="k")
        self.left = list(sights)

    def look(self) -> Sight | None:
        found = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(found, StoreUnavailable):
            raise found
        return found

    def look_on(self) -> Sight | None:
        return self.look()

    def installation(self) -> str | None:
        return "of-the-database"


class NotingRelay(Relay):
    def __init__(self) -> None:
        super().__init__()
        self.led_to: list[str | None] = []

    def lead_to(self, leader: Leader | None) -> None:
        self.led_to.append(None if leader is None else f"http://{leader.host}:{leader.port}")


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "LOOK_SECONDS", 0.001)
        patch.setattr(following, "FIRST_SECONDS", 0.0)
        yield


def sight(
    *,
    keys: str | None = "k",
    may_lead: bool = False,
    now: float | None = None,
    version: str = "0.2.0",
) -> Sight:
    at = time.time() if now is None else now
    leader = Peer(
        id="l", url="http://l:1", version=version, keys=keys, started_at=at, seen_at=at, leads=True
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


async def test_begin_and_end_of_each_outage_of_the_database_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = StoreUnavailable("first"), StoreUnavailable("second")
    await waited(first, first, sight(), second, sight(), sight(may_lead=True))
    back = "the database answers again, after 0 s"
    assert caplog.messages == ["first", back, "second", back]


async def test_a_database_without_a_table_of_controllers_is_tried() -> None:
    assert await waited(None) == [None]


async def test_one_without_the_leaders_lock_lets_another_one_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that open the database at once hold each other up."""
    monkeypatch.setattr(following, "FIRST_SECONDS", LONG)
    # The other one was faster, and later this one gets the lock.
    peers = Planted(sight(may_lead=True), sight(may_lead=True), sight(), sight(may_lead=True))
    relay = NotingRelay()
    wait = Wait(peers, asyncio.Event())
    waiting = asyncio.create_task(wait.until_it_may_lead(relay))
    await eventually(lambda: len(peers.left) == 1 and len(relay.led_to) > 3)
    assert relay.led_to == ["http://l:1"] * len(relay.led_to)
    assert not waiting.done()
    peers.has_lock = True
    assert await waiting
    assert relay.led_to[-1] is None


async def test_where_nobody_has_the_lock_one_leads_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader that is paused keeps it, and behind a pool nobody takes it."""
    monkeypatch.setattr(following, "FIRST_SECONDS", 0.02)
    began = asyncio.get_running_loop().time()
    assert await waited(sight(may_lead=True))
    assert asyncio.get_running_loop().time() - began >= 0.02


async def test_a_stop_ends_the_wait() -> None:
    stop = asyncio.Event()
    stop.set()
    assert not await Wait(Planted(sight()), stop).until_it_may_lead(NotingRelay())


@pytest.mark.parametrize(
    ("version", "is_refused"),
    [
        ("0.1.4", False),
        ("0.2.7", False),
        ("0.3.0", False),
        ("0.3.dev1+local", False),
        ("0.4.0", True),
        ("1.2.0", True),
    ],
)
async def test_versions_more_than_one_step_apart_are_refused_by_name(
    version: str, is_refused: bool
) -> None:
    wait = Wait(Planted(sight(version=version)), asyncio.Event())
    refused = pytest.raises(
        StoreUnusable, match=rf"http://l:1 has version {version}, and this one is 0\.2\.0"
    )
    with refused if is_refused else contextlib.nullcontext():
        await wait.begin()


@pytest.mark.parametrize(("seen_later", "is_refused"), [(3.0, True), (-1.0, False)])
async def test_the_later_one_of_two_with_the_same_url_is_refused(
    seen_later: float, is_refused: bool
) -> None:
    """One that was killed leaves a row with the URL of its successor."""
    peers, now = Planted(), time.time()
    own = msgspec.structs.replace(at(peers.url, peers.id, leads=False), started_at=now - 5)
    other = msgspec.structs.replace(
        at(peers.url, "o", leads=False), started_at=now - 60, seen_at=now - 5 + seen_later
    )
    before = msgspec.structs.replace(other, seen_at=now - 6)
    peers = Planted(seen(own, before), seen(own, other, may_lead=True))
    peers.id = own.id
    refused = pytest.raises(StoreUnusable, match="works with --url http://own:1: give each its own")
    with refused if is_refused else contextlib.nullcontext():
        assert await Wait(peers, asyncio.Event()).until_it_may_lead(NotingRelay())


async def test_a_killed_controller_whose_row_is_from_the_future_refuses_no_successor() -> None:
    """The database's clock was set back after it."""
    peers, now = Planted(), time.time()
    own = msgspec.structs.replace(at(peers.url, peers.id, leads=False), started_at=now)
    dead = msgspec.structs.replace(
        at(peers.url, "o", leads=False), started_at=now - 60, seen_at=now + 3600
    )
    peers = Planted(seen(own, dead), seen(own, dead, may_lead=True))
    peers.id = own.id
    assert await Wait(peers, asyncio.Event()).until_it_may_lead(NotingRelay())


async def test_a_successor_at_the_same_url_may_be_two_minor_versions_later() -> None:
    """Its predecessor was stopped a moment ago, and its row looks alive for 10 s."""
    peers = Planted()
    now = time.time()
    before = msgspec.structs.replace(
        at(peers.url, "o", leads=True), version="0.1.0", keys="k", started_at=now - 60, seen_at=now
    )
    peers.version = "0.3.0"
    peers.left = [seen(before)]
    await Wait(peers, asyncio.Event()).begin()
    assert peers.installation_id == "of-the-database"


@pytest.mark.parametrize("keys", ["other", "k2"])
async def test_other_keys_than_those_of_a_living_controller_are_refused(keys: str) -> None:
    wait = Wait(Planted(sight(keys=keys)), asyncio.Event())
    with pytest.raises(StoreUnusable, match="http://l:1 has other keys: copy id_ed25519"):
        await wait.begin()


async def test_another_bucket_of_logs_than_the_leaders_is_refused() -> None:
    wait = Wait(Planted(sight(keys="k.place")), asyncio.Event())
    with pytest.raises(StoreUnusable, match="http://l:1 has another bucket: give all"):
        await wait.begin()


async def test_a_waiting_one_with_other_keys_keeps_nobody_from_leading() -> None:
    wrong = msgspec.structs.replace(at("http://w:1", "w", leads=False), keys="other")
    assert await waited(seen(at("http://l:1"), wrong), seen(wrong, may_lead=True))


@pytest.mark.parametrize(("tied", "is_refused"), [("of-another", True), ("of-the-database", False)])
async def test_a_folder_of_another_installation_than_the_database_is_refused(
    tied: str, is_refused: bool
) -> None:
    peers = Planted(sight())
    peers.installation_id = tied
    refused = pytest.raises(StoreUnusable, match="the data folder belongs to the installation of-")
    with refused if is_refused else contextlib.nullcontext():
        await Wait(peers, asyncio.Event()).begin()


async def test_the_keys_of_one_that_has_none_yet_or_is_gone_do_not_count() -> None:
    assert await waited(sight(keys=None, may_lead=True)) == [None]
    gone = msgspec.structs.replace(sight(keys="other").peers[0], seen_at=time.time() - 60)
    assert await waited(Sight(now=time.time(), peers=(gone,), may_lead=True)) == [None]


@pytest.mark.parametrize(("off", "word"), [(-400.0, "ahead of"), (400.0, "behind")])
async def test_a_clock_far_from_the_databases_is_refused(off: float, word: str) -> None:
    wait = Wait(Planted(sight(now=time.time() + off)), asyncio.Event())
    with pytest.raises(StoreUnusable, match=f"clock is .* s {word} the database's"):
        await wait.begin()


def at(url: str, peer_id: str = "l", *, leads: bool = True) -> Peer:
    now = time.time()
    return Peer(
        id=peer_id, url=url, version="1", keys="k", started_at=now, seen_at=now, leads=leads
    )


def seen(*peers: Peer, may_lead: bool = False) -> Sight:
    return Sight(now=time.time(), peers=peers, may_lead=may_lead)


async def test_no_connection_is_led_to_its_own_address() -> None:
    """The row of a leader that was killed and starts again here stays until another one leads."""
    assert await waited(seen(at("http://own:1")), seen(may_lead=True)) == [None, None]


async def test_one_that_has_led_carries_connections_to_its_successor() -> None:
    peers = Planted(seen(at("http://own:1"), at("http://l:1", leads=False)), seen(at("http://l:1")))
    relay = NotingRelay()
    leading = asyncio.create_task(Wait(peers, asyncio.Event()).linger(relay, LONG))
    await eventually(lambda: "http://l:1" in relay.led_to)
    assert relay.led_to[0] is None
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


@pytest.mark.parametrize("left", [StoreUnavailable("away"), seen()])
async def test_one_that_has_led_ends_at_once_where_nobody_can_follow(
    left: Sight | StoreUnavailable,
) -> None:
    relay = NotingRelay()
    async with asyncio.timeout(LONG):
        await Wait(Planted(left), asyncio.Event()).linger(relay, 10 * LONG)
    assert not any(relay.led_to)


def test_a_lease_that_is_about_to_end_is_not_sure() -> None:
    now = [100.0]
    leading = Leading(5.0, lambda: now[0])
    assert not leading.is_sure()
    leading.renewed(100.0)
    now[0] = 103.9
    assert leading.is_sure()
    now[0] = 104.0
    assert not leading.is_sure()


async def test_one_that_can_not_lead_yet_goes_on_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of a leader vanished in a transaction: the lease's row is still locked."""
    causes: list[Exception] = [StoreUnavailable("the row is locked"), LeaseHeld("it works")]

    @contextlib.asynccontextmanager
    async def leading(*_: object) -> AsyncIterator[asyncio.Task[None]]:
        if causes:
            raise CannotStart("not yet") from causes.pop(0)
        yield asyncio.create_task(asyncio.sleep(0))

    monkeypatch.setattr(serving, "_controller", leading)
    peers = Planted(seen(may_lead=True))
    options = Options(data=tmp_path, port=0, peers=peers, linger=LONG)
    full = HandOver(Disk(tmp_path), peers)
    await serving._among_peers(options, peers, lambda _: None, asyncio.Event(), full)
    assert causes == []


@pytest.mark.parametrize("why", [LeaseLost("taken over"), StoreUnavailable("the server restarts")])
async def test_one_whose_lead_ends_by_the_database_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: Exception
) -> None:
    causes = [why]

    async def work() -> None:
        if causes:
            raise causes.pop()

    @contextlib.asynccontextmanager
    async def leading(*_: object) -> AsyncIterator[asyncio.Task[None]]:
        yield asyncio.create_task(work())

    monkeypatch.setattr(serving, "_controller", leading)
    peers = Planted(seen(may_lead=True))
    options = Options(data=tmp_path, port=0, peers=peers, linger=LONG)
    full = HandOver(Disk(tmp_path), peers)
    await serving._among_peers(options, peers, lambda _: None, asyncio.Event(), full)
    assert causes == []


async def test_one_whose_database_leads_to_two_servers_by_turns_leads_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "MIN_REST_SECONDS", 0.01)
    monkeypatch.setattr(following, "MAX_REST_SECONDS", 0.02)
    # The first one is a promotion.
    ends = [OtherTimeline(1, 2), OtherTimeline(2, 1), OtherTimeline(1, 2), OtherTimeline(2, 1)]
    ended: list[float] = []
    led: list[float] = []
    now = asyncio.get_running_loop().time

    async def work() -> None:
        if ends:
            ended.append(now())
            raise ends.pop(0)

    @contextlib.asynccontextmanager
    async def leading(*_: object) -> AsyncIterator[asyncio.Task[None]]:
        led.append(now())
        yield asyncio.create_task(work())

    monkeypatch.setattr(serving, "_controller", leading)
    peers = Planted(seen(may_lead=True))
    options = Options(data=tmp_path, port=0, peers=peers, linger=LONG)
    full = HandOver(Disk(tmp_path), peers)
    await serving._among_peers(options, peers, lambda _: None, asyncio.Event(), full)
    rests = [began - end for end, began in zip(ended, led[1:], strict=True)]
    assert [rest >= least for rest, least in zip(rests, (0.0, 0.01, 0.02, 0.02), strict=True)] == [
        True
    ] * 4
    told = [one for one in caplog.messages if "leads to two servers by turns" in one]
    assert len(told) == 3
    assert "of the timelines 1 and 2, and both take changes: stop the one" in told[0]


async def test_the_lease_is_renewed_while_the_state_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()

    class LoadsLong(MemoryStore):
        async def renew_lease(self) -> None:
            await super().renew_lease()
            renewed.set()

        async def load(self) -> Snapshot:
            async with asyncio.timeout(LONG):
                await renewed.wait()
            return await super().load()

    monkeypatch.setattr(lease, "LEASE_RENEWAL_SECONDS", 0.0)
    store = LoadsLong()
    await boot.take_lead(Options(data=tmp_path), store, Leading(5.0))
    assert renewed.is_set()
    await store.close()


async def test_the_lease_is_renewed_while_a_bucket_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()

    class Renews(MemoryStore):
        async def renew_lease(self) -> None:
            await super().renew_lease()
            renewed.set()

    async def silent(*_: object) -> None:
        renewed.clear()
        async with asyncio.timeout(LONG):
            await renewed.wait()
        raise CannotStart("it was renewed")

    monkeypatch.setattr(lease, "LEASE_RENEWAL_SECONDS", 0.0)
    monkeypatch.setattr(opening, "own_bucket", silent)
    store = Renews()
    async with contextlib.AsyncExitStack() as closing:
        with pytest.raises(CannotStart, match="it was renewed"):
            await opening.open_parts(Options(data=tmp_path), store, Leading(5.0), closing)
    await store.close()


def test_a_key_that_opens_no_stored_secret_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = Vault(KeyFile.open(tmp_path / "theirs.key"))
    times = {"created_at": 0.0, "updated_at": 0.0}
    secret = StoredSecret(
        id="s", user="ada", name="TOKEN", sealed=theirs.sealed("ada", "TOKEN", "x"), **times
    )
    options = Options(data=tmp_path)
    KeyFile.open(options.secrets_key_file)
    boot.open_vault(options, Snapshot(secrets=(secret,)))
    assert "secrets.key does not open 1 of 1 stored secrets" in caplog.text
    caplog.clear()
    right = msgspec.structs.replace(options, secrets_key=tmp_path / "theirs.key")
    boot.open_vault(right, Snapshot(secrets=(secret,)))
    assert caplog.text == ""
