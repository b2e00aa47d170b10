"""What "everything that the job has started" means, so that all of it can be killed.

In a container that is every process but pid 1, which is us. Outside, processes are found in /proc:
those of the job's session, wherever they hang, and all descendants of this process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_Table = dict[int, tuple[int, int]]
"""pid → (parent, session)."""
_ROUNDS = 20
"""A process that forks while the list is read needs another look; a fork bomb gets no more."""


class Scope(Protocol):
    def kill_all(self, session: int) -> None:
        """SIGKILL what the job with this session id has left. Repeatable."""


class ContainerScope:
    """We are pid 1: the kernel spares us and us alone."""

    def kill_all(self, session: int) -> None:
        try:
            os.kill(-1, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


class SessionScope:
    """The session only; for a runner that shares its process with others (tests)."""

    def kill_all(self, session: int) -> None:
        _kill_until_none(lambda table: {pid for pid, row in table.items() if row[1] == session})


class DescendantScope:
    """The session and every descendant of this process; orphans come to it as a subreaper."""

    def kill_all(self, session: int) -> None:
        me = os.getpid()

        def left(table: _Table) -> set[int]:
            found = {pid for pid, row in table.items() if row[1] == session}
            new = found | {me}
            while new:
                new = {pid for pid, row in table.items() if row[0] in new} - found
                found |= new
            return found - {me}

        _kill_until_none(left)


def scope_of_this_process() -> Scope:
    return ContainerScope() if os.getpid() == 1 else DescendantScope()


def _kill_until_none(left: Callable[[_Table], set[int]]) -> None:
    for _ in range(_ROUNDS):
        pids = left(_process_table())
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def _process_table() -> _Table:
    """All that are not zombies."""
    table: _Table = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            table[int(entry.name)] = (int(fields[1]), int(fields[3]))
    return table
