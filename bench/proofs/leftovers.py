"""Attempts are stopped, or their runner is killed, at any moment of their start: when their end is
reported, none of their processes lives.

Each job starts one process after the other in its own session, without environment, whose parent
ends at once. A process is recognised by its working directory, its arguments or its cgroup.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.parts import running_parts
from bench.proofs._table import conclude
from controller.links.clients import LocalConnection
from fairlead.wire.job import JobSpec, SubmitRequest
from fairlead.wire.shim import (
    Fence,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TerminateRequest,
)
from runner.client import RunnerError, RunnerUnavailable
from shim.engines import procfs
from tests.support.daemons import processes_of
from tests.support.processes import ShimProcess
from tests.support.waiting import eventually

IMAGE = "busybox:bench"
LATEST = 1.5
"""Seconds after its PUT at which the last attempts are stopped: their jobs run by then."""
_START = "(setsid env -i /bin/sh -c 'sleep 600; :' &)"
_JOB = f"for i in $(seq 200); do {_START}; sleep 0.02; done; sleep 600"
_FENCE = Fence(1 << 30, 1)
_DEADLINE = 120.0
_KEEPER = "containerd-shim"
"""The parent of a container's first process, outside of the container."""
_ENDS = ("aborted", "stopped", "first process killed", "its child killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--engine", choices=("process", "docker"), default="process")
    add("--tries", type=int, default=500, metavar="N")
    add("--at-once", type=int, default=4, metavar="N")
    add("--seed", type=int, default=1, metavar="N")
    given = parser.parse_args()
    options = ("--cpus", str(given.at_once), "--memory", "64GiB")
    with _shim(given.engine, options) as shim:
        proof = asyncio.run(_prove(shim, given.tries, given.at_once, given.seed))
    figures = [("attempts", given.tries), *sorted(proof.ends.items())]
    figures += [(f"ended while {status}", n) for status, n in sorted(proof.statuses.items())]
    conclude(f"leftovers of attempts, {given.engine} engine", figures, proof.violations)


@contextmanager
def _shim(engine: str, options: tuple[str, ...]) -> Iterator[ShimProcess]:
    if engine == "docker":
        with running_parts(*options) as parts:
            yield parts.shim
        return
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-left-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        shim = ShimProcess(folder / "n", engine, *options)
        stack.callback(shim.close)
        shim.start()
        yield shim


async def _prove(shim: ShimProcess, tries: int, at_once: int, seed: int) -> Proof:
    connection = LocalConnection(str(shim.socket))
    proof = Proof(connection, random.Random(seed))
    pipeline = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with pipeline:
            await proof.attempt()

    try:
        await asyncio.gather(*(one() for _ in range(tries)))
    finally:
        await connection.close()
    return proof


class Proof:
    def __init__(self, connection: LocalConnection, chance: random.Random) -> None:
        self._connection = connection
        self._chance = chance
        self.ends: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.violations: list[str] = []

    async def attempt(self) -> None:
        name, end = uuid.uuid4().hex, self._chance.choice(_ENDS)
        moment = self._chance.uniform(0.0, LATEST)
        request = TaskRequest(
            run_id=name,
            run_name="proof",
            allocation_id=name,
            image=IMAGE,
            resources=TaskResources(cpu=1.0, memory=128 << 20),
        )
        task = await self._connection.shim.put_task(name, request, fence=_FENCE, incarnation=0)
        job = asyncio.create_task(self._start_job(task))
        await asyncio.sleep(moment)
        await self._end(name, end)
        task = await self._ended(name)
        left = await asyncio.to_thread(_processes_of, task)
        if left:
            example = min(left.items())
            self.violations.append(f"{end} after {moment:.3f} s, left {len(left)}: {example}")
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        fenced: dict[str, Any] = {"run_id": name, "fence": _FENCE}
        await self._connection.shim.remove_task(name, **fenced)
        await self._connection.shim.release_allocation(name, **fenced)
        await self._connection.forget_runner(task.runner_socket)

    async def _end(self, name: str, end: str) -> None:
        task = await self._connection.shim.task(name)
        self.statuses[task.status.value] += 1
        victim = await asyncio.to_thread(_victim, task, end)
        if victim is not None:
            self.ends[end] += 1
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            return
        end = "stopped" if end == "stopped" else "aborted"
        self.ends[end] += 1
        order = TerminateRequest(
            grace=0.0 if end == "aborted" else 1.0, reason="terminated_by_user"
        )
        await self._connection.shim.terminate(name, order, run_id=name, fence=_FENCE)

    async def _ended(self, name: str) -> TaskInfo:
        async def has_ended() -> bool:
            return (await self._connection.shim.task(name)).status is TaskStatus.TERMINATED

        ended: bool = await eventually(has_ended, _DEADLINE)
        assert ended
        return await self._connection.shim.task(name)

    async def _start_job(self, task: TaskInfo) -> None:
        runner = self._connection.runner(task.runner_socket)
        job = JobSpec(
            run_id=task.run_id,
            run_name="proof",
            job_id=task.id,
            attempt_id=task.id,
            group="job",
            cookie=0,
            index=0,
            job_count=1,
            group_job_count=1,
            commands=(_JOB,),
        )
        while True:
            try:
                await runner.start(SubmitRequest(job=job))
                return
            except (RunnerUnavailable, RunnerError):
                await asyncio.sleep(0.01)


def _processes_of(task: TaskInfo) -> dict[int, str]:
    return processes_of(*filter(None, (task.id, task.container_id)))


def _victim(task: TaskInfo, end: str) -> int | None:
    """Return the process to kill, if there is one yet."""
    if end not in ("first process killed", "its child killed"):
        return None
    mine = {pid for pid, command in _processes_of(task).items() if _KEEPER not in command}
    table = procfs.processes()
    first = next((pid for pid in mine & set(table) if table[pid].parent not in mine), None)
    if first is None or end == "first process killed":
        return first
    return next((pid for pid, process in table.items() if process.parent == first), None)


if __name__ == "__main__":
    main()
