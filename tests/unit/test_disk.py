"""The room on a controller's disk is measured, told, and makes a full leader hand over."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from controller.daemon import hand_over, serving
from controller.daemon.hand_over import HandOver
from controller.daemon.options import Options
from controller.disk import Disk
from controller.store import base
from controller.store.base import ROOM_BYTES, Peer, Sight
from controller.store.errors import StoreUnavailable
from controller.store.peers import Peers
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import LONG, eventually

NOW = 100.0


async def test_the_free_bytes_are_told_until_the_folder_is_gone(tmp_path: Path) -> None:
    told: list[int | None] = []
    disk = Disk(tmp_path / "data", told.append)
    await disk.look()
    assert (told, disk.is_full, list(disk.families())) == ([None], False, [])
    (tmp_path / "data").mkdir()
    await disk.look()
    assert disk.free is not None
    assert told == [None, disk.free]
    (family,) = disk.families()
    assert (family.name, family.samples[0].value) == ("fairlead_disk_free_bytes", disk.free)


async def test_a_full_disk_is_logged_once_and_so_is_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path)
    monkeypatch.setattr(base, "FULL_BYTES", 1 << 62)
    for _ in range(2):
        await disk.look()
    assert disk.is_full
    monkeypatch.undo()
    disk.free = 0
    for _ in range(2):
        await disk.look()
    assert [record.message.partition(str(tmp_path))[2][:9] for record in caplog.records] == [
        " is full ",
        " has room",
    ]


class SometimesAway(MemoryStore):
    """It is away at the first look."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    async def peers(self) -> Sight | None:
        self.looks += 1
        if self.looks == 1:
            raise StoreUnavailable("away")
        return await super().peers()


async def test_a_full_leader_hands_over_once_another_one_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "LOOK_SECONDS", 0.0)
    disk, peers, store = Disk(tmp_path), Peers(url="http://own", version="1"), SometimesAway()
    disk.free = 0
    await store.open()
    full = HandOver(disk, peers)
    store.plant_sight(Sight(now=NOW, peers=(follower(ROOM_BYTES - 1, NOW),), may_lead=False))
    watch = asyncio.create_task(full.watch(store))
    await eventually(lambda: store.looks >= 3)
    assert not full.is_due.is_set()
    # The leader before this one, which is dead, has such a row too.
    store.plant_sight(Sight(now=NOW, peers=(follower(ROOM_BYTES, NOW),), may_lead=False))
    looks = store.looks
    await eventually(lambda: store.looks >= looks + 2)
    assert not full.is_due.is_set()
    store.plant_sight(Sight(now=NOW, peers=(follower(ROOM_BYTES, NOW + 1.0),), may_lead=False))
    async with asyncio.timeout(LONG):
        await watch
    assert full.is_due.is_set()
    await store.close()


async def test_without_a_bucket_a_full_leader_keeps_the_uploads_and_logs_that_it_has(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as closing:
        peers = Peers(url="http://own", version="1")
        full = await serving._hand_over(Options(data=tmp_path, peers=peers), closing)
        assert peers.free == full.disk.free is not None
        # Nothing is looked for.
        await full.watch(MemoryStore())
        assert not full.is_due.is_set()


def follower(free: int, seen_at: float) -> Peer:
    return Peer(
        id="b",
        url="http://b",
        version="1",
        keys="k",
        started_at=0.0,
        seen_at=seen_at,
        leads=False,
        free=free,
    )
