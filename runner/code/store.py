"""Receives the blobs of a job's code, and checks them.

A blob is named by the sha256 of its bytes, so it may be sent twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterable, Iterable
from pathlib import Path

from fairlead.wire.errors import Refused

MAX_BYTES = 8 << 30
"""The largest size of one blob."""


class CodeStore:
    def __init__(self, task: Path, name: str = "code") -> None:
        self._folder = task / name
        self._wanted: frozenset[str] = frozenset()
        self._there: set[str] = set()
        self._arrivals = 0

    def expect(self, digests: Iterable[str]) -> None:
        self._wanted = frozenset(digests)

    @property
    def missing(self) -> frozenset[str]:
        return self._wanted - self._there

    @property
    def is_used(self) -> bool:
        return bool(self._wanted)

    def path(self, digest: str) -> Path:
        return self._folder / digest

    async def receive(self, digest: str, pieces: AsyncIterable[bytes]) -> None:
        """Receive a blob; the same blob may come again. Raises Refused, and OSError."""
        if digest not in self._wanted:
            raise Refused(
                409, "no_code_expected", "the submitted job does not need this code", "digest"
            )
        self._arrivals += 1
        # The same blob may come twice at once: a repeated upload next to a slow one.
        arriving = self._folder / f".{digest}.{self._arrivals}"
        await asyncio.to_thread(self._folder.mkdir, mode=0o700, exist_ok=True)
        try:
            found = await _store(arriving, pieces)
            if found != digest:
                raise Refused(400, "damaged", "the code does not match its digest", "digest")
            # Renamed once it is whole: a reader of this digest finds all of it, or nothing.
            await asyncio.to_thread(os.replace, arriving, self.path(digest))
        except BaseException:
            arriving.unlink(missing_ok=True)
            raise
        self._there.add(digest)

    def drop(self) -> None:
        """Remove the blobs, once the code is in its place or never will be. Blocking."""
        import shutil  # 2 ms that a job without code does not need

        shutil.rmtree(self._folder, ignore_errors=True)


async def _store(path: Path, pieces: AsyncIterable[bytes]) -> str:
    digest, size = hashlib.sha256(), 0
    with await asyncio.to_thread(path.open, "xb") as file:
        async for piece in pieces:
            size += len(piece)
            if size > MAX_BYTES:
                raise Refused(413, "too_large", f"code is limited to {MAX_BYTES} bytes")
            await asyncio.to_thread(file.write, piece)
            digest.update(piece)
    return digest.hexdigest()
