"""GPUs as a test plants them. One that misbehaves has an error for its reading."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fairlead.wire.node import GpuInfo
from shim.gpus.base import GpuError, GpuEvent, Vitals
from shim.gpus.nvidia.nvml import NVIDIA
from shim.gpus.nvidia.xids import event_of


class MemoryGpus:
    """For tests: has what was planted, and says of each what a test wants."""

    delivery = NVIDIA
    driver: str | None = "memory"

    def __init__(self, *gpus: GpuInfo) -> None:
        self.gpus = gpus
        self.bare: frozenset[str] = frozenset()
        """Cards in MIG mode without instances."""
        self.readings: dict[str, Vitals | GpuError] = {}
        self._events: asyncio.Queue[GpuEvent] = asyncio.Queue()

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def list(self) -> tuple[GpuInfo, ...]:
        return self.gpus

    def boards(self) -> frozenset[str]:
        return self.bare | {gpu.parent or gpu.uuid for gpu in self.gpus}

    def missing(self, boards: Iterable[GpuInfo]) -> frozenset[str]:
        """A machine that lists none says nothing about them."""
        there = self.boards()
        return frozenset(gpu.uuid for gpu in boards if there and gpu.uuid not in there)

    async def vitals(self, uuid: str) -> Vitals:
        if uuid not in self.readings and uuid not in {gpu.uuid for gpu in self.gpus}:
            raise GpuError(f"there is no GPU {uuid}")
        reading = self.readings.get(uuid, Vitals())
        if isinstance(reading, GpuError):
            raise reading
        return reading

    async def next_event(self) -> GpuEvent:
        return await self._events.get()

    def raise_xid(self, uuid: str, number: int) -> None:
        self._events.put_nowait(event_of(uuid, number))


class NoGpus(MemoryGpus):
    """A machine without any."""

    driver: str | None = None
