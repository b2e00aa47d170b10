"""Three controllers that share a database: one decides, the others wait, and any of them may be
killed, paused, cut off or mistaken about the time, at every step.

A controller's process is real from `following.Wait` to `Assembly`; its database is `shared`. The
users' requests arrive at any of the three, and go to the one that it takes for the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from random import Random

from controller import following
from controller.assembly import Assembly, NodeSettings
from controller.blobs import BlobStore
from controller.daemon.lease import SHARED_RENEWAL_SECONDS, Leading, end, keep_lease
from controller.daemon.options import LINGER_SECONDS
from controller.daemon.serving import until_stopped
from controller.following import MAX_CLOCK_DIFFERENCE
from controller.gateways.manager import Settings as GatewaySettings
from controller.lifecycle.model import Node
from controller.links.base import NodeLink
from controller.logs.store import LogStore
from controller.outputs.bucket import BucketError
from controller.outputs.store import OutputStore
from controller.relay import Leader, Relay
from controller.service import Stores
from controller.service.runs.submissions import SubmissionService
from controller.store.errors import LeaseHeld, LeaseLost, StoreUnavailable, StoreUnusable
from controller.store.peers import LEASE_SECONDS
from controller.traffic.routes import RouteTable
from tests.doubles.gateway import FakeGateway
from tests.doubles.secrets import NO_SECRETS
from tests.simulation.checks import Checks
from tests.simulation.controller import ControllerLife
from tests.simulation.keyed import submissions_of
from tests.simulation.link import SimulatedConnection, SimulatedLink
from tests.simulation.node import SimulatedNode
from tests.simulation.shared import (
    UNKNOWN,
    SharedDatabase,
    SharedStore,
    SimulatedPeers,
    Way,
)
from tests.simulation.virtual import VirtualClock, VirtualLoop, seeded_chance

RESTART_SECONDS = 2.0
"""As systemd waits."""


class NotedRelay(Relay):
    """Carries nothing; `leader` is where it would."""

    def __init__(self) -> None:
        super().__init__()
        self.leader: Leader | None = None

    def lead_to(self, leader: Leader | None) -> None:
        self.leader = leader


class Surroundings:
    """What the processes of all machines have in common. `committed` hears of each commit: its
    process and its token."""

    def __init__(
        self,
        database: SharedDatabase,
        nodes: dict[str, SimulatedNode],
        checks: Checks,
        loop: VirtualLoop,
        folder: Path,
        chance: Callable[[str], Random],
    ) -> None:
        self.database = database
        self.nodes = nodes
        self.checks = checks
        self.loop = loop
        self.folder = folder
        self.chance = chance
        self.processes: list[Process] = []
        self.led = 0
        self.deciders: dict[int, Process] = {}
        self.is_fenced = True
        self.end: Callable[[], None] = lambda: None
        """Ends the story: nothing can go on from here."""

    def decided(self, token: int, process: Process) -> None:
        if self.deciders.setdefault(token, process) is not process:
            self.checks.violated(f"two controllers decided under the token {token}")
            self.end()
        if token != max(self.deciders):
            self.checks.violated(f"token {token} decided after {max(self.deciders)}")


class Process(ControllerLife):
    """One life of a controller: it waits, then leads. `assembly` is there while it leads."""

    def __init__(self, machine: Machine, around: Surroundings) -> None:
        around.processes.append(self)
        self.number = number = len(around.processes)
        name = f"controller {number}"
        super().__init__(number, around.loop, lambda error: None)
        self.relay = NotedRelay()
        self.way = Way(around.chance(f"way of {name}"))
        self.leading = Leading(LEASE_SECONDS, around.loop.time)
        self.submissions: SubmissionService | None = None
        self.is_paused = False
        self._machine = machine
        self._around = around
        self._chance = seeded_chance(around.chance(name))
        self._stop = asyncio.Event()

    def begin(self) -> None:
        self._work = self._loop.spawn(self.life, self._run(), name="controller")
        self._work.add_done_callback(self._ended)

    def leads(self) -> bool:
        return self.assembly is not None and not self.gone.is_set() and self.leading.is_sure()

    def kill(self) -> None:
        super().kill()
        self.way.die()

    def pause(self) -> None:
        # Faults overlap, and a second pause would forget what the first has kept.
        if not self.is_paused and not self.life.dead:
            self.is_paused = True
            super().pause()

    def go_on(self) -> None:
        if self.is_paused and not self.life.dead:
            self._loop.resume(self.life)
        self.is_paused = False

    def terminate(self) -> None:
        """As SIGTERM does."""
        self._loop.spawn(self.life, _set(self._stop))

    def _ended(self, work: asyncio.Task[None]) -> None:
        self.gone.set()
        self.way.die()
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, LeaseLost):
            self._around.checks.violated(f"a controller ended by itself: {error!r}")
        mine = self._around.deciders.get(self._around.database.token) is self
        if isinstance(error, LeaseLost) and str(error) != UNKNOWN and mine:
            self._around.checks.violated("the leader gave up, and nobody had taken over")

    async def _run(self) -> None:
        around, machine = self._around, self._machine
        new_id = self._chance.new_id()
        peers = SimulatedPeers(around.database, self.way, machine.url, new_id)
        wait = following.Wait(peers, self._stop, machine.clock.now)
        try:
            await wait.begin()
        except (StoreUnavailable, StoreUnusable):
            return
        try:
            while await wait.until_it_may_lead(self.relay):
                try:
                    async with self._opened(peers) as work:
                        self.relay.lead_to(None)
                        await until_stopped(work, self._stop)
                except (LeaseHeld, StoreUnavailable):
                    continue
                break
            await wait.linger(self.relay, LINGER_SECONDS)
        finally:
            peers.leave()

    @contextlib.asynccontextmanager
    async def _opened(self, peers: SimulatedPeers) -> AsyncIterator[asyncio.Task[None]]:
        """Raises LeaseHeld, StoreUnavailable."""
        around, clock = self._around, self._machine.clock
        store = SharedStore(
            around.database,
            peers,
            self.way,
            around.checks,
            clock,
            lambda token: around.decided(token, self),
        )
        store.is_fenced = around.is_fenced
        try:
            boot = await store.open()
            self.leading.renewed(self.leading.now())
            keeping = self._keep_lease(store)
            try:
                snapshot = await store.load()
            finally:
                await end(keeping)
            stores = self._stores(store)
            assembly = Assembly(
                stores,
                boot,
                snapshot,
                clock=clock,
                chance=self._chance,
                progress={},
                routes=RouteTable(),
                nodes=NodeSettings(
                    make_link=self._machine.link,
                    secrets=NO_SECRETS,
                    cluster_secret=b"simulated",
                ),
                gateways=GatewaySettings(make_link=lambda _: FakeGateway()),
            )
            self.submissions = submissions_of(assembly, stores, clock, self._chance)
            around.led += 1
            around.checks.succeeded_at = around.loop.time()
            self.assembly = assembly
            keeping = self._keep_lease(store)
            work = asyncio.create_task(_first_end(assembly, keeping), name="work")
            try:
                yield work
            finally:
                self.assembly = None
                self.leading.end()
                await end(work)
                await end(keeping)
        finally:
            await store.close()

    def _keep_lease(self, store: SharedStore) -> asyncio.Task[None]:
        return asyncio.create_task(
            keep_lease(store, SHARED_RENEWAL_SECONDS, self.leading), name="lease"
        )

    def _stores(self, store: SharedStore) -> Stores:
        folder, chance = self._around.folder, self._around.chance(f"blobs of {self.number}")
        return Stores(
            store=store,
            logs=LogStore(folder),
            outputs=OutputStore(folder / "outputs"),
            blobs=SlowBlobs(folder.parent / "blobs", chance),
        )


class SlowBlobs(BlobStore):
    """All uploads are there, in a bucket that is slow or away now and then."""

    def __init__(self, folder: Path, chance: Random) -> None:
        super().__init__(folder)
        self._chance = chance

    async def size_for(self, digest: str, user: str) -> int | None:
        await asyncio.sleep(self._chance.choice((0.0, 0.001, 0.02, 0.5, 10.0)))
        if self._chance.random() < 0.2:
            raise BucketError("it is away")
        return 1

    async def size(self, digest: str) -> int | None:
        return 1

    async def read(self, digest: str) -> AsyncGenerator[bytes, None]:
        yield b"c"


async def _set(event: asyncio.Event) -> None:
    event.set()


async def _first_end(assembly: Assembly, keeping: asyncio.Task[None]) -> None:
    async def keep() -> None:
        await keeping

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(assembly.run(), name="assembly")
            group.create_task(keep(), name="lease")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class Machine:
    """A machine with a controller, which systemd starts again."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.url = f"http://{name}:8700"
        self.clock = VirtualClock(around.loop)
        self.process: Process | None = None
        self.is_on = True
        self.is_cut_from_nodes = False
        self._around = around
        self._is_cut = False
        self._connections: list[SimulatedConnection] = []

    async def go_on(self) -> None:
        """Until cancelled."""
        while True:
            if self.is_on:
                self.process = Process(self, self._around)
                if self._is_cut:
                    self.process.way.cut()
                self.process.begin()
                await self.process.gone.wait()
            await asyncio.sleep(RESTART_SECONDS)

    def cut_from_database(self) -> None:
        self._is_cut = True
        if self.process is not None:
            self.process.way.cut()

    def mend(self) -> None:
        self._is_cut = self.is_cut_from_nodes = False
        if self.process is not None:
            self.process.way.mend()

    def heal(self) -> None:
        self.mend()
        self.is_on = True
        self.clock.jumped = 0.0
        if self.process is not None:
            self.process.way.clear_up()
            if self.process.is_paused:
                self.process.go_on()

    def is_able(self) -> bool:
        """Return whether this controller could lead, as far as its surroundings go."""
        process = self.process
        is_up = process is not None and not process.gone.is_set() and not process.is_paused
        return is_up and not self._is_cut and abs(self.clock.jumped) < MAX_CLOCK_DIFFERENCE

    def cut_from_nodes(self) -> None:
        self.is_cut_from_nodes = True
        self.hang_up()

    def hang_up(self) -> None:
        """End this controller's connections to all nodes."""
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.cut()

    def kill(self) -> None:
        if self.process is not None and not self.process.gone.is_set():
            self.process.kill()
        self.hang_up()

    def link(self, node: Node) -> NodeLink:
        return _Link(self._around.nodes[node.name], self)

    def connected(self, connection: SimulatedConnection) -> None:
        self._connections.append(connection)


class _Link(SimulatedLink):
    def __init__(self, node: SimulatedNode, machine: Machine) -> None:
        super().__init__(node)
        self._machine = machine

    async def connect(self) -> SimulatedConnection:
        connection = await super().connect()
        self._machine.connected(connection)
        if self._machine.is_cut_from_nodes:
            connection.cut()
        return connection
