"""One simulated world: real controllers, simulated nodes and users, all of it from one seed.

Faults come for a while and then stop; everything must settle after that. `simulate` gives what was
found, and the same for the same seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import msgspec

from controller.lifecycle.model import Node, NodeAddress, RunState
from controller.lifecycle.reports import StopRequested
from controller.lifecycle.statuses import FINAL_RUN_STATUSES
from controller.links.base import NodeLink
from controller.pipelines.turns import NameTaken
from controller.store.base import StoreUnavailable
from controller.store.memory import MemoryDatabase
from shim.allocations import Capacity
from shim.schemas import GpuInfo
from tests.simulation.checks import Checks, Violation
from tests.simulation.controller import ControllerLife, Gone, WatchedStore
from tests.simulation.faults import Faults
from tests.simulation.link import SimulatedLink
from tests.simulation.node import SimulatedNode
from tests.simulation.virtual import Deadlock, Life, VirtualClock, VirtualLoop, seeded_chance
from tests.simulation.workload import GIB, random_run

SETTLING_SECONDS = 3 * 3600.0
LOOK_EVERY_SECONDS = 5.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    violations: tuple[Violation, ...]
    virtual_seconds: float
    runs: int
    events: int
    controllers: int
    digest: int
    """Of the whole story: equal for two simulations that went the same way."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Upper ends; a seed chooses below them. Times in seconds."""

    nodes: int = 4
    runs: int = 16
    faults_until: float = 1500.0
    calmest: float = 200.0
    """Mean pause between two faults in the calmest world."""


def simulate(seed: int, scale: Scale | None = None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="fairlead-simulation-") as folder:
        loop = VirtualLoop(Random(f"{seed}/threads"))
        world = World(seed, scale or Scale(), loop, Path(folder))
        try:
            loop.run_until_complete(world.live())
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        return world.outcome()


class World:
    def __init__(self, seed: int, scale: Scale, loop: VirtualLoop, folder: Path) -> None:
        self.seed = seed
        self.loop = loop
        self.nodes: dict[str, SimulatedNode] = {}
        self.checks = Checks(self.nodes, folder, loop.time)
        self._scale = scale
        self._folder = folder
        self._database = MemoryDatabase()
        self._clock = VirtualClock(loop)
        self._life = Life("world")
        self._controllers: list[ControllerLife] = []
        self._running = asyncio.Event()
        self._faulty = True
        self._broken: asyncio.Future[None] = loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._errors = _ErrorLog(self.checks)

    def outcome(self) -> Outcome:
        story = [
            (stored.event.at, stored.event.kind, stored.event.to_status, stored.event.attempt_id)
            for stored in self._database.events
        ]
        return Outcome(
            seed=self.seed,
            violations=tuple(self.checks.violations),
            virtual_seconds=self.loop.time(),
            runs=len(self._database.runs),
            events=len(story),
            controllers=len(self._controllers),
            digest=crc32(repr(story).encode()),
        )

    async def live(self) -> None:
        logging.getLogger("controller").addHandler(self._errors)
        self.loop.set_exception_handler(self._unhandled)
        try:
            story = self.spawn(self._story())
            await asyncio.wait({story, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            if story.done():
                story.result()
        except Deadlock as error:
            self.checks.violated(str(error))
        finally:
            self._errors.close()
            logging.getLogger("controller").removeHandler(self._errors)
            await self._clear_away()

    async def _story(self) -> None:
        chance = self._chance("story")
        self._make_nodes(chance)
        await self._start_controller()
        users = [self.spawn(self._register(node)) for node in self.nodes.values()]
        for number in range(chance.randint(1, self._scale.runs)):
            users.append(self.spawn(self._use(f"run-{number}")))
        faults = self.spawn(
            Faults(self, self._chance("faults")).go_on(
                chance.choice((8.0, chance.uniform(10.0, self._scale.calmest)))
            )
        )
        await asyncio.sleep(self._scale.faults_until)
        faults.cancel()
        await asyncio.wait({faults})
        await self._heal()
        await asyncio.gather(*users)
        await self._settle()

    # -- what faults can do (faults.Faulty) ---------------------------------------------------

    async def kill_controller(self, down: float, *, gently: bool) -> None:
        if not self._running.is_set():
            return
        self._running.clear()
        controller = self._controllers[-1]
        if gently:
            await controller.stop()
        else:
            controller.kill()
        for node in self.nodes.values():
            node.cut()
        self._database.seize()
        try:
            await asyncio.sleep(down)
        finally:
            await self._start_controller()

    def call_unreliable(self, node: SimulatedNode) -> None:
        self.checks.unreliable.add(self.checks.node_ids.get(node.name, ""))

    async def drain(self, node: SimulatedNode, seconds: float) -> None:
        wanted = [self._clock.now(), float("inf")]
        self.checks.drains.setdefault(f"id-of-{node.name}", []).append(wanted)
        await self._set_draining(node, True)
        await asyncio.sleep(seconds)
        await self._set_draining(node, False)
        wanted[1] = self._clock.now()

    # -- users --------------------------------------------------------------------------------

    async def _register(self, node: SimulatedNode) -> None:
        chance = self._chance(f"register {node.name}")
        await asyncio.sleep(chance.choice((0.0, 0.0, chance.uniform(0.0, 300.0))))
        fresh = Node(
            id=f"id-of-{node.name}",
            name=node.name,
            address=NodeAddress(shim_socket=f"/run/{node.name}", local_socket=True),
            created_at=self._clock.now(),
        )
        self.checks.node_ids[node.name] = fresh.id
        while fresh.id not in self._database.nodes:
            await self._try(lambda turns: turns.save_node(fresh, fresh.id))

    async def _set_draining(self, node: SimulatedNode, draining: bool) -> None:
        async def change(turns: Any) -> None:
            known = turns.nodes.get(f"id-of-{node.name}")
            if known is not None:
                changed = msgspec.structs.replace(known, draining=draining)
                await turns.save_node(changed, changed.id)

        while not await self._try(change):
            await self._running.wait()

    async def _use(self, name: str) -> None:
        chance = self._chance(name)
        await asyncio.sleep(chance.uniform(0.0, self._scale.faults_until))
        state = random_run(name, chance, self._clock.now(), seeded_chance(chance).new_id)
        while state.run.id not in self._database.runs:
            acknowledged = await self._try(lambda turns: turns.admit(state))
            if acknowledged and state.run.id not in self._database.runs:
                self.checks.violated(f"run {name} was acknowledged and is not in the store")
        for abort in chance.choices(((), (False,), (True,), (False, True)), (60, 20, 10, 10))[0]:
            await asyncio.sleep(chance.choice((0.1, 5.0, 60.0, 300.0)) * chance.random())
            await self._stop(state, abort)

    async def _stop(self, state: RunState, abort: bool) -> None:
        self.checks.stops_asked.update(job.id for job in state.jobs)
        wish = StopRequested(run_id=state.run.id, abort=abort, by="somebody")
        while not await self._try(lambda turns: turns.report(wish)):
            await self._running.wait()

    async def _try(self, ask: Any) -> bool:
        """Whether the controller has acknowledged it."""
        await self._running.wait()
        controller = self._controllers[-1]
        assert controller.machinery is not None
        try:
            await controller.perform(ask(controller.machinery.turns))
        except (Gone, StoreUnavailable, NameTaken):
            await asyncio.sleep(0.1)
            return False
        return True

    # -- the course of things -----------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """In the world's own life, which no controller's end touches."""
        task = self.loop.spawn(self._life, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _make_nodes(self, chance: Random) -> None:
        for number in range(chance.randint(1, self._scale.nodes)):
            name = f"n{number}"
            big = number == 0
            count = 2 if big else chance.choice((0, 0, 4))
            gpus = tuple(
                GpuInfo(uuid=f"GPU-{name}-{index}", index=index, name="H200", memory=141 * GIB)
                for index in range(count)
            )
            capacity = Capacity(
                cpu=4.0 if big else chance.choice((1.0, 2.0, 8.0)),
                memory=(8 if big else chance.choice((2, 8, 32))) * GIB,
                disk=100 * GIB,
            )
            self.nodes[name] = SimulatedNode(
                name, capacity, gpus, self._clock, self._chance(name), self.spawn, self.checks
            )

    async def _start_controller(self) -> None:
        number = len(self._controllers) + 1
        controller = ControllerLife(number, self.loop, self._controller_failed)
        self._controllers.append(controller)
        store = WatchedStore(
            self._database, self.checks, self._chance(f"store {number}"), lambda: self._faulty
        )
        chance = seeded_chance(self._chance(f"controller {number}"))
        await controller.start(store, self._folder, chance, self._link)
        self._running.set()

    def _link(self, node: Node) -> NodeLink:
        return SimulatedLink(self.nodes[node.name])

    async def _heal(self) -> None:
        self._faulty = False
        for node in self.nodes.values():
            node.start_shim()
            node.weather.clear_up()
        for node in self.nodes.values():
            await self._set_draining(node, False)

    async def _settle(self) -> None:
        patience = self.loop.time() + SETTLING_SECONDS
        while self._unsettled():
            if self.loop.time() > patience:
                for text in self._unsettled():
                    self.checks.violated(text)
                break
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    def _controller_failed(self, error: BaseException | None) -> None:
        """Nothing can go on from here."""
        self.checks.violated(f"the controller ended by itself: {error!r}")
        if not self._broken.done():
            self._broken.set_result(None)

    def _unsettled(self) -> list[str]:
        found = []
        for state in self._database.runs.values():
            run = state.run
            if run.status not in FINAL_RUN_STATUSES:
                lasts = [job.attempts[-1] for job in state.jobs]
                told = ", ".join(f"{last.id} {last.status} {last.reason}" for last in lasts)
                found.append(f"run {run.name} did not end: {run.status} ({told})")
        for node in self.nodes.values():
            for task in node.tasks.values():
                found.append(f"task {task.info.id} ({task.info.status}) is left on {node.name}")
            for held in node.ledger.held:
                found.append(f"allocation {held.id} of {held.task_ids} is left on {node.name}")
        return found

    async def _clear_away(self) -> None:
        for controller in self._controllers:
            controller.kill()
            await self.loop.bury(controller.life)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _chance(self, purpose: str) -> Random:
        return Random(f"{self.seed}/{purpose}")

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        what = context.get("exception") or context.get("task") or context.get("handle")
        self.checks.violated(f"{context['message']}: {what!r}")


class _ErrorLog(logging.Handler):
    """What the controller did not expect is a violation too."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(logging.ERROR)
        self._checks = checks

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            with contextlib.suppress(Exception):
                error = record.exc_info[1]
                self._checks.violated(f"unexpected: {record.getMessage()}: {error!r}")
