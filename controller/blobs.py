"""What users upload with their runs: files named by the sha256 of their bytes, in the data folder.

A blob appears under its name whole and checked, or not at all; the same blob again costs nothing.
What no live run needs is removed once nobody has asked for it for a while, so that an upload is
there when the run that it belongs to is submitted a little later.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""Of one blob, unless the controller is told otherwise."""
KEPT_SECONDS = 86400.0
PIECE_BYTES = 1 << 20
_ARRIVING = ".arriving"


class BlobTooLarge(Exception):
    """The text says what is allowed."""


class BlobDamaged(Exception):
    """The bytes are not those that their name promises."""


class BlobStore:
    """Every method may raise OSError."""

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int = MOST_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._now = now

    async def put(self, digest: str, pieces: AsyncIterable[bytes]) -> int:
        """Its size. Raises BlobTooLarge, BlobDamaged."""
        await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        arriving = self._folder / f"{secrets.token_hex(8)}{_ARRIVING}"
        try:
            size = await self._receive(arriving, digest, pieces)
            await asyncio.to_thread(_keep, arriving, self._path(digest))
        except BaseException:
            with suppress(OSError):
                arriving.unlink(missing_ok=True)
            raise
        return size

    async def size(self, digest: str) -> int | None:
        """None when it is not there. Asking keeps it for another while."""
        return await asyncio.to_thread(self._touch, digest)

    async def read(self, digest: str) -> AsyncGenerator[bytes, None]:
        with await asyncio.to_thread(self._path(digest).open, "rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece

    async def sweep(self, needed: Collection[str]) -> int:
        """How many were removed."""
        return await asyncio.to_thread(self._sweep, needed)

    async def _receive(self, path: Path, digest: str, pieces: AsyncIterable[bytes]) -> int:
        found, size = hashlib.sha256(), 0
        with await asyncio.to_thread(_create, path) as file:
            async for piece in pieces:
                size += len(piece)
                if size > self._most_bytes:
                    raise BlobTooLarge(
                        f"an upload may have {self._most_bytes >> 20} MiB at most: leave out what "
                        f"the job does not need, or put it into a volume or an image"
                    )
                found.update(piece)
                await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(_sync, file.fileno(), file.flush)
        if found.hexdigest() != digest:
            raise BlobDamaged("what arrived is not what its sha256 says; upload it again")
        return size

    def _touch(self, digest: str) -> int | None:
        path = self._path(digest)
        try:
            os.utime(path)
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def _sweep(self, needed: Collection[str]) -> int:
        removed = 0
        oldest = self._now() - KEPT_SECONDS
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name not in needed and entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)
                    removed += 1
        return removed

    def _path(self, digest: str) -> Path:
        return self._folder / digest


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync(fd: int, flush: Callable[[], None]) -> None:
    flush()
    os.fsync(fd)


def _keep(arriving: Path, path: Path) -> None:
    os.replace(arriving, path)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
