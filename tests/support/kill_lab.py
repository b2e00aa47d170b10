"""A real shim on a real dockerd, killed at the steps of its tasks' lives.

The moment is chosen by what the shim does, not by a clock: after the k-th change of its records,
and a random few milliseconds later, so that every gap between two steps is met. The containers run
a script that notes each of its starts, or the real runtime with a job in it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from fairlead.wire.frames import Decoder
from fairlead.wire.job import JobSpec, SubmitRequest
from fairlead.wire.shim import (
    Fence,
    GpuRequest,
    PullPolicy,
    RegistryAuth,
    SshRequest,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TerminateRequest,
    VolumeKind,
    VolumeMount,
)
from runner.client import RunnerClient, RunnerUnavailable
from shim.client import ShimClient, ShimError, ShimUnavailable
from tests.support import nvml
from tests.support.daemons import run
from tests.support.dialling import dial_to
from tests.support.docker_daemon import DockerDaemon
from tests.support.inotify import Watch
from tests.support.processes import ShimProcess

T = TypeVar("T")
FENCE = Fence(1, 1)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGZhaXJsZWFkLWtpbGwtbGFiLXB1YmxpYy1rZXktMDAx user@test"
_DEADLINE = 180.0
_MAX_CHANGES = 16
_MAX_CHANGES_OF_A_PHASE = 4
_PHASE_CHANCE = 0.3
_MAX_DELAY = 0.15
_GRACE = 30.0
# sh runs a trap only between two commands: `wait` is interrupted, a sleep in front is not.
_JOB = "trap 'exit 0' TERM; sleep 100000 & echo start; wait"
_SAID = b"start\n"
_SCRIPT = """#!/bin/sh
echo start >> "$2/starts"
trap 'exit 0' TERM
: > "$2/ready"
sleep 100000 & wait
"""


@contextmanager
def path_with(folder: Path) -> Iterator[None]:
    """dockerd offers GPUs when it finds NVIDIA's hook; this one does nothing."""
    hook = folder / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


@dataclass
class Findings:
    kills: int = 0
    lives: int = 0
    asked: int = 0
    """How often a task asked for its credentials again."""
    moments: Counter[str] = field(default_factory=Counter)
    restarts: list[float] = field(default_factory=list)
    """Seconds from the start of the process to its first answer."""
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PrivateImage:
    """Of a registry that wants a password."""

    reference: str
    login: RegistryAuth


class KillLab:
    """`runtime`: what runs in the containers; None: the script. Every other task has the `private`
    image, if there is one, which is pulled for each anew."""

    def __init__(
        self,
        folder: Path,
        docker: DockerDaemon,
        image: str,
        seed: int,
        runtime: Path | None = None,
        private: PrivateImage | None = None,
    ) -> None:
        self.docker, self.image, self.found = docker, image, Findings()
        self.dice = random.Random(seed)
        self._private = private
        self._real = runtime is not None
        self._script = folder / "runtime" / "bin" / "fairlead-entrypoint"
        if runtime is None:
            runtime = folder / "runtime"
            self._script.parent.mkdir(parents=True)
            self._script.write_text(_SCRIPT)
            self._script.chmod(0o755)
        library = nvml.build(folder)
        nvml.StandIn(folder / "nvml", count=2)
        self.volume = folder / "volume"
        self.volume.mkdir()
        self.keys = folder / "jump_keys"
        env = {
            **docker.env,
            "LD_LIBRARY_PATH": str(library.parent),
            nvml.STATE: str(folder / "nvml"),
            # As an installed shim is: compiled once, not at each start.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        }
        options = ("--runtime", runtime, "--volume-prefix", folder, "--volume-prefix", "/dev")
        limits = ("--memory", "16GB", "--cpus", "64", "--jump-keys", self.keys)
        self.shim = ShimProcess(folder / "n", "docker", *options, *limits, env=env)
        self.device = _loop_device(folder / "disk.img")
        self._killer: threading.Thread | None = None
        self._called_off = folder / "called-off"
        self._called_off.mkdir()
        self._phase = "start"

    def be(self, script: str) -> None:
        """The script of containers that start from now on."""
        self._script.write_text(f"#!/bin/sh\n{script}\n")

    def finish(self) -> None:
        """The shim as it is after the last kill, with nothing planned."""
        self.call_off()
        self.shim.restart()

    def close(self) -> None:
        self.call_off()
        self.shim.close()
        self.docker.remove_containers()
        for mount in reversed(_mounts_below(self.shim.data)):
            # Lazily: a process that outlives its shim may still hold it.
            run(["umount", "--lazy", mount])
        with suppress(Exception):
            run(["losetup", "-d", self.device])

    # -- killing ------------------------------------------------------------------------------

    def start(self, *, armed: bool) -> None:
        begin = time.perf_counter()
        if not armed:
            self.shim.start()
        else:
            self._arm(_MAX_CHANGES)
            with suppress(AssertionError, TimeoutError):
                self.shim.start()
        if self.shim.daemon.is_alive():
            self.found.restarts.append(time.perf_counter() - begin)

    def _arm(self, most: int) -> None:
        records = self.shim.data / "records"
        kinds = ("node", "fences", "allocations", "tasks")
        for kind in kinds:
            (records / kind).mkdir(parents=True, exist_ok=True)
        self.call_off()
        watch = Watch([self._called_off, *(records / kind for kind in kinds)])
        changes = self.dice.randrange(1, most)
        delay = self.dice.random() * _MAX_DELAY
        self._killer = threading.Thread(target=self._kill_after, args=(watch, changes, delay))
        self._killer.start()

    def call_off(self) -> None:
        """No kill that was planned comes any more."""
        if self._killer is not None:
            # The watch hears of files that are renamed into a folder, not of new ones.
            (self._called_off / "new").touch()
            (self._called_off / "new").rename(self._called_off / "now")
            self._killer.join()
            self._killer = None

    def _kill_after(self, watch: Watch, changes: int, delay: float) -> None:
        last = self._called_off
        try:
            for _ in range(changes):
                last = watch.next()
                if last.parent == self._called_off:
                    return
        finally:
            watch.close()
        threading.Event().wait(delay)
        with suppress(ProcessLookupError, AssertionError):
            os.kill(self.shim.pid, signal.SIGKILL)
            self.found.kills += 1
            self.found.moments[f"{self._phase}, after {last.parent.name}"] += 1

    async def _answered(self, act: Callable[[ShimClient], Awaitable[T]]) -> T:
        """The answer, whatever becomes of the shim meanwhile: what a controller does."""
        async with asyncio.timeout(_DEADLINE):
            while True:
                connector = aiohttp.UnixConnector(str(self.shim.socket))
                async with aiohttp.ClientSession(connector=connector) as session:
                    try:
                        dial = dial_to(self.shim.socket)
                        return await act(ShimClient(session, timeout=60, dial=dial))
                    except ShimUnavailable:
                        await asyncio.to_thread(self._revive)

    def _revive(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.shim.daemon.wait(0.2)
        if not self.shim.daemon.is_alive():
            self.start(armed=True)

    async def _enter(self, phase: str) -> None:
        """Now and then the kill is planned for this phase alone."""
        self._phase = phase
        if self._killer is not None and self.dice.random() < _PHASE_CHANCE:
            await asyncio.to_thread(self._arm, _MAX_CHANGES_OF_A_PHASE)

    # -- one life -----------------------------------------------------------------------------

    def request(self, number: int, *, device: bool = True) -> TaskRequest:
        gpu = GpuRequest(count=1, uuids=(nvml.uuid(number % 2),))
        volumes = [VolumeMount(kind=VolumeKind.HOST, source=str(self.volume), target="/shared")]
        if device:
            volumes.append(VolumeMount(kind=VolumeKind.DEVICE, source=self.device, target="/data"))
        return TaskRequest(
            run_id=f"run-{number}",
            run_name="fair-wind",
            allocation_id=f"place-{number}",
            image=self.image,
            resources=TaskResources(cpu=0.1, memory=64 << 20, gpu=gpu),
            volumes=tuple(volumes),
            ssh=SshRequest(authorized_keys=(KEY,)),
        )

    def _in_private(self, wanted: TaskRequest) -> TaskRequest:
        if self._private is None:
            return wanted
        with suppress(AssertionError):
            self.docker.docker("rmi", "-f", self._private.reference)
        return msgspec.structs.replace(
            wanted,
            image=self._private.reference,
            pull_policy=PullPolicy.ALWAYS,
            registry_auth=self._private.login,
        )

    async def live_once(self, number: int) -> None:
        """One task from its PUT to the release of its place, through any number of kills."""
        task_id, wanted = f"t{number}", self.request(number)
        if number % 2:
            wanted = await asyncio.to_thread(self._in_private, wanted)
        self.found.lives += 1
        await self._enter("put")
        await self._answered(lambda c: c.put_task(task_id, wanted, fence=FENCE))
        await self._enter("setting up")
        running = await self._until(task_id, TaskStatus.RUNNING, wanted)
        await self._enter("running")
        await self._check_owner(number, wanted)
        if self._real and running.status is TaskStatus.RUNNING:
            await self._begin_job(running)
        order = TerminateRequest(grace=_GRACE, reason="terminated_by_user")
        await self._enter("stopping")
        await self._answered(
            lambda c: c.terminate(task_id, order, run_id=wanted.run_id, fence=FENCE)
        )
        ended = await self._until(task_id, TaskStatus.TERMINATED, wanted)
        await self._check_end(task_id, ended)
        await self._enter("removing")
        await self._gone(lambda c: c.remove_task(task_id, run_id=wanted.run_id, fence=FENCE))
        await self._enter("releasing")
        await self._gone(
            lambda c: c.release_allocation(wanted.allocation_id, run_id=wanted.run_id, fence=FENCE)
        )

    async def _until(self, task_id: str, status: TaskStatus, wanted: TaskRequest) -> TaskInfo:
        """As a controller does: a task that asks for its credentials gets them."""

        async def look(client: ShimClient) -> TaskInfo:
            events = client.events()
            await anext(events)
            info = await client.task(task_id)
            while info.status not in (status, TaskStatus.TERMINATED):
                if info.needs_credentials:
                    self.found.asked += 1
                    await client.put_task(task_id, wanted, fence=FENCE)
                event = await anext(events)
                info = event.task if event.task and event.task.id == task_id else info
            await events.aclose()
            return info

        info = await self._answered(look)
        if info.status is not status:
            self._broken(f"{task_id} is lost: {info.status} {info.reason} {info.message}")
        return info

    async def _check_owner(self, number: int, wanted: TaskRequest) -> None:
        held = await self._answered(lambda c: c.allocations())
        owners = Counter(gpu for allocation in held for gpu in allocation.gpus)
        if max(owners.values()) > 1 or wanted.resources.gpu.uuids[0] not in owners:
            self._broken(f"t{number}: owners of GPUs are {held}")
        rival = self.request(number + 2, device=False)
        try:
            await self._answered(lambda c: c.put_task(f"rival{number}", rival, fence=FENCE))
        except ShimError as error:
            if error.code == "no_capacity":
                return
            self._broken(f"t{number}: a rival was refused for another reason: {error}")
        else:
            self._broken(f"t{number}: a rival got the GPU too")

    async def _begin_job(self, info: TaskInfo) -> None:
        """As a controller does: a runner that is not there yet, or whose shim has just been killed
        before it made the socket, is asked again."""
        job = JobSpec(
            run_id=info.run_id,
            run_name=info.run_name,
            job_id=info.id,
            attempt_id=info.id,
            group="main",
            cookie=0,
            index=0,
            job_count=1,
            group_job_count=1,
            commands=(_JOB,),
        )
        async with asyncio.timeout(_DEADLINE):
            while True:
                connector = aiohttp.UnixConnector(info.runner_socket)
                async with aiohttp.ClientSession("http://runner", connector=connector) as session:
                    client = RunnerClient(session)
                    try:
                        await client.submit(SubmitRequest(job=job))
                        await client.run()
                        return await _until_it_says(client, _SAID)
                    except RunnerUnavailable:
                        await self._answered(lambda c: c.health())

    async def _check_end(self, task_id: str, ended: TaskInfo) -> None:
        if self._real:
            await self._check_job(task_id, ended)
        else:
            starts = self.shim.data / "tasks" / task_id / "job" / "starts"
            count = len(starts.read_text().splitlines()) if starts.exists() else 0
            if count > 1 or (count == 0 and ended.exit_code == 0):
                self._broken(f"{task_id}: its container was started {count} times")
        if ended.reason != "terminated_by_user":
            self._broken(f"{task_id} ended otherwise: {ended.reason} {ended.message}")

    async def _check_job(self, task_id: str, ended: TaskInfo) -> None:
        """One start by the engine's own word, one run of the job, its whole log, its end kept."""
        count = await asyncio.to_thread(self._starts_of, ended.container_id or "none")
        if count != 1:
            self._broken(f"{task_id}: its container was started {count} times")
        if (said := await self._answered(partial(_log_of, task_id=task_id))) != _SAID:
            self._broken(f"{task_id}: its log is {said!r}")
        if '"exit_code":0' not in (ended.exit_record or ""):
            self._broken(f"{task_id}: its end is not kept\n{self._story_of(ended)}")

    def _story_of(self, ended: TaskInfo) -> str:
        """The leftovers of those that took part in its end."""
        folder = self.shim.data / "tasks" / ended.id / "job"
        records = self.shim.data / "records" / "tasks"
        record = next((path for path in records.iterdir() if ended.id in path.name), None)
        runner = folder / "runner.log"
        return "\n".join(
            (
                f"{ended}",
                f"record: {record.read_text('utf-8', 'replace') if record else None}",
                f"files: {sorted(path.name for path in folder.iterdir())}",
                f"runner.log:\n{runner.read_text() if runner.exists() else None}",
            )
        )

    def _starts_of(self, container_id: str) -> int:
        what = ("--filter", "event=start", "--filter", f"container={container_id}")
        # Without `--until`, `docker events` never ends.
        span = ("--since", "10m", "--until", "0s")
        return len(self.docker.docker("events", *span, *what).splitlines())

    async def _gone(self, act: Callable[[ShimClient], Awaitable[None]]) -> None:
        try:
            await self._answered(act)
        except ShimError as error:
            if error.code != "not_found":
                self._broken(f"not removed: {error.code} {error}")

    async def readopt(self, count: int, tries: int) -> list[float]:
        """Seconds from the start of a killed shim to its first answer, with `count` containers."""
        many = {
            f"many{number}": msgspec.structs.replace(
                self.request(1000 + number, device=False),
                run_id="many",
                resources=TaskResources(cpu=0.1, memory=64 << 20),
            )
            for number in range(count)
        }
        for task_id, plain in many.items():
            await self._answered(partial(_put, task_id=task_id, wanted=plain))
        before = [await self._until(one, TaskStatus.RUNNING, many[one]) for one in many]
        took = []
        for _ in range(tries):
            await asyncio.to_thread(self.shim.kill9)
            begin = time.perf_counter()
            await asyncio.to_thread(self.shim.start)
            after = {info.id: info for info in await self._answered(lambda c: c.tasks())}
            took.append(time.perf_counter() - begin)
            for info in before:
                if after[info.id].container_id != info.container_id:
                    self._broken(f"{info.id} has another container after the restart")
                if after[info.id].status is not TaskStatus.RUNNING:
                    self._broken(f"{info.id} is {after[info.id].status} after the restart")
        for task_id, plain in many.items():
            await self._answered(partial(_kill, task_id=task_id))
            await self._until(task_id, TaskStatus.TERMINATED, plain)
            await self._answered(partial(_remove, task_id=task_id))
        return took

    def check_leaks(self) -> None:
        """Nothing of any life is left, seen from outside of the shim."""
        for container in self.docker.docker("ps", "-aq").split():
            self._broken(f"leaked container {container}")
        networks = ["network", "ls", "-q", "--filter", "label=fairlead.install"]
        if len(self.docker.docker(*networks).split()) > 1:
            self._broken("leaked networks: more than the spare one")
        data = self.shim.data
        folders = [data / "tasks", self.shim.socket.parent / "tasks", data / "mounts"]
        folders += [data / "records" / "tasks", data / "records" / "allocations"]
        for folder in folders:
            for path in folder.iterdir() if folder.exists() else ():
                self._broken(f"leaked {path}")
        if f" {self.device} " in Path("/proc/self/mountinfo").read_text():
            self._broken(f"leaked mount of {self.device}")
        if self.keys.exists() and KEY.split()[1] in self.keys.read_text():
            self._broken("leaked key")

    def _broken(self, text: str) -> None:
        self.found.violations.append(text)


async def _until_it_says(client: RunnerClient, text: bytes) -> None:
    """So that a stop finds the job with its trap set."""
    said = b""
    while text not in said:
        frames = Decoder().feed((await client.logs(0, wait=1)).frames)
        said = b"".join(frame.payload for frame in frames)


async def _log_of(client: ShimClient, task_id: str) -> bytes:
    decoder = Decoder()
    async with client.logs(task_id) as stream:
        frames = [f async for piece in stream.pieces() for f in decoder.feed(piece)]
    return b"".join(frame.payload for frame in frames)


async def _put(client: ShimClient, task_id: str, wanted: TaskRequest) -> TaskInfo:
    return await client.put_task(task_id, wanted, fence=FENCE)


async def _kill(client: ShimClient, task_id: str) -> TaskInfo:
    return await client.terminate(task_id, TerminateRequest(grace=0), run_id="many", fence=FENCE)


async def _remove(client: ShimClient, task_id: str) -> None:
    place = f"place-{1000 + int(task_id.removeprefix('many'))}"
    await client.remove_task(task_id, run_id="many", fence=FENCE)
    await client.release_allocation(place, run_id="many", fence=FENCE)


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]


def _loop_device(image: Path) -> str:
    with image.open("wb") as file:
        file.truncate(8 << 20)
    run(["mkfs.ext4", "-q", image])
    return run(["losetup", "--find", "--show", image]).strip()
