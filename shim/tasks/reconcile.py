"""Reconciling finds out what is true after a crash, before the first answer.

Records tell what was wanted, labels of containers what was made; either alone is enough to
continue. What runs counts more than what is written: a container first, then a task on its way,
then an allocation's record. A GPU gets one owner; the other task ends with a reason. Leftovers
without record and labels are listed and not touched, and their GPUs are not given out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Any

import msgspec

from fairlead.wire.amounts import amounts_of
from fairlead.wire.decoders import decoder_of
from fairlead.wire.node import AllocationInfo
from fairlead.wire.shim import TaskReason, TaskStatus
from shim.engines.base import ContainerState, Engine, Found, NodeFault
from shim.node.machine import boot_id
from shim.settings import Settings
from shim.state.fencing import KEPT_AFTER_LAST_TASK
from shim.state.records import FenceRecord, Loaded, RecordBooks, TaskRecord


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `restored`: records to write again; `dropped`: records to delete. `losers` maps a
    task that lost its GPUs to another one, and gets no container, to the reason. `complaints` are
    for the node's operator."""

    held: dict[str, AllocationInfo]
    restored: tuple[AllocationInfo, ...]
    dropped: tuple[str, ...]
    losers: dict[str, str]
    complaints: tuple[str, ...]


def settle(
    records: Iterable[TaskRecord],
    containers: dict[str, Found],
    unexplained: Iterable[Found],
    kept: Loaded[AllocationInfo],
) -> Owners:
    known = tuple(records)
    allocations = dict(kept.records)
    restored: dict[str, AllocationInfo] = {}
    for record in known:
        name = record.info.allocation_id
        allocation = allocations.get(name)
        if _lives(record):
            wrong = allocation is None or (allocation.run_id, allocation.gpus) != (
                record.info.run_id,
                record.info.gpus,
            )
        else:
            wrong = allocation is None and name in kept.damaged
        if wrong:
            allocations[name] = restored[name] = allocation_in(record)
    for found in unexplained:
        allocation = _allocation_of_container(found)
        allocations.setdefault(allocation.id, allocation)
    complaints = [
        f"allocation {name}: its record is damaged and no task knows what it held"
        for name in kept.damaged
        if name not in allocations
    ]
    return _without_conflicts(known, containers, allocations, restored, complaints)


def allocation_in(record: TaskRecord) -> AllocationInfo:
    """Return the allocation as its task's record describes it."""
    info, resources = record.info, record.request.resources
    return AllocationInfo(
        id=info.allocation_id,
        run_id=info.run_id,
        **amounts_of(resources),
        gpus=info.gpus,
        whole_node=resources.whole_node,
        task_ids=(info.id,),
    )


def allocation_of(found: Found) -> str:
    """Return the allocation that a container's labels name, or a made-up name."""
    return found.allocation_id or f"container-{found.container_id[:12]}"


def is_of_container(allocation: AllocationInfo) -> bool:
    """Return whether the allocation stands for an unexplained container, not for a request."""
    return not allocation.task_ids and allocation.cpu == 0.0


def _allocation_of_container(found: Found) -> AllocationInfo:
    return AllocationInfo(id=allocation_of(found), run_id=found.run_id, gpus=found.gpus)


def _without_conflicts(
    records: tuple[TaskRecord, ...],
    containers: dict[str, Found],
    allocations: dict[str, AllocationInfo],
    restored: dict[str, AllocationInfo],
    complaints: list[str],
) -> Owners:
    running = {allocation_of(found) for found in containers.values()}
    live = {r.info.allocation_id: r.info.id for r in records if _lives(r)}
    held: dict[str, AllocationInfo] = {}
    owner: dict[str, str] = {}
    dropped: list[str] = []
    losers: dict[str, str] = {}
    ordered = sorted(
        allocations.values(), key=lambda a: (a.id not in running, a.id not in live, a.id)
    )
    for allocation in ordered:
        rivals = sorted({owner[gpu] for gpu in allocation.gpus if gpu in owner})
        if rivals:
            complaints.append(f"allocation {allocation.id}: its GPUs belong to {', '.join(rivals)}")
        if rivals and allocation.id not in running:
            dropped.append(allocation.id)
            if allocation.id in live:
                losers[live[allocation.id]] = f"its GPUs belong to allocation {rivals[0]}"
            continue
        held[allocation.id] = allocation
        owner |= {gpu: allocation.id for gpu in allocation.gpus if gpu not in owner}
    return Owners(
        held=held,
        restored=tuple(allocation for name, allocation in restored.items() if name in held),
        dropped=tuple(dropped),
        losers=losers,
        complaints=tuple(complaints),
    )


def _lives(record: TaskRecord) -> bool:
    return record.info.status is not TaskStatus.TERMINATED


log = logging.getLogger(__name__)


class Reconciled(msgspec.Struct, frozen=True):
    """The node's state. `unexplained` are containers of this shim without a known task; `leftovers`
    names everything else that was found and not touched."""

    tasks: tuple[TaskRecord, ...]
    allocations: tuple[AllocationInfo, ...]
    fences: dict[str, FenceRecord]
    unexplained: tuple[Found, ...]
    leftovers: tuple[str, ...]


async def reconcile(
    books: RecordBooks, engine: Engine, settings: Settings, executor: Executor
) -> Reconciled:
    """Find out the node's state. Raises EngineError or OSError: a shim that cannot see its node
    must not answer."""
    tasks = await books.tasks.load()
    allocations = await books.allocations.load()
    fences = await books.fences.load()
    containers = {found.task_id: found for found in await engine.list()}
    records = await _explain(books, tasks, containers)
    await _finish_removals(books, records, containers, fences.records)
    _say_damaged(tasks, fences, records)
    boot = boot_id()
    merged = tuple(_merge(record, containers.get(key), boot) for key, record in records.items())
    await _end_zombies(merged, containers, engine)
    unexplained = tuple(found for key, found in containers.items() if key not in records)
    settled = settle(merged, containers, unexplained, allocations)
    for allocation in settled.restored:
        log.warning("allocation %s: its record is rebuilt from its task", allocation.id)
        await books.allocations.save(allocation.id, allocation)
    for name in settled.dropped:
        await books.allocations.delete(name)
    for complaint in settled.complaints:
        log.error("%s", complaint)
    loop = asyncio.get_running_loop()
    folders = await loop.run_in_executor(executor, _folders_besides, settings, set(records))
    return Reconciled(
        tuple(_without_gpus(record, settled.losers) for record in merged),
        tuple(settled.held.values()),
        _fences_of(merged, fences.records, time.time()),
        unexplained,
        (*folders, *settled.complaints),
    )


def leftovers_of(unexplained: Iterable[Found]) -> tuple[str, ...]:
    return tuple(f"container {found.container_id}" for found in unexplained)


async def _explain(
    books: RecordBooks, tasks: Loaded[TaskRecord], containers: dict[str, Found]
) -> dict[str, TaskRecord]:
    """Return all tasks that a record or a container's labels describe."""
    records = dict(tasks.records)
    for task_id, found in containers.items():
        if task_id not in records and (rebuilt := _rebuild(found)) is not None:
            log.warning("task %s: its record is rebuilt from its container", task_id)
            await books.tasks.save(task_id, rebuilt)
            records[task_id] = rebuilt
    return records


async def _finish_removals(
    books: RecordBooks,
    records: dict[str, TaskRecord],
    containers: dict[str, Found],
    fences: dict[str, FenceRecord],
) -> None:
    """Finish the removal of tasks whose id is refused: a crash, or a restored copy, has left their
    records."""
    now = time.time()
    for task_id, record in list(records.items()):
        fence = fences.get(record.info.run_id)
        removed = fence is not None and fence.forgotten.get(task_id, 0.0) > now
        if removed and task_id not in containers:
            log.warning("task %s was removed before: its record goes too", task_id)
            await books.tasks.delete(task_id)
            del records[task_id]


def _say_damaged(
    tasks: Loaded[TaskRecord], fences: Loaded[FenceRecord], records: dict[str, TaskRecord]
) -> None:
    for task_id in tasks.damaged:
        result = "rebuilt" if task_id in records else "lost; the same PUT starts the task again"
        log.error("the record of task %s was damaged: set aside, %s", task_id, result)
    for run_id in fences.damaged:
        log.error("the fence of run %s was damaged: set aside, taken from its tasks", run_id)


def _rebuild(found: Found) -> TaskRecord | None:
    try:
        record = decoder_of(TaskRecord).decode(found.record or "")
    except msgspec.DecodeError:
        return None
    return record if record.info.id == found.task_id else None


def _merge(record: TaskRecord, found: Found | None, boot: str) -> TaskRecord:
    """Return the record, corrected by the container.

    A container that was started is never started again, whatever the record says. A task that was
    accepted before the node's restart is not begun: its controller has given it up.
    """
    info = record.info
    if info.status is TaskStatus.TERMINATED:
        return record
    started = found is not None and found.state is not ContainerState.CREATED
    of_old = record.boot_id not in (None, boot)
    if of_old and not started and info.status is not TaskStatus.RUNNING:
        message = "the node was restarted before the task was started"
        return _ended(record, NodeFault.reason, message)
    if found is None:
        return record
    info = msgspec.structs.replace(info, container_id=found.container_id, pull=None)
    if found.state is not ContainerState.CREATED and info.status is not TaskStatus.RUNNING:
        # When it started was lost with the shim's last life; now is the latest that it can be.
        times = msgspec.structs.replace(info.times, running_at=time.time())
        info = msgspec.structs.replace(info, status=TaskStatus.RUNNING, times=times)
    return msgspec.structs.replace(record, info=info)


def _without_gpus(record: TaskRecord, losers: dict[str, str]) -> TaskRecord:
    """Return the record of a task that lost its GPUs, so that it gets no container."""
    message = losers.get(record.info.id)
    if message is None:
        return record
    return _ended(record, NodeFault.reason, message, gpus=())


def _ended(record: TaskRecord, reason: TaskReason, message: str, **changes: Any) -> TaskRecord:
    info = msgspec.structs.replace(
        record.info,
        status=TaskStatus.TERMINATED,
        reason=reason,
        message=message,
        pull=None,
        needs_credentials=False,
        times=msgspec.structs.replace(record.info.times, terminated_at=time.time()),
        **changes,
    )
    return msgspec.structs.replace(record, info=info)


async def _end_zombies(
    records: tuple[TaskRecord, ...], containers: dict[str, Found], engine: Engine
) -> None:
    """End these containers and wait: their GPUs may already be promised to other tasks."""
    for record in records:
        found = containers.get(record.info.id)
        ended = record.info.status is TaskStatus.TERMINATED
        if ended and found is not None and found.state is not ContainerState.EXITED:
            log.warning("task %s has ended but its container is there: removed", record.info.id)
            await engine.remove(record.info.id)
            del containers[record.info.id]


def _fences_of(
    records: tuple[TaskRecord, ...], kept: dict[str, FenceRecord], now: float
) -> dict[str, FenceRecord]:
    """Return the fences. A fence without a task gets an expiry date, also if a crash came before
    the date was written."""
    fences = {
        run_id: record
        if record.expires_at is not None
        else msgspec.structs.replace(record, expires_at=now + KEPT_AFTER_LAST_TASK)
        for run_id, record in kept.items()
    }
    for record in records:
        run_id = record.info.run_id
        known = fences.get(run_id)
        fence = max(record.fence, known.fence) if known else record.fence
        incarnation = max(record.info.incarnation, known.incarnation if known else 0)
        fences[run_id] = FenceRecord(
            run_id=run_id,
            fence=fence,
            incarnation=incarnation,
            forgotten=known.forgotten if known else {},
        )
    return fences


def _folders_besides(settings: Settings, known: set[str]) -> list[str]:
    parents = (settings.data / "tasks", settings.run_folder)
    return [
        f"folder {folder}"
        for parent in parents
        if parent.is_dir()
        for folder in sorted(parent.iterdir())
        if folder.name not in known
    ]
