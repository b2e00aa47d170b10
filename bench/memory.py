"""Resident memory of the idle daemons."""

from __future__ import annotations

import msgspec
import psutil

from bench.parts import Parts
from tests.support.waiting import wait_until

MIB = 1 << 20


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """MiB. `runner` is the first process of a container (entrypoint and runner) whose job
    sleeps."""

    shim: float
    runner: float
    controller: float


def measure(parts: Parts) -> Memory:
    task = parts.write_task("sleep", ["/bin/busybox", "sleep", "600"])
    parts.controller.cli("apply", "-d", "-f", task, "-n", "sleep").succeeded()
    try:
        wait_until(lambda: _status(parts) == "running", 30, "the job to run")
        listed = parts.docker.docker("ps", "-q", "--filter", "label=fairlead.task")
        pid = parts.docker.docker("inspect", "--format", "{{.State.Pid}}", listed)
        return Memory(
            shim=_resident(parts.shim.pid),
            runner=_resident(int(pid)),
            controller=_resident(parts.controller.pid),
        )
    finally:
        parts.controller.cli("stop", "sleep", "--abort").succeeded()
        parts.wait_until_idle()


def _status(parts: Parts) -> str:
    return str(parts.controller.cli("inspect", "sleep", "--json").succeeded().json["status"])


def _resident(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MIB
