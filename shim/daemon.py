"""The shim put together, from a data folder and an engine.

`Daemon.open` returns only after reconciliation, so no request sees a half-known node.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec

from fairlead.wire.amounts import amounts_of
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.node import Finding, NodeAllows, NodeInfo, NodeMetrics
from fairlead.wire.shim import DrainRequest, Fence, Health, TaskInfo, TaskStatus
from shim.access.controller_keys import fingerprints
from shim.access.exposed_ports import ExposedPorts, ExposureRecord
from shim.access.host_key import NodeHostKey
from shim.access.jump_keys import JumpKeys
from shim.access.runner_socket import remove_strays
from shim.engines.base import Engine
from shim.errors import EngineError
from shim.examination import NodeSetup
from shim.gpus import Gpus
from shim.gpus.health import Fault
from shim.gpus.remembered import RememberedGpu, RememberedGpus
from shim.gpus.watch import GpuWatch
from shim.image_cache.access import ImageAccess, PrivateImage
from shim.image_cache.ahead import ImagesAhead
from shim.image_cache.images import ImageRecord, Images, Watermarks
from shim.leash import Leash
from shim.monitoring.watchdog import Systemd, Watchdog
from shim.node import machine
from shim.node.cgroups import KernelTree
from shim.node.ledger import Asked, Capacity, Ledger
from shim.node.ledger import check as check_blocks
from shim.recall import RecallWatch, metadata_here
from shim.settings import VERSION, Settings
from shim.state.events import EventLog
from shim.state.fencing import FenceBook, Fences
from shim.state.records import (
    DiskRecords,
    NodeRecord,
    RecordBooks,
    TaskRecord,
    TwinRecords,
    all_stored,
)
from shim.tasks.controller_silence import ControllerSilence
from shim.tasks.reconcile import leftovers_of, reconcile
from shim.tasks.steps import leaves
from shim.tasks.steps.volumes import release_strays
from shim.tasks.supervisor import Supervisor
from shim.volumes.mounter import KernelMounter

if TYPE_CHECKING:
    from shim.access.direct_way import DirectWays

P = ParamSpec("P")
T = TypeVar("T")
API_VERSIONS = ("v1",)
_LOOPBACK = "127.0.0.1"
_NODE_KEY = "node"
_LIFE_BITS = 24


class Identity:
    """The identity of this data folder, and the number of its present life."""

    def __init__(self, records: DiskRecords[NodeRecord], record: NodeRecord) -> None:
        self._records = records
        self.record = record

    @classmethod
    async def load(
        cls,
        settings: Settings,
        executor: Executor,
        find_install: Callable[[Path], str | None] = lambda data: None,
    ) -> Identity:
        """Load the identity and count a new life.

        If the record is lost, `find_install` (blocking) finds the install of the data folder: under
        a new name its containers would belong to no shim.
        """
        records = DiskRecords(settings.data / "records" / "node", NodeRecord, executor)
        known = (await records.load()).records.get(_NODE_KEY)
        if known is None:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(executor, find_install, settings.data)
            known = NodeRecord(install_id=found or uuid.uuid4().hex, life=0)
        record = msgspec.structs.replace(known, life=known.life + 1)
        await records.save(_NODE_KEY, record)
        return cls(records, record)

    async def set_draining(self, draining: bool, reason: str | None) -> None:
        """Store the drain state. Raises OSError; then nothing has changed."""
        record = msgspec.structs.replace(self.record, draining=draining, drain_reason=reason)
        await self._records.save(_NODE_KEY, record)
        self.record = record


def _alive(tasks: Iterable[TaskRecord]) -> set[str]:
    """Return the tasks that may have a container: only they need what was mounted for them."""
    return {task.info.id for task in tasks if task.info.status is not TaskStatus.TERMINATED}


def _life(identity: Identity, tasks: tuple[TaskRecord, ...]) -> int:
    """Return the number of this life. If its record is lost, it comes from the tasks' versions, so
    that versions only grow."""
    return max(identity.record.life, *(1 + (t.info.version >> _LIFE_BITS) for t in tasks), 0)


async def _images(settings: Settings, engine: Engine, executor: Executor) -> Images:
    records = DiskRecords(settings.data / "records" / "images", ImageRecord, executor)
    marks = Watermarks(*settings.image_gc) if settings.image_gc else None
    private = DiskRecords(settings.data / "records" / "private-images", PrivateImage, executor)
    access = ImageAccess(engine, private, is_open=settings.private_images_open)
    images = Images(engine, records, access, settings.pull_stall, marks)
    await images.open()
    return images


async def _watch(
    settings: Settings, gpus: Gpus, tasks: Iterable[TaskRecord], executor: Executor
) -> GpuWatch:
    faults = [settings.data / "records" / "gpus", settings.data / "gpu-faults"]
    seen = DiskRecords(settings.data / "records" / "gpus-seen", RememberedGpu, executor)
    twins = TwinRecords(*(DiskRecords(folder, Fault, executor) for folder in faults))
    watch = GpuWatch(gpus, twins, RememberedGpus(seen))
    alive = (task.info for task in tasks if task.info.status is not TaskStatus.TERMINATED)
    await watch.open([uuid for info in alive for uuid in info.gpus])
    return watch


def _direct_ways(
    settings: Settings, supervisor: Supervisor, executor: Executor
) -> DirectWays | None:
    if settings.direct is None:
        return None
    # Only nodes with the direct way load what makes certificates.
    from shim.access.direct_way import DirectWays

    engine = supervisor.engine

    def address_of(info: TaskInfo) -> str | None:
        if not engine.isolation:
            return _LOOPBACK
        return info.address if engine.routes_to(info.run_id) else None

    return DirectWays(
        settings.direct, settings.data / "direct.pem", supervisor.find, address_of, executor
    )


def disk_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=4, thread_name_prefix="shim-disk")


class Daemon:
    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        supervisor: Supervisor,
        executor: Executor,
        leftovers: tuple[str, ...],
        systemd: Systemd | None = None,
    ) -> None:
        self.settings = settings
        self.supervisor = supervisor
        self.executor = executor
        self.events = supervisor.events
        self._identity = identity
        self._leftovers = leftovers
        self._boot_id = machine.boot_id()
        self._jump_keys: JumpKeys | None = None
        self._known_controllers: tuple[str, ...] | None = None
        self._direct = _direct_ways(settings, supervisor, executor)
        self.exposed = ExposedPorts(
            settings.gateways,
            DiskRecords(settings.data / "records" / "exposed", ExposureRecord, executor),
            supervisor.find,
            executor,
            direct=self._direct,
        )
        self.images_ahead = ImagesAhead(
            supervisor.images, supervisor.engine, self.events.node_changed
        )
        self.host_key = None if settings.host_key is None else NodeHostKey(settings.host_key)
        self._controller_silence: ControllerSilence | None = None
        self._leash: Leash | None = None
        self._recall: RecallWatch | None = None
        self._examining = asyncio.Lock()
        self._watchdog = Watchdog(supervisor, systemd)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        engine: Engine,
        gpus: Gpus,
        capacity: Capacity,
        identity: Identity,
        executor: Executor,
        books: RecordBooks | None = None,
        blocks: Asked | None = None,
        systemd: Systemd | None = None,
    ) -> Daemon:
        """Open the shim. Raises EngineError, OSError or StartError when the node's state cannot be
        found out."""
        await engine.open()
        books = books or RecordBooks.on_disk(settings.data, executor)
        found = await reconcile(books, engine, settings, executor)
        mounter = KernelMounter(settings.mounts_folder)
        await release_strays(settings, executor, mounter, _alive(found.tasks))
        known = [task.info.id for task in found.tasks]
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(executor, remove_strays, settings.sockets_folder, known)
        notes = settings.leaves_folder
        await loop.run_in_executor(executor, leaves.remove_strays, notes, KernelTree(), known)
        images = await _images(settings, engine, executor)
        watch = await _watch(settings, gpus, found.tasks, executor)
        infos = watch.infos()
        check_blocks(blocks, gpus=len(infos))
        ledger = Ledger(capacity, infos, found.allocations, blocks)
        # The number of the life repeats if its record is lost: old cursors must not fit again.
        events = EventLog(epoch=f"{identity.record.life}-{secrets.token_hex(4)}")
        supervisor = Supervisor(
            settings,
            engine,
            executor,
            books,
            events,
            ledger,
            Fences(FenceBook(found.fences), books.fences),
            watch,
            images,
            mounter,
            is_draining=lambda: identity.record.draining,
        )
        supervisor.block(found.unexplained)
        supervisor.adopt(found.tasks, first_version=_life(identity, found.tasks) << _LIFE_BITS)
        await watch.start(supervisor.gpus_changed, supervisor.notify)
        daemon = cls(settings, identity, supervisor, executor, found.leftovers, systemd)
        await daemon._begin(events, [task.fence for task in found.tasks])
        return daemon

    async def _begin(self, events: EventLog, fences: Sequence[Fence]) -> None:
        """Take up the work of the earlier life, which the supervisor has adopted."""
        self.images_ahead.open()
        await self._lend_keys()
        await self.exposed.open(events)
        self._controller_silence = await ControllerSilence.open(
            self.supervisor, self.settings.data, self.executor, self._boot_id, fences
        )
        if self.settings.leash is not None:
            silence, supervisor = self._controller_silence, self.supervisor
            self._leash = Leash(
                self.settings.leash, lambda: silence.silent_for, lambda: bool(supervisor.infos)
            )
            self._leash.start()
        if (metadata := metadata_here()) is not None:
            self._recall = RecallWatch(metadata, events.node_changed)
            self._recall.start()
        self.supervisor.resume()

    async def close(self) -> None:
        """Close the shim; running tasks stay."""
        self.events.close()
        await self._watchdog.close()
        if self._leash is not None:
            await self._leash.close()
        if self._recall is not None:
            await self._recall.close()
        if self._controller_silence is not None:
            await self._controller_silence.close()
        if self._jump_keys is not None:
            await self._jump_keys.close()
        await self.exposed.close()
        await self.supervisor.close()
        await self.supervisor.gpus.close()
        await self.images_ahead.close()
        await self.supervisor.images.close()
        await self.supervisor.engine.close()

    async def _lend_keys(self) -> None:
        path = self.settings.jump_keys
        if path is not None:
            self._jump_keys = JumpKeys(path, self.supervisor.visits, self.executor)
            await self._jump_keys.open(self.events)

    def health(self) -> Health:
        return Health(
            version=VERSION,
            api_versions=API_VERSIONS,
            boot_id=self._boot_id,
            install_id=self._identity.record.install_id,
            epoch=self.events.epoch,
            at=time.time(),
        )

    def heard(self, fence: Fence) -> None:
        """Note that a controller made a request that was not refused."""
        if self._controller_silence is not None:
            self._controller_silence.heard(fence)

    async def node(self) -> NodeInfo:
        engine, ledger = self.supervisor.engine, self.supervisor.ledger
        choice = engine.network_choice
        used = ledger.used()
        version: str | None = None
        images: tuple[str, ...] = ()
        engine_error: str | None = None
        try:
            version, images = await asyncio.gather(engine.version(), engine.images())
        except EngineError as error:
            engine_error = str(error)
        disk_free = await self.supervisor.free_disk()
        self._watchdog.note_reported(engine_answers=engine_error is None, free=disk_free)
        controllers = await self._controllers()
        return NodeInfo(
            hostname=socket.gethostname(),
            engine=engine.kind,
            engine_version=version,
            isolation=engine.isolation,
            engine_lacks=tuple(one.value for one in EngineAbility if one not in engine.abilities),
            abilities=tuple(one.value for one in EngineAbility if one in engine.abilities),
            allows=NodeAllows(
                privileged=self.settings.allow_privileged,
                raw_sockets=self.settings.allow_raw_sockets or self.settings.allow_privileged,
                volume_prefixes=tuple(map(str, self.settings.volume_prefixes)),
            ),
            host_network=self.settings.host_network,
            **amounts_of(ledger.capacity),
            cpu_allocated=used.cpu,
            memory_allocated=used.memory,
            disk_allocated=used.disk,
            addresses=machine.addresses(),
            infiniband=bool(machine.infiniband()),
            gpus=ledger.gpus(),
            gpu_boards=self.supervisor.gpus.boards,
            gpu_driver=self.supervisor.gpus.driver,
            blocks=ledger.blocks,
            images=images,
            images_ahead=self.images_ahead.listing(),
            images_asked=self.images_ahead.asked,
            draining=self.supervisor.draining,
            recall=None if self._recall is None else self._recall.found,
            disk_free=disk_free,
            engine_error=engine_error,
            networks=engine.networks(),
            network_kind=None if choice is None else choice.kind.value,
            network_why=None if choice is None else choice.why,
            gateways=self.exposed.is_possible,
            controllers=controllers,
            unlabelled=(*leftovers_of(self.supervisor.unexplained), *self._leftovers),
        )

    async def _controllers(self) -> tuple[str, ...]:
        """Return whose keys may log in. The first one that asks after a change makes the others
        ask."""
        if self.settings.controller_keys is None:
            return ()
        found = await self.in_thread(fingerprints, self.settings.controller_keys)
        if self._known_controllers not in (None, found):
            self.events.node_changed()
        self._known_controllers = found
        return found

    async def metrics(self) -> NodeMetrics:
        from shim.monitoring import metrics

        return await metrics.collect(self.supervisor, self.executor)

    async def examine(self) -> list[Finding]:
        """In a thread of its own: a container is started, which may take a while."""
        from shim.monitoring import doctor

        engine = self.supervisor.engine.kind
        settings = self.settings
        node = NodeSetup(
            data=settings.data, socket=settings.socket, runtime=settings.runtime, engine=engine
        )
        async with self._examining:
            found = await asyncio.to_thread(doctor.examine, node)
            return found if self._direct is None else [*found, await self._direct.examine()]

    async def drain(self, request: DrainRequest) -> None:
        """Start or end a drain. Raises Refused (507)."""
        await all_stored(self._identity.set_draining(request.draining, request.reason))
        self.events.node_changed()

    async def in_thread(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, lambda: act(*args, **kwargs))
