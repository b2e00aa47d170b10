"""The types of machines as Compute Engine tells them, and what it does not tell of them."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.clouds.catalog import MachineType
from controller.lifecycle.machines.model import GpuOffer

_MIB = 1 << 20
_GPUS = {
    "nvidia-l4": ("NVIDIA L4", 22888),
    "nvidia-tesla-a100": ("NVIDIA A100-SXM4-40GB", 40960),
    "nvidia-a100-80gb": ("NVIDIA A100-SXM4-80GB", 81920),
    "nvidia-h100-80gb": ("NVIDIA H100 80GB HBM3", 81920),
    "nvidia-h100-mega-80gb": ("NVIDIA H100 80GB HBM3", 81920),
    "nvidia-h200-141gb": ("NVIDIA H200", 144384),
    "nvidia-b200": ("NVIDIA B200", 183359),
}
"""The GPUs as their driver names them, and the MiB of each."""
_HYPERDISKS = ("a3-ultragpu-", "a4", "c4", "h4", "m4", "n4", "x4")
"""The types whose boot disk cannot be a persistent disk."""


class Accelerator(msgspec.Struct, frozen=True, rename="camel"):
    guest_accelerator_type: str
    guest_accelerator_count: int


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A type in one zone."""

    name: str
    guest_cpus: int
    memory_mb: int
    is_shared_cpu: bool = False
    architecture: str = "X86_64"
    deprecated: Any = None
    accelerators: tuple[Accelerator, ...] = ()
    bundled_local_ssds: Any = None


def machine_type(one: TypeInfo) -> MachineType | None:
    """Return the type without prices; None: no image of ours runs on it, or its GPU is unknown."""
    if one.architecture == "ARM64" or one.deprecated or one.name.endswith("-metal"):
        return None
    gpus = []
    for part in one.accelerators:
        if (known := _GPUS.get(part.guest_accelerator_type)) is None:
            return None
        count = part.guest_accelerator_count
        gpus.append(GpuOffer(name=known[0], count=count, memory=known[1] * _MIB))
    # The API calls MiB MB.
    memory = one.memory_mb * _MIB
    return MachineType(
        name=one.name, cpu=float(one.guest_cpus), memory=memory, gpus=tuple(gpus), prices={}
    )


def takes_hyperdisks(instance_type: str) -> bool:
    return instance_type.startswith(_HYPERDISKS)
