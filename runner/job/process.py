"""Processes that we start: waited for without a thread, and without anybody's child watcher.

In pid 1 the reaper of orphans has to know which children have an owner, so a child is started
inside `Children.starting` and owned at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from runner.job.launch import Launch
from runner.job.spawning import JOB_UMASK, Children, Spawned, ends_for, execute, fork_exec


class Ending(msgspec.Struct, frozen=True):
    """`code` is 128 + n when signal n ended it."""

    code: int
    signal: str | None = None


def signal_name(number: int) -> str:
    """Python has names for the first and the last of the real-time signals alone."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


class Child:
    """A process that `children` owns. `wait` may be called by several tasks."""

    def __init__(self, pid: int, children: Children) -> None:
        self.pid = pid
        self._children = children
        self._pidfd = os.pidfd_open(pid)
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._pidfd, self._collect)

    async def wait(self) -> Ending:
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        """SIGKILL to it alone; nothing when it has ended."""
        if not self.ended.done():
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def signal_group(self, number: int) -> None:
        """To all of the process group that it leads; silently nothing when that is empty."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def group_is_alive(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _collect(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        result = os.waitid(os.P_PID, self.pid, os.WEXITED)
        assert result is not None
        if result.si_code == os.CLD_EXITED:
            ending = Ending(result.si_status)
        else:
            ending = Ending(128 + result.si_status, signal_name(result.si_status))
        self.ended.set_result(ending)
        self._children.disown(self.pid)


class JobProcess(Child):
    """`pid` is also its session and process group. Its outputs are read without blocking."""

    def __init__(self, spawned: Spawned, children: Children) -> None:
        super().__init__(spawned.pid, children)
        self.stdout = spawned.stdout
        self.stderr = spawned.stderr


async def spawn(launch: Launch, children: Children, stdin: int = subprocess.DEVNULL) -> JobProcess:
    """Raises CannotStart; see `spawning.spawn`."""
    with ends_for(launch) as ends, children.starting():
        pid = await asyncio.to_thread(fork_exec, launch, ends, stdin)
        children.own(pid)
    return JobProcess(Spawned(pid, ends.stdout, ends.stderr), children)


def start(argv: Sequence[str], children: Children, **options: Any) -> Child:
    """As `subprocess.Popen`, which it calls: blocks until the program is executed. Raises OSError
    and subprocess.SubprocessError."""
    with children.starting():
        children.own(pid := execute(argv, umask=JOB_UMASK, **options))
    return Child(pid, children)


async def start_in_thread(argv: Sequence[str], children: Children, **options: Any) -> Child:
    """As `start`, for a loop that must not wait."""
    with children.starting():
        pid = await asyncio.to_thread(execute, argv, umask=JOB_UMASK, **options)
        children.own(pid)
    return Child(pid, children)
