"""The real runner and its doubles keep one contract, each through its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from controller.links.base import RunnerApi
from fairlead.wire.job import SubmitRequest
from fairlead.wire.shim import TaskInfo, TaskRequest, TaskResources, TaskStatus, TaskTimes
from shim.node.ledger import Capacity
from tests.doubles.clock import ManualClock
from tests.doubles.node import FakeConnection
from tests.simulation.container import Container
from tests.simulation.link import SimulatedLink
from tests.simulation.node import SimulatedNode
from tests.simulation.script import OnStop, Script, Start
from tests.simulation.task import SimulatedTask
from tests.support.runner_contract import RunnerContract
from tests.support.waiting import eventually
from tests.unit.nodes.test_shim_contract import Nobody
from tests.unit.runner.harness import a_job, a_runner

SOCKET = "/run/n1/t1/runner.sock"


class TestRealRunner(RunnerContract):
    @pytest.fixture
    def job(self) -> SubmitRequest:
        return a_job("trap '' TERM; while :; do sleep 600; done")

    @pytest.fixture
    async def runner(self, tmp_path: Path) -> AsyncIterator[RunnerApi]:
        async with a_runner(tmp_path) as (_, client):
            yield client


class Hurried(Random):
    """Everything takes as little time as it may."""

    def uniform(self, a: float, b: float) -> float:
        return a


class TestSimulatedRunner(RunnerContract):
    @pytest.fixture
    def job(self) -> SubmitRequest:
        script = Script(seconds=600.0, lines=0, line_bytes=0, on_stop=OnStop.IGNORES)
        return a_job("simulated", env=script.env())

    @pytest.fixture
    async def runner(self) -> AsyncIterator[RunnerApi]:
        tasks: list[asyncio.Task[Any]] = []

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        clock, chance = ManualClock(), Hurried(1)
        capacity = Capacity(cpu=4.0, memory=8 << 30, disk=100 << 30)
        node = SimulatedNode("n1", capacity, (), clock, chance, spawn, Nobody())
        node.weather.latency = 1e-6
        task = node.tasks["t1"] = SimulatedTask(a_task(), a_request())
        task.container = Container("t1", Start.FINE, clock, chance, spawn)
        connection = await SimulatedLink(node).connect()
        await eventually(lambda: task.container is not None and task.container.listens)
        yield connection.runner(SOCKET)
        await connection.close()
        for work in tasks:
            work.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TestFakeRunner(RunnerContract):
    @pytest.fixture
    def job(self) -> SubmitRequest:
        return a_job("fake")

    @pytest.fixture
    async def runner(self) -> AsyncIterator[RunnerApi]:
        connection = FakeConnection()
        connection.the_runner.tells = True
        yield connection.runner(SOCKET)
        await connection.close()


def a_task() -> TaskInfo:
    return TaskInfo(
        id="t1",
        run_id="run-1",
        run_name="fair-wind",
        allocation_id="place-1",
        status=TaskStatus.RUNNING,
        image="fine",
        runner_socket=SOCKET,
        times=TaskTimes(submitted_at=0.0),
    )


def a_request() -> TaskRequest:
    return TaskRequest(
        run_id="run-1",
        run_name="fair-wind",
        allocation_id="place-1",
        image="fine",
        resources=TaskResources(cpu=1.0, memory=1 << 30),
    )
