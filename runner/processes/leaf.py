"""A leaf: the cgroup of one job of a container that carries jobs.

The runner moves itself into the leaf for the time of the fork, so the job's first process is born
there and no other program can run outside of it. To move the child between fork and exec would cost
a fork of this whole interpreter: 3.1 ms for a start in place of 1.1 ms with vfork(2).
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from common.processes.leaves import LeafFile

_ITSELF = b"0"
"""Moves the process, or in version 1 the thread, that writes it."""
_MAX_EVENTS = 4096
_MAX_LIST = 1 << 16
_log = logging.getLogger(__name__)


class Leaf:
    """One leaf, by its descriptors; `home`: those of the runner's own cgroup. Blocking, on files of
    the kernel only."""

    def __init__(
        self, number: int, files: Sequence[tuple[LeafFile, int]], home: Sequence[int]
    ) -> None:
        self.number = number
        self._enter = [fd for kind, fd in files if kind is LeafFile.ENTER]
        self._kill = [fd for kind, fd in files if kind is LeafFile.KILL]
        self._events = [fd for kind, fd in files if kind is LeafFile.EVENTS]
        self._home = home
        self._is_entered = False
        self._may_hold_runner = False

    def enter(self) -> bool:
        """Move this process into the leaf; return False, and stay outside, where that fails."""
        try:
            for fd in self._enter:
                os.write(fd, _ITSELF)
        except OSError as error:
            # A shim that starts again removes leaves without a process (ENODEV).
            _log.warning("leaf %s cannot be entered: %s", self.number, error.strerror)
            self.leave()
            return False
        self._is_entered = True
        return True

    def leave(self) -> None:
        """Move this process back. Where that fails, the leaf is never empty."""
        # Without a way home it was not left either.
        self._may_hold_runner = not self._home
        for fd in self._home:
            try:
                os.write(fd, _ITSELF)
            except OSError as error:
                self._may_hold_runner = True
                _log.error("leaf %s cannot be left: %s", self.number, error.strerror)

    def holds_any(self) -> bool:
        """Return whether a process is there, whatever its session and its parent are."""
        if not self._is_entered:
            return False
        return bool(self._pids())

    def kill(self) -> None:
        """Kill who is there but this runner: with one call where the kernel has it (Linux 5.14)."""
        if not self._kill or self._may_hold_runner:
            for pid in set(self._pids()) - {os.getpid()}:
                # It has ended meanwhile, or it has taken other rights (kill(2): ESRCH, EPERM).
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            return
        for fd in self._kill:
            try:
                os.write(fd, b"1")
            except OSError as error:
                _log.warning("leaf %s cannot be killed: %s", self.number, error.strerror)

    def _pids(self) -> list[int]:
        # Version 1 may remember what it listed less than a second ago. Version 2 lists a process
        # that this pid namespace does not see as 0, and none of the job is one.
        listed = os.pread(self._enter[0], _MAX_LIST, 0).split()
        return [int(pid) for pid in listed if pid != b"0"]

    def memory_kills(self) -> int | None:
        """Return how often the memory limit killed a process of the leaf; None: nobody counts."""
        if not self._is_entered:
            return None
        for fd in self._events:
            for line in os.pread(fd, _MAX_EVENTS, 0).splitlines():
                name, _, value = line.partition(b" ")
                if name == b"oom_kill":
                    return int(value)
        return None

    def close(self) -> None:
        for fd in (*self._enter, *self._kill, *self._events):
            os.close(fd)
        self._enter, self._kill, self._events = [], [], []
        self._is_entered = False
