"""Resident memory of the idle daemons."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
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
    those of a runner without a job, until its first answer, without those that the engine's OCI
    runtime used in the same process before it: runc some 25 ms, crun 4."""

    shim: float
    runner: float
    runner_alone: float
    runner_cpu: float
    to_answer: float
    controller: float


def measure(parts: Parts) -> Memory:
    of_oci_runtime = median(_until_it_sleeps(parts, number) for number in range(_TRIES))
    to_answer = median(_to_first_answer(parts, number) for number in range(_TRIES)) - of_oci_runtime
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
    """Return the CPU seconds of a runner's process until its first answer, in a container as jobs
    have."""
    argv = ["--task", "/opt/fairlead/task", "--socket", "/opt/fairlead/run/s", "--peers", "any"]
    with _first_process(parts, f"answer-{number}", ENTRYPOINT, argv) as (pid, folder):
        asyncio.run(ask(folder / "run/s"))
        return cpu_seconds(pid)


def _until_it_sleeps(parts: Parts, number: int) -> float:
    """Return the CPU seconds of a process that does nothing, in such a container: those of the OCI
    runtime, which makes the container in the process that becomes its first one."""
    with _first_process(parts, f"sleep-{number}", "/bin/busybox", ["sleep", "600"]) as (pid, _):
        name = Path(f"/proc/{pid}/comm")
        wait_until(lambda: name.read_text().strip() == "busybox", 30, "the container's program")
        return cpu_seconds(pid)


@contextmanager
def _first_process(
    parts: Parts, name: str, program: str, argv: Sequence[str]
) -> Iterator[tuple[int, Path]]:
    """Give the first process of a container, and its folder on the node."""
    folder = parts.folder / name
    mounts = {parts.runtime: "runtime:ro", folder / "task": "task", folder / "run": "run"}
    options = ["--network", "none", "--name", name, "--entrypoint", program]
    for source, target in mounts.items():
        source.mkdir(parents=True, exist_ok=True)
        options += ["--volume", f"{source}:/opt/fairlead/{target}"]
    parts.docker.docker("run", "--detach", *options, IMAGE, *argv)
    try:
        yield int(parts.docker.docker("inspect", "--format", "{{.State.Pid}}", name)), folder
    finally:
        parts.docker.docker("rm", "--force", name)


def _status(parts: Parts) -> str:
    return str(parts.controller.cli("inspect", "sleep", "--json").succeeded().json["status"])


def _resident(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MIB
