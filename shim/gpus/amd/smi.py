"""GPUs as AMD's driver reports them, through amdsmi, the Python module that ROCm brings.

Never tried on a real card: the names of calls and fields are those of amdsmi 7.0, and the tests
have a stand-in for it. Each GPU has a lane, and so has the library as a whole. A machine without
the library has no GPUs, and that is no error. AMD's GPUs are given whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairlead.wire.gpu_names import GpuVendor
from fairlead.wire.node import GpuInfo, GpuLink
from shim.gpus.base import GpuDelivery, GpuError, GpuEvent, Vitals
from shim.gpus.lanes import Lane
from shim.gpus.selection import Exclusion, not_there

log = logging.getLogger(__name__)
T = TypeVar("T")
OPEN_SECONDS = 5.0
CALL_SECONDS = 0.8
_OF_ROCM = "/opt/rocm/share/amd_smi"
"""ROCm installs the module here, outside of any interpreter's path."""
_PENDING, _UNRESERVABLE = 1, 2
"""The states of a bad page: it is set aside at the next reset; it could not be set aside."""
_HOTSPOT, _CURRENT = 1, 0
_PCIE, _XGMI = 1, 2
_WHOLE = "GPU-"
AMD = GpuDelivery(
    # The compute driver's one file for all GPUs; the render nodes tell which of them a job has.
    control=("kfd",),
    # ROCm's lowest layer reads it, below HIP and OpenCL; unlike HIP_VISIBLE_DEVICES it takes UUIDs.
    visible="ROCR_VISIBLE_DEVICES",
    advice="is AMD's driver (amdgpu) loaded?",
)


class _Unit(msgspec.Struct):
    info: GpuInfo
    handle: Any


class AmdGpus:
    """`load` returns the module amdsmi. Raises ImportError, OSError or KeyError without it."""

    delivery = AMD

    def __init__(
        self, excluded: Sequence[Exclusion] = (), load: Callable[[], Any] | None = None
    ) -> None:
        self.driver: str | None = None
        self._excluded = excluded
        self._load = load or _load
        self._smi: Any = None
        self._library = Lane("amdsmi")
        self._lanes: dict[int, Lane] = {}
        self._units: dict[str, _Unit] = {}
        self._boards: dict[int, str] = {}
        self._is_complete = False

    async def open(self) -> None:
        try:
            self._smi = await self._library.call(self._load, OPEN_SECONDS)
            await self._ask(self._library, self._smi.amdsmi_init, OPEN_SECONDS)
        except (ImportError, OSError, KeyError, AttributeError) as error:
            # Without libamd_smi.so, amdsmi 7.0 raises whatever it stumbles over first.
            self._smi = None
            log.info("amdsmi cannot be loaded: no GPUs are offered (%s)", error)
        except GpuError as error:
            log.info("no GPUs are offered: %s", error)

    async def close(self) -> None:
        if self._smi is not None:
            with contextlib.suppress(GpuError):
                await self._ask(self._library, self._smi.amdsmi_shut_down)
        for lane in (self._library, *self._lanes.values()):
            lane.close()

    async def list(self) -> tuple[GpuInfo, ...]:
        self._is_complete = False
        if self._smi is None:
            return ()
        try:
            handles = await self._ask(self._library, self._smi.amdsmi_get_processor_handles)
        except GpuError as error:
            log.debug("the driver does not list its GPUs: %s", error)
            # A driver that is being reset refuses for seconds: what was known stays listed.
            return tuple(unit.info for unit in self._units.values())
        self._boards = {index: uuid for index, uuid in self._boards.items() if index < len(handles)}
        self._is_complete = bool(handles)
        found = await asyncio.gather(*map(self._describe, range(len(handles)), handles))
        units = _whole(unit for unit in found if unit is not None)
        self._units = {unit.info.uuid: unit for unit in units}
        for unit in units:
            await self._measure_links(unit, units)
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
        return await self._ask(self._lane(unit.info.index), lambda: self._read_vitals(unit.handle))

    async def next_event(self) -> GpuEvent:
        """Wait forever: faults are found in the vitals alone."""
        event: asyncio.Future[GpuEvent] = asyncio.get_running_loop().create_future()
        return await event

    def _lane(self, index: int) -> Lane:
        return self._lanes.setdefault(index, Lane(f"gpu-{index}"))

    async def _ask(self, lane: Lane, act: Callable[[], T], seconds: float = CALL_SECONDS) -> T:
        """Make the call, with amdsmi's errors translated. Raises GpuError."""
        try:
            return await lane.call(act, seconds)
        except GpuError:
            raise
        # amdsmi's exceptions are known only once its library is loaded, which not every node has.
        except Exception as error:
            if self._smi is None or not isinstance(error, self._smi.AmdSmiException):
                raise
            raise GpuError(" ".join(str(error).split())) from None

    async def _describe(self, index: int, handle: Any) -> _Unit | None:
        """Return one GPU; one that does not answer is listed once it does."""
        known = next((unit for unit in self._units.values() if unit.info.index == index), None)
        seconds = CALL_SECONDS if known else OPEN_SECONDS
        try:
            unit = await self._ask(self._lane(index), lambda: self._read(index, handle), seconds)
        except GpuError as error:
            self._is_complete = False
            if known is None:
                self._boards.pop(index, None)
                log.error("GPU %d cannot be offered: %s", index, error)
            return known
        self._boards[index] = unit.info.uuid
        return None if any(one.covers(unit.info) for one in self._excluded) else unit

    # -- in the library's and the GPUs' threads ---------------------------------------------

    def _read(self, index: int, handle: Any) -> _Unit:
        smi = self._smi
        if self.driver is None:
            self.driver = str(smi.amdsmi_get_gpu_driver_info(handle)["driver_version"])
        numbers = smi.amdsmi_get_gpu_enumeration_info(handle)
        info = GpuInfo(
            uuid=self._uuid(handle, numbers),
            index=index,
            vendor=GpuVendor.AMD,
            name=str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"]),
            memory=int(smi.amdsmi_get_gpu_vram_usage(handle)["vram_total"]) << 20,
            pci=str(smi.amdsmi_get_gpu_device_bdf(handle)),
            numa=self._or(lambda: _numa(smi.amdsmi_get_gpu_topo_numa_affinity(handle)), None),
            devices=(f"/dev/dri/renderD{int(numbers['drm_render'])}",),
        )
        return _Unit(info, handle)

    def _uuid(self, handle: Any, numbers: Mapping[str, Any]) -> str:
        """Return the UUID by which ROCm's programs know the GPU, such as GPU-1fb39b4d5ac2d5a1.
        amdsmi before 6.4 has only one of its own."""
        known = str(numbers.get("hip_uuid", ""))
        if known.startswith(_WHOLE):
            return known
        return f"{_WHOLE}{self._smi.amdsmi_get_gpu_device_uuid(handle)}"

    async def _measure_links(self, unit: _Unit, units: Sequence[_Unit]) -> None:
        others = [other for other in units if other is not unit]
        try:
            links = await self._ask(
                self._lane(unit.info.index),
                lambda: {other.info.uuid: self._link(unit, other) for other in others},
            )
        except GpuError as error:
            log.warning("GPU %d: its links are not known: %s", unit.info.index, error)
            return
        unit.info = msgspec.structs.replace(unit.info, links=links)

    def _link(self, one: _Unit, other: _Unit) -> GpuLink:
        kind = self._or(
            lambda: int(self._smi.amdsmi_topo_get_link_type(one.handle, other.handle)["type"]), None
        )
        if kind == _XGMI:
            return GpuLink.DIRECT
        same = one.info.numa is not None and one.info.numa == other.info.numa
        return GpuLink.NUMA_NODE if kind == _PCIE and same else GpuLink.SYSTEM

    def _read_vitals(self, handle: Any) -> Vitals:
        """Return a reading. The memory is read first and is required: it shows that the GPU
        lives."""
        smi = self._smi
        used = int(smi.amdsmi_get_gpu_vram_usage(handle)["vram_used"]) << 20
        pages = self._or(lambda: smi.amdsmi_get_gpu_bad_page_info(handle), ())
        states = {int(page["status"]) for page in pages}
        found = self._or(lambda: smi.amdsmi_get_gpu_process_list(handle), ())
        activity = self._or(lambda: smi.amdsmi_get_gpu_activity(handle), {})
        power = self._or(lambda: smi.amdsmi_get_power_info(handle), {})
        ecc = self._or(lambda: smi.amdsmi_get_gpu_total_ecc_count(handle), {})
        heat = self._or(lambda: smi.amdsmi_get_temp_metric(handle, *self._hottest()), None)
        watts = _number(power.get("current_socket_power")) or _number(
            power.get("average_socket_power")
        )
        return Vitals(
            memory_used=used,
            processes=tuple(int(each["pid"]) for each in found if each["memory_usage"]["vram_mem"]),
            ecc_uncorrected=int(ecc.get("uncorrectable_count", 0)),
            remap_pending=_PENDING in states,
            remap_failed=_UNRESERVABLE in states,
            utilization=_number(activity.get("gfx_activity")),
            temperature=_number(heat),
            power=None if watts is None else float(watts),
        )

    def _hottest(self) -> tuple[Any, Any]:
        smi = self._smi
        return smi.AmdSmiTemperatureType(_HOTSPOT), smi.AmdSmiTemperatureMetric(_CURRENT)

    def _or(self, act: Callable[[], Any], otherwise: Any) -> Any:
        """Return the value, or `otherwise` if this driver or GPU does not have it."""
        try:
            return act()
        except self._smi.AmdSmiException:
            return otherwise


def _whole(units: Iterable[_Unit]) -> list[_Unit]:
    """Return the GPUs that are given. Partitions of a card (CPX, DPX) all have the card's UUID, so
    a card in partitions is left out."""
    by_uuid: dict[str, list[_Unit]] = {}
    for unit in units:
        by_uuid.setdefault(unit.info.uuid, []).append(unit)
    for uuid, alike in by_uuid.items():
        if len(alike) > 1:
            log.error("GPU %s is in %d partitions: it is not offered", uuid, len(alike))
    return [alike[0] for alike in by_uuid.values() if len(alike) == 1]


def _load() -> Any:
    if _OF_ROCM not in sys.path and Path(_OF_ROCM).is_dir():
        sys.path.append(_OF_ROCM)
    return importlib.import_module("amdsmi")


def _numa(node: int) -> int | None:
    return node if node >= 0 else None


def _number(value: Any) -> int | None:
    """Return the number; amdsmi says "N/A" where the card has none."""
    return int(value) if isinstance(value, int | float) else None
