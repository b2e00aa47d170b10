"""What a job uses on a machine that it shares with others, where the cgroup counts them too: it is
counted over its own processes, which are the runner's and all that descend from it.

Blocking: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import psutil


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """`memory` in bytes: what several of the processes share counts once."""

    pids: frozenset[int]
    cpu_seconds: float
    memory: int


def measure() -> Use:
    """The time of those that have ended is with whoever waited for them."""
    pids, seconds, memory = set[int](), 0.0, 0
    for process in _living():
        try:
            times = process.cpu_times()
            memory += _memory(process)
        except psutil.Error:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
        pids.add(process.pid)
    return Use(pids=frozenset(pids), cpu_seconds=seconds, memory=memory)


def _living() -> Iterator[psutil.Process]:
    """Also zombies, whose time nobody has yet."""
    own = psutil.Process()
    yield own
    yield from own.children(recursive=True)


def _memory(process: psutil.Process) -> int:
    """Another user's process shows only what it shares with everybody."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.ZombieProcess:
        return 0
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
