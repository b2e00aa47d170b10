"""Resident memory of the idle daemons."""

from __future__ import annotations

import asyncio
from statistics import median

import msgspec
import psutil

from bench.parts import IMAGE, Parts
from bench.runner_start import ask, cpu_seconds
from shim.engines.docker.request import ENTRYPOINT
from tests.support.waiting import wait_until

MIB = 1 << 20
_TRIES = 5


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """MiB of RSS. `runner` is the first process of a container (entrypoint and runner) whose job
    sleeps; `runner_alone`: its PSS, without what it shares with other runners. `runner_cpu`:
    seconds of CPU time that it has used by then, also for its controller's requests. `to_answer`:
    those of a runner without a job, until its first answer."""

    shim: float
    runner: float
    runner_alone: float
    runner_cpu: float
    to_answer: float
    controller: float


def measure(parts: Parts) -> Memory:
    to_answer = median(_to_first_answer(parts, number) for number in range(_TRIES))
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
            to_answer=to_answer,
            controller=_resident(parts.controller.pid),
        )
    finally:
        parts.controller.cli("stop", "sleep", "--abort").succeeded()
        parts.wait_until_idle()


def _to_first_answer(parts: Parts, number: int) -> float:
    """Return the CPU seconds of a runner until its first answer, in a container as jobs have."""
    folder = parts.folder / f"answer-{number}"
    mounts = {parts.runtime: "runtime:ro", folder / "task": "task", folder / "run": "run"}
    options = ["--network", "none", "--name", folder.name, "--entrypoint", ENTRYPOINT]
    for source, target in mounts.items():
        source.mkdir(parents=True, exist_ok=True)
        options += ["--volume", f"{source}:/opt/fairlead/{target}"]
    argv = ["--task", "/opt/fairlead/task", "--socket", "/opt/fairlead/run/s", "--peers", "any"]
    parts.docker.docker("run", "--detach", *options, IMAGE, *argv)
    try:
        pid = int(parts.docker.docker("inspect", "--format", "{{.State.Pid}}", folder.name))
        asyncio.run(ask(folder / "run/s"))
        return cpu_seconds(pid)
    finally:
        parts.docker.docker("rm", "--force", folder.name)


def _status(parts: Parts) -> str:
    return str(parts.controller.cli("inspect", "sleep", "--json").succeeded().json["status"])


def _resident(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MIB
