"""Jobs that do their worst, while the shim's health is requested all the time.

There is a fork bomb, a job that fills its memory, one that fills the disk of node and shim, and one
that prints as fast as it can. Each runs for a while under the real runner in a real container, and
the shim answers within two seconds all the time; then each is stopped and removed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec

from bench.proofs._table import conclude
from entrypoint.runtime.build import Builder
from fairlead.wire.job import JobSpec, SubmitRequest
from fairlead.wire.shim import (
    ContainerOptions,
    Fence,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TerminateRequest,
)
from runner.client import BASE_URL, RunnerClient, RunnerError, RunnerUnavailable
from shim.client import ShimClient, ShimError
from tests.support import images
from tests.support.daemons import run
from tests.support.dialling import dial_to
from tests.support.docker_daemon import DockerDaemon
from tests.support.processes import ShimProcess
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import eventually

LIMIT = 2.0
_EVERY = 0.05
_SAMPLES = 20
_DISK = 1 << 30
_PIDS = Path("/sys/fs/cgroup")
_FENCE = Fence(1, 1)
_LINE = "fast"
_WORST = {
    "fork bomb": "f() { sleep 99 & f | f & }; for i in 1 2; do (while :; do f; done) & done; wait",
    "memory fill": "while :; do tail /dev/zero; done",
    "disk fill": "cat /dev/zero > /fill; cat /dev/zero > /opt/fairlead/task/fill; sleep 1000",
    "lines": f"yes '{_LINE}'",
}


class Health(msgspec.Struct):
    """Seconds that the shim took to answer; `missed` counts requests without an answer."""

    took: list[float] = []
    missed: int = 0
    evidence: str = ""
    """The evidence that the job did what it was meant to do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, metavar="N", help="for each job")
    parser.add_argument("--only", choices=list(_WORST), metavar="JOB")
    given = parser.parse_args()
    figures: list[tuple[str, object]] = []
    broken: list[str] = []
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-worst-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        disk = stack.enter_context(_small_disk(folder))
        (disk / "docker").mkdir()
        docker = DockerDaemon(disk / "docker")
        stack.callback(docker.stop)
        docker.start()
        image = docker.import_image("busybox:worst", images.busybox_root(folder / "busybox"))
        runtime = Builder(CHECKOUT, CHECKOUT / ".build").build()
        options = ("--runtime", runtime, "--memory", "8GB", "--cpus", "8")
        shim = ShimProcess(disk / "n", "docker", *options, env=docker.env)
        stack.callback(shim.close)
        shim.start()
        for name, command in _WORST.items():
            if given.only in (None, name):
                health = asyncio.run(_one(shim, image, name, command, given.seconds, broken))
                worst = max(health.took, default=LIMIT)
                figures.append((f"{name}: slowest of {len(health.took)}", f"{worst:.3f} s"))
                figures.append((f"{name}: meanwhile", health.evidence))
                if worst > LIMIT or health.missed or not health.took:
                    broken.append(f"{name}: {worst:.2f} s, {health.missed} not answered")
    conclude("health while a job does its worst", figures, broken)


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Yield a filesystem of one GiB, so that a job fills the node's disk and not this machine's."""
    image, place = folder / "disk.img", folder / "d"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK)
    run(["mkfs.ext4", "-q", image])
    run(["mount", "-o", "loop", image, place])
    place.chmod(0o755)
    try:
        yield place
    finally:
        run(["umount", "--lazy", place])


async def _one(
    shim: ShimProcess, image: str, name: str, command: str, seconds: float, broken: list[str]
) -> Health:
    task_id = name.replace(" ", "-")
    health = Health()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(shim.socket))) as session:
        client = ShimClient(session, dial=dial_to(shim.socket))
        info = await client.put_task(task_id, _request(image, task_id), fence=_FENCE)
        await _reach(client, task_id, TaskStatus.RUNNING)
        await _begin(info, command)
        probe = asyncio.create_task(_ask(shim, health))
        most = 0
        for _ in range(_SAMPLES):
            await asyncio.sleep(seconds / _SAMPLES)
            most = max(most, _processes())
        health.evidence = _evidence(name, shim, task_id, most, seconds)
        order = TerminateRequest(grace=2, reason="terminated_by_user")
        with suppress(ShimError):  # a full disk: the stop is done all the same
            await client.terminate(task_id, order, run_id="worst", fence=_FENCE)
        try:
            await _reach(client, task_id, TaskStatus.TERMINATED)
            await client.remove_task(task_id, run_id="worst", fence=_FENCE)
            await client.release_allocation(task_id, run_id="worst", fence=_FENCE)
        except (ShimError, TimeoutError) as error:
            broken.append(f"{name}: not ended and removed: {error}")
        probe.cancel()
        await asyncio.wait({probe})
    return health


def _evidence(name: str, shim: ShimProcess, task_id: str, processes: int, seconds: float) -> str:
    if name == "disk fill":
        return f"{shutil.disk_usage(shim.data).free >> 10} KiB of disk free"
    if name == "lines":
        newest = max((shim.data / "tasks" / task_id / "job" / "logs").glob("*.seg"))
        lines = (int(newest.stem) + newest.stat().st_size) / (len(_LINE) + 1)
        return f"{lines / seconds / 1e6:.1f} million lines a second"
    return f"up to {processes} processes"


def _processes() -> int:
    return sum(int(path.read_text()) for path in _PIDS.glob("pids/docker/*/pids.current")) + sum(
        int(path.read_text()) for path in _PIDS.glob("docker/*/pids.current")
    )


def _request(image: str, task_id: str) -> TaskRequest:
    return TaskRequest(
        run_id="worst",
        run_name="foul-wind",
        allocation_id=task_id,
        image=image,
        resources=TaskResources(cpu=1.0, memory=1 << 30),
        container=ContainerOptions(pids_limit=4096),
    )


async def _reach(client: ShimClient, task_id: str, status: TaskStatus) -> None:
    async with asyncio.timeout(60):
        async with aclosing(client.events()) as events:
            await anext(events)
            info = await client.task(task_id)
            while info.status not in (status, TaskStatus.TERMINATED):
                event = await anext(events)
                info = event.task if event.task and event.task.id == task_id else info


async def _begin(info: TaskInfo, command: str) -> None:
    """Submit the job through the runner's socket."""
    await eventually(Path(info.runner_socket).exists, 60, "the runner")
    connector = aiohttp.UnixConnector(info.runner_socket)
    async with aiohttp.ClientSession(BASE_URL, connector=connector) as session:
        runner = RunnerClient(session)
        await runner.submit(SubmitRequest(job=_job(info.id, command)))
        with suppress(RunnerError, RunnerUnavailable):
            await runner.run()


def _job(task_id: str, command: str) -> JobSpec:
    return JobSpec(
        run_id="worst",
        run_name="foul-wind",
        job_id=task_id,
        attempt_id=task_id,
        group="main",
        cookie=0,
        index=0,
        job_count=1,
        group_job_count=1,
        commands=(command,),
    )


async def _ask(shim: ShimProcess, health: Health) -> None:
    """Ask with a new connection for each question, as another client would."""
    while True:
        begin = time.perf_counter()
        connector = aiohttp.UnixConnector(str(shim.socket))
        try:
            async with aiohttp.ClientSession(connector=connector) as session:
                await ShimClient(session, timeout=2 * LIMIT).health()
            health.took.append(time.perf_counter() - begin)
        except Exception:
            health.missed += 1
        await asyncio.sleep(_EVERY)
