"""Children of our processes, waited for without a thread and without anybody's child watcher.

In pid 1 the reaper of orphans has to know which children have an owner, so a child is started
inside `Children.starting` and owned at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from runner.children import Children


class Child:
    """A started process. `wait` may be called by several tasks; -n means that signal n ended it."""

    def __init__(self, pid: int, children: Children) -> None:
        self.pid = pid
        self._children = children
        self._pidfd = os.pidfd_open(pid)
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._pidfd, self._collect)

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _collect(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        result = os.waitid(os.P_PID, self.pid, os.WEXITED)
        assert result is not None
        exited = result.si_code == os.CLD_EXITED
        self.ended.set_result(result.si_status if exited else -result.si_status)
        self._children.disown(self.pid)


_UMASK = 0o022
"""Everybody's; ours lets the node's group into what we make in the task's folder."""


def start(argv: Sequence[str], children: Children, **options: Any) -> Child:
    """As `subprocess.Popen`, which it calls: blocks until the program is executed. Raises OSError
    and subprocess.SubprocessError."""
    with children.starting():
        children.own(pid := _execute(argv, options))
    return Child(pid, children)


async def launch(argv: Sequence[str], children: Children, **options: Any) -> Child:
    """As `start`, for a loop that must not wait."""
    with children.starting():
        children.own(pid := await asyncio.to_thread(_execute, argv, options))
    return Child(pid, children)


def _execute(argv: Sequence[str], options: dict[str, Any]) -> int:
    process = subprocess.Popen(argv, umask=_UMASK, **options)
    process.returncode = 0  # Popen must neither wait for it nor complain that nobody did
    return process.pid
