"""A task's log as it lies on disk, also after its container has gone.

The runner writes segment files named by the payload offset of their first frame. The shim does not
decode them: it sends the raw bytes from the segment that holds the wanted offset, up to where the
files ended when the request came.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from shim import safe_files

_SEGMENT = re.compile(r"(\d{20})\.seg", re.ASCII)
_PIECE = 1 << 18
_MOST_BYTES = 4 << 30
"""A job may have planted a sparse file of any size; no honest log is this long."""


class LogSource(msgspec.Struct, frozen=True):
    """`start` is the payload offset of the first frame in `segments`."""

    start: int
    segments: tuple[str, ...]


def find_segments(job_folder: Path, offset: int) -> LogSource:
    """Blocking. The segments from the one that holds `offset` (or the first kept) to the last."""
    starts = sorted(
        int(match[1])
        for name in safe_files.list_names(job_folder, "logs")
        if (match := _SEGMENT.fullmatch(name))
    )
    if not starts:
        return LogSource(0, ())
    before = [start for start in starts if start <= offset]
    first = before[-1] if before else starts[0]
    names = tuple(f"logs/{start:020d}.seg" for start in starts if start >= first)
    return LogSource(first, names)


async def read_segments(
    job_folder: Path, source: LogSource, executor: Executor
) -> AsyncIterator[bytes]:
    """The raw bytes of the segments; ends early at a file that is gone or not safe."""
    loop = asyncio.get_running_loop()
    left = _MOST_BYTES
    for name in source.segments:
        try:
            fd = safe_files.open_regular(job_folder, name)
        except OSError:
            return
        try:
            size = min(os.fstat(fd).st_size, left)
            at = 0
            while at < size:
                want = min(_PIECE, size - at)
                piece = await loop.run_in_executor(executor, os.pread, fd, want, at)
                if not piece:
                    break
                at += len(piece)
                yield piece
            left -= at
        finally:
            os.close(fd)
