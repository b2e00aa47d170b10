"""One simulated world: real controllers, simulated nodes and users, all of it from one seed.

Faults come for a while and then stop; everything must settle after that. `simulate` gives what was
found, and the same for the same seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from controller.gateways.link import GatewayLink
from controller.lifecycle.model import Fleet, Node
from controller.links.base import NodeLink
from controller.pipelines import turn
from controller.pipelines.admissions import NameTaken
from controller.store.base import Gateway
from controller.store.errors import LeaseLost, StoreUnavailable
from fairlead.model.statuses import FINAL_RUN_STATUSES, AllocationState
from fairlead.wire.engine_abilities import KNOWN_TO_ALL, EngineAbility
from fairlead.wire.node import GpuInfo
from shim.node.ledger import Capacity
from tests.doubles.gateway import FakeGateway, a_gateway
from tests.doubles.memory_store import MemoryDatabase
from tests.simulation import gateway
from tests.simulation.checks import Checks, Violation
from tests.simulation.controller import ControllerLife, Gone, StoreWeather, WatchedStore
from tests.simulation.desks import Guests, Resident
from tests.simulation.faults import Faults
from tests.simulation.gateway import OwnerAtGateway
from tests.simulation.link import SimulatedLink
from tests.simulation.node import SimulatedNode
from tests.simulation.people import Admin, Ask, User
from tests.simulation.rivals import Rivals
from tests.simulation.services import Owner, Visitors
from tests.simulation.sweepers import Sweeper
from tests.simulation.virtual import EPOCH, Deadlock, Life, VirtualClock, VirtualLoop, seeded_chance
from tests.simulation.watchers import Watcher
from tests.simulation.workload import GIB, SPARE, Site

SETTLING_SECONDS = 6 * 3600.0
"""Ten failures of a run whose runners fall silent take more than an hour, and one like it may come
first."""
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

    nodes: int = 5
    runs: int = 16
    faults_until: float = 1500.0
    calmest: float = 200.0
    """Mean pause between two faults in the calmest world."""
    services: bool = False
    """True: half of the users have services, and visitors send requests to them."""
    desks: bool = True
    """In worlds with services there are dev environments, too."""
    gateways: bool = True
    """In worlds with services half of these have a gateway."""
    sweeps: bool = False
    """True: half of the users have sweeps."""
    watched: bool = False
    """True: half of the users start their jobs again in their containers."""
    engines: bool = False
    """True: engines of nodes stay away for longer than a node may be silent."""
    wide: bool = True
    """False: without what was added later, so that an older seed tells its old story."""


def simulate(seed: int, scale: Scale | None = None) -> Outcome:
    return played(lambda loop, folder: World(seed, scale or Scale(), loop, folder), seed).outcome()


def simulate_engines(seed: int) -> Outcome:
    return simulate(seed, Scale(engines=True))


def simulate_sweeps(seed: int) -> Outcome:
    return simulate(seed, Scale(sweeps=True))


def simulate_watched(seed: int) -> Outcome:
    return simulate(seed, Scale(watched=True))


def simulate_services(seed: int) -> Outcome:
    return simulate(seed, Scale(services=True))


W = TypeVar("W", bound="World")


def played(make: Callable[[VirtualLoop, Path], W], seed: int) -> W:
    """The world when its story is over."""
    with tempfile.TemporaryDirectory(prefix="fairlead-simulation-", dir=_memory()) as folder:
        loop = VirtualLoop(Random(f"{seed}/threads"))
        world = make(loop, Path(folder))
        try:
            loop.run_until_complete(world.live())
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        return world


def _memory() -> str | None:
    """Thousands of fsyncs of logs that nobody keeps need no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class World:
    def __init__(self, seed: int, scale: Scale, loop: VirtualLoop, folder: Path) -> None:
        self.seed = seed
        self.loop = loop
        self.nodes: dict[str, SimulatedNode] = {}
        self.checks = Checks(self.nodes, folder, loop.time)
        self.clock = VirtualClock(loop)
        self.database = MemoryDatabase()
        self.store_weather = StoreWeather()
        self.admin = Admin(self)
        self.rivals = Rivals(
            self.database, self.nodes, self.checks, self.clock.now, self._begin_controller
        )
        self.fleets = [Fleet(name="fleet", created_at=EPOCH)]
        self.site = Site(largest_place=1)
        self.gateways: dict[str, FakeGateway] = {}
        self._scale = scale
        self._folder = folder
        self._life = Life("world")
        self._broken: asyncio.Future[None] = loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._errors = _ErrorLog(self.checks)

    @property
    def restores(self) -> int:
        return self.rivals.restores

    def outcome(self) -> Outcome:
        story = [
            (stored.event.at, stored.event.kind, stored.event.to_status, stored.event.attempt_id)
            for stored in self.database.events
        ]
        return Outcome(
            seed=self.seed,
            violations=tuple(self.checks.violations),
            virtual_seconds=self.loop.time(),
            runs=len(self.database.runs),
            events=len(story),
            controllers=len(self.rivals.lives),
            digest=crc32(repr(story).encode()),
        )

    async def live(self) -> None:
        logging.getLogger("controller").addHandler(self._errors)
        self.loop.set_exception_handler(self._unhandled)
        try:
            story = self.spawn(self.story())
            await asyncio.wait({story, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            if story.done():
                story.result()
        except Deadlock as error:
            self.checks.violated(str(error))
        finally:
            self._errors.close()
            logging.getLogger("controller").removeHandler(self._errors)
            await self._clear_away()

    async def story(self) -> None:
        chance = self.chance("story")
        self.make_nodes(chance)
        if self._scale.services and self._scale.gateways:
            self.database.gateways[gateway.NAME] = a_gateway(gateway.NAME)
        await self.rivals.start()
        await self.admin.register_fleets()
        work = [self.spawn(self.join(node)) for node in self.nodes.values()]
        users = [
            self._kind_of_user(number)(
                self,
                f"run-{number}",
                self.chance(f"run-{number}"),
                self.chance(f"run-{number}/more"),
            )
            for number in range(chance.randint(1, self._scale.runs))
        ]
        users += self._residents()
        work += [self.spawn(user.live(self._scale.faults_until)) for user in users]
        faults = Faults(self, self.chance("faults"))
        going_on = [
            self.spawn(
                faults.go_on(chance.choice((8.0, chance.uniform(10.0, self._scale.calmest))))
            )
        ]
        if self._scale.engines:
            engines = faults.engines_go_away(self.chance("engines"), self._scale.faults_until)
            going_on.append(self.spawn(engines))
        guests = self._guests()
        await asyncio.sleep(self._scale.faults_until)
        for fault in going_on:
            fault.cancel()
        for error in await asyncio.gather(*going_on, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
        await self._heal()
        await asyncio.gather(*work)
        for user in users:
            await user.close()
        for guest in guests:
            guest.cancel()
        await self.settle()

    def _kind_of_user(self, number: int) -> type[User]:
        if self._scale.watched and number % 2 == 0:
            return Watcher
        if self._scale.sweeps and number % 2 == 0:
            return Sweeper
        if not self._scale.services or number % 2:
            return User
        return OwnerAtGateway if self._scale.gateways and number % 4 == 0 else Owner

    def _residents(self) -> list[User]:
        if not (self._scale.services and self._scale.desks):
            return []
        names = [f"desk-{number}" for number in range(self.chance("desks").choice((0, 2, 3, 4)))]
        return [
            Resident(self, name, self.chance(name), self.chance(f"{name}/more")) for name in names
        ]

    def _guests(self) -> list[asyncio.Task[Any]]:
        """Those who use services and dev environments."""
        if not self._scale.services:
            return []
        guests = [(kind, self.chance(kind.__name__.lower())) for kind in (Visitors, Guests)]
        tasks = [
            self.spawn(kind(lambda: self.rivals.newest, self.checks, chance, self.spawn).come())
            for kind, chance in guests
        ]
        if self._scale.gateways:
            agent = self.gateways.setdefault(gateway.NAME, FakeGateway())
            life = gateway.GatewayLife(agent, self.checks, self.chance("gateway"), self.spawn)
            tasks.append(self.spawn(life.go_on()))
        return tasks

    async def join(self, node: SimulatedNode) -> None:
        chance = self.chance(f"register {node.name}")
        await asyncio.sleep(chance.choice((0.0, 0.0, chance.uniform(0.0, 300.0))))
        await self.admin.register(node)

    # -- what faults can do (faults.Faulty) ---------------------------------------------------

    def call_unreliable(self, node: SimulatedNode) -> None:
        self.checks.unreliable.add(node.name)

    def call_broken(self, task_ids: Iterable[str]) -> None:
        self.checks.broken.update(task_ids)

    async def restore_backup(self, down: float) -> None:
        await self.rivals.restore(down)
        await self.admin.remove_stale()
        for node in self.nodes.values():
            if node.name in self.checks.node_ids:
                await self.admin.register(node)

    # -- what people can do (people.Office) ---------------------------------------------------

    async def asked(self, ask: Ask) -> bool:
        """Whether the controller has acknowledged it."""
        await self.rivals.works.wait()
        controller = self.rivals.newest
        assert controller.assembly is not None
        pipeline = controller.assembly.pipeline

        async def work() -> None:
            await ask(pipeline)

        try:
            await controller.perform(work())
        except (Gone, StoreUnavailable, LeaseLost, NameTaken):
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

    def make_nodes(self, chance: Random) -> None:
        racks = chance.random() < 0.5
        if racks:
            self.fleets = [Fleet(name="fleet", placement="rack", created_at=EPOCH)]
        for number in range(chance.randint(1, self._scale.nodes)):
            self._make_node(number, chance, "r0" if number < 3 else chance.choice(("r0", "r1")))
        if self._scale.wide:
            self._make_second_fleet(self.chance("second fleet"))
        held = Counter(
            (node.fleet, node.attributes["rack"] if racks and node.fleet == "fleet" else None)
            for node in self.nodes.values()
        )
        self.site = Site(
            largest_place=max(held.values()), named_places=racks, wide=self._scale.wide
        )

    def _make_second_fleet(self, chance: Random) -> None:
        """Of some of the nodes that no job needs."""
        self.fleets.append(Fleet(name=SPARE, created_at=EPOCH))
        for node in list(self.nodes.values())[3:]:
            if chance.random() < 0.4:
                node.fleet = SPARE

    def _make_node(self, number: int, chance: Random, rack: str) -> None:
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
        clock = VirtualClock(self.loop)
        plain = self._scale.wide and not big and self.chance(f"engine {name}").random() < 0.3
        lacks = tuple(one for one in EngineAbility if one in KNOWN_TO_ALL) if plain else ()
        node = SimulatedNode(
            name, capacity, gpus, clock, self.chance(name), self.spawn, self.checks, lacks
        )
        if not big:
            node.limit_networks(self.chance(f"networks of {name}").choice((None, None, 1, 2, 3)))
        node.attributes = {"rack": rack, "number": str(number)}
        self.nodes[name] = node

    async def _begin_controller(self) -> ControllerLife:
        number = len(self.rivals.lives) + 1
        self.checks.succeeded_at = self.loop.time()
        controller = ControllerLife(number, self.loop, self._controller_failed)
        store = WatchedStore(
            self.database,
            self.checks,
            self.chance(f"store {number}"),
            self.store_weather,
            self.clock,
        )
        chance = seeded_chance(self.chance(f"controller {number}"))
        await controller.start(
            store, self._folder, self.clock, chance, self._link, self._gateway_link
        )
        return controller

    def _gateway_link(self, wanted: Gateway) -> GatewayLink:
        return self.gateways.setdefault(wanted.name, FakeGateway())

    def _link(self, node: Node) -> NodeLink:
        return SimulatedLink(self.nodes[node.name])

    async def _heal(self) -> None:
        self.store_weather.clear_up()
        self.rivals.end_the_superseded()
        for node in self.nodes.values():
            node.heal()
            self.admin.clear_unknown(node)
        await self.admin.settle()
        await self.admin.remove_stale()
        for node in self.nodes.values():
            if node.name in self.checks.node_ids:
                await self.admin.register(node)
            await self.admin.change(node, draining=False, drain_deadline=None, cordoned=False)

    async def settle(self) -> None:
        patience = self.loop.time() + SETTLING_SECONDS
        while self._unsettled():
            if self.loop.time() > patience:
                for text in self._unsettled():
                    self.checks.violated(text)
                break
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            self.checks.look()
            if self.restores:  # a request may have been on its way since before the restore
                for node in self.nodes.values():
                    self.admin.clear_unknown(node)

    def _controller_failed(self, error: BaseException | None) -> None:
        self.checks.violated(f"the controller ended by itself: {error!r}")
        self.end()

    def end(self) -> None:
        """Nothing can go on from here."""
        if not self._broken.done():
            self._broken.set_result(None)

    def _unsettled(self) -> list[str]:
        found = []
        for state in self.database.runs.values():
            run = state.run
            for place in state.allocations:
                if place.state is not AllocationState.RELEASED:
                    found.append(f"place {place.id} of run {run.name} is {place.state} forever")
            if run.status not in FINAL_RUN_STATUSES:
                lasts = [last for job in state.jobs for last in job.attempts[-1:]]
                told = ", ".join(f"{last.id} {last.status} {last.reason}" for last in lasts)
                found.append(f"run {run.name} did not end: {run.status} ({told})")
        for node in self.nodes.values():
            for task in node.tasks.values():
                found.append(f"task {task.info.id} ({task.info.status}) is left on {node.name}")
            for held in node.ledger.held:
                found.append(f"allocation {held.id} of {held.task_ids} is left on {node.name}")
        return [*found, *self._claimed_by_ended()]

    def _claimed_by_ended(self) -> Iterator[str]:
        """Names and routes that runs keep although they are over."""
        assembly = self.rivals.newest.assembly
        if assembly is None:
            return
        for run in (state.run for state in self.database.runs.values()):
            if run.status not in FINAL_RUN_STATUSES:
                continue
            if assembly.pipeline.live_run_named(run.name) == run.id:
                yield f"the name {run.name} is still claimed by {run.id}, which is over"
            if assembly.routes.get(run.id) is not None:
                yield f"{run.name} is over and still has its route"

    async def _clear_away(self) -> None:
        for controller in self.rivals.lives:
            controller.kill()
            await self.loop.bury(controller.life)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def chance(self, purpose: str) -> Random:
        # Each purpose has its own: one that draws more often must not change the others.
        return Random(f"{self.seed}/{purpose}")

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        what = context.get("exception") or context.get("task") or context.get("handle")
        self.checks.violated(f"{context['message']}: {what!r}")


class _ErrorLog(logging.Handler):
    """An error that the controller did not expect is a violation too."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(logging.ERROR)
        self._checks = checks

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            with contextlib.suppress(Exception):
                error = record.exc_info[1]
                self._checks.violated(f"unexpected: {record.getMessage()}: {error!r}")
        elif record.name == turn.__name__ and record.msg.startswith("internal error"):
            self._checks.violated(record.getMessage())
