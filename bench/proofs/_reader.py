"""A reader that may be killed at any moment: `python -m bench.proofs._reader SOCKET FILE`.

It appends raw frames to FILE and, when it is started again, continues after the last whole one. It
prints a dot for every MiB that it has written.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import sys
from pathlib import Path

import aiohttp

from common.files.durable import write_all
from fairlead.wire.frames import span_at
from runner.client import BASE_URL, RunnerClient
from tests.support.dialling import dial_to

MIB = 1 << 20


def whole_part(fd: int) -> tuple[int, int]:
    """Return the bytes of the file that are whole frames, and the log's offset after them."""
    size, at, end = os.fstat(fd).st_size, 0, 0
    if not size:
        return 0, 0
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as data:
        view = memoryview(data)
        while (span := span_at(view, at)) is not None and at + span.size <= size:
            at, end = at + span.size, span.end
        view.release()
    return at, end


async def read_on(socket: str, path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    size, offset = whole_part(fd)
    os.ftruncate(fd, size)
    written = 0
    async with aiohttp.ClientSession(BASE_URL, connector=aiohttp.UnixConnector(socket)) as session:
        async for frames in RunnerClient(session, dial_answer=dial_to(socket)).follow_logs(offset):
            write_all(fd, frames)
            written += len(frames)
            while written >= MIB:
                written -= MIB
                os.write(1, b".")


if __name__ == "__main__":
    asyncio.run(read_on(sys.argv[1], Path(sys.argv[2])))
