"""The real controller in a life of its own, over a store and a log folder that outlive it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from controller.assembly import Assembly, NodeSettings
from controller.blobs import BlobStore
from controller.clock import Chance, Clock
from controller.gateways.link import GatewayLink
from controller.gateways.manager import Settings as GatewaySettings
from controller.lifecycle.model import Node
from controller.links.base import NodeLink
from controller.logs.store import LogStore
from controller.machines.manager import MachineSettings
from controller.outputs.store import OutputStore
from controller.service import Stores
from controller.store.base import Changes, Gateway
from controller.store.errors import LeaseLost, StoreUnavailable
from controller.traffic.routes import RouteTable
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.doubles.secrets import NO_SECRETS
from tests.simulation.checks import Checks
from tests.simulation.virtual import Life, VirtualLoop

T = TypeVar("T")

COMMIT_SECONDS = 0.02
FAILING_COMMITS = 0.02
BUSY_SECONDS = 5.0
LEASE_RENEWAL_SECONDS = 10.0


class StoreWeather:
    """How well the database answers now."""

    def __init__(self) -> None:
        self.failing = FAILING_COMMITS
        self.slowest = COMMIT_SECONDS

    def turn_bad(self) -> None:
        self.failing, self.slowest = 0.5, BUSY_SECONDS

    def pass_over(self) -> None:
        self.failing, self.slowest = FAILING_COMMITS, COMMIT_SECONDS

    def clear_up(self) -> None:
        self.failing, self.slowest = 0.0, COMMIT_SECONDS


class WatchedStore(MemoryStore):
    """Commits take time, fail now and then while there are faults, and are checked."""

    def __init__(
        self,
        database: MemoryDatabase,
        checks: Checks,
        chance: Random,
        weather: StoreWeather,
        clock: Clock,
    ) -> None:
        super().__init__(database, clock.now)
        self._checks = checks
        self._chance = chance
        self._weather = weather

    async def commit(self, changes: Changes) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, self._weather.slowest))
        if self._chance.random() < self._weather.failing:
            raise StoreUnavailable("the disk is full")
        await super().commit(changes)
        self.seen(changes)
        await asyncio.sleep(self._chance.uniform(0.0, self._weather.slowest))

    def seen(self, changes: Changes) -> None:
        """Check what was just committed. Nothing is awaited between the two: a controller that is
        killed afterwards has committed all the same."""
        self._checks.committed(changes)


class Gone(Exception):
    """The controller ended before it answered; whether it had the request is not known."""


class ControllerLife:
    """`gone` is set when it was killed; `failed` is called when it ended by itself, which it must
    do, and may only do, after another one has taken over (`superseded`)."""

    def __init__(
        self, number: int, loop: VirtualLoop, failed: Callable[[BaseException | None], None]
    ) -> None:
        self.life = Life(f"controller {number}")
        self.gone = asyncio.Event()
        self.assembly: Assembly | None = None
        self.superseded = False
        self._loop = loop
        self._failed = failed
        self._work: asyncio.Task[None] | None = None

    async def start(
        self,
        store: MemoryStore,
        log_folder: Path,
        clock: Clock,
        chance: Chance,
        make_link: Callable[[Node], NodeLink],
        make_gateway_link: Callable[[Gateway], GatewayLink],
        machines: MachineSettings | None = None,
    ) -> None:
        async def boot() -> Assembly:
            boot = await store.open()
            stores = Stores(
                store=store,
                logs=LogStore(log_folder),
                outputs=OutputStore(log_folder / "outputs"),
                blobs=BlobStore(log_folder.parent / "blobs"),
            )
            return Assembly(
                stores,
                boot,
                await store.load(),
                clock=clock,
                chance=chance,
                progress={},
                routes=RouteTable(),
                nodes=NodeSettings(
                    make_link=make_link, secrets=NO_SECRETS, cluster_secret=b"simulated"
                ),
                gateways=GatewaySettings(make_link=make_gateway_link),
                machines=machines,
            )

        self.assembly = await self.perform(boot())
        self._work = self._loop.spawn(self.life, _work(self.assembly, store), name="controller")
        self._work.add_done_callback(self._ended)

    async def perform(self, work: Coroutine[Any, Any, T]) -> T:
        """Within the controller. Raises Gone when it is killed meanwhile."""
        if self.gone.is_set():
            work.close()
            raise Gone
        task = self._loop.spawn(self.life, work)
        gone = asyncio.ensure_future(self.gone.wait())
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not task.done():
            raise Gone
        return task.result()

    def kill(self) -> None:
        if self._work is not None:
            self._work.remove_done_callback(self._ended)
        self._loop.kill(self.life)
        self.gone.set()

    def kill_after(self, steps: int, die: Callable[[], None]) -> None:
        """`die` is called, in nobody's life, between two steps of the controller."""
        self._loop.after_steps(self.life, steps, die)

    def pause(self) -> None:
        self._loop.pause(self.life)

    async def resume(self) -> None:
        """Until it has found out that another one has taken over, and has ended."""
        self._loop.resume(self.life)
        if self._work is not None:
            await asyncio.wait({self._work})

    async def stop(self) -> None:
        """As SIGTERM does: with all of its cleanup."""
        try:
            if self._work is not None:
                self._work.remove_done_callback(self._ended)
                self._work.cancel()
                await asyncio.wait({self._work})
        finally:
            self.kill()

    def _ended(self, work: asyncio.Task[None]) -> None:
        self.gone.set()
        error = None if work.cancelled() else work.exception()
        if not (self.superseded and isinstance(error, LeaseLost)):
            self._failed(error)


async def _work(assembly: Assembly, store: MemoryStore) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(assembly.run(), name="assembly")
            group.create_task(_keep_lease(store), name="lease")
    except BaseExceptionGroup as errors:
        # `_ended` looks for LeaseLost itself, not for a group with it.
        raise errors.exceptions[0] from None


async def _keep_lease(store: MemoryStore) -> None:
    while True:
        await asyncio.sleep(LEASE_RENEWAL_SECONDS)
        await store.renew_lease()
