"""The folders that job and shim share: one for logs and records, one for the runner's socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from shim.tasks.steps.base import StepContext

_SHARED = 0o2770
_LISTED = 0o2750


class Folders:
    async def do(self, ctx: StepContext) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(ctx.executor, _make, ctx)

    async def undo(self, ctx: StepContext) -> None:
        task_id = ctx.task.info.id
        _remove_socket(ctx)
        for folder in (ctx.settings.socket_folder(task_id), ctx.settings.task_folder(task_id)):
            if folder.exists():
                await _remove_tree(folder)


def _remove_socket(ctx: StepContext) -> None:
    link = Path(ctx.task.info.runner_socket)
    if link.parent == ctx.settings.sockets_folder:
        link.unlink(missing_ok=True)


def _make(ctx: StepContext) -> None:
    settings, task_id = ctx.settings, ctx.task.info.id
    settings.task_folder(task_id).mkdir(parents=True, exist_ok=True, mode=0o700)
    make_shared(settings.run_folder, settings.gid, _LISTED)
    make_shared(settings.sockets_folder, settings.gid, _LISTED)
    make_shared(settings.job_folder(task_id), settings.gid, _SHARED)
    make_shared(settings.socket_folder(task_id), settings.gid, _SHARED)


def make_shared(folder: Path, gid: int, mode: int) -> None:
    """Make the folder. The mode is set after the owner, because a change of group clears the setgid
    bit."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):
        os.chown(folder, -1, gid)
    os.chmod(folder, mode)


async def _remove_tree(folder: Path) -> None:
    """Remove the folder with `rm`: a job may nest folders deeper than Python's recursion allows."""
    process = await asyncio.create_subprocess_exec(
        # A volume that is still mounted below must lose nothing.
        *("rm", "-rf", "--one-file-system", "--", str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines() or ["rm failed"]
        raise OSError(f"cannot remove {folder}: {lines[-1]}")
