"""Records hold what the shim must still know after a crash.

There are three kinds, each in its own folder: tasks, allocations and the fences of runs. A record
is on disk before the side effect that it announces. No record ever holds a secret. A file is
written next to its place, synced and renamed over it, and the folder is synced; so a reader finds
the old content or the new, never a mix. A checksum detects a damaged or swapped file: it is
reported, never trusted, and never stops the shim.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from common.files.durable import sync_folder, write_durably, write_quickly
from common.threads import to_the_end
from fairlead.wire.decoders import decoder_of
from fairlead.wire.errors import Refused
from fairlead.wire.node import AllocationInfo
from fairlead.wire.shim import Fence, TaskInfo, TaskRequest

_MAGIC = b"fairlead1 "


class DamagedFile(ValueError):
    """The content is not what was written."""


def write_file(path: Path, body: bytes) -> None:
    """Write the file. Blocks for two fsyncs. Raises OSError (disk full, read-only)."""
    write_durably(path, _MAGIC + _checksum(path, body) + b"\n" + body, 0o600)


def write_note(path: Path, body: bytes) -> None:
    """Write the file without fsync: for what has no meaning after a power cut, when it may be
    damaged. Blocking. Raises OSError."""
    write_quickly(path, _MAGIC + _checksum(path, body) + b"\n" + body, 0o600)


def read_file(path: Path) -> bytes:
    """Read the file. Raises DamagedFile, and FileNotFoundError when there is none."""
    head, newline, body = path.read_bytes().partition(b"\n")
    if not newline or head != _MAGIC + _checksum(path, body):
        raise DamagedFile(f"{path} is damaged: its checksum does not match")
    return body


def _checksum(path: Path, body: bytes) -> bytes:
    """Return the checksum. It includes the name: a renamed or copied file is another record's."""
    return hashlib.sha256(path.name.encode() + b"\0" + body).hexdigest().encode()


def remove_file(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        # Until then, a power cut may bring the file back (fsync(2)).
        sync_folder(path.parent)


T = TypeVar("T")
log = logging.getLogger(__name__)


class StopRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The order to end a task by `kill_at` (Unix seconds; 0: at once) at the latest; the first
    reason stays."""

    kill_at: float
    reason: str | None = None
    message: str | None = None


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one task that must outlive the shim's process.

    `body_hash` is that of the original request (without its secret); `request` is that request
    without `registry_auth`. `had_credentials`: a pull needs them again.
    """

    request: TaskRequest
    body_hash: str
    had_credentials: bool
    info: TaskInfo
    fence: Fence
    stop: StopRecord | None = None
    boot_id: str | None = None
    """The kernel's boot id when the task was accepted."""


class FenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The newest fence and incarnation of a run, and the ids of tasks that must not be revived.

    `forgotten` maps a task id to the time (Unix seconds) until which a delayed PUT is refused.
    `expires_at` is set when the run's last task is gone.
    """

    run_id: str
    fence: Fence
    incarnation: int
    forgotten: dict[str, float] = {}
    expires_at: float | None = None


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The data folder's record. `life` counts the starts of the shim."""

    install_id: str
    life: int
    draining: bool = False
    drain_reason: str | None = None


class Loaded(msgspec.Struct, Generic[T]):
    records: dict[str, T]
    damaged: tuple[str, ...]
    """Keys whose record could not be trusted; their files are set aside."""


class Records(Protocol[T]):
    """Durable values by key.

    `save` and `delete` return once the change is on disk, for each key in the order of the calls;
    both may raise OSError.
    """

    async def save(self, key: str, record: T) -> None: ...

    async def delete(self, key: str) -> None: ...

    async def load(self) -> Loaded[T]: ...


async def all_stored(*writes: Awaitable[None]) -> None:
    """Wait for all writes. If one fails, raise Refused (507): nothing was accepted."""
    results = await asyncio.gather(*writes, return_exceptions=True)
    for result in results:
        if isinstance(result, OSError):
            log.error("cannot write a record: %s", result)
            raise Refused(507, "storage", f"the node cannot write its records: {result.strerror}")
        if isinstance(result, BaseException):
            raise result


def without_secrets(request: TaskRequest) -> TaskRequest:
    return msgspec.structs.replace(request, registry_auth=None)


def hash_of(request: TaskRequest) -> str:
    return hashlib.sha256(msgspec.json.encode(without_secrets(request))).hexdigest()


def is_same_body(record: TaskRecord, request: TaskRequest) -> bool:
    """Return whether the record has the same body. A shim of another version, with more fields, may
    have made its hash."""
    return hash_of(request) == record.body_hash or without_secrets(request) == record.request


class _Turn:
    """The lock of one key, and how many writes hold it or wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.writes = 0


class DiskRecords(Generic[T]):
    """One checksummed file for each key. Only `executor`'s threads touch the disk."""

    def __init__(self, folder: Path, kind: type[T], executor: Executor) -> None:
        self._folder = folder
        self._decoder = decoder_of(kind)
        self._executor = executor
        self._order: dict[str, _Turn] = {}

    async def save(self, key: str, record: T) -> None:
        body = msgspec.json.encode(record)
        async with self._turn(key):
            await self._in_thread(lambda: write_file(self._path(key), body))

    async def delete(self, key: str) -> None:
        async with self._turn(key):
            await self._in_thread(lambda: remove_file(self._path(key)))

    async def load(self) -> Loaded[T]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._load)

    @contextlib.asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        """Let the writes of a key go on in the order of the calls. A lock is kept as long as a
        write waits for it: with a second one a later write could overtake."""
        turn = self._order.setdefault(key, _Turn())
        turn.writes += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.writes -= 1
            if not turn.writes:
                del self._order[key]

    async def _in_thread(self, write: Callable[[], None]) -> None:
        # The next write of this key must not overtake this one.
        await to_the_end(asyncio.get_running_loop().run_in_executor(self._executor, write))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _load(self) -> Loaded[T]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found: dict[str, T] = {}
        damaged: list[str] = []
        for path in sorted(self._folder.iterdir()):
            # A write that a crash cut short: it is renamed only when it is whole.
            if path.name.startswith(".") and path.is_file():
                path.unlink()
            if path.suffix != ".json" or path.name.startswith("."):
                continue
            try:
                found[path.stem] = self._decoder.decode(_read_regular(path))
            except (DamagedFile, msgspec.DecodeError, OSError):
                damaged.append(path.stem)
                _set_aside(path)
        return Loaded(found, tuple(damaged))


def _read_regular(path: Path) -> bytes:
    """Read a regular file; anything else could make its reader wait forever."""
    if path.is_symlink() or not path.is_file():
        raise DamagedFile(f"{path} is no regular file")
    return read_file(path)


def _set_aside(path: Path) -> None:
    """Keep the file for an investigation; it replaces an earlier one of that name."""
    with contextlib.suppress(OSError):
        os.rename(path, path.with_name(f"{path.stem}.{time.time_ns()}.damaged"))


class TwinRecords(Generic[T]):
    """Each record in two places, for content that nothing else could restore. A missing or damaged
    copy is made again from the other."""

    def __init__(self, first: Records[T], second: Records[T]) -> None:
        self._both = (first, second)

    async def save(self, key: str, record: T) -> None:
        """Save both copies. Raises OSError when neither was written."""
        saves = (records.save(key, record) for records in self._both)
        results = await asyncio.gather(*saves, return_exceptions=True)
        wrong = [result for result in results if result is not None]
        if any(not isinstance(error, OSError) for error in wrong) or len(wrong) == len(results):
            raise wrong[0]

    async def delete(self, key: str) -> None:
        for records in self._both:
            await records.delete(key)

    async def load(self) -> Loaded[T]:
        first, second = [await records.load() for records in self._both]
        known = second.records | first.records
        for records, loaded in zip(self._both, (first, second), strict=True):
            for key in known.keys() - loaded.records.keys():
                # One copy is enough to go on; the next start tries again.
                with contextlib.suppress(OSError):
                    await records.save(key, known[key])
        damaged = set(first.damaged + second.damaged) - known.keys()
        return Loaded(known, tuple(sorted(damaged)))


class RecordBooks(msgspec.Struct, frozen=True):
    """The record folders of a shim."""

    tasks: Records[TaskRecord]
    allocations: Records[AllocationInfo]
    fences: Records[FenceRecord]

    @classmethod
    def on_disk(cls, data: Path, executor: Executor) -> RecordBooks:
        folder = data / "records"
        return cls(
            DiskRecords(folder / "tasks", TaskRecord, executor),
            DiskRecords(folder / "allocations", AllocationInfo, executor),
            DiskRecords(folder / "fences", FenceRecord, executor),
        )
