"""The faults, and how often they come. Each is one coroutine that does its harm and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from random import Random
from typing import Any, Protocol

from fairlead.wire.shim import TaskStatus
from tests.simulation.checks import Checks
from tests.simulation.controller import StoreWeather
from tests.simulation.node import SimulatedNode
from tests.simulation.people import Admin
from tests.simulation.rivals import Rivals
from tests.simulation.virtual import VirtualClock

log = logging.getLogger(__name__)

LONG_SILENCE_SECONDS = 330.0
"""Longer than it takes the controller to give a node up."""


class Faulty(Protocol):
    """The targets of faults."""

    nodes: dict[str, SimulatedNode]
    rivals: Rivals
    admin: Admin
    store_weather: StoreWeather
    clock: VirtualClock
    checks: Checks

    def call_unreliable(self, node: SimulatedNode) -> None: ...

    def call_broken(self, task_ids: Iterable[str]) -> None:
        """Their ends are the fault of engine or GPU."""

    async def restore_backup(self, down: float) -> None: ...


Kind = Callable[[SimulatedNode], Coroutine[Any, Any, None]]


class Faults:
    def __init__(self, world: Faulty, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._of_nodes: dict[Kind, int] = {
            self.connection_is_cut: 30,
            self.short_silence: 15,
            self.long_silence: 5,
            self.refused_connections: 8,
            self.slow_network: 10,
            self.lost_replies: 10,
            self.stuttering_events: 10,
            self.shim_restarts: 15,
            self.engine_restarts: 4,
            self.node_reboots: 4,
            self.node_is_installed_anew: 1,
            self.node_is_lost_for_good: 1,
            self.record_is_damaged: 3,
            self.gpu_breaks: 3,
            self.node_is_drained: 5,
            self.node_is_cordoned: 3,
        }
        self._kinds: dict[Kind, int] = {
            **self._of_nodes,
            self.controller_is_killed: 8,
            self.controller_dies_between_two_steps: 10,
            self.database_is_busy: 5,
            **self._rare(),
        }

    def _rare(self) -> dict[Kind, int]:
        """They make the checks forgive more, so they happen in some worlds only."""
        rare: dict[Kind, int] = {}
        if self._chance.random() < 0.3:
            rare[self.another_controller_takes_over] = 6
        if self._chance.random() < 0.2:
            rare[self.clock_jumps] = 5
        if self._chance.random() < 0.15:
            rare[self.database_is_backed_up] = 6
            rare[self.database_is_put_back] = 4
        return rare

    async def go_on(self, mean_pause: float) -> None:
        """Until cancelled; faults overlap."""
        kinds, weights = list(self._kinds), list(self._kinds.values())
        async with asyncio.TaskGroup() as going:
            while True:
                await asyncio.sleep(self._chance.expovariate(1.0 / mean_pause))
                (kind,) = self._chance.choices(kinds, weights)
                node = self._chance.choice(list(self._world.nodes.values()))
                log.info("fault: %s %s", kind.__name__, node.name)
                going.create_task(self._do(kind, node))

    async def _do(self, kind: Kind, node: SimulatedNode) -> None:
        """Nobody can be blamed for what was not heard meanwhile."""
        hit = [node] if kind in self._of_nodes else list(self._world.nodes.values())
        with self._world.checks.disturbed(one.name for one in hit):
            await kind(node)

    async def connection_is_cut(self, node: SimulatedNode) -> None:
        node.cut()

    async def short_silence(self, node: SimulatedNode) -> None:
        await self._silence(node, self._chance.uniform(1.0, 200.0))

    async def long_silence(self, node: SimulatedNode) -> None:
        self._world.call_unreliable(node)
        await self._silence(node, self._chance.uniform(LONG_SILENCE_SECONDS, 900.0))

    async def refused_connections(self, node: SimulatedNode) -> None:
        node.weather.refusing = True
        node.cut()
        await asyncio.sleep(self._chance.uniform(1.0, 60.0))
        node.weather.refusing = False

    async def slow_network(self, node: SimulatedNode) -> None:
        node.weather.latency = self._chance.uniform(0.1, 3.0)
        await asyncio.sleep(self._chance.uniform(5.0, 120.0))
        node.weather.latency = 0.02

    async def lost_replies(self, node: SimulatedNode) -> None:
        node.weather.lost_replies = self._chance.uniform(0.1, 0.6)
        await asyncio.sleep(self._chance.uniform(5.0, 60.0))
        node.weather.lost_replies = 0.0

    async def stuttering_events(self, node: SimulatedNode) -> None:
        node.weather.duplicates = node.weather.reordering = self._chance.uniform(0.1, 0.5)
        await asyncio.sleep(self._chance.uniform(10.0, 120.0))
        node.weather.duplicates = node.weather.reordering = 0.0

    async def shim_restarts(self, node: SimulatedNode) -> None:
        node.stop_shim()
        await asyncio.sleep(self._chance.choice((0.0, 0.5, 5.0, 40.0)))
        node.start_shim()

    async def node_reboots(self, node: SimulatedNode) -> None:
        async with self._power_off(node) as did:
            if did:
                await asyncio.sleep(self._chance.uniform(10.0, 120.0))

    async def node_is_installed_anew(self, node: SimulatedNode) -> None:
        async with self._power_off(node) as did:
            if did:
                await asyncio.sleep(self._chance.uniform(60.0, 200.0))
                node.wipe()

    async def node_is_lost_for_good(self, node: SimulatedNode) -> None:
        """An admin removes it, and adds another one of its name."""
        async with self._power_off(node) as did:
            if did:
                await asyncio.sleep(self._chance.uniform(60.0, 400.0))
                await self._world.admin.remove_lost(node)

    @contextlib.asynccontextmanager
    async def _power_off(self, node: SimulatedNode) -> AsyncIterator[bool]:
        """False when it is off already, for another reason."""
        if node.is_off:
            yield False
            return
        self._world.call_unreliable(node)
        node.power_off()
        try:
            yield True
        finally:
            node.power_on()

    async def record_is_damaged(self, node: SimulatedNode) -> None:
        """Found at the shim's next start, which sets it aside."""
        node.stop_shim()
        if node.tasks:
            node.lose(self._chance.choice(list(node.tasks)))
        await asyncio.sleep(1.0)
        node.start_shim()

    async def engine_restarts(self, node: SimulatedNode) -> None:
        survive = self._chance.random() < 0.5
        self._world.call_broken(node.stop_engine(containers_survive=survive))
        await asyncio.sleep(self._chance.choice((0.5, 5.0, 40.0)))
        node.start_engine()

    async def engines_go_away(self, chance: Random, until: float) -> None:
        """Now and then a Docker answers nothing for longer than a node may be silent.

        It draws from a chance of its own, so that a seed's other faults stay as they were.
        """
        nodes = list(self._world.nodes.values())
        async with asyncio.TaskGroup() as going:
            for _ in range(chance.randint(1, 4)):
                node, pause = chance.choice(nodes), chance.uniform(0.0, until / 2)
                seconds = chance.choice((60.0, chance.uniform(LONG_SILENCE_SECONDS, until)))
                survive = chance.random() < 0.5
                going.create_task(self._engine_goes_away(node, pause, seconds, survive))

    async def _engine_goes_away(
        self, node: SimulatedNode, pause: float, seconds: float, survive: bool
    ) -> None:
        await asyncio.sleep(pause)
        await self._next_pull(node)
        log.info("fault: engine away for %.0f s %s", seconds, node.name)
        span = [self._world.clock.now(), float("inf")]
        self._world.checks.engines_away.setdefault(node.name, []).append(span)
        with self._world.checks.disturbed([node.name]):
            self._world.call_broken(node.lose_engine(containers_survive=survive))
            try:
                await asyncio.sleep(seconds)
            finally:
                node.find_engine()
                span[1] = self._world.clock.now()

    async def _next_pull(self, node: SimulatedNode) -> None:
        """A node without its engine takes no work, so only what is starting then is hit."""
        while True:
            if any(task.info.status is TaskStatus.PULLING for task in node.tasks.values()):
                return
            await asyncio.sleep(1.0)

    async def gpu_breaks(self, node: SimulatedNode) -> None:
        if not node.ledger.gpus():
            return
        uuid = self._chance.choice(node.ledger.gpus()).uuid
        span = [self._world.clock.now(), float("inf")]
        self._world.checks.broken_gpus.setdefault(uuid, []).append(span)
        self._world.call_broken(node.break_gpu(uuid))
        await asyncio.sleep(self._chance.uniform(10.0, 300.0))
        node.repair_gpu(uuid)
        span[1] = self._world.clock.now()

    async def node_is_drained(self, node: SimulatedNode) -> None:
        deadline = self._chance.choice((None, 0.0, 30.0, 200.0))
        await self._world.admin.drain(node, self._chance.uniform(10.0, 300.0), deadline)

    async def node_is_cordoned(self, node: SimulatedNode) -> None:
        await self._world.admin.cordon(node, self._chance.uniform(10.0, 300.0))

    async def controller_is_killed(self, node: SimulatedNode) -> None:
        await self._world.rivals.kill(self._away(), gently=self._chance.random() < 0.3)

    async def controller_dies_between_two_steps(self, node: SimulatedNode) -> None:
        chance = self._chance
        steps = chance.choice((1, chance.randint(1, 30), chance.randint(1, 300)))
        await self._world.rivals.kill_at_step(steps, self._away())

    async def another_controller_takes_over(self, node: SimulatedNode) -> None:
        paused, together = self._away(), self._chance.choice((0.0, 5.0, 100.0))
        await self._world.rivals.take_over(paused, together)

    async def database_is_busy(self, node: SimulatedNode) -> None:
        self._world.store_weather.turn_bad()
        await asyncio.sleep(self._chance.uniform(1.0, 40.0))
        self._world.store_weather.pass_over()

    async def database_is_backed_up(self, node: SimulatedNode) -> None:
        self._world.rivals.back_up()

    async def database_is_put_back(self, node: SimulatedNode) -> None:
        await self._world.restore_backup(self._away())

    async def clock_jumps(self, node: SimulatedNode) -> None:
        """The controller's, and after a while back."""
        self._world.checks.clock_jumped = True
        seconds = self._chance.choice((-1800.0, -60.0, -1.0, 1.0, 60.0, 1800.0))
        self._world.clock.jumped += seconds
        try:
            await asyncio.sleep(self._chance.uniform(1.0, 300.0))
        finally:
            self._world.clock.jumped -= seconds

    def _away(self) -> float:
        return self._chance.choice((0.0, 0.1, 5.0, 60.0, 400.0))

    async def _silence(self, node: SimulatedNode, seconds: float) -> None:
        node.weather.go_silent()
        await asyncio.sleep(seconds)
        node.weather.be_heard()
