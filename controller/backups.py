"""Backups copy what a controller cannot make again, and restore it.

A backup is one tar file, readable only by its owner: the database as it was at one moment, and the
key and token files next to it. Logs and uploads are not in it. A restore raises the epoch, so that
nodes obey the restored controller and not any life before it.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import sqlite3
import tarfile
import tempfile
import zlib
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from controller.identity import ADMIN_TOKEN_NAME, IDENTITY_NAME, INSTALLATION_NAME, write_private
from controller.store import schema
from controller.store.lease import LEASE_SECONDS, Lease
from controller.store.sql import Database
from controller.store.sql_errors import as_store_error
from controller.store.sqlite import DATABASE_NAME, SqliteDatabase

_BESIDE = (IDENTITY_NAME, ADMIN_TOKEN_NAME)
_SUMS = "SHA256SUMS"
"""The checksums as `sha256sum --check` reads them; backups of earlier versions have none."""
_CUT_OFF_OR_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
"""The errors of unpacking, also of an archive that was compressed later."""
_HOLDER = "a restore"


class BackupFailed(Exception):
    """The backup or restore failed; the message says what the operator must change."""


def make(data: Path, target: Path) -> None:
    """Copy the data folder's state to the new file `target`; a controller may be running.

    Raises BackupFailed.
    """
    if _size(data / DATABASE_NAME) == 0:
        raise BackupFailed(f"there is no controller's database in {data}")
    if target.exists():
        raise BackupFailed(f"{target} exists already: give another name, or remove it first")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".backup-") as folder:
            copy = Path(folder) / DATABASE_NAME
            _copy_database(data / DATABASE_NAME, copy)
            archive = Path(folder) / "archive"
            write_private(archive, _archive(data, copy))
            # The last step: a backup that was cut short has no name that a restore would take.
            archive.rename(target)
    except OSError as error:
        raise BackupFailed(f"cannot write {target}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise BackupFailed(f"cannot copy the database: {error}") from error


def restore(archive: Path, data: Path, *, force: bool, now: float) -> int:
    """Restore a backup into a data folder that no controller uses; return the new epoch.

    `force`: replace a database that is there. Raises BackupFailed, StoreError.
    """
    if _size(data / DATABASE_NAME) > 0 and not force:
        raise BackupFailed(
            f"{data} has a controller's database already: give an empty folder, or --force to "
            f"replace it"
        )
    target = SqliteDatabase(data)
    target.enter(_HOLDER)
    try:
        # In the data folder: a rename does not leave its file system (rename(2)).
        with tempfile.TemporaryDirectory(dir=data, prefix=".restore-") as folder:
            _unpack(archive, Path(folder))
            _check(archive, Path(folder) / DATABASE_NAME)
            epoch = mark_restored(SqliteDatabase(Path(folder)), now)
            _move(Path(folder), data)
        return epoch
    except OSError as error:
        raise BackupFailed(f"cannot restore {archive}: {error.strerror or error}") from error
    finally:
        target.leave()


def mark_restored(database: Database, now: float) -> int:
    """Begin a new epoch for a database that was restored by any means; return the epoch.

    The epoch is the present time, so it is greater than that of every other restore of the same
    backup. Raises LeaseHeld while a controller uses the database, BackupFailed, StoreError.
    """
    database.enter(_HOLDER)
    try:
        with database.writer().begin() as connection:
            database.guard(connection)
            if schema.version(connection) is None:
                raise BackupFailed("there is no controller's database to mark as restored")
            lease = Lease(
                holder=_HOLDER,
                seconds=LEASE_SECONDS,
                now=lambda used: database.now(used, lambda: now),
            )
            lease.take(connection, holder_is_dead=database.holder_is_dead)
            schema.upgrade(connection)
            epoch = schema.begin_epoch(connection, now)
            # The backup holds the lease of the controller that was running: nobody would lead
            # before it ran out.
            lease.give_back(connection)
        return epoch
    except sa.exc.DBAPIError as error:
        raise as_store_error(error) from error
    finally:
        database.leave()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _copy_database(source: Path, target: Path) -> None:
    """Copy the database as one moment; writers go on, and what they write meanwhile is not in the
    copy."""
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        # In one step: SQLite begins a copy again when another process writes between two steps.
        live.backup(copy, pages=-1)
        # The copy is in WAL mode as its source is, and alone it must not need a -wal file.
        copy.execute("PRAGMA journal_mode=DELETE")


def _archive(data: Path, database: Path) -> bytes:
    files = {DATABASE_NAME: database.read_bytes()}
    for name in _BESIDE:
        if (data / name).exists():
            files[name] = (data / name).read_bytes()
    sums = "".join(f"{_digest(content)}  {name}\n" for name, content in files.items())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in {**files, _SUMS: sums.encode()}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _unpack(archive: Path, folder: Path) -> None:
    """Write the files that a backup has, and ignore all others."""
    files = _contents(archive)
    if DATABASE_NAME not in files:
        raise BackupFailed(f"{archive} is not a controller's backup")
    sums = files.pop(_SUMS, b"").decode(errors="replace")
    for line in sums.splitlines():
        digest, _, name = line.partition("  ")
        if _digest(files.get(name, b"")) != digest:
            raise BackupFailed(f"{archive} is damaged: its {name} is not what was backed up")
    for name, content in files.items():
        write_private(folder / name, content)


def _contents(archive: Path) -> dict[str, bytes]:
    files = {}
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                if member.name in (DATABASE_NAME, *_BESIDE, _SUMS) and member.isfile():
                    content = packed.extractfile(member)
                    files[member.name] = content.read() if content is not None else b""
    # tarfile, gzip and zlib each have errors of their own for a file that ends early.
    except _CUT_OFF_OR_DAMAGED:
        raise BackupFailed(f"{archive} is not a controller's backup, or not all of one") from None
    return files


def _check(archive: Path, database: Path) -> None:
    """Check the database: a controller that met damage later would stop in the middle of its
    work."""
    try:
        with closing(sqlite3.connect(database)) as connection:
            # integrity_check also compares tables with their indexes, in O(N log N) time (SQLite,
            # PRAGMA quick_check).
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            connection.execute("SELECT version_num FROM alembic_version")
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise BackupFailed(f"{archive} is damaged: its database cannot be read ({found})")


def _move(folder: Path, data: Path) -> None:
    """Move the files, the database last: a restore that was cut off before that has not
    happened."""
    # SQLite would play the write-ahead log of the old database into the restored one.
    for suffix in ("-wal", "-shm"):
        (data / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)
    # The folder belongs to the restored installation from now on; its next start says so.
    (data / INSTALLATION_NAME).unlink(missing_ok=True)
    for name in (*_BESIDE, DATABASE_NAME):
        if (folder / name).exists():
            (folder / name).replace(data / name)
