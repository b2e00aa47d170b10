"""The lease that one controller holds, and the folder lock that proves that a former holder is
dead.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import sqlalchemy as sa

from controller.store.errors import LeaseHeld, LeaseTaken
from controller.store.schema import leases
from fairlead.wire.decoders import decoder_of

LEASE_NAME = "controller"
LEASE_SECONDS = 30.0


class Lease:
    """The right of one controller to write to the database."""

    def __init__(
        self, *, holder: str, seconds: float, now: Callable[[sa.Connection], float]
    ) -> None:
        self.holder = holder
        self.token: int | None = None
        self._seconds = seconds
        self._now = now

    def take(
        self, connection: sa.Connection, *, holder_is_dead: Callable[[sa.Connection, int], bool]
    ) -> int:
        """Take the lease and return its token.

        Raises LeaseHeld unless the lease is free or has run out, or `holder_is_dead` is true for
        the token of its holder.
        """
        row = connection.execute(
            # SQLAlchemy leaves FOR UPDATE out for SQLite, where BEGIN IMMEDIATE does the same.
            sa.select(leases).where(leases.c.name == LEASE_NAME).with_for_update()
        ).one_or_none()
        # Read after the wait for the row, in which the lease may have run out, or ours begun late.
        now = self._now(connection)
        token = 1 if row is None else row.token + 1
        content = {
            "holder": self.holder,
            "token": token,
            "expires_at": now + self._seconds,
        }
        if row is None:
            connection.execute(leases.insert().values(name=LEASE_NAME, **content))
        else:
            if row.expires_at > now and not holder_is_dead(connection, row.token):
                raise LeaseHeld(
                    f"another controller ({row.holder}) works on this database: stop it first, "
                    "or start all controllers of a PostgreSQL database with --url, so that others "
                    "wait for their turn; if it is dead, its lease runs out in "
                    f"{math.ceil(row.expires_at - now)} s"
                )
            connection.execute(leases.update().where(leases.c.name == LEASE_NAME).values(**content))
        self.token = token
        return token

    def forget(self) -> None:
        """Forget the token: the transaction that took the lease was not committed."""
        self.token = None

    def verify(self, connection: sa.Connection) -> None:
        """Raise LeaseTaken if another controller has the lease. Locks the row until the transaction
        ends."""
        current = connection.execute(
            # Locked: no successor may take the lease between this check and the commit.
            sa.select(leases.c.token).where(leases.c.name == LEASE_NAME).with_for_update()
        ).scalar_one_or_none()
        if current != self.token:
            raise LeaseTaken("another controller has taken over; this one leads no more")

    def renew(self, connection: sa.Connection) -> None:
        connection.execute(self._mine().values(expires_at=self._now(connection) + self._seconds))

    def give_back(self, connection: sa.Connection) -> None:
        """Let the lease run out now; does nothing if another controller has it."""
        connection.execute(self._mine().values(expires_at=self._now(connection)))

    def _mine(self) -> sa.Update:
        return leases.update().where(leases.c.name == LEASE_NAME, leases.c.token == self.token)


LOCK_NAME = "controller.lock"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a controller. `token` is that of the lease in the database with this
    installation's id."""

    installation_id: str
    token: int


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    holder: str
    boot_id: str | None = None
    life: Life | None = None


class FolderLock:
    """An OS lock on the data folder, with a note about its last holder."""

    def __init__(self, folder: Path, boot_id_file: Path = BOOT_ID) -> None:
        self._file = folder / LOCK_NAME
        self._boot_id_file = boot_id_file
        self._fd: int | None = None
        self._holder = ""
        self.past_life: Life | None = None
        """The last holder's life, if it was on this machine since the machine started: that holder
        is dead."""

    def take(self, holder: str) -> str | None:
        """Take the lock; return None, or the holder that has it. Raises OSError."""
        # A lock belongs to the open file, not to the process: a child that inherited it would hold
        # it after the controller's death (flock(2)).
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _read(fd)
            os.close(fd)
            # The holder writes its name after it took the lock, so the file may still be empty.
            return other.holder or "unknown"
        except OSError:
            os.close(fd)
            raise
        before = _read(fd)
        # The folder may be a copy from another machine, whose controller may live.
        if before.boot_id is not None and before.boot_id == self._boot_id():
            self.past_life = before.life
        self._fd, self._holder = fd, holder
        # It keeps the past life: a crash before ours is committed must not lose the proof.
        self._write(msgspec.structs.replace(before, holder=holder))
        return None

    def note(self, life: Life) -> None:
        """Record that this life has begun and is committed; does nothing without the lock."""
        self._write(_Note(holder=self._holder, boot_id=self._boot_id(), life=life))

    def leave(self) -> None:
        """Release the lock; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, note: _Note) -> None:
        if self._fd is not None:
            # A crash between the two leaves an empty note, which proves nothing.
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(note), 0)

    def _boot_id(self) -> str | None:
        # Without it, a past holder is not proven dead, and its lease has to run out.
        try:
            return self._boot_id_file.read_text().strip() or None
        except OSError:
            # Other systems than Linux, and some sandboxes, have no such file.
            return None


def _read(fd: int) -> _Note:
    """Return the note; one that is damaged, or of an earlier version, proves nothing."""
    try:
        return decoder_of(_Note).decode(os.pread(fd, 4096, 0))
    except msgspec.MsgspecError:
        return _Note(holder=os.pread(fd, 256, 0).decode("utf-8", "replace").strip())
