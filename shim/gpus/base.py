"""The seam between the shim and the GPUs' driver.

A version of `Gpus` only reads; what a reading means is decided in `health`. Each method answers in
bounded time, whatever the driver does: a GPU that does not answer raises `GpuSilent` and holds up
neither the others nor the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

import msgspec

from shim.engines.base import GpuDelivery
from shim.schemas import GpuInfo


class GpuError(Exception):
    """The driver refused to say; the text is meant for the operator."""


class GpuLost(GpuError):
    """The GPU is not on the bus any more."""


class GpuSilent(GpuError):
    """The driver did not answer in time, and may never."""


class Recovery(msgspec.Struct, frozen=True):
    """The driver's verdict on a GPU: what it takes to use it again, such as `a reset of the GPU`;
    None: nothing."""

    action: str | None = None


NO_ACTION = Recovery()


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU (or MIG instance). Bytes, percent, degrees Celsius, watts; None where
    the driver does not say."""

    memory_used: int = 0
    processes: tuple[int, ...] = ()
    """Pids (of the node) of compute processes that have memory on it."""
    recovery: Recovery | None = None
    ecc_uncorrected: int = 0
    """Since the driver was loaded."""
    remap_pending: bool = False
    remap_failed: bool = False
    utilization: int | None = None
    temperature: int | None = None
    power: float | None = None


class Blame(StrEnum):
    """Whose fault an error is, as far as the kind of the error tells."""

    APPLICATION = "application"
    GPU = "gpu"
    VERDICT = "verdict"
    """The driver's verdict on the GPU tells."""


class GpuEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the driver announces, of a GPU or of a part of one where it names that. `kind`
    tells it from others, such as `xid-79`; `words` are for a person."""

    uuid: str
    kind: str
    words: str
    blame: Blame


class Gpus(Protocol):
    """The `uuid` of a whole GPU begins with `GPU-`, that of a part of one with something else."""

    @property
    def delivery(self) -> GpuDelivery: ...

    @property
    def driver(self) -> str | None:
        """The driver's version; None without a driver."""

    async def open(self) -> None:
        """Never raises: a machine without driver or library has no GPUs."""

    async def close(self) -> None: ...

    async def list(self) -> tuple[GpuInfo, ...]:
        """Those that answer now; a GPU in MIG mode is listed as its instances."""

    def boards(self) -> frozenset[str]:
        """UUIDs of the cards that the last listing found: whole GPUs, split or not, also one in MIG
        mode that has no instance."""

    def missing(self, boards: Iterable[GpuInfo]) -> frozenset[str]:
        """Which of these whole GPUs the last listing proves to be gone, but for those that the
        operator excludes by name or address: none while the driver does not answer for each."""

    async def vitals(self, uuid: str) -> Vitals:
        """Raises GpuLost, GpuSilent, GpuError."""

    async def next_event(self) -> GpuEvent:
        """Waits for the next one, forever if need be."""
