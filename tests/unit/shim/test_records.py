"""Records outlive crashes; a damaged one never stops the shim."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.shim import Fence, RegistryAuth
from shim.state import records as records_module
from shim.state.records import DiskRecords, FenceRecord, Records, hash_of
from tests.doubles.records import FailingRecords, MemoryRecords
from tests.unit.shim.parts import request

RECORD = FenceRecord(run_id="r", fence=Fence(1, 2), incarnation=3)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture(params=["disk", "memory"])
def records(
    request: pytest.FixtureRequest, tmp_path: Path, executor: ThreadPoolExecutor
) -> Records[FenceRecord]:
    if request.param == "memory":
        return MemoryRecords()
    book = DiskRecords(tmp_path / "fences", FenceRecord, executor)
    (tmp_path / "fences").mkdir()
    return book


async def test_a_saved_record_is_loaded(records: Records[FenceRecord]) -> None:
    await records.save("r", RECORD)
    assert (await records.load()).records == {"r": RECORD}


async def test_a_deleted_record_is_gone_and_may_be_deleted_again(
    records: Records[FenceRecord],
) -> None:
    await records.save("r", RECORD)
    await records.delete("r")
    await records.delete("r")
    assert (await records.load()).records == {}


@pytest.mark.parametrize(
    "damage",
    [b"", b"nonsense", b"fairlead1 00\n{}", b"\xff" * 100],
    ids=["empty", "text", "checksum", "binary"],
)
async def test_a_damaged_record_is_reported_and_set_aside(
    tmp_path: Path, executor: ThreadPoolExecutor, damage: bytes
) -> None:
    book = DiskRecords(tmp_path, FenceRecord, executor)
    await book.save("good", RECORD)
    (tmp_path / "bad.json").write_bytes(damage)
    loaded = await book.load()
    assert (loaded.records, loaded.damaged) == ({"good": RECORD}, ("bad",))
    assert (await book.load()).damaged == ()


async def test_a_half_written_file_is_no_record(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    book = DiskRecords(tmp_path, FenceRecord, executor)
    (tmp_path / ".r.json.new").write_bytes(b"fairlead1 ")
    loaded = await book.load()
    assert (loaded.records, loaded.damaged) == ({}, ())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_record_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    book = DiskRecords(tmp_path, FenceRecord, executor)
    await book.save("r", RECORD)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match=os.strerror(code)):
            await book.save("r", msgspec.structs.replace(RECORD, incarnation=4))
    loaded = await book.load()
    assert (loaded.records, loaded.damaged) == ({"r": RECORD}, ())


async def test_no_write_overtakes_one_that_waited_for_a_removal(
    tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fences").mkdir()
    book = DiskRecords(tmp_path / "fences", FenceRecord, executor)
    begun, may_go = threading.Event(), threading.Event()
    write_file = records_module.write_file

    def slow_at_first(path: Path, body: bytes) -> None:
        if not begun.is_set():
            begun.set()
            may_go.wait()
        write_file(path, body)

    monkeypatch.setattr(records_module, "write_file", slow_at_first)
    removal = asyncio.create_task(book.delete("r"))
    first = asyncio.create_task(book.save("r", RECORD))
    await removal
    await asyncio.to_thread(begun.wait)
    later = msgspec.structs.replace(RECORD, incarnation=4)
    second = asyncio.create_task(book.save("r", later))
    await asyncio.wait({second}, timeout=0.05)
    may_go.set()
    await asyncio.gather(first, second)
    assert (await book.load()).records == {"r": later}


async def test_a_full_disk_refuses_to_keep_anything() -> None:
    book: FailingRecords[FenceRecord] = FailingRecords()
    with pytest.raises(OSError, match="No space left"):
        await book.save("r", RECORD)


def test_credentials_do_not_change_a_bodys_hash() -> None:
    secret = request(registry_auth=RegistryAuth(username="u", password="p"))
    assert hash_of(secret) == hash_of(request())
    assert hash_of(request(image="other")) != hash_of(request())
