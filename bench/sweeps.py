"""What a sweep costs: 10,000 parameter sets accepted, and 1,000 jobs of `true` run to their end.

`./dev bench sweeps` needs neither root nor Docker: it starts a controller and a shim with the
process engine. For comparison it runs the same commands in a bare worker,
which keeps the output of each in a file and nothing else, and in Slurm where that is installed
(`bench.slurm`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import msgspec
import psutil

from bench import slurm
from bench.parts import unwind_on_sigterm
from bench.report import machine
from fairlead import Client, Run
from fairlead.model.sweep import Value
from tests.support.processes import ControllerProcess, ShimProcess

TASK = {
    "type": "task",
    "commands": ["true"],
    "resources": {"cpu": 0.1, "memory": "64MB"},
    "ssh": False,
}


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds`: from the call to the answer, with the client's own work. `memory`: bytes by which
    the controller grew."""

    sets: int
    seconds: float
    memory: int


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu`: seconds of CPU that each program took for all jobs. On a machine with other load it
    tells more than the rate."""

    jobs: int
    seconds: float
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds

    def cpu_of_a_job(self) -> str:
        each = (f"{1000 * taken / self.jobs:.1f} {name}" for name, taken in self.cpu.items())
        return ", ".join(each)


class Programs:
    """The controller and the node's programs."""

    def __init__(self, controller: int, shim: int) -> None:
        self.controller, self._shim = psutil.Process(controller), psutil.Process(shim)
        self._fork_server = _with_argument("entrypoint.fork_server", self._shim.children())

    def cpu(self) -> dict[str, float]:
        """Return the seconds of CPU so far. The fork server waits for all processes of jobs."""
        forked = self._fork_server.cpu_times()
        return {
            "controller": sum(self.controller.cpu_times()[:2]),
            "shim": sum(self._shim.cpu_times()[:4]),
            "jobs' processes": sum(forked[:4]),
        }


def _with_argument(text: str, processes: list[psutil.Process]) -> psutil.Process:
    for process in processes:
        if text in process.cmdline():
            return process
    raise SystemExit(f"bench: no process with {text} is there")


def accept(client: Client, controller: psutil.Process, sets: int) -> Accepted:
    """Submit a sweep of which one job runs at a time, and stop it again."""
    slow = {**TASK, "name": "waiting", "commands": ["sleep 600"]}
    params: dict[str, list[Value]] = {
        "lr": [0.1, 0.01],
        "seed": list(range(sets // 4)),
        "model": ["small", "large"],
    }
    before = controller.memory_info().rss
    began = time.perf_counter()
    run = client.sweep(slow, params, max_parallel=1)
    seconds = time.perf_counter() - began
    found = Accepted(sets=sets, seconds=seconds, memory=controller.memory_info().rss - before)
    run.stop(abort=True).wait(check=False)
    return found


def execute(
    client: Client, programs: Programs, jobs: int, parallel: int, *, reuse: bool = False
) -> Ran:
    before = programs.cpu()
    began = time.perf_counter()
    run: Run = client.sweep(
        {**TASK, "name": "tiny"},
        {"seed": list(range(jobs))},
        max_parallel=parallel,
        reuse_container=reuse,
    )
    run.wait()
    seconds = time.perf_counter() - began
    cpu = {name: after - before[name] for name, after in programs.cpu().items()}
    return Ran(jobs=jobs, seconds=seconds, cpu=cpu)


def bare(jobs: int, parallel: int) -> Ran:
    """Run the commands in processes that a worker starts as others end."""
    before = os.times()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        running: set[int] = set()
        for number in range(jobs):
            if len(running) >= parallel:
                running.discard(os.wait()[0])
            with open(f"{folder}/{number}", "wb") as output:
                # Only the pid counts here: its end is waited for among those of all.
                argv = ["/bin/sh", "-c", "true"]
                running.add(os.posix_spawn(argv[0], argv, os.environ, file_actions=_into(output)))
        while running:
            running.discard(os.wait()[0])
    after = os.times()
    cpu = {
        "worker": after.user + after.system - before.user - before.system,
        "jobs' processes": after.children_user
        + after.children_system
        - before.children_user
        - before.children_system,
    }
    return Ran(jobs=jobs, seconds=time.perf_counter() - began, cpu=cpu)


def _into(output: BinaryIO) -> list[tuple[int, int, int]]:
    return [(os.POSIX_SPAWN_DUP2, output.fileno(), one) for one in (1, 2)]


def beside(given: argparse.Namespace) -> None:
    """Print the rows of the others."""
    _print_ran(bare(given.jobs, given.containers), f"a bare worker, {given.containers} at once")
    if not slurm.is_here():
        print("| Slurm | not measured: it is not installed, or this is not root |")
        return
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder,
        slurm.started(Path(folder), given.parallel) as cluster,
    ):
        took = cluster.accept(given.sets)
        print(f"| {given.sets:,} tasks of an array accepted by Slurm | {took:.2f} s |", flush=True)
        before = cluster.cpu()
        seconds = cluster.execute(given.slurm_jobs)
        cpu = {name: after - before[name] for name, after in cluster.cpu().items()}
        ran = Ran(jobs=given.slurm_jobs, seconds=seconds, cpu=cpu)
        _print_ran(ran, f"an array of Slurm with its defaults, {given.parallel} at once")


def _print_ran(ran: Ran, how: str) -> None:
    print(
        f"| {ran.jobs:,} times `true`, {how} | {ran.rate:.1f} jobs/s | "
        f"ms of CPU a job: {ran.cpu_of_a_job()} |",
        flush=True,
    )


def main() -> None:
    given = _parser().parse_args()
    unwind_on_sigterm()
    print(machine(), flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-bench-")))
        shim, controller = ShimProcess(folder / "n", "process"), ControllerProcess(folder / "c")
        for daemon in (shim, controller):
            # Also the jobs and their cgroups, if the bench is interrupted.
            stack.callback(daemon.close)
            daemon.start()
        controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
        programs = Programs(controller.pid, shim.pid)
        with Client(controller.url, controller.token) as client:
            first = accept(client, programs.controller, given.sets)
            print(
                f"| {first.sets:,} sets accepted | {first.seconds:.2f} s | "
                f"{first.memory / (1 << 20):.1f} MiB |",
                flush=True,
            )
            for reuse, parallel in ((False, given.parallel), (True, given.containers)):
                ran = execute(client, programs, given.jobs, parallel, reuse=reuse)
                how = f"{parallel} containers used again" if reuse else "a container each"
                _print_ran(ran, f"process engine, {how}")
    beside(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench sweeps", description=__doc__)
    parser.add_argument("--sets", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument(
        "--containers", type=int, default=4, help="how many of them run jobs one after another"
    )
    parser.add_argument("--slurm-jobs", type=int, default=1_000)
    return parser


if __name__ == "__main__":
    main()
