"""The job's main process: waited for without a thread."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import msgspec

from runner.children import Children
from runner.launch import Launch
from runner.spawning import Spawned, ends_for, fork_exec


class Ending(msgspec.Struct, frozen=True):
    """`code` is 128 + n when signal n ended it."""

    code: int
    signal: str | None = None


class JobProcess:
    """A process that `children` owns. `pid` is also its session and process group."""

    def __init__(self, spawned: Spawned, children: Children) -> None:
        self.pid = spawned.pid
        self.stdout = spawned.stdout
        self.stderr = spawned.stderr
        self._children = children
        self._pidfd = os.pidfd_open(self.pid)
        self._ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._pidfd, self._collect)

    async def wait(self) -> Ending:
        return await asyncio.shield(self._ended)

    def signal_group(self, number: int) -> None:
        """To all of the job's process group; silently nothing when that is empty."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

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
            name = signal.Signals(result.si_status).name
            ending = Ending(128 + result.si_status, name)
        self._ended.set_result(ending)
        self._children.disown(self.pid)


async def spawn(launch: Launch, children: Children, stdin: int = subprocess.DEVNULL) -> JobProcess:
    """Raises CannotStart; see `spawning.spawn`."""
    with ends_for(launch) as ends, children.starting():
        pid = await asyncio.to_thread(fork_exec, launch, ends, stdin)
        children.own(pid)
    return JobProcess(Spawned(pid, ends.stdout, ends.stderr), children)
