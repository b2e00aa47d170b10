"""The real shim and its doubles keep one contract, each through its link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from controller.links.base import ShimApi
from controller.links.clients import LocalLink
from shim.engines.base import ImageInfo
from shim.node.ledger import Capacity
from shim.settings import GatewayAccess
from tests.doubles.clock import ManualClock
from tests.doubles.node import FakeLink
from tests.doubles.shim import node_info
from tests.simulation.link import SimulatedLink
from tests.simulation.node import SimulatedNode
from tests.simulation.script import Start, image_of
from tests.support.shim_contract import ShimContract
from tests.unit.shim.parts import Node
from tests.unit.shim.serving import served


class Nobody:
    """Watches nothing."""

    def container_started(self, *told: object) -> None: ...
    def task_lost(self, task_id: str) -> None: ...
    def task_unheard(self, *told: object) -> None: ...


class TestRealShim(ShimContract):
    @pytest.fixture
    def image(self) -> str:
        return "large"

    @pytest.fixture
    async def shim(self, tmp_path: Path, image: str) -> AsyncIterator[ShimApi]:
        node = Node(tmp_path)
        access = GatewayAccess(folder=tmp_path / "exposed")
        node.settings = msgspec.structs.replace(node.settings, gateways=access)
        node.settings.socket.parent.mkdir(parents=True)
        node.host.registry[image] = (ImageInfo(id="sha256:l"), None)
        node.host.pull_gate.clear()
        async with served(node):
            connection = await LocalLink(str(node.settings.socket)).connect()
            yield connection.shim
            await connection.close()


class TestSimulatedShim(ShimContract):
    @pytest.fixture
    def image(self) -> str:
        return image_of(Start.SLOW_PULL)

    @pytest.fixture
    async def shim(self) -> AsyncIterator[ShimApi]:
        tasks: list[asyncio.Task[Any]] = []

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        capacity = Capacity(cpu=4.0, memory=8 << 30, disk=100 << 30)
        node = SimulatedNode("n1", capacity, (), ManualClock(), Random(1), spawn, Nobody())
        node.weather.latency = 1e-6
        connection = await SimulatedLink(node).connect()
        yield connection.shim
        await connection.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TestFakeShim(ShimContract):
    @pytest.fixture
    def image(self) -> str:
        return "large"

    @pytest.fixture
    async def shim(self) -> AsyncIterator[ShimApi]:
        link = FakeLink()
        link.shim.info = node_info(cpu=4.0)
        link.shim.tells = True
        connection = await link.connect()
        yield connection.shim
        await connection.close()
