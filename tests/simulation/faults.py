"""What goes wrong, and how often. Each fault is one coroutine that does its harm and ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol

from tests.simulation.node import SimulatedNode

log = logging.getLogger(__name__)

LONG_SILENCE_SECONDS = 330.0
"""Longer than it takes the controller to give a node up."""


class Faulty(Protocol):
    """What faults are done to."""

    nodes: dict[str, SimulatedNode]

    async def kill_controller(self, down: float, *, gently: bool) -> None: ...

    def call_unreliable(self, node: SimulatedNode) -> None: ...

    async def drain(self, node: SimulatedNode, seconds: float) -> None: ...


class Faults:
    def __init__(self, world: Faulty, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._kinds: dict[Callable[[SimulatedNode], Coroutine[Any, Any, None]], int] = {
            self.connection_is_cut: 30,
            self.short_silence: 15,
            self.long_silence: 5,
            self.refused_connections: 8,
            self.slow_network: 10,
            self.lost_replies: 10,
            self.stuttering_events: 10,
            self.shim_restarts: 15,
            self.node_reboots: 4,
            self.node_is_installed_anew: 1,
            self.record_is_damaged: 3,
            self.node_is_drained: 5,
            self.controller_is_killed: 15,
        }

    async def go_on(self, mean_pause: float) -> None:
        """Until cancelled; faults overlap."""
        async with asyncio.TaskGroup() as going:
            while True:
                await asyncio.sleep(self._chance.expovariate(1.0 / mean_pause))
                kind = self._chance.choices(list(self._kinds), weights=list(self._kinds.values()))[
                    0
                ]
                node = self._chance.choice(list(self._world.nodes.values()))
                log.info("fault: %s %s", kind.__name__, node.name)
                going.create_task(kind(node))

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
        self._world.call_unreliable(node)
        node.power_off()
        await asyncio.sleep(self._chance.uniform(10.0, 120.0))
        node.power_on()

    async def node_is_installed_anew(self, node: SimulatedNode) -> None:
        self._world.call_unreliable(node)
        node.power_off()
        await asyncio.sleep(self._chance.uniform(60.0, 200.0))
        node.wipe()
        node.power_on()

    async def record_is_damaged(self, node: SimulatedNode) -> None:
        """Found at the shim's next start, which sets it aside."""
        node.stop_shim()
        if node.tasks:
            node.lose(self._chance.choice(list(node.tasks)))
        await asyncio.sleep(1.0)
        node.start_shim()

    async def node_is_drained(self, node: SimulatedNode) -> None:
        await self._world.drain(node, self._chance.uniform(10.0, 300.0))

    async def controller_is_killed(self, node: SimulatedNode) -> None:
        down = self._chance.choice((0.0, 0.1, 5.0, 60.0, 400.0))
        await self._world.kill_controller(down, gently=self._chance.random() < 0.3)

    async def _silence(self, node: SimulatedNode, seconds: float) -> None:
        node.weather.go_silent()
        await asyncio.sleep(seconds)
        node.weather.be_heard()
