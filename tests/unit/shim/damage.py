"""A node whose records somebody has damaged, and what must hold of it afterwards.

Everything follows from a seed, so that a failing one is its own reproducer.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from fairlead.wire.errors import Refused
from fairlead.wire.shim import (
    Fence,
    GpuRequest,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TerminateRequest,
)
from shim.daemon import Daemon, Identity, disk_threads
from shim.engines.base import ContainerState
from shim.state.fencing import Caller
from tests.doubles.engines import MemoryEngine, MemoryHost
from tests.doubles.gpus import MemoryGpus
from tests.unit.shim.parts import CAPACITY, GPU, request, settings, until

GPUS = tuple(msgspec.structs.replace(GPU, uuid=f"GPU-{n}", index=n) for n in range(4))
RUNNING, ENDED, REMOVED, PULLING = "run-0", "run-1", "run-2", "run-3"
"""Each run has one GPU of its number: in a container, after its end, without a task, before it."""
FORMER = "former-0"
"""Had the first GPU before, and gave it back; old copies of records still say that it has it."""

Damage = Callable[[random.Random, Path, Path, Path], None]


class DamagedNode:
    def __init__(self, folder: Path, seed: int) -> None:
        self.settings = settings(folder)
        self.settings.data.mkdir(parents=True)
        self.host = MemoryHost()
        self.host.pull_gate.clear()
        self.dice = random.Random(seed)
        self.done: list[str] = []
        self._touched: set[Path] = set()

    @asynccontextmanager
    async def shim(self) -> AsyncIterator[Daemon]:
        with disk_threads() as threads:
            identity = await Identity.load(self.settings, threads)
            engine, gpus = MemoryEngine(self.host), MemoryGpus(*GPUS)
            daemon = await Daemon.open(self.settings, engine, gpus, CAPACITY, identity, threads)
            try:
                yield daemon
            finally:
                await daemon.close()

    async def live(self) -> None:
        """The four runs, as far as each gets; the records of before are kept as old copies."""
        async with self.shim() as daemon:
            for run in (FORMER, ENDED, REMOVED, PULLING):
                await daemon.supervisor.put(f"t-{run}", _wanted(run), _caller(run))
            await until(daemon, f"t-{PULLING}", TaskStatus.PULLING)
            for run in (FORMER, ENDED, REMOVED):
                await until(daemon, f"t-{run}", TaskStatus.RUNNING)
            shutil.copytree(self._records, self._old, ignore=shutil.ignore_patterns(".*"))
            for run in (FORMER, ENDED, REMOVED):
                order = TerminateRequest(grace=0.0, reason="aborted_by_user")
                await daemon.supervisor.terminate(f"t-{run}", order, _caller(run))
                await until(daemon, f"t-{run}", TaskStatus.TERMINATED)
            for run in (FORMER, REMOVED):
                await daemon.supervisor.remove(f"t-{run}", _caller(run))
            await daemon.supervisor.release(f"place-{FORMER}", _caller(FORMER))
            await daemon.supervisor.put(f"t-{RUNNING}", _wanted(RUNNING), _caller(RUNNING))
            await until(daemon, f"t-{RUNNING}", TaskStatus.RUNNING)

    def damage(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            files = sorted(self._records.glob("*/*.json"))
            victim, other = self.dice.choice(files), self.dice.choice(files)
            how = self.dice.choice(DAMAGES)
            self.done.append(f"{how.__name__} {victim.relative_to(self._records)}")
            if victim.is_file() and other.is_file():
                self._touched |= {victim, other} if how is swapped else {victim}
                how(self.dice, victim, other, self._old / victim.relative_to(self._records))

    async def check(self) -> None:
        """Raises AssertionError unless each GPU has its right owner, or its owner is told no."""
        async with self.shim() as daemon:
            self._no_two_owners(daemon)
            owner = {gpu: a.run_id for a in daemon.supervisor.allocations for gpu in a.gpus}
            assert owner["GPU-0"] == RUNNING, "the GPU of a container was given away"
            self._nobody_lost_what_one_record_still_tells(owner)
            await self._stranger_gets_nothing_that_is_owned(daemon, owner)
            for run in (RUNNING, ENDED, REMOVED, PULLING):
                await self._owner_goes_on_or_is_told_no(daemon, run)
            self._no_two_owners(daemon)
        starts = {c.spec.task_id: c.starts for c in self.host.containers.values()}
        assert max(starts.values()) == 1, f"a container was started again: {starts}"

    def _nobody_lost_what_one_record_still_tells(self, owner: dict[str, str]) -> None:
        """A file that is gone may mean that the place was given back; a damaged one cannot."""
        gone = any(done.startswith("missing") for done in self.done)
        for run in (ENDED, REMOVED, PULLING):
            files = {self._records / "allocations" / f"place-{run}.json"}
            if run != REMOVED:
                files.add(self._records / "tasks" / f"t-{run}.json")
            knows = bool(files - self._touched) and not (gone and run == ENDED)
            allowed = {run} if knows else {run, None}
            assert owner.get(f"GPU-{run[-1]}") in allowed, (run, owner)

    def _no_two_owners(self, daemon: Daemon) -> None:
        held = Counter(gpu for a in daemon.supervisor.allocations for gpu in a.gpus)
        assert max(held.values()) == 1, f"two owners: {held}"
        used = Counter(
            gpu
            for c in self.host.containers.values()
            if c.state is ContainerState.RUNNING
            for gpu in c.spec.gpus
        )
        assert max(used.values()) == 1, f"two containers: {used}"

    async def _stranger_gets_nothing_that_is_owned(
        self, daemon: Daemon, owner: dict[str, str]
    ) -> None:
        for number, gpu in enumerate(GPUS):
            wanted = _wanted("stranger", place=f"strange-{number}", gpu=gpu.uuid)
            code = await _asked(daemon, f"s-{number}", wanted.run_id, gpu.uuid, wanted)
            assert (code == "no_capacity") == (gpu.uuid in owner), (code, gpu.uuid, owner)

    async def _owner_goes_on_or_is_told_no(self, daemon: Daemon, run: str) -> None:
        code = await _asked(daemon, f"t-{run}", run, f"GPU-{run[-1]}", _wanted(run))
        assert code in ("", "conflict", "no_capacity", "terminated"), code

    @property
    def _records(self) -> Path:
        return self.settings.data / "records"

    @property
    def _old(self) -> Path:
        return self.settings.data / "old"


def _wanted(run: str, place: str | None = None, gpu: str | None = None) -> TaskRequest:
    uuid = gpu or f"GPU-{run[-1]}"
    return request(
        run_id=run,
        allocation_id=place or f"place-{run}",
        image="slow" if run == PULLING else "busybox",
        resources=TaskResources(cpu=0.5, memory=64 << 20, gpu=GpuRequest(count=1, uuids=(uuid,))),
    )


def _caller(run: str) -> Caller:
    return Caller(run, Fence(1, 1), 0)


async def _asked(daemon: Daemon, task_id: str, run: str, gpu: str, wanted: TaskRequest) -> str:
    """The code of the refusal; empty when the task has that very GPU."""
    try:
        info, _ = await daemon.supervisor.put(task_id, wanted, _caller(run))
    except Refused as problem:
        return problem.code if problem.message else "no message"
    if info.status is not TaskStatus.TERMINATED:
        assert info.gpus == (gpu,), f"{task_id} has {info.gpus}"
    return ""


def truncated(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    os.truncate(file, dice.randrange(max(file.stat().st_size, 1)))


def flipped(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    data = bytearray(file.read_bytes() or b"?")
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    file.write_bytes(bytes(data))


def emptied(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    file.write_bytes(b"")


def missing(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    file.unlink()


def nonsense(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    file.write_bytes(dice.randbytes(dice.randrange(1, 4096)))


def swapped(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)


def outdated(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    if old.exists():
        shutil.copy(old, file)


def revived(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    """Everything that an old copy has and the folder has no more."""
    for copy in old.parent.glob("*.json"):
        if not (file.parent / copy.name).exists():
            shutil.copy(copy, file.parent)


def a_folder(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    file.unlink()
    file.mkdir()


def a_pipe(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def a_link(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def half_written(dice: random.Random, file: Path, other: Path, old: Path) -> None:
    file.with_name(f".{file.name}.new").write_bytes(file.read_bytes()[:50])


DAMAGES: tuple[Damage, ...] = (
    truncated,
    flipped,
    emptied,
    missing,
    nonsense,
    swapped,
    outdated,
    revived,
    a_folder,
    a_pipe,
    a_link,
    half_written,
)
