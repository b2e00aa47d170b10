"""Reads /proc without mistaking one process for another.

A pid alone names no process, because it is reused: a process is its pid and its start time. Signals
go through a pidfd that was checked against both.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_KERNEL_THREAD = 0x00200000
_EXECUTING_PAUSE = 0.001
_EXECUTING_TRIES = 50


class Process(NamedTuple):
    """A live process; a zombie counts only while threads of it live."""

    pid: int
    started: int
    """Clock ticks since boot."""
    state: str
    parent: int
    session: int
    of_kernel: bool

    @property
    def stands_still(self) -> bool:
        """Whether it cannot fork until it is told to go on. A process that waits in the kernel
        counts too: a parent of vfork waits for its child."""
        return self.state in "tTD"


def _stat(pid: int) -> list[str] | None:
    """Return the fields after the command's name: state first (field 3 of proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The last parenthesis counts: a program's name may contain one (proc(5)).
    return text.rpartition(")")[2].split()


def start_time(pid: int) -> int | None:
    """Return clock ticks since boot; None when there is no such process (a zombie is one)."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def processes() -> dict[int, Process]:
    """Return the processes by pid. One that begins or ends meanwhile may be missing."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := find(int(name))) is not None:
            found[process.pid] = process
    return found


def find(pid: int) -> Process | None:
    fields = _stat(pid)
    if fields is None:
        return None
    state, threads = fields[0], int(fields[17])
    # A process whose first thread has ended looks like a zombie while other threads run.
    if state in "ZX" and threads <= 1:
        return None
    return Process(
        pid=pid,
        started=int(fields[19]),
        state=state,
        parent=int(fields[1]),
        session=int(fields[3]),
        of_kernel=bool(int(fields[6]) & _KERNEL_THREAD),
    )


def command(pid: int) -> str:
    """Return the program's name and pid, for people."""
    # It may have ended since it was found.
    with suppress(OSError):
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} ({pid})"
    return str(pid)


def is_alive(process: Process) -> bool:
    now = find(process.pid)
    return now is not None and now.started == process.started


def descendants(ancestor: int) -> tuple[int, ...]:
    """Return the live descendants of this process; if it adopts orphans, these are included."""
    return tuple(kin({ancestor}, processes()) - {ancestor})


def kin(pids: Iterable[int], table: Mapping[int, Process]) -> set[int]:
    """Return these processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = set(pids)
    new = list(found)
    for pid in new:
        more = [child for child in children.get(pid, ()) if child not in found]
        found.update(more)
        new += more
    return found


def has_variable(process: Process, name: str, value: str) -> bool:
    """Return whether the process was started with this variable; False if that may not be read."""
    return not process.of_kernel and f"\0{name}={value}\0".encode() in _environment(process.pid)


def _environment(pid: int) -> bytes:
    """Return the environment. A process that is just executing a program has none, and no command
    line, for a moment."""
    for _ in range(_EXECUTING_TRIES):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if environment or Path(f"/proc/{pid}/cmdline").read_bytes():
                return b"\0" + environment
        except OSError:
            # It has ended, or it has other rights: ptrace(2) decides who reads it
            # (proc_pid_environ(5)).
            return b""
        time.sleep(_EXECUTING_PAUSE)
    return b""


def _open(pid: int, started: int) -> int | None:
    """Return a pidfd of exactly that process, or None when it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    # Only a look after the pidfd is open tells whose it is: until then the pid can be reused.
    if start_time(pid) != started:
        os.close(fd)
        return None
    return fd


def send_signal(pid: int, started: int, *numbers: signal.Signals) -> None:
    """Send the signals to exactly that process. Raises PermissionError."""
    fd = _open(pid, started)
    if fd is None:
        return
    try:
        for number in numbers:
            signal.pidfd_send_signal(fd, number)
    # It ended after it was opened; another process of this pid gets nothing (pidfd_open(2)).
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def ends_within(pid: int, started: int, seconds: float) -> bool:
    """Wait and return whether that process has ended by then (also as a zombie). Blocking."""
    fd = _open(pid, started)
    if fd is None:
        return True
    try:
        poll = select.poll()
        # A pidfd is readable once its process has ended (pidfd_open(2)).
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(fd)


async def wait_end(pid: int, started: int) -> None:
    """Return once that process has ended (also as a zombie); it need not be a child."""
    fd = _open(pid, started)
    if fd is None:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
