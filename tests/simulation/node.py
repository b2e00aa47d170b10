"""A simulated node: the state of every double's shim, and what becomes of its containers.

The engine and the network are simulated. Records survive a shim's restart and a reboot, containers
only the former.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from random import Random
from typing import Any, Protocol

import msgspec

from controller.clock import Clock
from controller.lifecycle.inventory import NodeAddress
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.node import AllocationInfo, GpuInfo, HostKey, NodeInfo, Recall
from fairlead.wire.shim import (
    DrainRequest,
    Event,
    ExposedPort,
    Fence,
    Health,
    TaskInfo,
    TaskRequest,
    TerminateRequest,
    WantedImages,
)
from fairlead.wire.sizes import OutputsAbout
from shim.client import ShimUnavailable
from shim.node.ledger import Capacity, Ledger
from tests.doubles.shim import ShimState, node_info
from tests.simulation.container import Container
from tests.simulation.network import Weather, Wire
from tests.simulation.outputs import outputs_of
from tests.simulation.silence import ControllerSilence
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
        engine_lacks: tuple[EngineAbility, ...] = (),
    ) -> None:
        self.name = name
        self.weather = Weather(chance)
        self.boot_id = self._fresh("boot", chance)
        self.install_id = self._fresh("install", chance)
        self.attributes: dict[str, str] = {}
        """The admin's settings for it."""
        self.fleet = "fleet"
        self.generation = 0
        """How often it was removed as lost and added again."""
        self._chance = chance
        self._spawn = spawn
        self._watcher = watcher
        self._wires: list[Wire] = []
        epoch = self._fresh("epoch", chance)
        machine = node_info(
            hostname=name,
            cpu=capacity.cpu,
            memory=capacity.memory,
            disk=capacity.disk,
            gpus=gpus,
            engine_lacks=engine_lacks,
            abilities=tuple(one for one in EngineAbility if one not in engine_lacks),
        )
        self._state = ShimState(machine, clock, SimulatedTask, epoch=epoch)
        self._state.tells_of_runners = True
        self._off = False
        self._serving = asyncio.Event()
        self._serving.set()
        self._engine = asyncio.Event()
        self._engine.set()
        self.serving_since = 0.0
        self._silence = ControllerSilence(
            self._serving, lambda info: watcher.task_unheard(self, info)
        )
        self._driver = TaskDriver(
            clock,
            chance,
            spawn,
            serving=self._serving,
            engine=self._engine,
            state=self._state,
            started=lambda info, made: watcher.container_started(self, info, made),
        )

    @property
    def networks(self) -> int | None:
        """How many runs can have a network at once; None: no limit."""
        return self._state.node().networks

    def limit_networks(self, most: int | None) -> None:
        self._state.plant_machine(msgspec.structs.replace(self._state.node(), networks=most))

    @property
    def tasks(self) -> dict[str, SimulatedTask]:
        return self._state.tasks

    @property
    def ledger(self) -> Ledger:
        return self._state.ledger

    @property
    def draining(self) -> bool:
        return self._state.draining

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
        self._state.end_life()

    def start_shim(self) -> None:
        if not self._off and not self._serving.is_set():
            self._state.begin_life(self._fresh("epoch", self._chance))
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
        self.weather.boots += 1
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
        self._silence.begin()
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
        """It stays away if it is lost."""
        if self._state.node().engine_error is None:
            self._engine.set()

    def lose_engine(self, *, containers_survive: bool) -> list[str]:
        """As `stop_engine`, and for so long that the shim says so of its node."""
        killed = self.stop_engine(containers_survive=containers_survive)
        self._state.set_engine_error("Docker does not answer")
        return killed

    def find_engine(self) -> None:
        if self._state.node().engine_error is not None:
            self._state.set_engine_error(None)
        self.start_engine()

    def recall(self, at: float) -> None:
        """Have its provider announce that it takes the node back then (Unix seconds)."""
        self._state.set_recall(Recall(at=at, why="its provider takes it back"))

    def break_gpu(self, uuid: str) -> list[str]:
        """The shim ends what has it. The ids of those tasks."""
        self._state.set_gpu_health(uuid, healthy=False)
        order = TerminateRequest(grace=0.0, reason="gpu_unhealthy", message=f"{uuid} broke")
        hit = [task for task in self.tasks.values() if uuid in task.info.gpus and task.going]
        for task in hit:
            task.order_stop(order)
        return [task.info.id for task in hit]

    def repair_gpu(self, uuid: str) -> None:
        self._state.set_gpu_health(uuid, healthy=True)

    def heal(self) -> None:
        if self._off:
            self.power_on()
        self.find_engine()
        self.start_shim()
        self.weather.clear_up()
        for gpu in self.ledger.gpus():
            self.repair_gpu(gpu.uuid)

    def lose(self, task_id: str) -> None:
        """Its record and its files are gone from the disk, and so is its container."""
        task = self._state.lose(task_id)
        for work in (task.driver, task.minder):
            if work is not None:
                work.cancel()
        if task.container is not None:
            task.container.kill()
        self._watcher.task_lost(task_id)

    def wipe(self) -> None:
        """Installed anew: nothing is left of what it was."""
        for task_id in list(self.tasks):
            self.lose(task_id)
        self._state.forget_all()
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
            epoch=self._state.events.epoch,
        )

    async def node(self) -> NodeInfo:
        self._answer()
        return self._state.node()

    async def drain(self, request: DrainRequest) -> NodeInfo:
        self._answer()
        self._state.drain(request.draining)
        return await self.node()

    async def list_tasks(self) -> tuple[TaskInfo, ...]:
        self._answer()
        return tuple(task.info for task in self.tasks.values())

    async def task(self, task_id: str) -> TaskInfo:
        self._answer()
        return self._state.known(task_id).info

    async def put_task(
        self, task_id: str, request: TaskRequest, *, fence: Fence, incarnation: int
    ) -> TaskInfo:
        self._answer(fence)
        task, is_new = self._state.put(task_id, request, fence=fence, incarnation=incarnation)
        if not is_new:
            task.give_credentials()
            return task.info
        task.driver = self._spawn(self._driver.drive(task))
        if request.stop_when_unheard_seconds is not None:
            task.minder = self._spawn(self._silence.mind(task, request.stop_when_unheard_seconds))
        return task.info

    async def claim(self, task_id: str, *, run_id: str, fence: Fence, incarnation: int) -> TaskInfo:
        self._answer(fence)
        claim = self._state.claim
        return claim(task_id, run_id=run_id, fence=fence, incarnation=incarnation).info

    async def terminate(
        self,
        task_id: str,
        order: TerminateRequest,
        *,
        run_id: str,
        fence: Fence,
        incarnation: int,
    ) -> TaskInfo:
        self._answer(fence)
        task = self._state.claim(task_id, run_id=run_id, fence=fence, incarnation=incarnation)
        task.order_stop(order)
        return task.info

    async def expose(
        self, task_id: str, port: int, *, run_id: str, fence: Fence, incarnation: int
    ) -> ExposedPort:
        self._answer(fence)
        expose = self._state.expose
        return expose(task_id, port, run_id=run_id, fence=fence, incarnation=incarnation)

    async def put_gateways(self, keys: Iterable[str]) -> None:
        self._answer()
        self._state.put_gateways(keys)

    async def prepare_host_key(self) -> HostKey:
        self._answer()
        return self._state.prepare_host_key()

    async def use_host_key(self, key: str) -> None:
        self._answer()
        self._state.use_host_key(key)

    def presents(self, address: NodeAddress | None) -> bool:
        """Return whether its SSH server's key is one of the address's; a node without one has no
        SSH server, and neither has one of no address."""
        mine = self._state.host_key
        return address is None or mine in (None, address.host_key, address.next_host_key)

    def boot_with(self, host_key: str, make_key: Callable[[], str]) -> None:
        """Have an SSH server with this key. `make_key` returns the key that takes its place."""
        self._state.host_key, self._state.make_key = host_key, make_key

    async def put_images(self, wanted: WantedImages, *, fence: Fence) -> None:
        self._answer(fence)
        self._state.put_images(wanted, fence=fence)

    async def remove_task(
        self, task_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None:
        self._answer(fence)
        self._state.remove(task_id, run_id=run_id, fence=fence, incarnation=incarnation)

    async def allocations(self) -> tuple[AllocationInfo, ...]:
        return self._state.allocations()

    async def release_allocation(
        self, allocation_id: str, *, run_id: str, fence: Fence, incarnation: int
    ) -> None:
        self._answer(fence)
        self._state.release(allocation_id, run_id=run_id, fence=fence, incarnation=incarnation)

    async def events(self, after: str | None) -> AsyncIterator[Event]:
        self._answer()
        async for event in self._state.events.follow(after):
            yield event

    def log(self, task_id: str, offset: int) -> bytes:
        self._answer()
        container = self._state.known(task_id).container
        return b"" if container is None else container.log_from(offset)

    def outputs(self, task_id: str, offset: int) -> tuple[OutputsAbout, bytes]:
        self._answer()
        self._state.with_outputs(task_id)
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
        self._silence.heard(fence)

    @staticmethod
    def _fresh(kind: str, chance: Random) -> str:
        return f"{kind}-{chance.getrandbits(32):08x}"


class NobodyListens(Exception):
    pass
