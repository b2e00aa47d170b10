"""Reading /proc without mistaking one process for another.

A pid alone names nobody, since it is reused: a process is its pid and its start time, and signals
go through a pidfd that was checked against both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    """The fields after the command's name: state first (field 3 of proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_time(pid: int) -> int | None:
    """Clock ticks since boot; None when there is no such process (a zombie still is one)."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def session_members(session: int) -> tuple[int, ...]:
    """Living processes of a session; zombies are left to their parents."""
    found = []
    for pid in _pids():
        fields = _stat(pid)
        if fields and fields[0] not in "ZX" and int(fields[3]) == session:
            found.append(pid)
    return tuple(found)


def descendants(ancestor: int) -> tuple[int, ...]:
    """Living processes that come from this one; one that adopts orphans keeps them here."""
    children: dict[int, list[int]] = {}
    living = set()
    for pid in _pids():
        fields = _stat(pid)
        if fields is None:
            continue
        children.setdefault(int(fields[1]), []).append(pid)
        if fields[0] not in "ZX":
            living.add(pid)
    found = list(children.get(ancestor, ()))
    for pid in found:
        found += children.get(pid, ())
    return tuple(pid for pid in found if pid in living)


def marked(mark: str, *, leaders_only: bool = False) -> tuple[int, ...]:
    """Living processes that were started with `mark` as the value of some variable."""
    needle = f"={mark}\0".encode()
    found = []
    for pid in _pids():
        fields = _stat(pid)
        if not fields or fields[0] in "ZX" or (leaders_only and int(fields[3]) != pid):
            continue
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return tuple(found)


def kill_now(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _open(pid: int, started: int) -> int | None:
    """A pidfd of exactly that process, or None when it has gone."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    if start_time(pid) != started:
        os.close(fd)
        return None
    return fd


def send_signal(pid: int, started: int, number: signal.Signals) -> None:
    fd = _open(pid, started)
    if fd is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)


async def wait_end(pid: int, started: int) -> None:
    """Returns once that process has ended (also as a zombie); needs no parenthood."""
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
