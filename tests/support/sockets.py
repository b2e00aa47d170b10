"""Finds the listeners on TCP in /proc, so that no daemon's own word is taken for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

# TCP_LISTEN in the kernel's tcp_states.h.
_LISTEN = "0A"


def with_descendants(pid: int) -> list[int]:
    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]


def tcp_listeners(pids: Iterable[int]) -> list[str]:
    """`PID PROTOCOL HEXADDRESS:HEXPORT` of every listening TCP socket that a process holds."""
    return [line for pid in pids for line in _listeners_of(pid)]


def abstract_sockets(pids: Iterable[int]) -> list[str]:
    """Names of abstract unix sockets that a process holds: the host's network namespace, and so
    every container with host networking, can reach those."""
    found = []
    for pid in pids:
        inodes = _socket_inodes(pid)
        for line in _table(pid, "unix"):
            fields = line.split()
            if fields[6] in inodes and len(fields) > 7 and fields[7].startswith("@"):
                found.append(f"{pid} {fields[7]}")
    return found


def _listeners_of(pid: int) -> list[str]:
    inodes = _socket_inodes(pid)
    found = []
    for protocol in ("tcp", "tcp6"):
        for line in _table(pid, protocol):
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                found.append(f"{pid} {protocol} {fields[1]}")
    return found


def _table(pid: int, name: str) -> list[str]:
    """None of a process that has ended: it holds nothing any more."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    return []


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if target.startswith("socket:["):
                    inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes
