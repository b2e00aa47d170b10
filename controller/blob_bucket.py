"""Uploads in the bucket of their installation, for controllers that lose their disks.

The bytes of a blob are an object `uploads/blobs/DIGEST/GENERATION`; that a user sent them is an
empty object `uploads/marks/USER/DIGEST/SIZE`. A run is accepted on a generation that is younger
than `FRESH_SECONDS`; of an older one the storage makes a copy first, under a new name.

Removal is exact for any number of controllers, also for one that was paused in the middle of it. It
takes the storage's time, then the blobs that live runs need, then makes sure that it still leads,
and removes only generations that were older than `KEPT_SECONDS` at that time. A run that is
accepted later has a generation that it does not remove; one that was accepted earlier is live.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import msgspec

from controller.outputs import bucket as buckets
from controller.outputs.own_bucket import Listed, OwnBucket

KEPT_SECONDS = 86400.0
FRESH_SECONDS = KEPT_SECONDS / 2
"""The clocks of a controller and of the storage may differ by almost so much."""
MAX_REMEMBERED = 10_000
_BLOBS, _MARKS = "uploads/blobs/", "uploads/marks/"
_SWEPT = "uploads/swept"
_MARK = re.compile(r"[^/]+/([0-9a-f]{64})/\d+", re.ASCII)
"""Tools that copy a bucket may leave objects of other names, for folders."""


class _Mark(msgspec.Struct, frozen=True):
    size: int
    fresh_until: float


class BlobBucket:
    """Every method may raise BucketError."""

    def __init__(self, bucket: OwnBucket, now: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._now = now
        self._known: dict[tuple[str, str], _Mark] = {}
        """Uploads, by user and digest, on which runs may be accepted without a question."""

    async def put(self, digest: str, path: Path, size: int) -> None:
        """Store the bytes, which are those of this digest."""
        young = [one for one in await self._generations(digest) if self._is_fresh(one)]
        if not any(one.size == size for one in young):
            await self._bucket.put_file(path, size, _generation(digest))

    async def mark(self, digest: str, size: int, user: str) -> None:
        """Let this user use the bytes that are there."""
        began = self._now()
        await self._bucket.ask(self._bucket.put, f"{_MARKS}{user}/{digest}/{size}", b"")
        # Its bytes may have been there before.
        found = max((one.at for one in await self._generations(digest)), default=0.0)
        self._remember(user, digest, _Mark(size, min(found, began) + FRESH_SECONDS))

    async def size(self, digest: str) -> int | None:
        """Return its size; None when it is not there."""
        return next((one.size for one in await self._generations(digest)), None)

    async def size_for(self, digest: str, user: str) -> int | None:
        """Return its size; None when this user has not sent it. It is kept for half a day then."""
        known = self._known.get((user, digest))
        if known is not None and self._now() < known.fresh_until:
            return known.size
        marks = await self._bucket.ask(self._bucket.list, f"{_MARKS}{user}/{digest}/")
        marks = [one for one in marks if _MARK.fullmatch(f"{user}/{digest}/{one.name}")]
        if not marks:
            return None
        size, began = int(marks[0].name), self._now()
        found = await self._freshen(digest)
        if found is None:
            return None
        if not self._is_fresh(marks[0]):
            await self._bucket.ask(self._bucket.put, f"{_MARKS}{user}/{digest}/{size}", b"")
        self._remember(user, digest, _Mark(size, min(found, began) + FRESH_SECONDS))
        return size

    async def used(self, user: str, but: str, least: int) -> int:
        """Return the bytes of this user's other blobs; each counts `least` at least."""
        marks = await self._bucket.ask(self._bucket.list, f"{_MARKS}{user}/")
        split = (one.name.split("/") for one in marks if _MARK.fullmatch(f"{user}/{one.name}"))
        return sum(max(int(size), least) for digest, size in split if digest != but)

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
        old = await self._bucket.ask(self._bucket.written_at, _SWEPT) - KEPT_SECONDS
        wanted = frozenset(needed())
        await still_leads()
        generations: dict[str, list[Listed]] = {}
        for one in await self._bucket.ask(self._bucket.list, _BLOBS):
            digest, slash, _ = one.name.partition("/")
            if slash:
                generations.setdefault(digest, []).append(one)
        for digest, found in generations.items():
            newest = max(found, key=lambda one: (one.at, one.name))
            for one in found:
                if one.at < old and not (digest in wanted and one is newest):
                    await self._bucket.ask(self._bucket.delete, f"{_BLOBS}{one.name}")
        for mark in await self._bucket.ask(self._bucket.list, _MARKS):
            found_mark = _MARK.fullmatch(mark.name)
            if found_mark and mark.at < old and found_mark[1] not in wanted:
                await self._bucket.ask(self._bucket.delete, f"{_MARKS}{mark.name}")
        return set(wanted - generations.keys())

    async def _freshen(self, digest: str) -> float | None:
        """Make sure that a fresh generation is there; return when it was written, or None."""
        generations = await self._generations(digest)
        if not generations:
            return None
        newest = max(generations, key=lambda one: one.at)
        if self._is_fresh(newest):
            return newest.at
        began = self._now()
        source = f"{_BLOBS}{digest}/{newest.name}"
        # A sweep may have removed it meanwhile.
        is_there = await self._bucket.ask(self._bucket.copy, source, _generation(digest))
        return began if is_there else None

    async def _generations(self, digest: str) -> list[Listed]:
        return await self._bucket.ask(self._bucket.list, f"{_BLOBS}{digest}/")

    def _is_fresh(self, one: Listed) -> bool:
        return self._now() - one.at < FRESH_SECONDS

    def _remember(self, user: str, digest: str, mark: _Mark) -> None:
        self._known.pop((user, digest), None)
        self._known[user, digest] = mark
        if len(self._known) > MAX_REMEMBERED:
            del self._known[next(iter(self._known))]


def _generation(digest: str) -> str:
    return f"{_BLOBS}{digest}/{secrets.token_hex(8)}"
