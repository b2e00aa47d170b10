"""Ends what is left of a task whose reaper was killed, by the mark in its processes' environment.

The task's processes are those with its mark, those that share a session with one, and all
descendants of these. They are stopped first, until every one stands still and another look finds no
more: with a killed process the knowledge of its last forks would be lost.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from shim.engines import procfs
from shim.engines.procfs import Process

_PAUSE = 0.002


def end_marked(name: str, mark: str, patience: float) -> tuple[int, ...]:
    """End the processes within `patience` seconds; return the pids of those that live on.
    Blocking."""
    until = time.monotonic() + patience
    while found := _frozen(name, mark, until):
        for process in found:
            _signal(process, signal.SIGKILL)
        # kill(2) returns before the process has left the kernel.
        while any(procfs.is_alive(process) for process in found):
            if time.monotonic() > until:
                return tuple(process.pid for process in found if procfs.is_alive(process))
            time.sleep(_PAUSE)
    return ()


def _frozen(name: str, mark: str, until: float) -> set[Process]:
    """Return all of them, standing still, or as many as could be stopped in time.

    A process that was forked just before its parent stood still is found by the next look.
    """
    seen: set[Process] = set()
    while True:
        found = _members(name, mark)
        moving = {process for process in found if not process.stands_still}
        if (found == seen and not moving) or time.monotonic() > until:
            return found
        for process in moving:
            _signal(process, signal.SIGSTOP)
        # A process stops when it is next scheduled, not when kill(2) returns.
        if found == seen:
            time.sleep(_PAUSE)
        seen = found


def _members(name: str, mark: str) -> set[Process]:
    table = procfs.processes()
    everyone = table.values()
    sessions = {one.session for one in everyone if procfs.has_variable(one, name, mark)}
    together = [one.pid for one in everyone if one.session in sessions]
    return {table[pid] for pid in procfs.kin(together, table) if pid != os.getpid()}


def _signal(process: Process, number: signal.Signals) -> None:
    # Without root the shim may not signal a job's setuid program (kill(2)).
    with suppress(PermissionError):
        procfs.send_signal(process.pid, process.started, number)
