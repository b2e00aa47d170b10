"""Runs a program that prepares something for the job: as the job's user, with its output captured,
and ended with the runner.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from runner.processes.identity import Identity
from runner.processes.launch import Launch
from runner.processes.spawn import Children, JobProcess, spawn

_TAIL = 16 << 10
_PIECE = 64 << 10


class Outcome(msgspec.Struct, frozen=True):
    """The result. `output`: the end of its output, stdout and stderr together."""

    code: int
    output: str


def own_program(module: str) -> tuple[str, ...]:
    """Return the command line of one of our programs, with this interpreter."""
    isolated = ("-I", "-S", "-X", "utf8=1") if sys.flags.no_site else ()
    return (sys.executable, *isolated, "-m", module)


class Helpers:
    """Runs programs one after the other, with the same environment and identity."""

    def __init__(
        self, children: Children, env: Mapping[str, str], identity: Identity | None
    ) -> None:
        self._children = children
        self.env = dict(env)
        self._identity = identity

    @property
    def uid(self) -> int:
        return os.getuid() if self._identity is None else self._identity.uid

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> Outcome:
        """Run a program, with `env` instead of the usual environment. Raises CannotStart when it
        cannot be executed.

        If cancelled, the program and its children are killed.
        """
        launch = Launch(
            argv=tuple(argv),
            env=dict(self.env if env is None else env),
            working_dir=cwd,
            identity=self._identity,
        )
        process = await spawn(launch, self._children, stdin)
        captured = _Output(process)
        try:
            ending = await process.wait()
        except asyncio.CancelledError:
            process.signal_group(signal.SIGKILL)
            # It may write until it is dead, and what it wrote is cleaned up next.
            await process.wait()
            raise
        finally:
            captured.close()
        return Outcome(ending.code, captured.output)


class _Output:
    def __init__(self, process: JobProcess) -> None:
        self._loop = asyncio.get_running_loop()
        self._fds = {process.stdout, process.stderr}
        self._tail = b""
        for fd in self._fds:
            self._loop.add_reader(fd, self._read, fd)

    @property
    def output(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def close(self) -> None:
        for fd in tuple(self._fds):
            while fd in self._fds and self._read(fd):
                continue
            self._forget(fd)

    def _read(self, fd: int) -> bool:
        # EAGAIN: it is empty and somebody may still write; its end is a read of nothing (pipe(7)).
        with suppress(BlockingIOError):
            if data := os.read(fd, _PIECE):
                self._tail = (self._tail + data)[-_TAIL:]
                return True
            self._forget(fd)
        return False

    def _forget(self, fd: int) -> None:
        if fd in self._fds:
            self._fds.remove(fd)
            self._loop.remove_reader(fd)
            os.close(fd)
