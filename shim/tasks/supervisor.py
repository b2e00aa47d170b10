"""The supervisor has every task of the node, and the rules by which they come and go.

It accepts a task once its fence, its allocation and its record are on disk; from then on a driver
takes it to its end. It refuses what is old, what does not fit and what would revive a removed task,
always with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

import msgspec

from common.threads import together
from fairlead.wire.errors import Refused
from fairlead.wire.node import AllocationInfo, GpuInfo
from fairlead.wire.shim import (
    NetworkMode,
    Notice,
    PullPolicy,
    RefusalCode,
    TaskInfo,
    TaskRequest,
    TaskStatus,
    TaskTimes,
    TerminateRequest,
)
from shim.access.jump_keys import Visit
from shim.admission import container_rules, validation
from shim.engines.base import ContainerState, Engine, Found
from shim.errors import EngineError, conflict, invalid, not_found
from shim.gpus.health import GpuFinding
from shim.gpus.watch import GpuWatch
from shim.image_cache.images import Images
from shim.node.ledger import Ledger
from shim.node.machine import boot_id
from shim.node.pythons import Pythons
from shim.settings import Settings, check_name
from shim.state.events import EventLog
from shim.state.fencing import Caller, Fences
from shim.state.records import (
    RecordBooks,
    TaskRecord,
    all_stored,
    hash_of,
    is_same_body,
    without_secrets,
)
from shim.tasks import driver, reconcile
from shim.tasks.steps.base import RunLocks, StepContext
from shim.tasks.steps.image import reference_of
from shim.tasks.steps.ssh import PORT_NAME
from shim.tasks.task import TaskState
from shim.volumes.mounter import Mounter

log = logging.getLogger(__name__)
_MAX_NOTICES = 32


async def _let_go(task: TaskState) -> None:
    """End the task's driver; the container goes on."""
    if task.driver is not None:
        task.driver.cancel()
        # Not `await` itself: its CancelledError would look like one of this caller's.
        await asyncio.wait({task.driver})


def _has_ended(found: Found | None) -> bool:
    return found is None or found.state is ContainerState.EXITED


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        executor: Executor,
        books: RecordBooks,
        events: EventLog,
        ledger: Ledger,
        fences: Fences,
        gpus: GpuWatch,
        images: Images,
        mounter: Mounter,
        is_draining: Callable[[], bool],
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.ledger = ledger
        self.events = events
        self.gpus = gpus
        self.images = images
        self._mounter = mounter
        self._pythons = Pythons(settings)
        self._is_draining = is_draining
        self.unexplained: tuple[Found, ...] = ()
        self._blocked: set[str] = set()
        self._executor = executor
        self._books = books
        self.fences = fences
        self._tasks: dict[str, TaskState] = {}
        self._first_version = 0
        self._networks = engine.networks()
        self._run_locks = RunLocks()
        # While a record is written, another request could get the same GPUs, or the same id.
        self._deciding = asyncio.Lock()

    @property
    def draining(self) -> bool:
        return self._is_draining()

    @property
    def infos(self) -> tuple[TaskInfo, ...]:
        return tuple(task.info for task in self._tasks.values())

    def find(self, task_id: str) -> TaskInfo | None:
        task = self._tasks.get(task_id)
        return None if task is None else task.info

    def info(self, task_id: str) -> TaskInfo:
        return self._known(task_id).info

    def adopt(self, records: Iterable[TaskRecord], first_version: int) -> None:
        """Take over the tasks of an earlier life, in the state that reconciliation found.

        A task that still needs credentials asks for them again.
        """
        self._first_version = first_version
        for record in records:
            info = record.info
            newer = msgspec.structs.replace(
                info, version=max(info.version + 1, first_version), needs_credentials=False
            )
            self._track(msgspec.structs.replace(record, info=newer))

    def resume(self) -> None:
        """Continue the adopted tasks. Each asks the engine for its container, the slowest part of a
        start, so it comes last."""
        for task in self.live:
            self._drive(task)

    async def put(
        self, task_id: str, request: TaskRequest, caller: Caller
    ) -> tuple[TaskInfo, bool]:
        """Return the task, and whether it is new. Raises Refused."""
        self._check_request(task_id, request, caller)
        async with self._deciding:
            self.fences.check(caller)
            known = self._tasks.get(task_id)
            if known is not None:
                return await self._same_again(known, request, caller), False
            self.fences.check_revival(task_id, caller)
            container_rules.check_network(request, self.settings)
            container_rules.check_engine(request, self.engine.kind, self.engine.abilities)
            return await self._accept(task_id, request, caller), True

    async def terminate(self, task_id: str, order: TerminateRequest, caller: Caller) -> TaskInfo:
        validation.check_order(order)
        task = await self.commanded(task_id, caller)
        if not task.ended:
            await all_stored(task.order_stop(order.grace, order.reason, order.message))
        return task.info

    async def remove(self, task_id: str, caller: Caller) -> None:
        """Remove a task. Raises Refused: 409 `not_terminated`, 500 `cleanup_failed` (try again)."""
        task = await self.commanded(task_id, caller)
        if not task.ended:
            raise Refused(
                409, "not_terminated", f"task {task_id} is {task.info.status}: terminate it first"
            )
        async with task.removing:
            # Another request has removed it while this one waited for the lock.
            if self._tasks.get(task_id) is not task:
                return
            await _let_go(task)
            try:
                await driver.undo_all(self._context(task))
            except (EngineError, OSError) as error:
                raise Refused(
                    500, "cleanup_failed", f"task {task_id} is not fully removed: {error}"
                ) from error
            async with self._deciding:
                await all_stored(self._forget(task))
            log.info("task %s: removed", task_id)
            self.events.task_removed(task_id)

    async def release(self, allocation_id: str, caller: Caller) -> None:
        async with self._deciding:
            self.fences.check(caller)
            allocation = self.ledger.get(allocation_id)
            if allocation is None:
                raise not_found(f"there is no allocation {allocation_id}")
            if allocation.run_id != caller.run_id:
                raise conflict(f"allocation {allocation_id} belongs to run {allocation.run_id}")
            self._check_idle(allocation_id)
            self._check_explained(allocation_id)
            # On disk first: a refusal (507) must leave the allocation held.
            await all_stored(self._books.allocations.delete(allocation_id))
            self.ledger.release(allocation_id)
            # Before the lock goes: the driver may free the memory of killed processes late.
            self.gpus.hold(allocation.gpus)
            self.events.node_changed()
        await self.gpus.look(allocation.gpus)

    async def clear_gpu(self, uuid: str) -> None:
        """Offer a cordoned GPU again. Raises Refused: 404 for a GPU that is not cordoned."""
        if not self.gpus.is_cordoned(uuid):
            raise not_found(f"there is no cordoned GPU {uuid}")
        await all_stored(self.gpus.clear(uuid))

    @property
    def live(self) -> tuple[TaskState, ...]:
        return tuple(task for task in self._tasks.values() if not task.ended)

    def visits(self) -> tuple[Visit, ...]:
        """Return the SSH ports of the live tasks, and the keys that may use them."""
        return tuple(
            Visit(
                host=task.info.ssh_host,
                port=task.info.ports[PORT_NAME],
                keys=task.request.ssh.authorized_keys,
            )
            for task in self._tasks.values()
            if task.request.ssh is not None and PORT_NAME in task.info.ports and not task.ended
        )

    async def free_disk(self) -> int:
        """Return the free bytes where records and logs lie."""
        loop = asyncio.get_running_loop()
        data = self.settings.data
        return (await loop.run_in_executor(self._executor, shutil.disk_usage, data)).free

    async def close(self) -> None:
        """End all drivers; running tasks stay."""
        await asyncio.gather(*map(_let_go, self._tasks.values()))

    async def compare(self, suspects: frozenset[str]) -> frozenset[str]:
        """Compare the engine's containers with the known tasks; return those that seem to have
        ended unseen.

        A task that was in `suspects` already is inspected: an event was lost.
        """
        known = set(self._tasks)
        containers = {one.task_id: one for one in await self.engine.list()}
        known |= set(self._tasks)  # removed meanwhile, or new: neither is a stranger's
        self.unexplained = tuple(one for key, one in containers.items() if key not in known)
        self._drop_claims_of_the_gone()
        self._compare_networks()
        missed = frozenset(
            task.info.id
            for task in self._tasks.values()
            if task.info.status is TaskStatus.RUNNING and _has_ended(containers.get(task.info.id))
        )
        for task_id in missed & suspects:
            log.warning("task %s: its end went unnoticed", task_id)
            await self._look_again(self._tasks[task_id])
        return missed - suspects

    def _compare_networks(self) -> None:
        """Other networks of the engine, and routes, come and go."""
        before, self._networks = self._networks, self.engine.networks()
        if self._networks != before:
            self.events.node_changed()

    async def _look_again(self, task: TaskState) -> None:
        await _let_go(task)
        if task.ended:
            self.events.task_changed(task.info)
        else:
            self._drive(task)

    def _drop_claims_of_the_gone(self) -> None:
        """Free what an unexplained container held once it is gone."""
        claimed = {reconcile.allocation_of(one) for one in self.unexplained}
        for allocation_id in self._blocked - claimed:
            allocation = self.ledger.get(allocation_id)
            if allocation is not None and reconcile.is_of_container(allocation):
                self.ledger.release(allocation_id)
                self.events.node_changed()
        self._blocked &= claimed

    def block(self, unexplained: tuple[Found, ...]) -> None:
        """Keep what these containers may hold from others while they are there."""
        self.unexplained = unexplained
        self._blocked = {reconcile.allocation_of(one) for one in unexplained}

    def _check_explained(self, allocation_id: str) -> None:
        for one in self.unexplained:
            if reconcile.allocation_of(one) == allocation_id:
                raise conflict(
                    f"allocation {allocation_id} is in use by container {one.container_id}, which "
                    "the shim does not know: remove it by hand first"
                )

    def _check_request(self, task_id: str, request: TaskRequest, caller: Caller) -> None:
        self.settings.check_task_id(task_id)
        validation.check(request)
        if request.run_id != caller.run_id:
            raise invalid("the body names another run than the header Fairlead-Run", "run_id")
        allowed = self.settings.allow_privileged
        container_rules.check_options(request.container, allow_privileged=allowed)

    async def _same_again(self, known: TaskState, request: TaskRequest, caller: Caller) -> TaskInfo:
        if not is_same_body(known.record, request):
            raise conflict(f"task {known.info.id} already exists with another body")
        await all_stored(self.fences.hear(caller))
        if request.registry_auth is not None:
            known.give_credentials(request.registry_auth)
        return known.info

    async def _accept(self, task_id: str, request: TaskRequest, caller: Caller) -> TaskInfo:
        held = self.ledger.get(request.allocation_id)
        if self.draining and held is None:
            raise Refused(409, RefusalCode.DRAINING, "the node is draining and takes nothing new")
        self._check_idle(request.allocation_id)
        if held is not None:
            await self.gpus.look(held.gpus)
        self._check_network(request)
        allocation = self.ledger.plan(task_id, request)
        record = self._new_record(task_id, request, caller, allocation.gpus)
        # Meanwhile, since it only reads: the engine needs some milliseconds of each start for it.
        if request.pull_policy is not PullPolicy.ALWAYS:
            self.images.look_early(reference_of(request), task_id)
        try:
            await all_stored(
                self.fences.hear(caller),
                self._books.allocations.save(allocation.id, allocation),
                self._books.tasks.save(task_id, record),
            )
        except Refused:
            await self.images.forget(task_id)
            await self._take_back(task_id, held, allocation)
            raise
        self.ledger.hold(allocation)
        task = self._track(record, request)
        self.events.task_changed(task.info)
        log.info(
            "task %s of run %s: accepted, allocation %s", task_id, request.run_id, allocation.id
        )
        self._drive(task)
        return task.info

    def gpus_changed(self) -> None:
        before = self.ledger.gpus()
        self.ledger.set_gpus(self.gpus.infos())
        if self.ledger.gpus() != before:
            self.events.node_changed()

    async def notify(self, gpu: GpuInfo, finding: GpuFinding, line: str) -> None:
        """Notify the tasks that have this GPU, each once."""
        notice = Notice(id=f"{gpu.uuid}:{finding.key}", at=time.time(), text=line)
        # A copy, because tasks come and go during the writes below.
        for task in list(self._tasks.values()):
            if gpu.uuid not in task.info.gpus or task.ended:
                continue
            changes: dict[str, Any] = {}
            known = task.info.notices
            if notice.id not in {one.id for one in known} and len(known) < _MAX_NOTICES:
                changes["notices"] = (*known, notice)
            if finding.cordon and task.info.gpu_fault is None:
                changes["gpu_fault"] = line
            if changes:
                try:
                    await task.change(**changes)
                except OSError as error:
                    log.error("task %s: a notice may be lost: %s", task.info.id, error)

    async def _take_back(
        self, task_id: str, held: AllocationInfo | None, refused: AllocationInfo
    ) -> None:
        """Delete the records of a refused task, so that it does not start at the next start of the
        shim."""
        before = (
            self._books.allocations.save(held.id, held)
            if held
            else self._books.allocations.delete(refused.id)
        )
        await asyncio.gather(before, self._books.tasks.delete(task_id), return_exceptions=True)

    def _new_record(
        self, task_id: str, request: TaskRequest, caller: Caller, gpus: tuple[str, ...]
    ) -> TaskRecord:
        return TaskRecord(
            request=without_secrets(request),
            body_hash=hash_of(request),
            had_credentials=request.registry_auth is not None,
            fence=caller.fence,
            boot_id=boot_id(),
            info=TaskInfo(
                id=task_id,
                run_id=request.run_id,
                run_name=request.run_name,
                allocation_id=request.allocation_id,
                status=TaskStatus.PENDING,
                image=request.image,
                incarnation=caller.incarnation,
                network_mode=self._network_mode(request),
                runner_socket=self.settings.runner_socket(task_id),
                runner_listens=False,
                gpus=gpus,
                version=self._first_version,
                times=TaskTimes(submitted_at=time.time()),
            ),
        )

    def _check_idle(self, allocation_id: str) -> None:
        live = [
            task.info.id
            for task in self._tasks.values()
            if task.info.allocation_id == allocation_id and not task.ended
        ]
        if live:
            raise conflict(
                f"allocation {allocation_id} is in use by task {live[0]}", "allocation_id"
            )

    async def commanded(self, task_id: str, caller: Caller) -> TaskState:
        """Return the task if this controller may command it; an older fence or incarnation is
        refused."""
        async with self._deciding:
            task = self._tasks.get(task_id)
            if task is None:
                self.fences.check_for_task(caller, None)
                self.settings.check_task_id(task_id)
                check_name(caller.run_id, "Fairlead-Run")
                used = self._run_is_used(caller.run_id)
                # The task's own PUT may be on its way still, slower than this order.
                await all_stored(self.fences.remember_unknown(task_id, caller, used))
                raise not_found(f"there is no task {task_id}")
            if task.info.run_id != caller.run_id:
                raise conflict(f"task {task_id} belongs to run {task.info.run_id}")
            self.fences.check_for_task(caller, task.info.incarnation)
            await all_stored(self.fences.hear(caller))
            return task

    async def _forget(self, task: TaskState) -> None:
        """Forget the task. Its id is refused as long as the fence is kept; the record is deleted
        last."""
        info = task.info
        run_is_used = self._run_is_used(info.run_id, besides=info.id)
        writes = [self.fences.forget(info.run_id, info.id, run_is_used)]
        allocation = self.ledger.without_task(info.allocation_id, info.id)
        if allocation is not None:
            writes.append(self._books.allocations.save(allocation.id, allocation))
        await together(*writes)
        await self._books.tasks.delete(info.id)
        del self._tasks[info.id]

    def _run_is_used(self, run_id: str, besides: str | None = None) -> bool:
        return any(
            task.info.run_id == run_id and task.info.id != besides for task in self._tasks.values()
        )

    def _run_has_others(self, task: TaskState) -> bool:
        return any(
            other.info.run_id == task.info.run_id and other is not task and not other.left_run
            for other in self._tasks.values()
        )

    def _addresses_besides(self, task: TaskState) -> frozenset[str]:
        """Return the addresses of the run's other tasks whose container is there, or is about to
        be."""
        addresses = (
            other.coming.address
            for other in self._tasks.values()
            if other.info.run_id == task.info.run_id and other is not task and not other.ended
        )
        return frozenset(one for one in addresses if one is not None)

    def _check_network(self, request: TaskRequest) -> None:
        """Raise Refused (409 `no_network`) if the task's run would have one network too many. A run
        has its network until its last task is removed."""
        most = self.engine.networks()
        if most is None or self._network_mode(request) is NetworkMode.HOST:
            return
        runs = {
            task.info.run_id
            for task in self._tasks.values()
            if task.info.network_mode is NetworkMode.BRIDGE and not task.left_run
        }
        if request.run_id not in runs and len(runs) >= most:
            raise Refused(
                409,
                RefusalCode.NO_NETWORK,
                f"all {most} networks for runs on this node are in use (--job-networks gives it "
                "more)",
            )

    def _network_mode(self, request: TaskRequest) -> NetworkMode:
        asked = container_rules.is_in_host_network(request, self.settings)
        in_host_network = asked or not self.engine.has_networks
        return NetworkMode.HOST if in_host_network else NetworkMode.BRIDGE

    def _track(self, record: TaskRecord, request: TaskRequest | None = None) -> TaskState:
        auth = request.registry_auth if request else None
        task = TaskState(record, self._books.tasks, self.events, auth)
        self._tasks[record.info.id] = task
        return task

    def _drive(self, task: TaskState) -> None:
        name = f"task {task.info.id}"
        task.driver = asyncio.create_task(driver.drive(self._context(task)), name=name)

    def _context(self, task: TaskState) -> StepContext:
        return StepContext(
            task=task,
            engine=self.engine,
            settings=self.settings,
            executor=self._executor,
            run_locks=self._run_locks,
            run_is_used=lambda: self._run_has_others(task),
            addresses_of_run=lambda: self._addresses_besides(task),
            gpus=self.gpus.infos,
            gpu_delivery=self.gpus.delivery,
            images=self.images,
            mounter=self._mounter,
            pythons=self._pythons,
        )

    def _known(self, task_id: str) -> TaskState:
        try:
            return self._tasks[task_id]
        except KeyError:
            raise not_found(f"there is no task {task_id}") from None

    @property
    def allocations(self) -> tuple[AllocationInfo, ...]:
        return tuple(
            msgspec.structs.replace(held, incarnation=self.fences.incarnation_of(held.run_id))
            for held in self.ledger.held
        )
