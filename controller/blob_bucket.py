"""Uploads in the bucket of their installation, for controllers that lose their disks.

The bytes of a blob are an object `uploads/blobs/DIGEST/GENERATION`; that a user sent them is an
object `uploads/marks/USER/DIGEST/SIZE-GENERATION`, which names the parts of the blob, or is empty.
Leader and followers write them. A run is accepted on a generation that is younger than
`FRESH_SECONDS`; of an older one the storage makes a copy first, under a new name.

Removal is exact for any number of controllers, also for one that was paused in the middle of it. It
takes the storage's time, then the blobs that live runs need, then makes sure that it still leads,
and removes only what was older than `REMOVED_SECONDS` at that time, or has a newer generation that
stays longer. No name is written twice. So a run that is accepted later, and an upload that is
acknowledged later by any controller, have generations that it does not remove; a run that was
accepted earlier is live, and what it needs is written anew from time to time.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import msgspec

from controller.outputs import bucket as buckets
from controller.outputs.own_bucket import Listed, OwnBucket

KEPT_SECONDS = 86400.0
FRESH_SECONDS = KEPT_SECONDS / 2
"""The clocks of a controller and of the storage may differ by almost so much."""
REMOVED_SECONDS = KEPT_SECONDS + FRESH_SECONDS
"""A client that asks for a fresh generation writes no new one, and may still count on it for
`KEPT_SECONDS`."""
RENEWED_SECONDS = FRESH_SECONDS - 2 * 3600.0
"""What a live run needs is not older than `FRESH_SECONDS` when the run ends, and so stays for
`KEPT_SECONDS` after that. Sweeps are an hour apart."""
SETTLED_SECONDS = 3600.0
"""So long both generations of a renewed blob stay."""
MIN_CHARGED = 4096
"""Bytes that a file takes on a disk, however small it is."""
MAX_REMEMBERED = 10_000
_BLOBS, _MARKS = "uploads/blobs/", "uploads/marks/"
_SWEPT = "uploads/swept"
_MARK = re.compile(r"[^/]+/([0-9a-f]{64})/(\d+)(?:-[0-9a-f]+)?", re.ASCII)
"""Tools that copy a bucket may leave objects of other names, for folders."""


class _Known(msgspec.Struct, frozen=True):
    size: int
    fresh_until: float


class _Mark(msgspec.Struct, frozen=True):
    """A user has sent a blob of `size` bytes. `key`: below `_MARKS`; `at`: when it was written, by
    the storage's clock; `length`: bytes that name the blob's parts."""

    key: str
    digest: str
    size: int
    at: float
    length: int

    @property
    def order(self) -> tuple[float, str]:
        """The later one is larger. Storages count whole seconds, so the key decides last."""
        return self.at, self.key


class BlobBucket:
    """Every method may raise BucketError."""

    def __init__(self, bucket: OwnBucket, now: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._now = now
        self._known: dict[tuple[str, str], _Known] = {}
        """Uploads, by user and digest, on which runs may be accepted without a question."""

    async def put(self, digest: str, path: Path, size: int) -> None:
        """Store the bytes, which are those of this digest."""
        young = [one for one in await self._generations(digest) if self._is_fresh(one.at)]
        if not any(one.size == size for one in young):
            await self._bucket.put_file(path, size, _blob(digest))

    async def mark(
        self, digest: str, size: int, user: str, parts: bytes, check: Callable[[int], None]
    ) -> None:
        """Let this user use the bytes that are there, unless `check` raises for the bytes of the
        user's other blobs. `parts`: what `parts` yields of it later."""
        began = self._now()
        key = f"{user}/{digest}/{_generation(str(size), '-')}"
        await self._bucket.ask(self._bucket.put, f"{_MARKS}{key}", parts)
        # After the put: of two uploads at once at two controllers, one finds the other one's mark.
        marks = await self._marks(f"{user}/")
        try:
            check(_used(marks, digest))
        except BaseException:
            await self._bucket.ask(self._bucket.delete, f"{_MARKS}{key}")
            raise
        await self._supersede(marks, key)
        # Its bytes may have been there before.
        found = max((one.at for one in await self._generations(digest)), default=0.0)
        self._remember(user, digest, _Known(size, min(found, began) + FRESH_SECONDS))

    async def _supersede(self, marks: Collection[_Mark], key: str) -> None:
        """Remove the older marks that say nothing more than this one."""
        own = next((one for one in marks if one.key == key), None)
        if own is None:
            return
        for one in marks:
            is_older = one.digest == own.digest and one.order < own.order
            if is_older and (own.length or not one.length):
                await self._bucket.ask(self._bucket.delete, f"{_MARKS}{one.key}")

    async def size(self, digest: str) -> int | None:
        """Return its size; None when it is not there."""
        return next((one.size for one in await self._generations(digest)), None)

    async def size_for(self, digest: str, user: str) -> int | None:
        """Return its size; None when this user has not sent it. It is kept for half a day then."""
        known = self._known.get((user, digest))
        if known is not None and self._now() < known.fresh_until:
            return known.size
        marks = await self._marks(f"{user}/{digest}/")
        if not marks:
            return None
        newest, began = max(marks, key=lambda one: one.order), self._now()
        found = await self._freshen(digest)
        if found is None:
            return None
        if not self._is_fresh(newest.at):
            await self._renew(marks, user)
        self._remember(user, digest, _Known(newest.size, min(found, began) + FRESH_SECONDS))
        return newest.size

    async def _renew(self, marks: Collection[_Mark], user: str) -> None:
        """Write a fresh one of these marks, which are of one blob."""
        mark = max(marks, key=lambda one: (one.length > 0, one.order))
        key = f"{_MARKS}{user}/{mark.digest}/{_generation(str(mark.size), '-')}"
        # A sweep may have removed it meanwhile. The user has sent the bytes all the same.
        if not await self._bucket.ask(self._bucket.copy, f"{_MARKS}{mark.key}", key):
            await self._bucket.ask(self._bucket.put, key, b"")

    async def used(self, user: str, but: str) -> int:
        """Return the bytes of this user's other blobs."""
        return _used(await self._marks(f"{user}/"), but)

    async def parts(
        self, user: str, known: Collection[str]
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield the digest of each other blob of this user whose parts are known, and what names
        them: the latest ones first."""
        marks = await self._marks(f"{user}/")
        for mark in sorted(marks, key=lambda one: one.order, reverse=True):
            if mark.length and mark.digest not in known:
                named = await self._bucket.ask(self._bucket.get, f"{_MARKS}{mark.key}")
                yield mark.digest, named or b""

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield its bytes. Raises FileNotFoundError."""
        generations = await self._generations(digest)
        if not generations:
            raise FileNotFoundError(digest)
        newest = max(generations, key=lambda one: one.at)
        place = self._bucket.place(f"{_BLOBS}{digest}/{newest.name}")
        # Not in asyncio's threads (6 with two cores): the controller's end waits for those.
        async for piece in buckets.read(place, 0, newest.size, self._bucket.ask):
            yield piece

    async def sweep(
        self, needed: Callable[[], Collection[str]], still_leads: Callable[[], Awaitable[None]]
    ) -> set[str]:
        """Remove what no live run needs; return the digests that live runs need and that are not
        here.

        `still_leads` raises if another controller may have accepted runs that `needed` lacks.
        """
        await self._bucket.ask(self._bucket.put, _SWEPT, b"")
        now = await self._bucket.ask(self._bucket.written_at, _SWEPT)
        wanted = frozenset(needed())
        await still_leads()
        there = await self._sweep_blobs(now, wanted)
        await self._sweep_marks(now, wanted)
        return set(wanted) - there

    async def _sweep_blobs(self, now: float, wanted: Collection[str]) -> set[str]:
        """Return the digests that were there."""
        generations: dict[str, list[Listed]] = {}
        for one in await self._bucket.ask(self._bucket.list, _BLOBS):
            digest, slash, _ = one.name.partition("/")
            if slash:
                generations.setdefault(digest, []).append(one)
        for digest, found in generations.items():
            newest = max(found, key=lambda one: (one.at, one.name))
            if digest in wanted and newest.at < now - RENEWED_SECONDS:
                source = f"{_BLOBS}{newest.name}"
                await self._bucket.ask(self._bucket.copy, source, _blob(digest))
            # Who reads the older one may be at it for some time.
            is_settled = newest.at < now - SETTLED_SECONDS
            for one in found:
                if one is newest:
                    is_over = digest not in wanted and one.at < now - REMOVED_SECONDS
                else:
                    is_over = is_settled and one.at < now - FRESH_SECONDS
                if is_over:
                    await self._bucket.ask(self._bucket.delete, f"{_BLOBS}{one.name}")
        return set(generations)

    async def _sweep_marks(self, now: float, wanted: Collection[str]) -> None:
        marks: dict[str, list[_Mark]] = {}
        for mark in await self._marks(""):
            marks.setdefault(mark.key.rpartition("/")[0], []).append(mark)
        for place, found in marks.items():
            user, _, digest = place.partition("/")
            newest = max(found, key=lambda one: one.order)
            if digest in wanted and newest.at < now - RENEWED_SECONDS:
                await self._renew(found, user)
            for mark in found:
                is_needed = digest in wanted and mark is newest
                if mark.at < now - REMOVED_SECONDS and not is_needed:
                    await self._bucket.ask(self._bucket.delete, f"{_MARKS}{mark.key}")

    async def _freshen(self, digest: str) -> float | None:
        """Make sure that a fresh generation is there; return when it was written, or None."""
        generations = await self._generations(digest)
        if not generations:
            return None
        newest = max(generations, key=lambda one: one.at)
        if self._is_fresh(newest.at):
            return newest.at
        began = self._now()
        source = f"{_BLOBS}{digest}/{newest.name}"
        # A sweep may have removed it meanwhile.
        is_there = await self._bucket.ask(self._bucket.copy, source, _blob(digest))
        return began if is_there else None

    async def _generations(self, digest: str) -> list[Listed]:
        return await self._bucket.ask(self._bucket.list, f"{_BLOBS}{digest}/")

    async def _marks(self, below: str) -> list[_Mark]:
        """Return the marks below a folder: empty, or one that ends with a slash."""
        found = []
        for one in await self._bucket.ask(self._bucket.list, f"{_MARKS}{below}"):
            key = f"{below}{one.name}"
            if match := _MARK.fullmatch(key):
                found.append(_Mark(key, match[1], int(match[2]), one.at, one.size))
        return found

    def _is_fresh(self, at: float) -> bool:
        return self._now() - at < FRESH_SECONDS

    def _remember(self, user: str, digest: str, known: _Known) -> None:
        self._known.pop((user, digest), None)
        self._known[user, digest] = known
        if len(self._known) > MAX_REMEMBERED:
            del self._known[next(iter(self._known))]


def _used(marks: Collection[_Mark], but: str) -> int:
    """Return the bytes of the blobs, each once and as a file, without this one."""
    sizes = {one.digest: one.size for one in marks if one.digest != but}
    return sum(max(size, MIN_CHARGED) for size in sizes.values())


def _blob(digest: str) -> str:
    return _BLOBS + _generation(digest, "/")


def _generation(name: str, between: str) -> str:
    return f"{name}{between}{secrets.token_hex(8)}"
