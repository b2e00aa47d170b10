"""The blobs that a job's code consists of: received whole, checked, dropped once they are used.

A blob is named by the sha256 of its bytes (hexadecimal), so that sending it twice is no matter and
nothing else can take its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterable, Iterable
from pathlib import Path

from runner.errors import Refused

MOST_BYTES = 8 << 30
"""Of one blob."""


class CodeStore:
    def __init__(self, task: Path) -> None:
        self._folder = task / "code"
        self._wanted: frozenset[str] = frozenset()
        self._there: set[str] = set()
        self._arrivals = 0

    def expect(self, digests: Iterable[str]) -> None:
        self._wanted = frozenset(digests)

    @property
    def missing(self) -> frozenset[str]:
        return self._wanted - self._there

    def path(self, digest: str) -> Path:
        return self._folder / digest

    async def receive(self, digest: str, pieces: AsyncIterable[bytes]) -> None:
        """The same blob may come again. Raises Refused, and OSError."""
        if digest not in self._wanted:
            raise Refused(409, "no_code_expected", "the submitted job has no such code", "digest")
        self._arrivals += 1
        arriving = self._folder / f".{digest}.{self._arrivals}"
        await asyncio.to_thread(self._folder.mkdir, mode=0o700, exist_ok=True)
        try:
            found = await _store(arriving, pieces)
            if found != digest:
                raise Refused(400, "damaged", "the code is not what its digest says", "digest")
            await asyncio.to_thread(os.replace, arriving, self.path(digest))
        except BaseException:
            arriving.unlink(missing_ok=True)
            raise
        self._there.add(digest)

    def drop(self) -> None:
        """Blocking; for when the code is in its place, or never will be."""
        shutil.rmtree(self._folder, ignore_errors=True)


async def _store(path: Path, pieces: AsyncIterable[bytes]) -> str:
    digest, size = hashlib.sha256(), 0
    with await asyncio.to_thread(path.open, "xb") as file:
        async for piece in pieces:
            size += len(piece)
            if size > MOST_BYTES:
                raise Refused(413, "too_large", f"code is limited to {MOST_BYTES} bytes")
            await asyncio.to_thread(file.write, piece)
            digest.update(piece)
    return digest.hexdigest()
