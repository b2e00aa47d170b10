"""Resident memory of the idle daemons."""

from __future__ import annotations

import msgspec
import psutil

from bench.parts import Parts
from bench.runner_start import cpu_seconds
from tests.support.waiting import wait_until

MIB = 1 << 20


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """MiB of RSS. `runner` is the first process of a container (entrypoint and runner) whose job
    sleeps; `runner_alone`: its PSS, without what it shares with other runners. `runner_cpu`:
    seconds of CPU time that it has used until then."""

    shim: float
    runner: float
    runner_alone: float
    runner_cpu: float
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
            runner_alone=psutil.Process(int(pid)).memory_full_info().pss / MIB,
            runner_cpu=cpu_seconds(int(pid)),
            controller=_resident(parts.controller.pid),
        )
    finally:
        parts.controller.cli("stop", "sleep", "--abort").succeeded()
        parts.wait_until_idle()


def _status(parts: Parts) -> str:
    return str(parts.controller.cli("inspect", "sleep", "--json").succeeded().json["status"])


def _resident(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MIB
