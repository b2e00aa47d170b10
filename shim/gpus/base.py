"""The seam between the shim and the GPUs' driver.

A version of `Gpus` only reads; `health` decides what a reading means. Each method answers in
bounded time, whatever the driver does: a GPU that does not answer raises `GpuSilent` and delays
neither the others nor the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

import msgspec

from fairlead.wire.node import GpuInfo


class GpuError(Exception):
    """The driver refused to answer; the message is for the operator."""


class GpuLost(GpuError):
    """The GPU is no longer on the bus."""


class GpuStale(GpuError):
    """What is known of the GPU or its parts is out of date: list them again."""


class GpuSilent(GpuError):
    """The driver did not answer in time, and may never answer."""


class Recovery(msgspec.Struct, frozen=True):
    """The driver's verdict on a GPU: what it takes to use it again, such as `a reset of the GPU`;
    None: nothing."""

    action: str | None = None


NO_ACTION = Recovery()


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU (or MIG instance), in bytes, percent, degrees Celsius and watts.

    None: the driver does not report it.
    """

    memory_used: int = 0
    processes: tuple[int, ...] = ()
    """Pids (of the node) of compute processes that have memory on it."""
    recovery: Recovery | None = None
    ecc_uncorrected: int = 0
    """Counted since the driver was loaded."""
    remap_pending: bool = False
    remap_failed: bool = False
    utilization: int | None = None
    temperature: int | None = None
    power: float | None = None


class Blame(StrEnum):
    """The cause of an error, as far as the kind of the error tells."""

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


class GpuHook(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor's hook in the engine's runtime, which is asked for devices by UUID."""

    program: str
    runtime: str
    """The engine's name of the runtime that calls it."""
    hide: dict[str, str]
    """The variables by which it hands over nothing."""


class GpuDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a vendor's GPUs get into containers and processes, besides their own device
    files."""

    cdi_kind: str | None = None
    """The kind of their devices in CDI specs, such as `nvidia.com/gpu`."""
    hook: GpuHook | None = None
    control: tuple[str, ...] = ()
    """Files in /dev that every container with a GPU needs, where they exist."""
    visible: str | None = None
    """The variable with the UUIDs of those that a process sees."""
    advice: str = "is the GPU's driver loaded?"
    """To the operator of a node on which a GPU's device file is missing."""


class Gpus(Protocol):
    """The `uuid` of a whole GPU begins with `GPU-`, that of a part of one with something else."""

    @property
    def delivery(self) -> GpuDelivery: ...

    @property
    def driver(self) -> str | None:
        """The driver's version; None without a driver."""

    async def open(self) -> None:
        """Load the driver's library. It never raises: a machine without driver or library has no
        GPUs."""

    async def close(self) -> None: ...

    async def list(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs that answer now; a GPU in MIG mode is listed as its instances."""

    def boards(self) -> frozenset[str]:
        """Return the UUIDs of the cards of the last listing: whole GPUs, split or not, also one in
        MIG mode without an instance."""

    def missing(self, boards: Iterable[GpuInfo]) -> frozenset[str]:
        """Return which of these whole GPUs are gone for certain, by the last listing.

        GPUs that the operator excludes by name or address do not count, and none is gone while the
        driver does not answer for each.
        """

    async def vitals(self, uuid: str) -> Vitals:
        """Return a reading. Raises GpuLost, GpuStale, GpuSilent, GpuError."""

    async def next_event(self) -> GpuEvent:
        """Waits for the next one, forever if need be."""
