"""What the job uses, as the kernel counts it: CPU time and memory of its cgroup, or where it has
none of its own of its processes, and who is connected to it.

Blocking: call `measure` in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from runner.cgroup import UNIFIED, Cgroup
from runner.connections import count_visitors
from runner.oom import oom_kills
from runner.schemas import JobMetrics

_UNLIMITED = 1 << 60
"""Version 1 says "no limit" by a number near 2⁶³."""


def measure(*, relayed: int = 0, root: Path = Path("/")) -> JobMetrics:
    """`relayed`: the connections that our own relay holds."""
    cgroup = Cgroup(root)
    used = _first(cgroup, (UNIFIED, "memory.current"), ("memory", "memory.usage_in_bytes"))
    return JobMetrics(
        at=time.time(),
        cpu_seconds=_cpu_seconds(cgroup),
        memory=used,
        memory_working_set=None if used is None else max(0, used - _reclaimable(cgroup)),
        memory_peak=_first(
            cgroup, (UNIFIED, "memory.peak"), ("memory", "memory.max_usage_in_bytes")
        ),
        memory_limit=_memory_limit(cgroup),
        oom_kills=oom_kills(root),
        connections=count_visitors(root) + relayed,
    )


def measure_own_processes(*, relayed: int = 0) -> JobMetrics:
    """As `measure`, without a container. Nobody limits the job there, nor keeps its peak."""
    from runner import own_processes  # here alone: a container's runner need not load it

    used = own_processes.measure()
    return JobMetrics(
        at=time.time(),
        cpu_seconds=used.cpu_seconds,
        memory=used.memory,
        memory_working_set=used.memory,
        memory_peak=None,
        memory_limit=None,
        oom_kills=0,
        connections=count_visitors(pids=used.pids) + relayed,
    )


def _cpu_seconds(cgroup: Cgroup) -> float | None:
    microseconds = cgroup.field(UNIFIED, "cpu.stat", "usage_usec")
    if microseconds is not None:
        return microseconds / 1e6
    nanoseconds = cgroup.number("cpuacct", "cpuacct.usage")
    return None if nanoseconds is None else nanoseconds / 1e9


def _reclaimable(cgroup: Cgroup) -> int:
    """The file cache that the kernel would give up first."""
    of_v2 = cgroup.field(UNIFIED, "memory.stat", "inactive_file")
    if of_v2 is not None:
        return of_v2
    return cgroup.field("memory", "memory.stat", "total_inactive_file") or 0


def _memory_limit(cgroup: Cgroup) -> int | None:
    limit = _first(cgroup, (UNIFIED, "memory.max"), ("memory", "memory.limit_in_bytes"))
    return None if limit is None or limit >= _UNLIMITED else limit


def _first(cgroup: Cgroup, *places: tuple[str, str]) -> int | None:
    numbers: Iterable[int | None] = (cgroup.number(*place) for place in places)
    return next((number for number in numbers if number is not None), None)
