"""Knows at any time which GPUs may be offered, and reports each change at once.

Errors that the driver announces are waited for; what it only answers when asked (lost GPUs,
ECC, remapped rows, its verdict, memory in use) is read once a second. A broken GPU is cordoned in
memory at once, then on disk, and stays cordoned across restarts until its operator clears it. A GPU
that is missing in two listings counts as broken too, also when it disappeared while the shim was
down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from fairlead.wire.node import GpuInfo
from shim.gpus import health
from shim.gpus.base import (
    Blame,
    GpuDelivery,
    GpuError,
    GpuEvent,
    GpuLost,
    Gpus,
    GpuSilent,
    GpuStale,
    Vitals,
)
from shim.gpus.health import Fault, GpuFinding
from shim.gpus.remembered import RememberedGpus
from shim.state.records import Records

log = logging.getLogger(__name__)

READ_EVERY = 0.9
LIST_EVERY = 30.0
"""Seconds. GPUs rarely appear or disappear (a driver that was loaded late, a new MIG setup)."""
CONFIRM_AFTER = 1.0
"""Seconds until a missing GPU is looked for again: a machine that boots may not be ready."""

_SILENT = "the driver does not answer for it"
_GONE = "the driver no longer has it"
_SPLIT_ANEW = "its card was split anew"

OnFinding = Callable[[GpuInfo, GpuFinding, str], Awaitable[None]]
"""Gets a GPU, a finding about it, and the line for the logs of jobs that have it."""


class _Known:
    """The known state of one GPU."""

    def __init__(self, info: GpuInfo) -> None:
        self.info = info
        self.vitals: Vitals | None = None
        self.problem: str | None = None
        self.held: str | None = "its memory was not checked yet"


class GpuWatch:
    """Watches the GPUs: `open` reads them once, `start` watches them from then on."""

    def __init__(self, gpus: Gpus, faults: Records[Fault], remembered: RememberedGpus) -> None:
        self._gpus = gpus
        self._records = faults
        self._faults: dict[str, Fault] = {}
        self._known: dict[str, _Known] = {}
        self._remembered = remembered
        self._gone: frozenset[str] = frozenset()
        self._listing = asyncio.Lock()
        self._is_stale = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._on_change: Callable[[], None] | None = None
        self._on_finding: OnFinding | None = None

    @property
    def driver(self) -> str | None:
        return self._gpus.driver

    async def open(self, held: Iterable[str] = ()) -> None:
        """Read every GPU once and cordon those that were lost meanwhile; `held` are the GPUs of
        live tasks.

        Raises OSError when the records cannot be read.
        """
        loaded = await self._records.load()
        self._faults = {fault.gpu.uuid: fault for fault in loaded.records.values()}
        for uuid in loaded.damaged:
            log.error("the record of a broken GPU is damaged and set aside: %s", uuid)
            unknown = GpuInfo(uuid=uuid, index=0, name="unknown", memory=0)
            await self._cordon(unknown, health.record_damaged())
        await self._remembered.load(held)
        await self._gpus.open()
        await self._list()
        if self._is_to_confirm():
            await asyncio.sleep(CONFIRM_AFTER)
            await self._list()
        await self.look(self._known)

    async def start(self, on_change: Callable[[], None], on_finding: OnFinding) -> None:
        """Watch the GPUs from now on: call `on_change` when those that are offered change, and
        `on_finding` for each finding.

        Faults that are known already are reported too: after a crash, tasks may have missed them.
        """
        self._on_change, self._on_finding = on_change, on_finding
        self._tasks = [
            asyncio.create_task(self._keep_reading(), name="gpu readings"),
            asyncio.create_task(self._keep_listing(), name="gpu list"),
            asyncio.create_task(self._keep_listening(), name="gpu errors"),
        ]
        for uuid, fault in list(self._faults.items()):
            await self._report(self._units(uuid), fault.finding)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._gpus.close()

    @property
    def delivery(self) -> GpuDelivery:
        return self._gpus.delivery

    def infos(self) -> tuple[GpuInfo, ...]:
        """Return all GPUs as if no allocation had them; cordoned ones also when they are gone."""
        gone = [f.gpu for uuid, f in self._faults.items() if not self._is_listed(uuid)]
        return tuple(
            sorted(
                [self._info(known) for known in self._known.values()]
                + [self._with_fault(gpu) for gpu in gone],
                key=lambda gpu: (gpu.index, gpu.uuid),
            )
        )

    @property
    def boards(self) -> tuple[str, ...]:
        """Return the UUIDs of the cards that are there, split or not."""
        return tuple(sorted(self._gpus.boards()))

    def vitals(self) -> dict[str, Vitals]:
        """Return the last reading of each GPU that has one."""
        return {uuid: known.vitals for uuid, known in self._known.items() if known.vitals}

    def hold(self, uuids: Iterable[str]) -> None:
        """Hold these GPUs, whose container is gone, until a reading shows that their memory is
        free."""
        for known in self._of(uuids):
            known.held = "its memory was not checked since its last job"
        self._changed()

    async def look(self, uuids: Iterable[str]) -> None:
        """Read these GPUs now; returns in bounded time whatever the driver does."""
        before = self.infos()
        await asyncio.gather(*(self._read_one(known) for known in self._of(uuids)))
        self._compare(before)

    def is_cordoned(self, uuid: str) -> bool:
        return self._whole(uuid) in self._faults

    async def clear(self, uuid: str) -> None:
        """Clear a cordoned GPU, or that of an instance. Raises OSError.

        It is read before this returns and may be found broken again. A GPU that is gone is
        forgotten.
        """
        whole = self._whole(uuid)
        # First: after a crash in between, the GPU is still cordoned and can be cleared again.
        await self._remembered.forget(whole)
        await self._records.delete(whole)
        fault = self._faults.pop(whole, None)
        if fault is not None:
            log.info("GPU %s is cleared: %s", whole, fault.finding.words)
        if whole in self._gone:
            self._gone -= {whole}
            for known in self._units(whole):
                del self._known[known.info.uuid]
        self._changed()
        await self._list()
        await self.look([known.info.uuid for known in self._units(whole)])

    # -- reading ----------------------------------------------------------------------------

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(READ_EVERY)
            await self.look(self._known)

    async def _keep_listing(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONFIRM_AFTER if self._is_to_confirm() else LIST_EVERY):
                    await self._is_stale.wait()
            self._is_stale.clear()
            before = self.infos()
            await self._list()
            self._compare(before)

    async def _list(self) -> None:
        async with self._listing:
            found = {gpu.uuid: gpu for gpu in await self._gpus.list()}
            await self._remembered.remember(found.values())
            gone = self._gpus.missing(self._remembered.boards())
            confirmed = gone & self._gone
            self._gone = gone
            self._take_over(found)
        for board in confirmed:
            for known in self._units(board)[:1]:
                await self._found(known.info, health.gone())

    def _take_over(self, found: dict[str, GpuInfo]) -> None:
        gone = {gpu.uuid: gpu for board in self._gone for gpu in self._remembered.units(board)}
        there = self._gpus.boards()
        for uuid, known in list(self._known.items()):
            is_split_anew = (known.info.parent or uuid) in there
            if uuid not in found and uuid not in gone and is_split_anew:
                del self._known[uuid]
        for uuid, gpu in (gone | found).items():
            if uuid in self._known:
                self._known[uuid].info = gpu
            else:
                self._known[uuid] = _Known(gpu)
        for uuid in gone:
            self._known[uuid].problem = _GONE

    def _is_to_confirm(self) -> bool:
        return bool(self._gone - self._faults.keys())

    def _is_gone(self, gpu: GpuInfo) -> bool:
        return (gpu.parent or gpu.uuid) in self._gone

    async def _read_one(self, known: _Known) -> None:
        uuid = known.info.uuid
        if self._is_gone(known.info):
            return
        try:
            now = await self._gpus.vitals(uuid)
        except GpuLost:
            known.problem = "it is lost"
            await self._found(known.info, health.lost())
        except GpuStale:
            if known.problem != _SPLIT_ANEW:  # one that stays so after a listing waits its turn
                known.problem = _SPLIT_ANEW
                self._is_stale.set()
        except GpuSilent as error:
            before_that = known.problem
            known.problem = _SILENT
            log.debug("GPU %s: %s", uuid, error)
            if before_that != _SILENT:
                await self._report([known], health.silent())
        except GpuError as error:
            known.problem = f"the driver says: {error}"
        else:
            known.problem = None
            known.held = health.who_holds(now)
            before, known.vitals = known.vitals, now
            finding = health.judge_vitals(before, now)
            if finding is not None:
                await self._found(known.info, finding)

    def _compare(self, before: tuple[GpuInfo, ...]) -> None:
        if self.infos() != before:
            self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    # -- errors -----------------------------------------------------------------------------

    async def _keep_listening(self) -> None:
        while True:
            event = await self._gpus.next_event()
            # A GPU that fails or falls silent here is judged by its next reading.
            with contextlib.suppress(GpuError):
                await self._judge(event)

    async def _judge(self, event: GpuEvent) -> None:
        units = self._units(event.uuid)
        if not units:
            log.warning("%s of a GPU that is not offered: %s", event.words, event.uuid)
            return
        recovery = None
        if event.blame is not Blame.APPLICATION:
            with contextlib.suppress(GpuError):
                recovery = (await self._gpus.vitals(units[0].info.uuid)).recovery
        finding = health.judge_event(event, recovery)
        if finding.cordon:
            await self._found(units[0].info, finding)
        else:
            await self._report(units, finding)

    async def _found(self, gpu: GpuInfo, finding: GpuFinding) -> None:
        """Handle a finding. A fault belongs to the whole GPU, whichever MIG instance shows it; the
        first one is reported."""
        whole = gpu.parent or gpu.uuid
        if whole in self._faults:
            return
        if finding.cordon:
            await self._cordon(msgspec.structs.replace(gpu, uuid=whole, parent=None), finding)
        await self._report(self._units(whole), finding)

    async def _cordon(self, gpu: GpuInfo, finding: GpuFinding) -> None:
        fault = Fault(gpu=gpu, finding=finding, at=time.time())
        self._faults[gpu.uuid] = fault
        self._changed()
        try:
            await self._records.save(gpu.uuid, fault)
        except OSError as error:
            log.error("GPU %s is cordoned, but not across a restart: %s", gpu.uuid, error)

    async def _report(self, units: Iterable[_Known], finding: GpuFinding) -> None:
        for known in units:
            text = health.line(known.info, finding)
            log.warning("%s", text)
            if self._on_finding is not None:
                await self._on_finding(known.info, finding, text)

    # -- views ------------------------------------------------------------------------------

    def _info(self, known: _Known) -> GpuInfo:
        if known.problem is not None:
            gpu = msgspec.structs.replace(known.info, healthy=False, message=known.problem)
        elif known.held is not None:
            gpu = msgspec.structs.replace(known.info, held=True, message=known.held)
        else:
            gpu = known.info
        return self._with_fault(gpu)

    def _with_fault(self, gpu: GpuInfo) -> GpuInfo:
        fault = self._faults.get(gpu.parent or gpu.uuid)
        if fault is None:
            return gpu
        words = f"cordoned: {fault.finding.words}"
        return msgspec.structs.replace(gpu, healthy=False, message=words)

    def _whole(self, uuid: str) -> str:
        known = self._known.get(uuid)
        return uuid if known is None else known.info.parent or uuid

    def _is_listed(self, uuid: str) -> bool:
        return bool(self._units(uuid))

    def _units(self, uuid: str) -> list[_Known]:
        return [k for k in self._known.values() if uuid in (k.info.uuid, k.info.parent)]

    def _of(self, uuids: Iterable[str]) -> list[_Known]:
        return [self._known[uuid] for uuid in tuple(uuids) if uuid in self._known]
