"""The outputs of a job, as one tar that can be made again from any byte on.

The job made the tree and may be hostile: everything is opened beneath the task's folder, through no
link. The container is gone when this is read, so the tree stays as it is, and every reading makes
the same bytes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from pathlib import Path

from common.files import output_tar
from common.files.output_tar import Plan
from common.files.task_folder import OUTPUT_FOLDER_NAME
from shim.files import safe_files

_PIECE = 1 << 20


class _TaskFolder:
    def __init__(self, job_folder: Path) -> None:
        self._job_folder = job_folder

    def open_folder(self, name: str) -> int:
        return safe_files.open_beneath(self._job_folder, _path(name), os.O_DIRECTORY)

    def open_file(self, name: str) -> int:
        return safe_files.open_regular(self._job_folder, _path(name))

    def read_link(self, name: str) -> str:
        return safe_files.read_link(self._job_folder, _path(name))


def has_any(job_folder: Path) -> bool:
    """Return whether there is anything in the output folder. Blocking."""
    return bool(safe_files.list_names(job_folder, OUTPUT_FOLDER_NAME))


def plan(job_folder: Path, limit: int, *, links: bool = False) -> Plan:
    """Return what is sent of the task's output folder (`output_tar.plan`). Blocking."""
    return output_tar.plan(_TaskFolder(job_folder), limit, links=links)


def _path(name: str) -> str:
    return f"{OUTPUT_FOLDER_NAME}/{name}" if name else OUTPUT_FOLDER_NAME


async def read(
    job_folder: Path, made: Plan, offset: int, executor: Executor
) -> AsyncIterator[bytes]:
    """Yield the bytes of the tar from `offset` on. Raises OSError for a file that is gone."""
    loop = asyncio.get_running_loop()
    for entry in made.entries:
        header = output_tar.header(entry)
        length = len(header) + output_tar.padded(entry.size or 0)
        if offset >= length:
            offset -= length
            continue
        if offset < len(header):
            yield header[offset:]
        at = max(0, offset - len(header))
        offset = 0
        if entry.size is None:
            continue
        fd = await loop.run_in_executor(
            executor, safe_files.open_regular, job_folder, _path(entry.name)
        )
        try:
            while at < entry.size:
                want = min(_PIECE, entry.size - at)
                piece = await loop.run_in_executor(executor, os.pread, fd, want, at)
                if not piece:
                    # The header has promised these bytes: with fewer, all that follows is damaged.
                    raise OSError(f"{entry.name} became shorter")
                at += len(piece)
                yield piece
        finally:
            os.close(fd)
        yield bytes(length - len(header) - at)
    yield output_tar.END[offset:]
