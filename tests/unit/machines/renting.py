"""A controller's part for machines: a turn loop, the calls and a provider in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from common.links.errors import LinkError
from controller.clock import month_began
from controller.lifecycle.inventory import Fleet
from controller.lifecycle.machines.model import Machine, MachineStatus
from controller.lifecycle.model import NodeCapacity, NodeStatus, RunState
from controller.machines import calls
from controller.machines.manager import MachineManager, MachineSettings
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.renting.settings import Pinned, RentalSettings
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.store.accounts import User
from fairlead.model.spec import Role
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.support.waiting import LONG
from tests.unit.machines.parts import GIB, fleet
from tests.unit.pipelines.parts import Ids, steady_chance

ADMIN = User(name="ada", role=Role.ADMIN, created_at=0.0)


class Renting:
    """A controller's part for machines. `empty`: what shims say when they are asked; None: they do
    not answer."""

    def __init__(self, database: MemoryDatabase, cloud: MemoryCloud, burst: Fleet) -> None:
        self.cloud = cloud
        self.clock = ManualClock()
        self.store = MemoryStore(database, self.clock.now)
        self.empty: bool | None = True
        self.asked = 0
        self.setups: dict[str, str] = {}
        self.restored_at: float | None = None
        self.others: dict[str, MemoryCloud] = {}
        """Other providers, by name."""
        self._burst = burst

    async def begin(self) -> None:
        boot = await self.store.open()
        snapshot = await self.store.load()
        self.cloud.now = self.clock.now()
        chance = steady_chance()
        placement = JobSubmittedPipeline(Ids())
        settings = RentalSettings(
            installation=boot.installation_id,
            pin=lambda machine_id: Pinned(host_key=f"key {machine_id}", token_digest="d"),
            new_id=chance.new_id,
            month_of=month_began,
            setups=self.setups,
        )
        self.rentals = Rentals(
            placement.index, settings, snapshot.machines, orphans=snapshot.orphans
        )
        self.pipeline = RunPipeline(self.store, self.clock, chance, placement, self.rentals)
        self.pipeline.restore(snapshot.runs, snapshot.nodes, snapshot.fleets or (self._burst,))
        self.manager = MachineManager(
            self.rentals,
            self.pipeline.nodes,
            MachineSettings(
                clouds={"lab": self.cloud, **self.others},
                boot_data=lambda one: one.name,
                pin=settings.pin,
            ),
            self.clock,
            installation=boot.installation_id,
            is_empty=self._is_empty,
            restored_at=self.restored_at,
        )
        self._work = [
            asyncio.create_task(self.pipeline.run()),
            asyncio.create_task(self.manager.run()),
        ]
        if not snapshot.fleets:
            await self.pipeline.save_fleet(self._burst, self._burst.name)

    async def _is_empty(self, machine_id: str) -> bool:
        self.asked += 1
        if self.empty is None:
            raise LinkError("no answer")
        return self.empty

    async def end(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.store.close()

    def only(self) -> Machine:
        (machine,) = self.rentals.committed.values()
        return machine

    def waits_for(self, run: RunState) -> str:
        """What the only job of the run waits for, as its user reads it."""
        (job,) = self.pipeline.known[run.run.id].jobs
        return job.attempts[-1].waits_for or ""

    def all_wait_for(self, run: RunState) -> list[str | None]:
        """What each job of the run waits for, as its user reads it."""
        return [job.attempts[-1].waits_for for job in self.pipeline.known[run.run.id].jobs]

    async def until(self, wanted: Callable[[], bool], step: float = 0.6) -> None:
        """Let `step` seconds pass for each look."""
        async with asyncio.timeout(LONG):
            while not wanted():
                self.clock.time += step
                await self.pipeline.settled()
                await asyncio.sleep(0.01)

    async def after(self, seconds: float) -> None:
        end = self.clock.time + seconds
        await self.until(lambda: self.clock.time > end, step=6.0)

    async def until_status(self, status: MachineStatus) -> None:
        await self.until(
            lambda: any(one.status is status for one in self.rentals.committed.values()),
        )

    async def join(self) -> None:
        """Its machine boots and its node is connected."""
        await self.until(lambda: any(one.instance_id for one in self.rentals.committed.values()))
        await self.connect(next(iter(self.rentals.committed)))
        await self.until_status(MachineStatus.JOINED)

    async def connect_all(self, count: int) -> None:
        """So many machines are made in all, and those that are no nodes yet boot."""

        def made() -> list[Machine]:
            return [one for one in self.rentals.committed.values() if one.instance_id]

        await self.until(lambda: len(made()) == count)
        for one in made():
            if one.status is MachineStatus.PROVISIONING:
                await self.connect(one.id)
        await self.until(lambda: all(one.joined_at is not None for one in made()))

    async def connect(self, node_id: str, **more: Any) -> None:
        """Connect the node of a machine, with these fields."""
        capacity = NodeCapacity(cpu=4.0, memory=16 * GIB, disk=100 * GIB)
        fields = {"registration": None, "capacity": capacity} | more
        node = self.pipeline.nodes[node_id]
        await self.pipeline.save_node(replace(node, status=NodeStatus.CONNECTED, **fields), node_id)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds between two calls; the tests move the clock of decisions themselves."""
    for name in ("_FIRST_RETRY_SECONDS", "_FIRST_END_SECONDS", "_RELEASE_RETRY_SECONDS"):
        monkeypatch.setattr(calls, name, 0.01)
    monkeypatch.setattr(calls, "DESCRIBE_EVERY_SECONDS", 0.02)

    def soon(began: float, ended: float, now: float, **_: object) -> float:
        return max(0.0, ended + 0.02 - now)

    monkeypatch.setattr(calls, "until_next_list", soon)


@contextlib.asynccontextmanager
async def renting(
    cloud: MemoryCloud,
    burst: Fleet | None = None,
    database: MemoryDatabase | None = None,
    setups: dict[str, str] | None = None,
    restored_at: float | None = None,
    others: dict[str, MemoryCloud] | None = None,
) -> AsyncIterator[Renting]:
    found = Renting(database or MemoryDatabase(), cloud, burst or fleet(idle_duration=60.0))
    found.setups = setups or {}
    found.restored_at = restored_at
    found.others = others or {}
    await found.begin()
    try:
        yield found
    finally:
        await found.end()
