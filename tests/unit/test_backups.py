"""A backup is whole, private and taken beside a working controller; a restore begins an epoch."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import lzma
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from controller import backups, identity
from controller.backups import BackupFailed
from controller.store.base import Boot, Snapshot
from controller.store.errors import LeaseHeld, StoreUnusable
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from fairlead.wire.shim import Fence
from tests.unit.store.samples import a_run, submission

NOW = 1_700_000_000.0


def life(data: Path) -> tuple[Boot, Snapshot]:
    return asyncio.run(_life(data))


async def _life(data: Path) -> tuple[Boot, Snapshot]:
    store = SqlStore(SqliteDatabase(data))
    boot = await store.open()
    snapshot = await store.load()
    await store.close()
    return boot, snapshot


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of one run, taken while the controller works; another run came later."""
    return asyncio.run(_backup(tmp_path))


async def _backup(tmp_path: Path) -> Path:
    store = SqlStore(SqliteDatabase(tmp_path / "data"))
    await store.open()
    (tmp_path / "data" / identity.ADMIN_TOKEN_NAME).write_text("token")
    await store.commit(submission(a_run("run1", submitted_at=1.0)))
    await asyncio.to_thread(backups.make, tmp_path / "data", tmp_path / "backup")
    await store.commit(submission(a_run("run2", submitted_at=2.0)))
    await store.close()
    return tmp_path / "backup"


def test_a_backup_has_one_moment_and_is_for_its_owner(backup: Path, tmp_path: Path) -> None:
    epoch = backups.restore(backup, tmp_path / "new", force=False, now=NOW)
    boot, snapshot = life(tmp_path / "new")

    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert snapshot.runs == (a_run("run1", submitted_at=1.0),)
    assert (boot.epoch, boot.restored_at) == (epoch, NOW)
    assert (tmp_path / "new" / identity.ADMIN_TOKEN_NAME).read_text() == "token"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data", "new"]


def test_every_restore_outranks_every_life_before_it(backup: Path, tmp_path: Path) -> None:
    first, _ = life(tmp_path / "data")
    epochs = [
        backups.restore(backup, tmp_path / "data", force=True, now=NOW + number)
        for number in range(2)
    ]

    assert (first.epoch, first.restored_at) == (1, None)
    assert first.epoch < epochs[0] < epochs[1]
    assert life(tmp_path / "data")[0].epoch == epochs[1]


def test_two_copies_of_one_backup_made_in_one_second_are_told_apart(
    backup: Path, tmp_path: Path
) -> None:
    one = backups.restore(backup, tmp_path / "one", force=False, now=NOW)
    other = backups.restore(backup, tmp_path / "other", force=False, now=NOW + 0.001)

    assert one < other
    assert Fence.parse(Fence(other, 1).header()) == Fence(other, 1)


def test_a_database_is_not_replaced_unless_forced(backup: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match="--force"):
        backups.restore(backup, tmp_path / "data", force=False, now=NOW)
    assert len(life(tmp_path / "data")[1].runs) == 2
    backups.restore(backup, tmp_path / "data", force=True, now=NOW)
    assert len(life(tmp_path / "data")[1].runs) == 1


def test_a_living_controllers_database_is_never_replaced(backup: Path, tmp_path: Path) -> None:
    living = SqliteDatabase(tmp_path / "data")
    living.enter("a controller")
    with pytest.raises(LeaseHeld, match="stop it first"):
        backups.restore(backup, tmp_path / "data", force=True, now=NOW)
    with pytest.raises(LeaseHeld, match="stop it first"):
        backups.mark_restored(SqliteDatabase(tmp_path / "data"), NOW)
    living.leave()
    assert len(life(tmp_path / "data")[1].runs) == 2


def test_a_database_that_was_put_back_otherwise_can_be_marked(backup: Path, tmp_path: Path) -> None:
    epoch = backups.mark_restored(SqliteDatabase(tmp_path / "data"), NOW)
    boot, snapshot = life(tmp_path / "data")

    assert (boot.epoch, boot.restored_at, len(snapshot.runs)) == (epoch, NOW, 2)


def test_a_file_that_is_no_backup_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello" * 500)
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "text", "text")
    for name in ("text", "other.tar"):
        with pytest.raises(BackupFailed, match="is not a controller's backup"):
            backups.restore(tmp_path / name, tmp_path / "data", force=False, now=NOW)
    with pytest.raises(BackupFailed, match="No such file"):
        backups.restore(tmp_path / "none", tmp_path / "data", force=True, now=NOW)
    with pytest.raises(BackupFailed, match="no controller's database"):
        backups.make(tmp_path, tmp_path / "backup")


DATABASE_PAGE = 4096


def without_sums(backup: Path) -> Path:
    """As backups of earlier versions are."""
    older = backup.with_name("older")
    with tarfile.open(backup) as source, tarfile.open(older, "w") as target:
        for member in source:
            if member.name != "SHA256SUMS":
                target.addfile(member, source.extractfile(member))
    return older


def damaged(backup: Path, *, at: int) -> Path:
    """One of its bytes is another one."""
    content = bytearray(backup.read_bytes())
    content[at] ^= 0x55
    result = backup.with_name("damaged")
    result.write_bytes(content)
    return result


def database_in(backup: Path) -> int:
    """Where in the file the database begins."""
    with tarfile.open(backup) as packed:
        return packed.getmember("controller.db").offset_data


def test_a_backup_of_an_earlier_version_is_restored(backup: Path, tmp_path: Path) -> None:
    backups.restore(without_sums(backup), tmp_path / "new", force=False, now=NOW)
    assert len(life(tmp_path / "new")[1].runs) == 1


def test_one_wrong_byte_is_found_and_the_database_that_is_there_stays(
    backup: Path, tmp_path: Path
) -> None:
    wrong = damaged(backup, at=database_in(backup) + 7 * DATABASE_PAGE - 3)
    with pytest.raises(BackupFailed, match=r"damaged: its controller\.db is not what was backed"):
        backups.restore(wrong, tmp_path / "data", force=True, now=NOW)
    assert len(life(tmp_path / "data")[1].runs) == 2


def test_a_database_that_cannot_be_read_is_found_without_sums_too(
    backup: Path, tmp_path: Path
) -> None:
    older = without_sums(backup)
    for at in (3, 100):
        wrong = damaged(older, at=database_in(older) + at)
        with pytest.raises(BackupFailed, match="damaged: its database cannot be read"):
            backups.restore(wrong, tmp_path / "data", force=True, now=NOW)
    assert len(life(tmp_path / "data")[1].runs) == 2


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_backup_that_is_cut_off_is_refused_and_a_compressed_one_taken(
    backup: Path, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    content = compress(backup.read_bytes())
    (tmp_path / "cut").write_bytes(content[: len(content) // 2])
    (tmp_path / "whole").write_bytes(content)
    with pytest.raises(BackupFailed, match="is not a controller's backup, or not all of one"):
        backups.restore(tmp_path / "cut", tmp_path / "new", force=False, now=NOW)
    backups.restore(tmp_path / "whole", tmp_path / "new", force=False, now=NOW)
    assert len(life(tmp_path / "new")[1].runs) == 1


def test_a_link_in_a_backup_is_not_followed(tmp_path: Path) -> None:
    link = tarfile.TarInfo("controller.db")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "backup", "w") as archive:
        archive.addfile(link)
    with pytest.raises(BackupFailed, match="is not a controller's backup"):
        backups.restore(tmp_path / "backup", tmp_path / "new", force=False, now=NOW)


def test_a_file_that_is_no_database_cannot_be_marked(tmp_path: Path) -> None:
    (tmp_path / "controller.db").write_bytes(b"hello" * 500)
    with pytest.raises(StoreUnusable, match=r"/controller\.db is no database"):
        backups.mark_restored(SqliteDatabase(tmp_path), NOW)


def test_a_backup_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "controller.db").write_text("x")
    (tmp_path / "backup").write_text("precious")
    with pytest.raises(BackupFailed, match="exists already"):
        backups.make(tmp_path, tmp_path / "backup")
    assert (tmp_path / "backup").read_text() == "precious"
