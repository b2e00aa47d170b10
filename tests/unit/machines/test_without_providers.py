"""A controller whose file names no provider any more: what its fleets and waiting jobs say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from controller.assembly import Assembly, NodeSettings
from controller.blobs import BlobStore
from controller.clock import SystemClock
from controller.gateways.manager import Settings
from controller.lifecycle.inventory import Fleet
from controller.lifecycle.machines.model import MachineStatus
from controller.links.clients import LocalLink
from controller.logs.store import LogStore
from controller.outputs.store import OutputStore
from controller.service import Stores
from controller.store.base import Changes
from controller.traffic.routes import RouteTable
from tests.doubles.gateway import FakeGateway
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.doubles.secrets import NO_SECRETS
from tests.support.waiting import eventually
from tests.unit.machines.parts import fleet, machine
from tests.unit.pipelines.parts import steady_chance
from tests.unit.scheduling import parts


@contextlib.asynccontextmanager
async def controller(folder: Path, *known: Changes) -> AsyncIterator[Assembly]:
    """A controller without providers, on a database that has this."""
    store, logs = MemoryStore(MemoryDatabase()), LogStore(folder)
    outputs = OutputStore(folder / "outputs")
    boot = await store.open()
    for changes in known:
        await store.commit(changes)
    made = Assembly(
        Stores(store=store, logs=logs, outputs=outputs, blobs=BlobStore(folder / "blobs")),
        boot,
        await store.load(),
        clock=SystemClock(),
        chance=steady_chance(),
        progress={},
        routes=RouteTable(),
        nodes=NodeSettings(
            make_link=lambda _: LocalLink(str(folder / "none.sock")),
            secrets=NO_SECRETS,
            cluster_secret=b"secret",
        ),
        gateways=Settings(make_link=lambda _: FakeGateway()),
    )
    work = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.to_thread(logs.close)
        await asyncio.to_thread(outputs.close)


async def test_a_fleet_without_its_last_provider_and_its_jobs_say_so(tmp_path: Path) -> None:
    async with controller(tmp_path, Changes(fleets={"burst": fleet()})) as lab:
        run = parts.run("r")
        await lab.pipeline.admit(run)

        def waits_for() -> str:
            (job,) = lab.pipeline.known[run.run.id].jobs
            return job.attempts[-1].waits_for or ""

        await eventually(lambda: "rents no machine" in waits_for())
        says = "the controller's file names no provider lab (it has none)"
        assert says in waits_for()
        assert lab.pipeline.rentals is not None
        assert says in (lab.pipeline.rentals.why_never(fleet()) or "")


async def test_what_machines_have_cost_outlasts_the_last_provider(tmp_path: Path) -> None:
    ended = machine("m1", status=MachineStatus.TERMINATED)
    async with controller(tmp_path, Changes(machines={"m1": ended})) as lab:
        assert lab.machines is None
        assert lab.pipeline.rentals is not None
        assert lab.pipeline.rentals.committed.keys() == {"m1"}


async def test_a_controller_that_never_rented_decides_nothing_about_machines(
    tmp_path: Path,
) -> None:
    async with controller(
        tmp_path, Changes(fleets={"own": Fleet(name="own", created_at=0.0)})
    ) as lab:
        assert lab.pipeline.rentals is None
