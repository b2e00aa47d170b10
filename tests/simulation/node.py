"""A simulated node: what its shim keeps on disk, and what becomes of its containers.

The rules about fences, places and event cursors are the real shim's own modules; the engine and the
network are simulated. Records survive a shim's restart and a reboot, containers only the former.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any, Protocol

import msgspec

from common.errors import Refused
from controller.clock import Clock
from shim.client import ShimError, ShimUnavailable
from shim.errors import conflict, not_found
from shim.node.ledger import Capacity, Ledger
from shim.schemas import (
    AllocationInfo,
    DrainRequest,
    EngineKind,
    Event,
    Fence,
    GpuInfo,
    Health,
    NodeInfo,
    OutputsAbout,
    TaskInfo,
    TaskRequest,
    TaskStatus,
    TaskTimes,
    TerminateRequest,
)
from shim.state.events import EventLog
from shim.state.fencing import KEPT_AFTER_LAST_TASK, UNKNOWN_REMEMBERED, FenceBook
from tests.simulation.container import Container
from tests.simulation.hearing import Hearing
from tests.simulation.network import Weather, Wire
from tests.simulation.outputs import outputs_of
from tests.simulation.task import SimulatedTask, TaskDriver


class Watcher(Protocol):
    """A node's notes for the simulation itself, beside the wire. Nobody but the checks listens."""

    def container_started(self, node: SimulatedNode, info: TaskInfo, made: Container) -> None: ...

    def task_lost(self, task_id: str) -> None: ...

    def task_unheard(self, node: SimulatedNode, info: TaskInfo) -> None:
        """The shim stops it, since it has not heard of a controller."""


class SimulatedNode:
    def __init__(
        self,
        name: str,
        capacity: Capacity,
        gpus: tuple[GpuInfo, ...],
        clock: Clock,
        chance: Random,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        watcher: Watcher,
    ) -> None:
        self.name = name
        self.weather = Weather(chance)
        self.tasks: dict[str, SimulatedTask] = {}
        self.ledger = Ledger(capacity, gpus)
        self.boot_id = self._fresh("boot", chance)
        self.install_id = self._fresh("install", chance)
        self.draining = False
        self.attributes: dict[str, str] = {}
        """The admin's settings for it."""
        self.fleet = "fleet"
        self.generation = 0
        """How often it was removed as lost and added again."""
        self._fences = FenceBook()
        self._clock = clock
        self._chance = chance
        self._spawn = spawn
        self._watcher = watcher
        self._wires: list[Wire] = []
        self._events = EventLog(self._fresh("epoch", chance))
        self._off = False
        self._serving = asyncio.Event()
        self._serving.set()
        self._engine = asyncio.Event()
        self._engine.set()
        self.serving_since = 0.0
        self._hearing = Hearing(self._serving, lambda info: watcher.task_unheard(self, info))
        self._driver = TaskDriver(
            clock,
            chance,
            spawn,
            serving=self._serving,
            engine=self._engine,
            changed=lambda info: self._events.task_changed(info),
            started=lambda info, made: watcher.container_started(self, info, made),
        )

    # -- what happens to it -------------------------------------------------------------------

    def wire(self) -> Wire:
        self._wires = [wire for wire in self._wires if not wire.closed.is_set()]
        wire = Wire(self.weather, self._spawn)
        self._wires.append(wire)
        return wire

    def cut(self) -> None:
        for wire in self._wires:
            wire.cut()

    def stop_shim(self) -> None:
        for task in self.tasks.values():
            task.forget_credentials()
        self._serving.clear()
        self._events.close()

    def start_shim(self) -> None:
        if not self._off and not self._serving.is_set():
            self._events = EventLog(self._fresh("epoch", self._chance))
            self.serving_since = asyncio.get_running_loop().time()
            self._serving.set()

    @property
    def serving(self) -> bool:
        return self._serving.is_set()

    @property
    def is_off(self) -> bool:
        return self._off

    def power_off(self) -> None:
        self._off = True
        self.stop_shim()
        self.cut()
        self.weather.refusing = True
        for task in self.tasks.values():
            if task.container is not None:
                task.container.kill()

    def power_on(self) -> None:
        self._off = False
        self.boot_id = self._fresh("boot", self._chance)
        self.weather.refusing = False
        self._hearing.begin()
        self.start_shim()

    def stop_engine(self, *, containers_survive: bool) -> list[str]:
        """Nothing starts and nobody learns of an end before `start_engine`. The ids of the tasks
        whose containers it takes along."""
        self._engine.clear()
        if containers_survive:
            return []
        killed = self.containers()
        for _, container in killed:
            container.kill(by_engine=True)
        return [info.id for info, _ in killed]

    def start_engine(self) -> None:
        self._engine.set()

    def break_gpu(self, uuid: str) -> list[str]:
        """The shim ends what has it. The ids of those tasks."""
        self._set_gpu_health(uuid, healthy=False)
        order = TerminateRequest(grace=0.0, reason="gpu_unhealthy", message=f"{uuid} broke")
        hit = [task for task in self.tasks.values() if uuid in task.info.gpus and task.going]
        for task in hit:
            task.order_stop(order)
        return [task.info.id for task in hit]

    def repair_gpu(self, uuid: str) -> None:
        self._set_gpu_health(uuid, healthy=True)

    def _set_gpu_health(self, uuid: str, *, healthy: bool) -> None:
        self.ledger.set_gpus(
            msgspec.structs.replace(gpu, healthy=healthy) if gpu.uuid == uuid else gpu
            for gpu in self.ledger.gpus()
        )
        self._events.node_changed()

    def heal(self) -> None:
        if self._off:
            self.power_on()
        self.start_engine()
        self.start_shim()
        self.weather.clear_up()
        for gpu in self.ledger.gpus():
            self.repair_gpu(gpu.uuid)

    def lose(self, task_id: str) -> None:
        """Its record and its files are gone from the disk, and so is its container."""
        task = self.tasks.pop(task_id)
        for work in (task.driver, task.minder):
            if work is not None:
                work.cancel()
        if task.container is not None:
            task.container.kill()
        self.ledger.release(task.info.allocation_id)
        self._events.task_removed(task_id)
        self._watcher.task_lost(task_id)

    def wipe(self) -> None:
        """Installed anew: nothing is left of what it was."""
        for task_id in list(self.tasks):
            self.lose(task_id)
        self.ledger = Ledger(self.ledger.capacity, self.ledger.gpus())
        self._fences = FenceBook()
        self._driver.images = set()
        self.install_id = self._fresh("install", self._chance)

    def containers(self) -> list[tuple[TaskInfo, Container]]:
        """Those in which something runs."""
        return [
            (task.info, task.container)
            for task in self.tasks.values()
            if task.container is not None and not task.container.ended.is_set()
        ]

    # -- the shim's API -----------------------------------------------------------------------

    async def health(self, *, fence: Fence | None = None) -> Health:
        self._answer(fence)
        return Health(
            version="simulated",
            api_versions=("v1",),
            boot_id=self.boot_id,
            install_id=self.install_id,
            epoch=self._events.epoch,
        )

    async def node(self) -> NodeInfo:
        self._answer()
        capacity, used = self.ledger.capacity, self.ledger.used()
        return NodeInfo(
            hostname=self.name,
            engine=EngineKind.DOCKER,
            engine_version=None,
            isolation=True,
            cpu=capacity.cpu,
            memory=capacity.memory,
            disk=capacity.disk,
            cpu_allocated=used.cpu,
            memory_allocated=used.memory,
            disk_allocated=used.disk,
            addresses=(),
            gpus=self.ledger.gpus(),
            draining=self.draining,
        )

    async def drain(self, request: DrainRequest) -> NodeInfo:
        self._answer()
        self.draining = request.draining
        self._events.node_changed()
        return await self.node()

    async def list_tasks(self) -> tuple[TaskInfo, ...]:
        self._answer()
        return tuple(task.info for task in self.tasks.values())

    async def task(self, task_id: str) -> TaskInfo:
        self._answer()
        return self._known(task_id).info

    async def put_task(
        self, task_id: str, request: TaskRequest, *, fence: Fence, incarnation: int
    ) -> TaskInfo:
        self._answer(fence)
        with _refusals():
            self._fences.check(request.run_id, fence, incarnation)
            known = self.tasks.get(task_id)
            if known is not None:
                if known.request != request:
                    raise conflict(f"task {task_id} already exists with another body")
                self._fences.raise_to(request.run_id, fence, incarnation)
                known.give_credentials()
                return known.info
            self._fences.check_revival(request.run_id, task_id, self._clock.now())
            if self.draining and self.ledger.get(request.allocation_id) is None:
                raise Refused(409, "draining", "the node is draining")
            self._check_idle(request.allocation_id)
            allocation = self.ledger.plan(task_id, request)
        self._fences.raise_to(request.run_id, fence, incarnation)
        self.ledger.hold(allocation)
        info = TaskInfo(
            id=task_id,
            run_id=request.run_id,
            run_name=request.run_name,
            allocation_id=request.allocation_id,
            status=TaskStatus.PENDING,
            image=request.image,
            incarnation=incarnation,
            runner_socket=f"/run/{self.name}/{task_id}/runner.sock",
            gpus=allocation.gpus,
            times=TaskTimes(submitted_at=self._clock.now()),
        )
        task = self.tasks[task_id] = SimulatedTask(info, request)
        self._events.task_changed(info)
        task.driver = self._spawn(self._driver.drive(task))
        if request.stop_when_unheard_seconds is not None:
            task.minder = self._spawn(self._hearing.mind(task, request.stop_when_unheard_seconds))
        return info

    async def claim(self, task_id: str, *, run_id: str, fence: Fence, incarnation: int) -> TaskInfo:
        return self._spoken_for(task_id, run_id, fence, incarnation).info

    async def terminate(
        self,
        task_id: str,
        order: TerminateRequest,
        *,
        run_id: str,
        fence: Fence,
        incarnation: int,
    ) -> TaskInfo:
        task = self._spoken_for(task_id, run_id, fence, incarnation)
        task.order_stop(order)
        return task.info

    async def remove_task(
        self, task_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None:
        task = self._spoken_for(task_id, run_id, fence, incarnation)
        if not task.ended:
            raise ShimError("not_terminated", f"task {task_id} is {task.info.status}", 409)
        now = self._clock.now()
        self._fences.forget(run_id, task_id, now + KEPT_AFTER_LAST_TASK, now)
        self.ledger.without_task(task.info.allocation_id, task_id)
        del self.tasks[task_id]
        self._events.task_removed(task_id)

    async def allocations(self) -> tuple[AllocationInfo, ...]:
        known = ((held, self._fences.get(held.run_id)) for held in self.ledger.held)
        return tuple(
            held if fence is None else msgspec.structs.replace(held, incarnation=fence.incarnation)
            for held, fence in known
        )

    async def release_allocation(
        self, allocation_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None:
        self._answer(fence)
        with _refusals():
            self._fences.check(run_id, fence, incarnation)
            allocation = self.ledger.get(allocation_id)
            if allocation is None:
                raise not_found(f"there is no allocation {allocation_id}")
            if allocation.run_id != run_id:
                raise conflict(f"allocation {allocation_id} belongs to run {allocation.run_id}")
            self._check_idle(allocation_id)
        self.ledger.release(allocation_id)
        self._events.node_changed()

    async def events(self, after: str | None) -> AsyncIterator[Event]:
        self._answer()
        async for event in self._events.follow(after):
            yield event

    def log(self, task_id: str, offset: int) -> bytes:
        self._answer()
        container = self._known(task_id).container
        return b"" if container is None else container.log_from(offset)

    def outputs(self, task_id: str, offset: int) -> tuple[OutputsAbout, bytes]:
        self._answer()
        if not self._known(task_id).ended:
            raise ShimError("conflict", "the task has not ended", 409)
        content = outputs_of(task_id)
        about = OutputsAbout(
            files=1, size=len(task_id), left_out=0, left_out_size=0, length=len(content)
        )
        return about, content[offset:]

    def container_at(self, socket: str) -> Container:
        for task in self.tasks.values():
            if task.info.runner_socket == socket and task.container is not None:
                return task.container
        raise NobodyListens(socket)

    def _answer(self, fence: Fence | None = None) -> None:
        if not self._serving.is_set():
            raise ShimUnavailable("connection refused")
        self._hearing.heard(fence)

    def _known(self, task_id: str) -> SimulatedTask:
        if task_id not in self.tasks:
            raise ShimError("not_found", f"there is no task {task_id}", 404)
        return self.tasks[task_id]

    def _spoken_for(
        self, task_id: str, run_id: str, fence: Fence, incarnation: int
    ) -> SimulatedTask:
        self._answer(fence)
        task = self.tasks.get(task_id)
        own = None if task is None else task.info.incarnation
        with _refusals():
            self._fences.check_for_task(run_id, fence, incarnation, own)
            self._fences.raise_to(run_id, fence, incarnation)
            if task is None:
                now = self._clock.now()
                self._fences.forget(run_id, task_id, now + UNKNOWN_REMEMBERED, now)
        return self._known(task_id)

    def _check_idle(self, allocation_id: str) -> None:
        for task in self.tasks.values():
            if task.info.allocation_id == allocation_id and not task.ended:
                raise conflict(f"allocation {allocation_id} is in use by task {task.info.id}")

    @staticmethod
    def _fresh(kind: str, chance: Random) -> str:
        return f"{kind}-{chance.getrandbits(32):08x}"


class NobodyListens(Exception):
    pass


class _refusals:
    """The shim's problems as its client raises them."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Refused):
            raise ShimError(error.code, error.message, error.status, error.field) from error
