"""GPUs as NVIDIA's driver reports them, through nvidia-ml-py.

Each GPU has a lane (`shim.gpus.lanes`), the library as a whole has another one, and a thread waits
for errors. The library is loaded by `open`; a machine without it has no GPUs, and that is no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairlead.wire.node import GpuInfo, GpuLink
from shim.gpus.base import (
    NO_ACTION,
    GpuDelivery,
    GpuError,
    GpuEvent,
    GpuHook,
    GpuLost,
    GpuSilent,
    GpuStale,
    Recovery,
    Vitals,
)
from shim.gpus.lanes import Lane
from shim.gpus.nvidia.xids import Watched, XidListener
from shim.gpus.selection import Exclusion, not_there

T = TypeVar("T")


log = logging.getLogger(__name__)
OPEN_SECONDS = 5.0
"""Without persistence mode, the driver starts its GPUs on the first call."""
CALL_SECONDS = 0.8
# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; older drivers answer that they do not know it.
_RECOVERY_FIELD = 230
_RECOVERIES = {
    0: NO_ACTION,
    1: Recovery("a reset of the GPU"),
    2: Recovery("a reboot of the node"),
    3: Recovery("the end of all peer-to-peer work"),
    4: Recovery("a drain and a reset of the GPU"),
    5: Recovery("a recovery of the IMEX domain"),
    6: Recovery("a reset of the bus"),
    7: Recovery("a reboot of the system"),
}
_UNKNOWN = Recovery("an action unknown to this version")
# nvmlGpuTopologyLevel_t of nvml.h.
_LINKS = {
    0: GpuLink.SAME_BOARD,
    10: GpuLink.ONE_SWITCH,
    20: GpuLink.SWITCHES,
    30: GpuLink.HOST_BRIDGE,
    40: GpuLink.NUMA_NODE,
    50: GpuLink.SYSTEM,
}
_MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
NVIDIA = GpuDelivery(
    cdi_kind="nvidia.com/gpu",
    hook=GpuHook(
        program="nvidia-container-runtime-hook",
        runtime="nvidia",
        hide={"NVIDIA_VISIBLE_DEVICES": "void"},
    ),
    control=("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"),
    visible="CUDA_VISIBLE_DEVICES",
    advice="is NVIDIA's driver loaded? "
    "(install nvidia-container-toolkit to hand over GPUs with their libraries)",
)


class _Unit(msgspec.Struct):
    """A GPU or MIG instance with its NVML handle; `board` is the handle of the whole GPU."""

    info: GpuInfo
    handle: Any
    board: Any
    instance: tuple[int, int] | None = None
    """The ids of the GPU instance and the compute instance."""


class NvmlGpus:
    delivery = NVIDIA

    def __init__(self, excluded: Sequence[Exclusion] = ()) -> None:
        self.driver: str | None = None
        self._excluded = excluded
        self._in_vain = set(excluded)
        self._nvml: Any = None
        self._library = Lane("nvml")
        self._lanes: dict[int, Lane] = {}
        self._units: dict[str, _Unit] = {}
        self._boards: dict[int, str] = {}
        self._is_complete = False
        self._listener: XidListener | None = None
        self._events: asyncio.Queue[GpuEvent] = asyncio.Queue()

    async def open(self) -> None:
        try:
            self._nvml = await self._library.call(_load, OPEN_SECONDS)
            await self._ask(self._library, self._start, OPEN_SECONDS)
        except ImportError:
            log.info("nvidia-ml-py is not installed: no GPUs are offered")
        except GpuError as error:
            log.info("no GPUs are offered: %s", error)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            # Its thread waits in the library, which may not be shut down under it.
            await asyncio.to_thread(self._listener.join)
        if self.driver is not None:
            with contextlib.suppress(GpuError):
                await self._ask(self._library, lambda: self._nvml.nvmlShutdown())
        for lane in (self._library, *self._lanes.values()):
            lane.close()

    async def list(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs, also of a driver that was loaded after the shim started."""
        self._is_complete = False
        if self._nvml is None:
            return ()
        try:
            if self.driver is None:
                await self._ask(self._library, self._start)
            count = await self._ask(self._library, lambda: int(self._nvml.nvmlDeviceGetCount()))
        except GpuError as error:
            log.debug("the driver does not list its GPUs: %s", error)
            # A driver that is being reset refuses for seconds: what was known stays listed.
            return tuple(unit.info for unit in self._units.values())
        self._boards = {index: uuid for index, uuid in self._boards.items() if index < count}
        self._is_complete = count > 0
        found = await asyncio.gather(*(self._describe(index) for index in range(count)))
        self._say_in_vain()
        units = [unit for some in found for unit in some]
        self._units = {unit.info.uuid: unit for unit in units}
        await asyncio.gather(*(self._measure_links(unit, units) for unit in units))
        self._listen(units)
        return tuple(unit.info for unit in units)

    def boards(self) -> frozenset[str]:
        return frozenset(self._boards.values())

    def missing(self, boards: Iterable[GpuInfo]) -> frozenset[str]:
        if not self._is_complete:
            return frozenset()
        return not_there(boards, self.boards(), self._excluded)

    async def vitals(self, uuid: str) -> Vitals:
        unit = self._units.get(uuid)
        if unit is None:
            raise GpuError(f"there is no GPU {uuid}")
        lane = self._lane(unit.info.index)
        try:
            return await self._ask(lane, lambda: self._read_vitals(unit))
        except GpuLost as lost:
            try:
                is_there = await self._ask(lane, lambda: self._has_board(unit))
            except GpuSilent:
                # A GPU that is lost may also hang: no silence unsays the loss.
                raise lost from None
            if not is_there:
                raise
        raise GpuStale(f"GPU {unit.info.index} was split anew")

    async def next_event(self) -> GpuEvent:
        return await self._events.get()

    def _lane(self, index: int) -> Lane:
        return self._lanes.setdefault(index, Lane(f"gpu-{index}"))

    async def _ask(self, lane: Lane, act: Callable[[], T], seconds: float = CALL_SECONDS) -> T:
        """Make the call, with NVML's errors translated. Raises GpuError."""
        try:
            return await lane.call(act, seconds)
        except GpuError:
            raise
        # NVML's exceptions are known only once its module is loaded, which not every node has.
        except Exception as error:
            code = getattr(error, "value", None)
            if self._nvml is None or not isinstance(error, self._nvml.NVMLError):
                raise
            lost = code == self._nvml.NVML_ERROR_GPU_IS_LOST
            raise (GpuLost if lost else GpuError)(str(error)) from None

    # -- in the library's and the GPUs' threads ---------------------------------------------

    def _start(self) -> None:
        self._nvml.nvmlInit()
        self.driver = _text(self._nvml.nvmlSystemGetDriverVersion())

    async def _describe(self, index: int) -> Sequence[_Unit]:
        """Return the units of one GPU; one that does not answer is listed once it does."""
        known = [unit for unit in self._units.values() if unit.info.index == index]
        seconds = CALL_SECONDS if known else OPEN_SECONDS
        try:
            units = await self._ask(self._lane(index), lambda: self._read_units(index), seconds)
        except GpuError as error:
            # A lost GPU is known to be lost; after any other error nothing counts as missing.
            self._is_complete = self._is_complete and isinstance(error, GpuLost)
            if not known:
                self._boards.pop(index, None)
                log.error("GPU %d cannot be offered: %s", index, error)
            return known
        return [unit for unit in units if not self._is_excluded(unit.info)]

    def _is_excluded(self, gpu: GpuInfo) -> bool:
        covering = {one for one in self._excluded if one.covers(gpu)}
        self._in_vain -= covering
        return bool(covering)

    def _say_in_vain(self) -> None:
        """Warn about each exclusion that matches no GPU: a typing error would offer a GPU that
        should be kept."""
        for one in self._in_vain:
            log.warning("--exclude-gpu %s: no GPU on this node matches", one.text)
        self._in_vain.clear()

    def _read_units(self, index: int) -> Sequence[_Unit]:
        nvml = self._nvml
        board = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(board)
        # It names the device file; a GPU's index may be another number.
        number = nvml.nvmlDeviceGetMinorNumber(board)
        pci = _text(nvml.nvmlDeviceGetPciInfo(board).busId)
        whole = GpuInfo(
            uuid=_text(nvml.nvmlDeviceGetUUID(board)),
            index=index,
            name=_text(nvml.nvmlDeviceGetName(board)),
            memory=int(self._memory(board).total),
            compute_capability=f"{major}.{minor}",
            pci=pci,
            numa=self._numa(board, pci),
            devices=(f"/dev/nvidia{number}",),
        )
        self._boards[index] = whole.uuid
        # The first is the mode that holds; the second holds after the next reset.
        if not self._or(lambda: nvml.nvmlDeviceGetMigMode(board)[0], 0):
            return [_Unit(whole, board, board)]
        return [self._read_instance(whole, number, board, h) for h in self._instances(board)]

    def _instances(self, board: Any) -> Sequence[Any]:
        most = self._or(lambda: self._nvml.nvmlDeviceGetMaxMigDeviceCount(board), 0)
        # NVML leaves gaps between instances: an index without one is an error.
        found = (self._or(partial(self._instance, board, index), None) for index in range(most))
        return [handle for handle in found if handle is not None]

    def _instance(self, board: Any, index: int) -> Any:
        return self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)

    def _read_instance(self, whole: GpuInfo, number: int, board: Any, handle: Any) -> _Unit:
        nvml = self._nvml
        instance = (
            nvml.nvmlDeviceGetGpuInstanceId(handle),
            nvml.nvmlDeviceGetComputeInstanceId(handle),
        )
        info = msgspec.structs.replace(
            whole,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory=int(self._memory(handle).total),
            parent=whole.uuid,
            devices=(*whole.devices, *mig_devices(number, *instance)),
        )
        return _Unit(info, handle, board, instance)

    async def _measure_links(self, unit: _Unit, units: Sequence[_Unit]) -> None:
        others = [o for o in units if o.info.index != unit.info.index]
        if unit.info.parent is not None:
            return
        lane = self._lane(unit.info.index)
        try:
            links = await self._ask(
                lane, lambda: {o.info.uuid: self._link(unit.handle, o.board) for o in others}
            )
        except GpuError as error:
            log.warning("GPU %d: its links are not known: %s", unit.info.index, error)
            return
        unit.info = msgspec.structs.replace(unit.info, links=links)

    def _link(self, one: Any, other: Any) -> GpuLink:
        nvml = self._nvml
        # 2 is NVML_P2P_CAPS_INDEX_NVLINK.
        over_nvlink = self._or(lambda: nvml.nvmlDeviceGetP2PStatus(one, other, 2), None)
        if over_nvlink == nvml.NVML_P2P_STATUS_OK:
            return GpuLink.DIRECT
        level = self._or(lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(one, other), 50)
        return _LINKS.get(level, GpuLink.SYSTEM)

    def _read_vitals(self, unit: _Unit) -> Vitals:
        """Return a reading. The memory is read first and is required: it shows that the GPU
        lives."""
        nvml, handle, board = self._nvml, unit.handle, unit.board
        used = int(self._memory(handle).used)
        remap = self._or(lambda: nvml.nvmlDeviceGetRemappedRows(board), (0, 0, 0, 0))
        power = self._or(lambda: nvml.nvmlDeviceGetPowerUsage(board), None)
        found = self._or(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), ())
        return Vitals(
            memory_used=used,
            processes=tuple(int(process.pid) for process in found),
            recovery=self._recovery(board),
            # 1: uncorrected errors; 0: the volatile counter, which begins with the driver.
            ecc_uncorrected=self._or(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(board, 1, 0)), 0),
            remap_pending=bool(remap[2]),
            remap_failed=bool(remap[3]),
            utilization=self._or(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), None),
            temperature=self._or(lambda: int(nvml.nvmlDeviceGetTemperature(board, 0)), None),
            power=None if power is None else power / 1000,
        )

    def _has_board(self, unit: _Unit) -> bool:
        """Return whether the unit's card answers to a new handle.

        A handle of an instance that was removed, or of a card whose MIG mode was changed, answers
        "GPU is lost" for ever. A card that is lost answers so to each handle.
        """
        board = self._nvml.nvmlDeviceGetHandleByIndex(unit.info.index)
        self._memory(board)
        uuid = _text(self._nvml.nvmlDeviceGetUUID(board))
        return uuid == (unit.info.parent or unit.info.uuid)

    def _recovery(self, board: Any) -> Recovery | None:
        fields = self._or(lambda: self._nvml.nvmlDeviceGetFieldValues(board, [_RECOVERY_FIELD]), ())
        if not len(fields) or fields[0].nvmlReturn != 0:
            return None
        number = int(fields[0].value.uiVal)
        return _RECOVERIES.get(number, _UNKNOWN)

    def _memory(self, handle: Any) -> Any:
        """Return the memory; the second version of the call leaves out what the driver itself
        uses."""
        nvml = self._nvml
        newer = self._or(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2), None)
        return newer or nvml.nvmlDeviceGetMemoryInfo(handle)

    def _numa(self, board: Any, pci: str) -> int | None:
        node = self._or(lambda: self._nvml.nvmlDeviceGetNumaNodeId(board), None)
        if node is not None:
            return int(node)
        # NVML writes eight digits of the PCI domain, sysfs four.
        path = Path("/sys/bus/pci/devices") / pci[4:].lower() / "numa_node"
        try:
            known = int(path.read_text())
        except (OSError, ValueError):
            return None
        # The kernel says -1 where the firmware names no NUMA node.
        return known if known >= 0 else None

    def _or(self, act: Callable[[], Any], otherwise: Any) -> Any:
        """Return the value, or `otherwise` if this driver or GPU does not have it. A lost GPU still
        raises."""
        try:
            return act()
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return otherwise

    # -- errors -----------------------------------------------------------------------------

    def _listen(self, units: Sequence[_Unit]) -> None:
        if self._listener is None:
            self._listener = XidListener(self._nvml, self._events.put_nowait)
        watched: dict[int, Watched] = {}
        for unit in units:
            info = unit.info
            gpu = watched.setdefault(info.index, Watched(unit.board, info.parent or info.uuid, {}))
            if unit.instance is not None:
                gpu.instances[unit.instance] = info.uuid
        self._listener.watch(watched.values())


def _load() -> Any:
    return importlib.import_module("pynvml")


def mig_devices(number: int, gi: int, ci: int, minors: Path = _MIG_MINORS) -> tuple[str, ...]:
    """Return the capability files of a MIG instance; none if the driver has not listed them."""
    try:
        lines = minors.read_text().splitlines()
    # A driver without MIG makes no such file.
    except OSError:
        return ()
    known = dict(line.rsplit(" ", 1) for line in lines if " " in line)
    paths = (f"gpu{number}/gi{gi}/access", f"gpu{number}/gi{gi}/ci{ci}/access")
    return tuple(f"/dev/nvidia-caps/nvidia-cap{known[path]}" for path in paths if path in known)


def _text(value: str | bytes) -> str:
    # Older releases of nvidia-ml-py give bytes.
    return value.decode() if isinstance(value, bytes) else value
