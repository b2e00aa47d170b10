"""Blobs are users' uploads for their runs: files in the data folder, named by the sha256 of their
bytes.

A blob appears under its name complete and checked, or not at all; uploading it again costs nothing.
Only users who sent its bytes may use it; each has a mark below `users`. To know a name is no right
to its content. A mark can name the parts of its blob: what a user's earlier uploads have of a new
one is taken from them, and only the rest is sent. A blob that no live run needs is removed some
time after a user last asked for it, so it is still there when its run is submitted a little later.

With a bucket, a blob is acknowledged only when the bucket has it, and the bucket decides what is
there, so leader and followers can each take uploads. The folder is a copy then: what it lacks is
fetched, and what was here before goes to the bucket when it is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
    Set,
)
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from pathlib import Path
from typing import Annotated, BinaryIO
from weakref import WeakValueDictionary

import msgspec

from common.files import shared_folders
from common.files.durable import sync_folder
from controller.blob_bucket import KEPT_SECONDS, MIN_CHARGED, BlobBucket
from controller.outputs.bucket import BucketError
from fairlead.wire.blobs import MAX_PARTS, Part
from fairlead.wire.decoders import decoder_of

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 30
"""The limit of one blob, unless the operator sets another."""
MAX_TIMES_OF_USER = 10
"""A user may store so many blobs of the largest size, unless the operator sets another limit."""
PIECE_BYTES = 1 << 20
ANSWER_SECONDS = 30.0
"""Within this time a bucket tells whether an upload is there: eight are asked for at once, and each
of the two requests may take 20 s."""
MIN_REMEMBERED_PART = 4096
"""Parts that are smaller on average are not remembered: nobody is charged for their names, which
would take more than some 2 % of the blob."""
MAX_SEARCHED_BLOBS = 16
"""Parts of a new blob are looked for in this number of the user's latest blobs that are here."""
MAX_ASKED_BLOBS = 8
"""And in so many of those that only the bucket has: each is one more request."""
MAX_FETCHED_BLOBS = 2
"""Of the latter, so many are fetched for a new blob: each may have a gigabyte."""
_ALL_OF_IT = "parts of the upload are not there any more: send all of it"
_ARRIVING = ".arriving"
_USERS = "users"


class BlobTooLarge(Exception):
    """The upload is too large; the message names the limit."""


class TooManyBlobs(Exception):
    """The user's uploads exceed the limit; the message says what to do."""


class BlobDamaged(Exception):
    """The bytes do not match the name."""


class PartsMissing(Exception):
    """Parts that were not sent are in no blob of the user; the message says what to do."""


class _Source(msgspec.Struct, frozen=True):
    """Where the bytes of a part are: in which blob, and from which offset on."""

    blob: Path
    offset: int


_Parts = Annotated[list[Part], msgspec.Meta(max_length=MAX_PARTS)]


class BlobStore:
    """The blobs of all users. Every method may raise OSError, of which BucketError is one. A user's
    name must be a valid file name. `reserve`: keeps room for so many bytes of this user, beside
    those that come, for the time of its block; it may raise OSError."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = MAX_BYTES,
        max_of_user: int | None = None,
        bucket: BlobBucket | None = None,
        now: Callable[[], float] = time.time,
        reserve: Callable[[int, str], AbstractAsyncContextManager[None]] = lambda *_: nullcontext(),
    ) -> None:
        self._folder = folder
        self._reserve = reserve
        self._max_bytes = max_bytes
        enough = MAX_TIMES_OF_USER * max_bytes
        self._max_of_user = enough if max_of_user is None else max_of_user
        self._now = now
        self._bucket = bucket
        self._arriving: Counter[str] = Counter()
        """Bytes that have come of blobs that are not whole yet, by user."""
        self._keeping: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def put(
        self,
        digest: str,
        pieces: AsyncIterable[bytes],
        *,
        user: str,
        parts: Sequence[Part] = (),
    ) -> int:
        """Store a blob and return its size; `parts`: all of its bytes, in their order.

        Raises BlobTooLarge, TooManyBlobs, BlobDamaged.
        """
        await asyncio.to_thread(self._marks(user).mkdir, mode=0o700, parents=True, exist_ok=True)
        arriving = self._folder / f"{secrets.token_hex(8)}{_ARRIVING}"
        try:
            size = await self._receive(arriving, digest, pieces, user)
            if self._bucket is not None:
                await self._bucket.put(digest, arriving, size)
            turn = self._keeping.setdefault(user, asyncio.Lock())
            # One at a time: two uploads that end together would each count the same room as free.
            async with turn:
                named = _named(parts, size)

                def check(used: int) -> None:
                    self._check_room(self._max_of_user - used - max(size, MIN_CHARGED))

                if self._bucket is None:
                    check(await asyncio.to_thread(self._used, user, digest))
                else:
                    await self._bucket.mark(digest, size, user, named, check)
                await asyncio.to_thread(self._keep, arriving, digest, user, named)
        except BaseException:
            # Also when the client hangs up, which cancels its request.
            with suppress(OSError):
                arriving.unlink(missing_ok=True)
            raise
        return size

    async def missing(self, parts: Sequence[Part], *, user: str) -> list[str]:
        """Return the parts, each once, that no blob of this user has."""
        sources = await self._sources(user, {part.sha256 for part in parts})
        return list(dict.fromkeys(part.sha256 for part in parts if part.sha256 not in sources))

    async def put_parts(
        self,
        digest: str,
        parts: Sequence[Part],
        sent: Collection[str],
        pieces: AsyncIterable[bytes],
        *,
        user: str,
    ) -> int:
        """Store a blob of which `pieces` has only the parts in `sent`, in their order and each as
        often as the blob has it; return its size.

        Raises PartsMissing, and as `put` does.
        """
        taken = {part.sha256 for part in parts if part.sha256 not in sent}
        sources = await self._sources(user, taken)
        if not taken <= sources.keys():
            raise PartsMissing(_ALL_OF_IT)
        self._check_size(sum(part.size for part in parts))
        blobs = {sources[part].blob.name for part in taken}
        joined = sum(part.size for part in parts if part.sha256 in taken)
        async with self._reserve(joined + await self._size_elsewhere(blobs), user):
            for source in blobs:
                await self._require_here(source)
            async with aclosing(_assembled(parts, sent, sources, pieces)) as whole:
                return await self.put(digest, whole, user=user, parts=parts)

    async def size(self, digest: str) -> int | None:
        """Return its size; None when it is not there. The call keeps it for another day."""
        size = await asyncio.to_thread(self._touch, digest)
        if size is None and self._bucket is not None:
            return await self._bucket.size(digest)
        return size

    async def size_for(self, digest: str, user: str) -> int | None:
        """Return its size as `size` does; None when this user has not sent it."""
        size = await asyncio.to_thread(self._touch_for, digest, user)
        if self._bucket is None:
            return size
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                in_bucket = await self._bucket.size_for(digest, user)
        except TimeoutError:
            raise BucketError(f"no answer within {ANSWER_SECONDS:g} s") from None
        if in_bucket is None and size is not None:
            # From before there was a bucket, or from before it was emptied.
            named = await asyncio.to_thread(_read_mark, self._marks(user) / digest)
            await self._bucket.put(digest, self._path(digest), size)
            await self._bucket.mark(digest, size, user, named, lambda _: None)
            return size
        return in_bucket

    async def read(self, digest: str) -> AsyncGenerator[bytes, None]:
        if self._bucket is not None:
            await self._fetch(self._bucket, digest)
        with await asyncio.to_thread(self._path(digest).open, "rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece

    async def sweep(
        self, needed: Callable[[], Collection[str]], still_leads: Callable[[], Awaitable[None]]
    ) -> int:
        """Remove the blobs that no live run needs; return how many, of those here.

        `still_leads` raises if another controller may have accepted runs that `needed` lacks.
        """
        if self._bucket is not None:
            for digest in await self._bucket.sweep(needed, still_leads):
                size = await asyncio.to_thread(self._touch, digest)
                if size is not None:
                    await self._bucket.put(digest, self._path(digest), size)
        return await asyncio.to_thread(self._sweep, needed())

    async def forget_copies(self, unused_since: float, most: int) -> None:
        """Remove the copies that nobody has used since then (Unix time), and the oldest ones beyond
        so many bytes. The bucket has all of them."""
        await asyncio.to_thread(self._forget_copies, unused_since, most)

    def _forget_copies(self, unused_since: float, most: int) -> None:
        kept = 0
        for path in sorted(_files(self._folder), key=_last_asked, reverse=True):
            # What arrives is no copy yet.
            if path.name.endswith(_ARRIVING):
                continue
            # Another request may remove it at any moment.
            with suppress(FileNotFoundError):
                kept += path.stat().st_size
                if kept > most or _last_asked(path) < unused_since:
                    path.unlink()
        for marks in _folders(self._folder / _USERS):
            for mark in _files(marks):
                if not self._path(mark.name).exists():
                    mark.unlink(missing_ok=True)

    async def _size_elsewhere(self, digests: Collection[str]) -> int:
        """Return the bytes of those of these blobs that only the bucket has."""
        if self._bucket is None:
            return 0
        size = 0
        for digest in digests:
            if not await asyncio.to_thread(self._path(digest).exists):
                size += await self._bucket.size(digest) or 0
        return size

    async def _require_here(self, digest: str) -> None:
        """Raises PartsMissing."""
        if self._bucket is None:
            return
        try:
            await self._fetch(self._bucket, digest)
        except FileNotFoundError:
            # It expired since it was looked up.
            raise PartsMissing(_ALL_OF_IT) from None

    async def _fetch(self, bucket: BlobBucket, digest: str) -> None:
        """Make sure that a copy is here. Raises FileNotFoundError."""
        # The jobs of a run start together; one fetches for all.
        async with self._fetching.setdefault(digest, asyncio.Lock()):
            path = self._path(digest)
            if await asyncio.to_thread(path.exists):
                return
            await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            arriving = self._folder / f"{secrets.token_hex(8)}{_ARRIVING}"
            found = hashlib.sha256()
            try:
                with await asyncio.to_thread(_create, arriving) as file:
                    async for piece in bucket.read(digest):
                        found.update(piece)
                        await asyncio.to_thread(file.write, piece)
                    # A power cut could else keep the name and lose the bytes (fsync(2)).
                    await asyncio.to_thread(_sync, file.fileno(), file.flush)
                if found.hexdigest() != digest:
                    raise BucketError(f"the bucket has other bytes than those of {digest}")
                # Renamed once it is whole and checked: who finds the name finds all of it.
                await asyncio.to_thread(os.replace, arriving, path)
            finally:
                await asyncio.to_thread(arriving.unlink, missing_ok=True)

    async def _receive(
        self, path: Path, digest: str, pieces: AsyncIterable[bytes], user: str
    ) -> int:
        found, size = hashlib.sha256(), 0
        room = self._max_of_user - await self._used_by(user, digest)
        try:
            with await asyncio.to_thread(_create, path) as file:
                async for piece in pieces:
                    size += len(piece)
                    # Counted as it comes: uploads at the same time share the user's room.
                    self._arriving[user] += len(piece)
                    self._check_size(size)
                    self._check_room(room - self._arriving[user])
                    found.update(piece)
                    await asyncio.to_thread(file.write, piece)
                await asyncio.to_thread(_sync, file.fileno(), file.flush)
        finally:
            self._arriving[user] -= size
        if found.hexdigest() != digest:
            raise BlobDamaged("the content does not match its sha256; upload it again")
        return size

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise BlobTooLarge(
                f"an upload may have {self._max_bytes >> 20} MiB at most: leave out what the job "
                f"does not need, or put it into a volume or an image"
            )

    def _check_room(self, left: int) -> None:
        if left < 0:
            raise TooManyBlobs(
                f"your uploads may have {self._max_of_user >> 20} MiB together, and with this one "
                f"they have more: each goes a day after the last run that needs it, so end such "
                f"runs, or ask the operator for more (--user-upload-limit)"
            )

    async def _used_by(self, user: str, but: str) -> int:
        """Return the bytes of this user's other blobs."""
        if self._bucket is not None:
            return await self._bucket.used(user, but)
        return await asyncio.to_thread(self._used, user, but)

    def _keep(self, arriving: Path, digest: str, user: str, named: bytes) -> None:
        # The mark comes after its blob: a crash in between leaves a blob that nobody may use yet.
        os.replace(arriving, self._path(digest))
        sync_folder(self._folder)
        mark = self._marks(user) / digest
        mark.touch(mode=0o600)
        if named:
            # One that a crash cuts short is no JSON, and so names no parts.
            mark.write_bytes(named)
        sync_folder(self._marks(user))

    async def _sources(self, user: str, wanted: Set[str]) -> dict[str, _Source]:
        """Return where parts of this user's latest blobs are, or will be once they are fetched."""
        found = await asyncio.to_thread(self._sources_here, user)
        if self._bucket is not None:
            # Without the bucket, its parts come from the user.
            with suppress(BucketError):
                await self._find_sources(self._bucket, user, wanted, found)
        return found

    async def _find_sources(
        self, bucket: BlobBucket, user: str, wanted: Set[str], found: dict[str, _Source]
    ) -> None:
        """Add sources that only the bucket has."""
        asked = fetched = 0
        here = await asyncio.to_thread(self._known_parts, user)
        async with aclosing(bucket.parts(user, here)) as sent:
            # It asks for one blob after the other: what is not wanted any more is not asked for.
            while asked < MAX_ASKED_BLOBS and fetched < MAX_FETCHED_BLOBS:
                missing = wanted - found.keys()
                if not missing or (one := await anext(sent, None)) is None:
                    return
                asked += 1
                there = _sources_in(self._path(one[0]), _parts_in(one[1]))
                if there.keys() & missing:
                    fetched += 1
                    for part, source in there.items():
                        found.setdefault(part, source)

    def _known_parts(self, user: str) -> set[str]:
        """Return the user's blobs that are here and whose parts are named here."""
        named = set()
        for mark in _files(self._marks(user)):
            # Another request may remove it at any moment.
            with suppress(FileNotFoundError):
                if mark.stat().st_size and self._path(mark.name).exists():
                    named.add(mark.name)
        return named

    def _sources_here(self, user: str) -> dict[str, _Source]:
        marks = sorted(_files(self._marks(user)), key=_last_asked, reverse=True)
        found: dict[str, _Source] = {}
        for mark in marks[:MAX_SEARCHED_BLOBS]:
            blob = self._path(mark.name)
            if blob.exists():
                found = _sources_in(blob, _parts_in(_read_mark(mark))) | found
        return found

    def _used(self, user: str, but: str) -> int:
        total = 0
        for mark in shared_folders.entries(self._marks(user)):
            # A sweep in another thread removes a blob before its mark.
            with suppress(FileNotFoundError):
                if mark.name != but:
                    total += max(self._path(mark.name).stat().st_size, MIN_CHARGED)
        return total

    def _touch(self, digest: str) -> int | None:
        path = self._path(digest)
        try:
            os.utime(path)
            return path.stat().st_size
        except FileNotFoundError:
            # Retention may remove it at any moment.
            return None

    def _touch_for(self, digest: str, user: str) -> int | None:
        try:
            # The time of a mark says until when it is kept: who needs it has just asked.
            os.utime(self._marks(user) / digest)
        except FileNotFoundError:
            return None
        return self._touch(digest)

    def _sweep(self, needed: Collection[str]) -> int:
        """Remove blobs with their marks, and a mark alone once its user asks no more. What is
        needed now stays a day after that, too."""
        removed = 0
        oldest = self._now() - KEPT_SECONDS
        for path in _files(self._folder):
            if path.name in needed:
                _use(path)
            elif _last_asked(path) < oldest:
                path.unlink(missing_ok=True)
                removed += 1
        for marks in _folders(self._folder / _USERS):
            for mark in _files(marks):
                if not self._path(mark.name).exists():
                    mark.unlink(missing_ok=True)
                elif mark.name in needed:
                    _use(mark)
                elif _last_asked(mark) < oldest:
                    mark.unlink(missing_ok=True)
        return removed

    def _marks(self, user: str) -> Path:
        return self._folder / _USERS / user

    def _path(self, digest: str) -> Path:
        return self._folder / digest


async def _assembled(
    parts: Sequence[Part],
    sent: Collection[str],
    sources: Mapping[str, _Source],
    coming: AsyncIterable[bytes],
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a blob, out of its user's other blobs and of what comes of it.

    Each part is checked, so that a mark never names bytes that its blob does not have.
    """
    body = _Body(coming)
    for part in parts:
        found = hashlib.sha256()
        is_sent = part.sha256 in sent
        source = body.take(part.size) if is_sent else _read(sources[part.sha256], part.size)
        async with aclosing(source):
            async for piece in source:
                found.update(piece)
                yield piece
        if found.hexdigest() != part.sha256:
            raise BlobDamaged("a part does not match its sha256; upload it again")
    if not await body.is_over():
        raise BlobDamaged("there are more bytes than the parts have; upload it again")


class _Body:
    """The bytes that a user sends, in pieces of any size."""

    def __init__(self, coming: AsyncIterable[bytes]) -> None:
        self._coming = aiter(coming)
        self._rest = b""

    async def take(self, size: int) -> AsyncGenerator[bytes, None]:
        """Yield so many bytes; fewer at the end."""
        while size > 0 and not await self.is_over():
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield piece

    async def is_over(self) -> bool:
        while not self._rest:
            try:
                self._rest = await anext(self._coming)
            except StopAsyncIteration:
                return True
        return False


async def _read(source: _Source, size: int) -> AsyncGenerator[bytes, None]:
    """Raises PartsMissing."""
    try:
        file = await asyncio.to_thread(source.blob.open, "rb")
    except FileNotFoundError:
        # It expired since it was looked up.
        raise PartsMissing(_ALL_OF_IT) from None
    with file:
        await asyncio.to_thread(file.seek, source.offset)
        while size and (piece := await asyncio.to_thread(file.read, min(size, PIECE_BYTES))):
            size -= len(piece)
            yield piece


def _sources_in(blob: Path, parts: Sequence[Part]) -> dict[str, _Source]:
    found: dict[str, _Source] = {}
    offset = 0
    for part in parts:
        found.setdefault(part.sha256, _Source(blob, offset))
        offset += part.size
    return found


def _named(parts: Sequence[Part], size: int) -> bytes:
    """Return what a mark says of these parts; empty: nothing."""
    is_remembered = parts and len(parts) * MIN_REMEMBERED_PART <= size
    return msgspec.json.encode(parts) if is_remembered else b""


def _parts_in(named: bytes) -> list[Part]:
    try:
        return decoder_of(_Parts).decode(named)
    except msgspec.MsgspecError:
        # Without its parts the upload is sent whole.
        return []


def _read_mark(mark: Path) -> bytes:
    try:
        return mark.read_bytes()
    except FileNotFoundError:
        return b""


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync(fd: int, flush: Callable[[], None]) -> None:
    # Python's buffer first: fsync(2) knows only what the kernel has.
    flush()
    os.fsync(fd)


def _files(folder: Path) -> list[Path]:
    return [path for path in shared_folders.entries(folder) if path.is_file()]


def _folders(folder: Path) -> list[Path]:
    return [path for path in shared_folders.entries(folder) if path.is_dir()]


def _use(path: Path) -> None:
    """Note that a live run needs it: once the run has ended, a user may want it again."""
    # Another thread's sweep may remove it at any moment.
    with suppress(FileNotFoundError):
        os.utime(path)


def _last_asked(path: Path) -> float:
    """Return the Unix time of the last request; infinity for a file that is gone."""
    asked = shared_folders.written_at(path)
    return math.inf if asked is None else asked
