"""The job's main process: started in a session of its own, waited for without a thread."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
from contextlib import suppress

import msgspec

from runner import terminal
from runner.children import Children
from runner.errors import CannotStart
from runner.launch import Launch

PIPE_SIZE = 1 << 20
_JOB_UMASK = 0o022


class Ending(msgspec.Struct, frozen=True):
    """`code` is 128 + n when signal n ended it."""

    code: int
    signal: str | None = None


class JobProcess:
    """A started process. `pid` is also its session and process group."""

    def __init__(self, pid: int, stdout: int, stderr: int, children: Children) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self._children = children
        self._pidfd = os.pidfd_open(pid)
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
    """Raises CannotStart when the program cannot be executed. With `launch.tty` both outputs are
    one terminal, read from `stdout`, and `stderr` is at its end at once."""
    stdout_read, stdout_write = terminal.open_for(launch.identity) if launch.tty else _pipe()
    stderr_read, stderr_write = _pipe()
    stderr = stdout_write if launch.tty else stderr_write
    try:
        with children.starting():
            pid = await asyncio.to_thread(_fork_exec, launch, stdin, stdout_write, stderr)
            children.own(pid)
    except BaseException:
        os.close(stdout_read)
        os.close(stderr_read)
        raise
    finally:
        os.close(stdout_write)
        os.close(stderr_write)
    return JobProcess(pid, stdout_read, stderr_read, children)


def _pipe() -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)
    with suppress(OSError):  # above this user's limit: a smaller pipe is slower, not wrong
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return read, write


def _fork_exec(launch: Launch, stdin: int, stdout: int, stderr: int) -> int:
    identity = launch.identity
    try:
        process = subprocess.Popen(
            launch.argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=launch.env,
            cwd=launch.working_dir,
            start_new_session=True,
            umask=_JOB_UMASK,
            preexec_fn=terminal.take if launch.tty else None,
            user=None if identity is None else identity.uid,
            group=None if identity is None else identity.gid,
            extra_groups=None if identity is None else identity.groups,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CannotStart(_why_not(launch, error)) from error
    process.returncode = 0  # Popen must neither wait for it nor complain that nobody did
    return process.pid


def _why_not(launch: Launch, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return (
            f"user {launch.identity.name if launch.identity else os.getuid()} may not execute"
            f" {launch.argv[0]!r} in {launch.working_dir!r}"
        )
    if isinstance(error, OSError):
        return f"{launch.argv[0]!r} cannot be executed: {error.strerror}"
    return f"{launch.argv[0]!r} cannot be executed: {error}"
