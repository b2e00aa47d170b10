"""Metrics of a job: CPU time, memory, and how many connections it has. Blocking: call it in a
thread.

In a container the cgroup counts; on a shared machine the runner's own processes and their
descendants are counted. A connection counts if its peer is outside of the container, which tells
whether a dev environment is idle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from fairlead.wire.runner import JobMetrics
from runner.cgroup import UNIFIED, Cgroup, oom_kills


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The use of processes. `memory` in bytes: memory that several of them share counts once."""

    pids: frozenset[int]
    cpu_seconds: float
    memory: int


def measure_own_use() -> Use:
    """Return the use of this process and its descendants.

    Zombies count, because no process has their time yet; the time of ended processes is with the
    process that waited for them. Another user's process shows only what all users may see.
    """
    import psutil  # 10 ms of every start otherwise: a container's runner does not need it

    def memory_of(process: psutil.Process) -> int:
        try:
            return int(process.memory_full_info().pss)
        except psutil.ZombieProcess:
            return 0
        # /proc/PID/smaps_rollup of another user's process is closed (ptrace(2)); statm is not.
        except psutil.AccessDenied:
            return int(process.memory_info().rss)

    pids, seconds, memory = set[int](), 0.0, 0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
            memory += memory_of(process)
        # It ended since the list was made.
        except psutil.Error:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
        pids.add(process.pid)
    return Use(pids=frozenset(pids), cpu_seconds=seconds, memory=memory)


_ESTABLISHED, _LISTENING = "01", "0A"
_SOCKET = "socket:["


class _Row(msgspec.Struct, frozen=True):
    """A row of /proc/net/tcp; the ends are `address:port` in hex, as the kernel writes them."""

    local: str
    remote: str
    state: str
    inode: str

    @property
    def port(self) -> str:
        return self.local.rpartition(":")[2]


def count_visitors(root: Path = Path("/"), pids: Collection[int] | None = None) -> int:
    """Return the number of connections from outside.

    `pids`: the processes whose sockets count; None: all visible processes, which are the
    container's.
    """
    ours = _inodes(root / "proc", pids)
    rows = [row for row in _rows(root / "proc/net") if row.inode in ours]
    ports = {row.port for row in rows if row.state == _LISTENING}
    ends = {row.local for row in rows}
    # A connection with both ends in these rows stays within the container.
    return sum(
        row.state == _ESTABLISHED and row.port in ports and row.remote not in ends for row in rows
    )


def _rows(net: Path) -> Iterator[_Row]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text().splitlines()[1:]
        except OSError:
            # A kernel without IPv6 has no tcp6.
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9:
                yield _Row(words[1], words[2], words[3], words[9])


def _inodes(proc: Path, pids: Collection[int] | None) -> set[str]:
    """Return the inodes of the processes' sockets."""
    found: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdecimal() or (pids is not None and int(process.name) not in pids):
            continue
        try:
            with os.scandir(process / "fd") as descriptors:
                targets = [os.readlink(descriptor.path) for descriptor in descriptors]
        except OSError:
            # It ended meanwhile, or its descriptors may not be read (proc_pid_fd(5)).
            continue
        found.update(t[len(_SOCKET) : -1] for t in targets if t.startswith(_SOCKET))
    return found


_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number near 2⁶³."""


_NO_RELAY: Mapping[int, int] = {}


def measure(*, relayed: Mapping[int, int] = _NO_RELAY, root: Path = Path("/")) -> JobMetrics:
    """Return the metrics. `relayed`: the connections of the runner's own relay, by port."""
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
        connections=count_visitors(root) + sum(relayed.values()),
        relayed=_by_name(relayed),
    )


def measure_own_processes(*, relayed: Mapping[int, int] = _NO_RELAY) -> JobMetrics:
    """Return the metrics as `measure` does, without a container: there is no limit and no recorded
    peak."""
    used = measure_own_use()
    return JobMetrics(
        at=time.time(),
        cpu_seconds=used.cpu_seconds,
        memory=used.memory,
        memory_working_set=used.memory,
        memory_peak=None,
        memory_limit=None,
        oom_kills=0,
        connections=count_visitors(pids=used.pids) + sum(relayed.values()),
        relayed=_by_name(relayed),
    )


def _by_name(relayed: Mapping[int, int]) -> dict[str, int]:
    return {str(port): count for port, count in relayed.items()}


def _cpu_seconds(cgroup: Cgroup) -> float | None:
    microseconds = cgroup.field(UNIFIED, "cpu.stat", "usage_usec")
    if microseconds is not None:
        return microseconds / 1e6
    nanoseconds = cgroup.number("cpuacct", "cpuacct.usage")
    return None if nanoseconds is None else nanoseconds / 1e9


def _reclaimable(cgroup: Cgroup) -> int:
    """Return the bytes of file cache that the kernel would give up first."""
    of_v2 = cgroup.field(UNIFIED, "memory.stat", "inactive_file")
    if of_v2 is not None:
        return of_v2
    return cgroup.field("memory", "memory.stat", "total_inactive_file") or 0


def _memory_limit(cgroup: Cgroup) -> int | None:
    limit = _first(cgroup, (UNIFIED, "memory.max"), ("memory", "memory.limit_in_bytes"))
    return None if limit is None or limit >= _UNLIMITED else limit


def _first(cgroup: Cgroup, *files: tuple[str, str]) -> int | None:
    numbers: Iterable[int | None] = (cgroup.number(*file) for file in files)
    return next((number for number in numbers if number is not None), None)
