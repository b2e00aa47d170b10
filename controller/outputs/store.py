"""The outputs of attempts: one tar each in the data folder, with a list of what it holds.

A tar arrives next to its place and is checked before it is moved there, so what is listed is whole.
Names in it lead nowhere: a node is trusted with its jobs, not with this machine. A large tar may
move on to a bucket; the list stays here and says where the tar is. With a bucket of the
installation's own, each tar and each list is put there before they count as collected; large tars
may go to another bucket even then, and their lists name it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from common.files import shared_folders
from common.files.durable import sync_folder, write_durably
from controller.aio import Flag
from controller.outputs import bucket
from controller.outputs.bucket import Bucket, BucketError, BucketObject
from controller.outputs.bucket_threads import BucketThreads
from controller.outputs.own_bucket import OwnBucket
from fairlead.wire.decoders import decoder_of
from fairlead.wire.sizes import OutputsAbout

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
DEFAULT_LIMIT = 1 << 30
"""Bytes that are kept of one attempt, unless the operator sets another limit."""
_ARCHIVE, _ARRIVING, _ABOUT = "outputs.tar", "arriving.tar", "about.json"
_OWN = "outputs/"
"""The folder in the installation's own bucket."""
_PRIVATE = 0o600
_MAX_OVERHEAD = 1 << 29
"""Bytes of headers and padding in a tar of as many files as a node sends."""
_THREADS = 2
_BUCKET_THREADS = 8
_STILL_READ_SECONDS = 60.0
"""How long a tar stays here after it came to its bucket: a download that was told of it may be
about to open it."""


class OutputsDamaged(Exception):
    """The data of a node are no tar of outputs; the message says why."""


class OutputFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int


class StoredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The stored outputs of one attempt. `length`: bytes of the tar. `place` None: it is here.
    `moving_to`: an upload began, so an object may be there."""

    files: tuple[OutputFile, ...]
    left_out: int
    left_out_size: int
    length: int
    place: BucketObject | None = None
    moving_to: BucketObject | None = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class WaitingOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs that are to move to the bucket and are not there; `size` in bytes."""

    count: int = 0
    size: int = 0


class LargeOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Tars of more than `above` bytes go to this bucket and not to the installation's own."""

    bucket: Bucket
    above: int


class OutputsWriter:
    """Writes one attempt's tar; `at` is where it goes on. Every method may raise OSError."""

    def __init__(self, store: OutputStore, folder: Path, file: BinaryIO, at: int) -> None:
        self._store = store
        self._folder = folder
        self._file = file
        self.at = at

    async def append(self, data: bytes) -> None:
        await self._store.in_thread(self._file.write, data)
        self.at += len(data)

    async def restart(self) -> None:
        """Drop what came: it begins again at the first byte."""
        await self._store.in_thread(self._file.truncate, 0)
        self.at = 0

    async def complete(self, about: OutputsAbout) -> StoredOutputs:
        """Check what came, and keep it durably. Raises OutputsDamaged: then it begins again."""
        stored = await self._store.in_thread(_complete, self._folder, self._file, about)
        self._store.came.set()
        return stored

    async def close(self) -> None:
        await self._store.in_thread(self._file.close)


class OutputStore:
    """The outputs of all attempts below one folder. Every method may raise OSError.

    `verify_large` raises BucketError while nothing may be written to a bucket that is not `own`.
    """

    def __init__(
        self,
        folder: Path,
        limit: int = DEFAULT_LIMIT,
        own: OwnBucket | None = None,
        large: LargeOutputs | None = None,
        verify_large: Callable[[], None] = lambda: None,
    ) -> None:
        self.limit = limit
        self.came = Flag()
        """Set when outputs were stored."""
        self.waiting = WaitingOutputs()
        self._folder = folder
        self._own = own
        self._large = large
        self._verify_large = verify_large
        self._moving = asyncio.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="outputs")
        self._bucket_threads = BucketThreads(_BUCKET_THREADS, "outputs-bucket")

    def close(self) -> None:
        self._bucket_threads.close()
        self._pool.shutdown(wait=True)

    def place_in(self, target: Bucket, attempt_id: str, length: int) -> BucketObject:
        """Return where a tar of this length goes; `target`: the bucket where there is no own
        one."""
        if self._own is None:
            return target.object(f"{attempt_id}/{_ARCHIVE}")
        if self._large is not None and length > self._large.above:
            return self._large.bucket.object(f"{attempt_id}/{_ARCHIVE}")
        return self._own.place(_own_key(attempt_id, _ARCHIVE))

    async def check(self, target: Bucket) -> None:
        """Try whether the buckets for outputs can be used. Raises BucketError."""
        if self._own is not None:
            await self._own.ask(self._own.verify)
        if self._own is None or self._large is not None:
            await self._bucket_threads.ask(self._verify_large)
            await self._bucket_threads.ask(bucket.check, target)

    async def writer(self, attempt_id: str) -> OutputsWriter:
        """Return a writer that goes on where the last one stopped; there is one at a time."""
        folder = self._folder_of(attempt_id)
        file, at = await self.in_thread(_open, folder)
        return OutputsWriter(self, folder, file, at)

    async def find(self, attempt_id: str) -> StoredOutputs | None:
        """Return what is stored; None when nothing is, or no more. Raises BucketError."""
        folder = self._folder_of(attempt_id)
        stored = await self.in_thread(_read_about, folder)
        if stored is None and self._own is not None:
            data = await self._own.ask(self._own.get, _own_key(attempt_id, _ABOUT))
            return None if data is None else _decoded(data, _own_key(attempt_id, _ABOUT))
        return stored

    async def secure(self, attempt_id: str, stored: StoredOutputs) -> None:
        """Make sure that what was collected outlives this disk, if there is a bucket for that.

        Raises BucketError.
        """
        if self._own is not None and stored.place is None:
            await self.move(attempt_id, self.place_in(self._own.bucket, attempt_id, stored.length))

    def read(self, place: BucketObject, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a tar in a bucket from `start` up to `end`, which is not among them.

        Raises BucketError.
        """
        return bucket.read(place, start, end, self._bucket_threads.ask)

    def archive(self, attempt_id: str) -> Path:
        return self._folder_of(attempt_id) / _ARCHIVE

    def fits(self, about: OutputsAbout) -> bool:
        return about.length <= self.limit + _MAX_OVERHEAD

    async def larger_than(self, size: int) -> dict[str, int]:
        """Return the attempts whose tar is here alone and larger than that, each with its bytes."""
        return await self.in_thread(_larger_than, self._folder, size)

    async def move(self, attempt_id: str, place: BucketObject) -> None:
        """Copy an attempt's tar to the bucket, then say in the list that it is there.

        The copy here is removed by a later `drop_moved`. Repeatable. Raises BucketError.
        """
        async with self._moving:
            folder = self._folder_of(attempt_id)
            stored = await self.in_thread(_read_about, folder)
            if stored is not None and stored.place is None:
                # The operator may have named another bucket since the upload that a crash cut off.
                if stored.moving_to not in (None, place):
                    await self._leave(stored.moving_to)
                # Before the upload: a crash in it may leave an object that must go some day.
                await self.in_thread(_note_move, folder, replace(stored, moving_to=place))
                moved = replace(stored, moving_to=None, place=place)
                await self._put(attempt_id, folder / _ARCHIVE, moved)
                await self.in_thread(_note_move, folder, moved)

    async def _put(self, attempt_id: str, archive: Path, moved: StoredOutputs) -> None:
        """Raises BucketError."""
        assert moved.place is not None
        if self._own is None:
            await self._upload(archive, moved.length, moved.place)
            return
        key = _own_key(attempt_id, _ARCHIVE)
        if moved.place == self._own.place(key):
            await self._own.put_file(archive, moved.length, key)
        else:
            await self._upload(archive, moved.length, moved.place)
        # The list comes last: what it names is there.
        about = msgspec.json.encode(moved)
        await self._own.ask(self._own.put, _own_key(attempt_id, _ABOUT), about)

    async def _upload(self, archive: Path, length: int, place: BucketObject) -> None:
        """Raises BucketError."""
        await self._bucket_threads.ask(self._verify_large)
        await bucket.upload(archive, length, place)

    async def _leave(self, place: BucketObject) -> None:
        """Remove what an upload to another bucket may have left."""
        error = await self._why_not_deleted(place)
        if error is not None:
            log.warning("an object of an interrupted upload may stay for good: %s", error)

    async def drop_moved(self) -> None:
        """Remove the tars that have been in a bucket for a minute."""
        async with self._moving:
            before = time.time() - _STILL_READ_SECONDS
            await self.in_thread(_drop_moved, self._folder, before)

    async def sweep(self, needed: Collection[str], written_before: float) -> int:
        """Remove the outputs of attempts that are not `needed` and were stored before then (Unix
        time). Return how many. What a bucket does not remove is tried again at the next sweep."""
        removed = left = 0
        trouble: BucketError | None = None
        async with self._moving:
            for folder in await self.in_thread(_expired, self._folder, needed, written_before):
                stored = await self.in_thread(_read_about, folder)
                place = None if stored is None else stored.place or stored.moving_to
                if place is not None:
                    if trouble is None:  # a bucket that is away is asked once in a sweep
                        trouble = await self._why_not_removed(folder.name, place)
                    if trouble is not None:
                        left += 1
                        await self.in_thread(_keep_place_alone, folder)
                        continue
                removed += await self.in_thread(_remove, folder)
            if self._own is not None:
                try:
                    await self._own.ask(_sweep_own, self._own, needed, written_before)
                # The first one tells enough: the others fail for the same reason.
                except BucketError as error:
                    trouble = trouble or error
        if trouble is not None and left:
            log.warning("%d expired outputs stay in their bucket for now: %s", left, trouble)
        elif trouble is not None:
            log.warning("the bucket can't be looked through for expired outputs: %s", trouble)
        return removed

    async def _why_not_removed(self, attempt_id: str, place: BucketObject) -> BucketError | None:
        """Remove a tar from its bucket, with the list that is there if the bucket is our own."""
        own = self._own
        if own is not None:
            try:
                # The list first: what it names is there.
                await own.ask(own.delete, _own_key(attempt_id, _ABOUT))
            except BucketError as error:
                return error
        return await self._why_not_deleted(place)

    async def _why_not_deleted(self, place: BucketObject) -> BucketError | None:
        try:
            await self._bucket_threads.ask(bucket.delete, place)
        except BucketError as error:
            return error
        return None

    async def in_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))

    def _folder_of(self, attempt_id: str) -> Path:
        return self._folder / attempt_id[:2] / attempt_id


def _open(folder: Path) -> tuple[BinaryIO, int]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(folder / _ARRIVING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    file = os.fdopen(fd, "r+b")
    return file, file.seek(0, os.SEEK_END)


def _complete(folder: Path, file: BinaryIO, about: OutputsAbout) -> StoredOutputs:
    try:
        file.flush()
        file.seek(0)
        if os.fstat(file.fileno()).st_size != about.length:
            raise OutputsDamaged("it has another length than was announced")
        files = tuple(_members(file))
    except (tarfile.TarError, OutputsDamaged) as error:
        # Another try would go on behind what is damaged.
        file.truncate(0)
        raise OutputsDamaged(str(error)) from None
    # Before the rename: a power cut could else keep the name and lose the bytes (fsync(2)).
    os.fsync(file.fileno())
    stored = StoredOutputs(
        files=files,
        left_out=about.left_out,
        left_out_size=about.left_out_size,
        length=about.length,
    )
    os.replace(folder / _ARRIVING, folder / _ARCHIVE)
    sync_folder(folder)
    # The list comes last: after a crash without it, the node sends the outputs again.
    _write_about(folder, stored)
    sync_folder(folder.parent)
    return stored


def _write_about(folder: Path, stored: StoredOutputs) -> None:
    write_durably(folder / _ABOUT, msgspec.json.encode(stored), _PRIVATE)


def _note_move(folder: Path, stored: StoredOutputs) -> None:
    """Write the list again. The folder's time stays: its outputs expire by that."""
    with _same_age(folder):
        _write_about(folder, stored)


@contextmanager
def _same_age(folder: Path) -> Iterator[None]:
    found = folder.stat()
    yield
    os.utime(folder, ns=(found.st_atime_ns, found.st_mtime_ns))


def _members(file: BinaryIO) -> Iterator[OutputFile]:
    # `r:`, not `r`: a compressed tar could unpack to any size.
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            # A device, a FIFO or a hard link would act on the machine on which a user unpacks it.
            if not (member.isreg() or member.isdir() or member.issym()):
                raise OutputsDamaged("it holds something that is no file, folder or link")
            if not parts or member.name.startswith("/") or ".." in parts or "\0" in member.name:
                raise OutputsDamaged("a name in it leads out of it")
            if member.issym() and _leads_out(member):
                raise OutputsDamaged("a link in it leads out of it")
            if member.isreg():
                yield OutputFile(name=member.name, size=member.size)


def _leads_out(link: tarfile.TarInfo) -> bool:
    """Return whether a link may lead out of the tar: it must go up first, and not too far."""
    steps = PurePosixPath(link.linkname).parts
    ups = next((at for at, step in enumerate(steps) if step != ".."), len(steps))
    depth = len(PurePosixPath(link.name).parts) - 1
    return link.linkname.startswith("/") or ups > depth or ".." in steps[ups:]


def _read_about(folder: Path) -> StoredOutputs | None:
    try:
        data = (folder / _ABOUT).read_bytes()
    except FileNotFoundError:
        return None
    return _decoded(data, folder / _ABOUT)


def _decoded(data: bytes, where: object) -> StoredOutputs | None:
    try:
        return decoder_of(StoredOutputs).decode(data)
    except msgspec.MsgspecError as error:
        log.error("%s is damaged (%s): its outputs count as removed", where, error)
        return None


def _own_key(attempt_id: str, name: str) -> str:
    return f"{_OWN}{attempt_id[:2]}/{attempt_id}/{name}"


def _sweep_own(own: OwnBucket, needed: Collection[str], written_before: float) -> None:
    """Raises BucketError."""
    latest: dict[str, float] = {}
    listed = own.list(_OWN)
    for one in listed:
        folder = one.name.rpartition("/")[0]
        latest[folder] = max(one.at, latest.get(folder, one.at))
    # The list first: what it names is there.
    for one in sorted(listed, key=lambda one: one.name):
        folder, _, name = one.name.rpartition("/")
        if latest[folder] < written_before and folder.rpartition("/")[2] not in needed:
            if name == _ABOUT:
                _delete_elsewhere(own, f"{_OWN}{one.name}")
            own.delete(f"{_OWN}{one.name}")


def _delete_elsewhere(own: OwnBucket, key: str) -> None:
    """Remove the tar of an expired list from the bucket for large outputs. Before the list, unlike
    all others: nothing else names it. Raises BucketError."""
    data = own.get(key)
    stored = None if data is None else _decoded(data, key)
    place = None if stored is None else stored.place
    if place is not None and place != own.place(f"{key.removesuffix(_ABOUT)}{_ARCHIVE}"):
        bucket.delete(place)


def _larger_than(folder: Path, size: int) -> dict[str, int]:
    found = {}
    for archive in _archives(folder):
        try:
            length = archive.stat().st_size
        except FileNotFoundError:  # a sweep in another thread
            continue
        stored = _read_about(archive.parent) if length > size else None
        if stored is not None and stored.place is None:
            found[archive.parent.name] = length
    return found


def _archives(folder: Path) -> list[Path]:
    return [found / _ARCHIVE for found in sorted(shared_folders.entries_below(folder))]


def _drop_moved(folder: Path, moved_before: float) -> None:
    for archive in _archives(folder):
        stored = _read_about(archive.parent)
        if stored is None or stored.place is None or not archive.exists():
            continue
        moved = shared_folders.written_at(archive.parent / _ABOUT)
        # A sweep in another thread may remove all of it meanwhile.
        with suppress(FileNotFoundError):
            if moved is not None and moved < moved_before:
                with _same_age(archive.parent):
                    # A download that has it open reads it to the end (unlink(2)).
                    archive.unlink()


def _expired(folder: Path, needed: Collection[str], written_before: float) -> list[Path]:
    expired = []
    for found in shared_folders.entries_below(folder):
        written = None if found.name in needed else shared_folders.written_at(found)
        if written is not None and written < written_before:
            expired.append(found)
    return expired


def _keep_place_alone(folder: Path) -> None:
    """Free the disk of what has expired, and keep the place of its object, to remove that later."""
    stored = _read_about(folder)
    if stored is not None and stored.place is None:
        _note_move(folder, replace(stored, place=stored.moving_to, moving_to=None))
        # A change in the folder would renew its time, and so keep it for another period.
        with _same_age(folder):
            (folder / _ARCHIVE).unlink(missing_ok=True)


def _remove(folder: Path) -> int:
    for name in (_ABOUT, _ARCHIVE, _ARRIVING):  # the list first: what it names is there
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        # Another thread has removed it, or has put something into it (ENOTEMPTY, rmdir(2)).
        folder.rmdir()
        return 1
    return 0
