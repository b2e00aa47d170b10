"""What a sweep costs: 10,000 parameter sets accepted, and 1,000 jobs of `true` run to their end.

`python -m bench.sweeps` needs neither root nor Docker: it starts a controller and a shim with the
process engine, as `./dev demo` does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from examples import demo
from fairlead import Client, Run
from fairlead.model.sweep import Value

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
    """`cpu`: seconds of CPU that the controller took for all jobs."""

    jobs: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


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


def execute(client: Client, controller: psutil.Process, jobs: int, parallel: int) -> Ran:
    before = sum(controller.cpu_times()[:2])
    began = time.perf_counter()
    run: Run = client.sweep(
        {**TASK, "name": "tiny"}, {"seed": list(range(jobs))}, max_parallel=parallel
    )
    run.wait()
    seconds = time.perf_counter() - began
    return Ran(jobs=jobs, seconds=seconds, cpu=sum(controller.cpu_times()[:2]) - before)


def main() -> None:
    given = _parser().parse_args()
    demo.START_SECONDS = 300.0
    engine = demo.Engine("process", None, "for the bench")
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder,
        demo.started(engine, Path(folder)) as (socket, env),
    ):
        demo.fairlead("node", "add", "here", "--local", str(socket), env=env)
        token = Path(env["FAIRLEAD_TOKEN_FILE"]).read_text().strip()
        controller = _controller(folder)
        with Client(env["FAIRLEAD_URL"], token) as client:
            first = accept(client, controller, given.sets)
            print(
                f"| {first.sets:,} sets accepted | {first.seconds:.2f} s | "
                f"{first.memory / (1 << 20):.1f} MiB |",
                flush=True,
            )
            ran = execute(client, controller, given.jobs, given.parallel)
            print(
                f"| {ran.jobs:,} times `true`, process engine | {ran.rate:.1f} jobs/s | "
                f"{1000 * ran.cpu / ran.jobs:.1f} ms of the controller's CPU a job |"
            )


def _controller(folder: str) -> psutil.Process:
    for process in psutil.Process().children():
        if f"{folder}/controller" in process.cmdline():
            return process
    raise SystemExit("bench: the controller is not there")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.sweeps", description=__doc__)
    parser.add_argument("--sets", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--parallel", type=int, default=32)
    return parser


if __name__ == "__main__":
    main()
