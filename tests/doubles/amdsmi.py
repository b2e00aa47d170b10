"""A stand-in for AMD's module amdsmi 7.0: the calls that the shim makes, in the module's forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")


class AmdSmiException(Exception):
    """The base of the module's errors."""


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


@dataclass
class Card:
    """One GPU; `broken` makes each call about it fail."""

    number: int
    name: str = "AMD Instinct MI300X OAM"
    memory: int = 196592
    """MiB."""
    used: int = 283
    uncorrectable: int = 0
    pages: list[int] = field(default_factory=list)
    """The states of its bad pages."""
    processes: list[tuple[int, int]] = field(default_factory=list)
    """Pids, and the bytes of its memory that each has."""
    serial: int = 0
    """That of the chip, which all partitions of a card share; 0: its own."""
    broken: bool = False
    has_sensors: bool = True


class StandInSmi:
    """The module. A handle is the card itself."""

    AmdSmiException = AmdSmiException
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric

    def __init__(self, *cards: Card, has_hip_uuids: bool = True) -> None:
        self.cards = list(cards)
        self.has_hip_uuids = has_hip_uuids
        self.is_open = False

    def amdsmi_init(self) -> None:
        self.is_open = True

    def amdsmi_shut_down(self) -> None:
        self.is_open = False

    def amdsmi_get_processor_handles(self) -> list[Card]:
        if not self.is_open:
            raise AmdSmiException("AMDSMI_STATUS_NOT_INIT")
        return list(self.cards)

    def amdsmi_get_gpu_driver_info(self, card: Card) -> dict[str, Any]:
        return self._of(card, {"driver_name": "amdgpu", "driver_version": "6.14.14"})

    def amdsmi_get_gpu_enumeration_info(self, card: Card) -> dict[str, Any]:
        numbers = {"drm_render": 128 + card.number, "drm_card": card.number}
        if self.has_hip_uuids:
            numbers |= {"hsa_id": card.number + 1, "hip_id": card.number}
            return self._of(card, numbers | {"hip_uuid": f"GPU-{card.serial or card.number:016x}"})
        return self._of(card, numbers)

    def amdsmi_get_gpu_device_uuid(self, card: Card) -> str:
        return str(self._of(card, f"{card.number:02x}ff74a1-0000-1000-80e9-b388cfe84658"))

    def amdsmi_get_gpu_asic_info(self, card: Card) -> dict[str, Any]:
        return self._of(card, {"market_name": card.name, "target_graphics_version": "gfx942"})

    def amdsmi_get_gpu_vram_usage(self, card: Card) -> dict[str, Any]:
        return self._of(card, {"vram_total": card.memory, "vram_used": card.used})

    def amdsmi_get_gpu_device_bdf(self, card: Card) -> str:
        return str(self._of(card, f"0000:{card.number + 5:02x}:00.0"))

    def amdsmi_get_gpu_topo_numa_affinity(self, card: Card) -> int:
        return int(self._of(card, card.number // 4))

    def amdsmi_topo_get_link_type(self, one: Card, other: Card) -> dict[str, Any]:
        return self._of(one, {"hops": 1, "type": 2})

    def amdsmi_get_gpu_bad_page_info(self, card: Card) -> list[dict[str, Any]]:
        pages = enumerate(card.pages)
        found = [{"value": n, "page_address": n, "page_size": 4096, "status": s} for n, s in pages]
        return list(self._of(card, found))

    def amdsmi_get_gpu_process_list(self, card: Card) -> list[dict[str, Any]]:
        found = [
            {"name": "N/A", "pid": pid, "mem": size, "memory_usage": {"vram_mem": size}}
            for pid, size in card.processes
        ]
        return list(self._of(card, found))

    def amdsmi_get_gpu_activity(self, card: Card) -> dict[str, Any]:
        activity: Any = 17 if card.has_sensors else "N/A"
        return self._of(card, {"gfx_activity": activity, "umc_activity": 3, "mm_activity": "N/A"})

    def amdsmi_get_power_info(self, card: Card) -> dict[str, Any]:
        if not card.has_sensors:
            raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
        return self._of(card, {"current_socket_power": 141, "average_socket_power": "N/A"})

    def amdsmi_get_gpu_total_ecc_count(self, card: Card) -> dict[str, Any]:
        counts = {"correctable_count": 5, "uncorrectable_count": card.uncorrectable}
        return self._of(card, counts)

    def amdsmi_get_temp_metric(self, card: Card, kind: IntEnum, metric: IntEnum) -> int:
        if not card.has_sensors:
            raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
        return int(self._of(card, 40 + kind + metric))

    def _of(self, card: Card, answer: T) -> T:
        if card.broken:
            raise AmdSmiException("Error code:\n\t51 | AMDSMI_STATUS_NO_DRV - No driver")
        return answer
