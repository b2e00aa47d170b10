"""The state and the rules of a shim, once for all doubles of a node.

`ShimState` keeps tasks, allocations, fences and events, and decides about requests with the real
shim's own modules. `FakeShim` (`doubles/node.py`) and `SimulatedNode` (`simulation/node.py`) are
built upon it and add what happens to a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from common.links.host_keys import new_host_key
from controller.clock import Clock
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.errors import Refused
from fairlead.wire.node import AllocationInfo, EngineKind, HostKey, NodeInfo, Recall
from fairlead.wire.shim import (
    ExposedPort,
    Fence,
    RefusalCode,
    TaskInfo,
    TaskRequest,
    TaskResources,
    TaskStatus,
    TaskTimes,
    TerminateRequest,
    WantedImages,
)
from shim.admission import container_rules
from shim.client import ShimError
from shim.errors import conflict, not_found
from shim.node.ledger import Capacity, Ledger
from shim.state.events import EventLog
from shim.state.fencing import KEPT_AFTER_LAST_TASK, UNKNOWN_REMEMBERED, FenceBook


def node_info(**changes: Any) -> NodeInfo:
    info = NodeInfo(
        hostname="node",
        engine=EngineKind.DOCKER,
        engine_version=None,
        isolation=True,
        abilities=tuple(EngineAbility),
        cpu=64.0,
        memory=1 << 40,
        disk=1 << 40,
        cpu_allocated=0.0,
        memory_allocated=0,
        disk_allocated=0,
        addresses=(),
        gateways=True,
    )
    return msgspec.structs.replace(info, **changes)


class KeptTask:
    """A task as the shim knows it, and the request that it came with."""

    def __init__(self, info: TaskInfo, request: TaskRequest) -> None:
        self.info = info
        self.request = request
        self.stop: TerminateRequest | None = None

    @property
    def ended(self) -> bool:
        return self.info.status is TaskStatus.TERMINATED

    def order_stop(self, order: TerminateRequest) -> bool:
        """Return whether the order counts: a later one may shorten the grace, not lengthen it."""
        if self.ended or (self.stop is not None and order.grace >= self.stop.grace):
            return False
        self.stop = order
        return True


T = TypeVar("T", bound=KeptTask)
EARLIER = Fence(1, 0)
"""The controller that gave what a test plants."""


class ShimState(Generic[T]):
    """Raises ShimError for what the shim refuses, as its client does.

    `machine` says what the node has. `make` returns the double's own kind of task. `epoch` names
    the first life of the shim.
    """

    def __init__(
        self,
        machine: NodeInfo,
        clock: Clock,
        make: Callable[[TaskInfo, TaskRequest], T],
        *,
        epoch: str,
    ) -> None:
        self.tasks: dict[str, T] = {}
        self.ledger = Ledger(_capacity(machine), machine.gpus)
        self.events = EventLog(epoch)
        self.draining = machine.draining
        self.host_key: str | None = None
        """What its sshd presents; None: this shim leaves the host key alone."""
        self.next_host_key: str | None = None
        self.make_key: Callable[[], str] = lambda: new_host_key()[1]
        self._machine = machine
        self._fences = FenceBook()
        self._clock = clock
        self._make = make

    # -- what happens to it -------------------------------------------------------------------

    def end_life(self) -> None:
        """End the streams of events, as when the shim ends; what is on its disk stays."""
        self.events.close()

    def begin_life(self, epoch: str) -> None:
        """Begin a new stream of events, which knows no cursor of an earlier one."""
        self.events = EventLog(epoch)

    def lose(self, task_id: str) -> T:
        """Drop the task and its allocation, as when their records are gone from the disk."""
        task = self.tasks.pop(task_id)
        self.ledger.release(task.info.allocation_id)
        self.events.task_removed(task_id)
        return task

    tells_of_runners = False
    """Whether it is new enough to say when a runner listens."""
    gateway_keys: tuple[str, ...] = ()
    """Of the gateways that may log in."""
    images_wanted = WantedImages(images=())
    """What it was asked to pull ahead."""

    def forget_all(self) -> None:
        """Drop allocations and fences, as a node that is installed anew. Lose its tasks first."""
        self.ledger = Ledger(self.ledger.capacity, self.ledger.gpus())
        self._fences = FenceBook()

    def plant_machine(self, machine: NodeInfo) -> None:
        """Change what the node has; tasks and allocations stay."""
        self._machine = machine
        self.ledger = Ledger(_capacity(machine), machine.gpus, self.ledger.held)
        self.draining = machine.draining

    def plant_task(self, info: TaskInfo) -> None:
        """Add a task that was accepted earlier, without its allocation."""
        request = TaskRequest(
            run_id=info.run_id,
            run_name=info.run_name,
            allocation_id=info.allocation_id,
            image=info.image,
            resources=TaskResources(cpu=1.0, memory=1),
        )
        self.tasks[info.id] = self._make(info, request)

    def plant_allocation(self, held: AllocationInfo) -> None:
        """Add an allocation that was given earlier, to the incarnation that it names."""
        self.ledger.hold(held)
        self._fences.raise_to(held.run_id, EARLIER, held.incarnation)

    def set_gpu_health(self, uuid: str, *, healthy: bool) -> None:
        self.ledger.set_gpus(
            msgspec.structs.replace(gpu, healthy=healthy) if gpu.uuid == uuid else gpu
            for gpu in self.ledger.gpus()
        )
        self.events.node_changed()

    def set_engine_error(self, error: str | None) -> None:
        """Say why the engine does not answer; None: it does."""
        self._machine = msgspec.structs.replace(self._machine, engine_error=error)
        self.events.node_changed()

    def set_recall(self, recall: Recall) -> None:
        """Say that the provider takes the node back."""
        self._machine = msgspec.structs.replace(self._machine, recall=recall)
        self.events.node_changed()

    def enter(self, task: T, status: TaskStatus, **more: object) -> None:
        times = msgspec.structs.replace(task.info.times, **{f"{status}_at": self._clock.now()})
        self.change(task, status=status, times=times, **more)

    def change(self, task: T, **changes: object) -> None:
        version = task.info.version + 1
        task.info = msgspec.structs.replace(task.info, version=version, **changes)
        self.events.task_changed(task.info)

    # -- the shim's API -----------------------------------------------------------------------

    def node(self) -> NodeInfo:
        used = self.ledger.used()
        return msgspec.structs.replace(
            self._machine,
            cpu_allocated=used.cpu,
            memory_allocated=used.memory,
            disk_allocated=used.disk,
            gpus=self.ledger.gpus(),
            draining=self.draining,
        )

    def drain(self, draining: bool) -> None:
        self.draining = draining
        self.events.node_changed()

    def known(self, task_id: str) -> T:
        if task_id not in self.tasks:
            raise ShimError("not_found", f"there is no task {task_id}", 404)
        return self.tasks[task_id]

    def with_outputs(self, task_id: str) -> T:
        """Return the task, whose outputs can be read since it has ended."""
        task = self.known(task_id)
        if not task.ended:
            raise ShimError("conflict", "the task has not ended", 409)
        return task

    def put(
        self, task_id: str, request: TaskRequest, *, fence: Fence, incarnation: int
    ) -> tuple[T, bool]:
        """Return the task, and whether it is new."""
        with _refusals():
            self._fences.check(request.run_id, fence, incarnation)
            known = self.tasks.get(task_id)
            if known is not None:
                if known.request != request:
                    raise conflict(f"task {task_id} already exists with another body")
                self._fences.raise_to(request.run_id, fence, incarnation)
                return known, False
            self._fences.check_revival(request.run_id, task_id, self._clock.now())
            if self.draining and self.ledger.get(request.allocation_id) is None:
                raise Refused(409, "draining", "the node is draining")
            container_rules.check_engine(
                request,
                self._machine.engine,
                [one for one in EngineAbility if one not in (self._machine.engine_lacks or ())],
            )
            self._check_idle(request.allocation_id)
            self._check_network(request)
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
            address=self._address(request),
            runner_socket=f"/run/{self._machine.hostname}/{task_id}/runner.sock",
            runner_listens=False if self.tells_of_runners else None,
            gpus=allocation.gpus,
            times=TaskTimes(submitted_at=self._clock.now()),
        )
        task = self.tasks[task_id] = self._make(info, request)
        self.events.task_changed(info)
        return task, True

    def _check_network(self, request: TaskRequest) -> None:
        most = self._machine.networks
        runs = {one.info.run_id for one in self.tasks.values() if one.info.address is not None}
        if most is None or request.resources.whole_node or request.run_id in runs:
            return
        if len(runs) >= most:
            raise Refused(409, RefusalCode.NO_NETWORK, f"all {most} networks are in use")

    def _address(self, request: TaskRequest) -> str | None:
        """Return an address for the task in its run's network, on a node that counts these."""
        if self._machine.networks is None or request.resources.whole_node:
            return None
        taken = {one.info.address for one in self.tasks.values()}
        return next(
            one for n in range(2, 1 << 16) if (one := f"172.30.{n >> 8}.{n & 255}") not in taken
        )

    def claim(self, task_id: str, *, run_id: str, fence: Fence, incarnation: int) -> T:
        """Return the task, which no older fence commands from now on."""
        task = self.tasks.get(task_id)
        own = None if task is None else task.info.incarnation
        with _refusals():
            self._fences.check_for_task(run_id, fence, incarnation, own)
            self._fences.raise_to(run_id, fence, incarnation)
            if task is None:
                now = self._clock.now()
                self._fences.forget(run_id, task_id, now + UNKNOWN_REMEMBERED, now)
        return self.known(task_id)

    def expose(
        self, task_id: str, port: int, *, run_id: str, fence: Fence, incarnation: int
    ) -> ExposedPort:
        """Let gateways reach a port of the task, as long as the task runs."""
        task = self.claim(task_id, run_id=run_id, fence=fence, incarnation=incarnation)
        if not self._machine.gateways:
            raise ShimError("no_gateways", "this node lends no sockets to gateways", 409)
        if task.info.status is not TaskStatus.RUNNING:
            raise ShimError("conflict", f"task {task_id} is {task.info.status}", 409)
        return ExposedPort(port=port, socket=f"/run/exposed/{task_id}-{port}.sock")

    def put_gateways(self, keys: Iterable[str]) -> None:
        if not self._machine.gateways:
            raise ShimError("no_gateways", "this node lends no sockets to gateways", 409)
        self.gateway_keys = tuple(keys)

    def put_images(self, wanted: WantedImages, *, fence: Fence) -> None:
        if self._machine.images_ahead is None:
            raise ShimError("engine_lacks", "this node's engine has no images", 409)
        self.images_wanted = wanted

    def prepare_host_key(self) -> HostKey:
        """Return the next key, which is the same until it is used."""
        if self.host_key is None:
            raise ShimError("not_found", "this shim leaves the node's host key alone", 404)
        if self.next_host_key is None:
            self.next_host_key = self.make_key()
        return HostKey(key=self.next_host_key)

    def use_host_key(self, key: str) -> None:
        if key == self.next_host_key:
            self.host_key, self.next_host_key = key, None
        elif key != self.host_key:
            raise ShimError("conflict", "this is neither the node's host key nor its next one", 409)

    def remove(self, task_id: str, *, run_id: str, fence: Fence, incarnation: int) -> None:
        task = self.claim(task_id, run_id=run_id, fence=fence, incarnation=incarnation)
        if not task.ended:
            raise ShimError("not_terminated", f"task {task_id} is {task.info.status}", 409)
        now = self._clock.now()
        self._fences.forget(run_id, task_id, now + KEPT_AFTER_LAST_TASK, now)
        self.ledger.without_task(task.info.allocation_id, task_id)
        del self.tasks[task_id]
        self.events.task_removed(task_id)

    def allocations(self) -> tuple[AllocationInfo, ...]:
        known = ((held, self._fences.get(held.run_id)) for held in self.ledger.held)
        return tuple(
            held if fence is None else msgspec.structs.replace(held, incarnation=fence.incarnation)
            for held, fence in known
        )

    def release(self, allocation_id: str, *, run_id: str, fence: Fence, incarnation: int) -> None:
        with _refusals():
            self._fences.check(run_id, fence, incarnation)
            allocation = self.ledger.get(allocation_id)
            if allocation is None:
                raise not_found(f"there is no allocation {allocation_id}")
            if allocation.run_id != run_id:
                raise conflict(f"allocation {allocation_id} belongs to run {allocation.run_id}")
            self._check_idle(allocation_id)
        self.ledger.release(allocation_id)
        self.events.node_changed()

    def _check_idle(self, allocation_id: str) -> None:
        for task in self.tasks.values():
            if task.info.allocation_id == allocation_id and not task.ended:
                raise conflict(f"allocation {allocation_id} is in use by task {task.info.id}")


def _capacity(machine: NodeInfo) -> Capacity:
    return Capacity(cpu=machine.cpu, memory=machine.memory, disk=machine.disk)


class _refusals:
    """The shim's problems as its client raises them."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Refused):
            raise ShimError(error.code, error.message, error.status, error.field) from error
