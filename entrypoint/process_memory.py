"""Changes the command line and environment that /proc shows of this process.

A forked process has those of its parent. But the shim finds the processes of a task by a mark in
their environment, a job's environment is made from /proc/self/environ (Python changes its own, see
`runner/processes/environment.py`), and people read command lines. The kernel reads both from the
process's stack, where execve(2) put them, so they can be overwritten in their place (as libbsd's
setproctitle(3) does); what is longer than that place does not fit.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FIRST_FIELD = 3
_ARG_START, _ENV_END = 48, 51
"""Fields of /proc/self/stat (proc(5))."""


class _Area(NamedTuple):
    start: int
    end: int

    def write(self, data: bytes) -> None:
        size = self.end - self.start
        ctypes.memmove(self.start, data[: size - 1].ljust(size, b"\0"), size)


class ProcessMemory:
    """The places of both. Make it before the first fork. Raises OSError when they are not known."""

    def __init__(self) -> None:
        with open("/proc/self/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        at = slice(_ARG_START - _FIRST_FIELD, _ENV_END - _FIRST_FIELD + 1)
        arg_start, arg_end, env_start, env_end = (int(field) for field in fields[at])
        if not 0 < arg_start < arg_end <= env_start < env_end:
            raise OSError("the kernel does not tell where the environment lies")
        self._arguments = _Area(arg_start, arg_end)
        self._environment = _Area(env_start, env_end)

    def fits(self, env: Mapping[str, str]) -> bool:
        return len(_block(env)) < self._environment.end - self._environment.start

    def become(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Show this command line, cut to its place, and have this environment, also for what this
        process starts. Raises ValueError when the environment does not fit."""
        if not self.fits(env):
            raise ValueError("the environment is too large")
        # First: the C library's variables point into the place that is overwritten.
        os.environ.clear()
        self._arguments.write(b"\0".join(os.fsencode(word) for word in argv))
        self._environment.write(_block(env))
        os.environ.update(env)


def _block(env: Mapping[str, str]) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}\0") for name, value in env.items())
