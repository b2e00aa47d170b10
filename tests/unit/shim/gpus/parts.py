"""Machines of GPUs, as a test needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fairlead.wire.node import GpuInfo, GpuLink

Link = Callable[[int, int], GpuLink]


def gpu(index: int, **changes: Any) -> GpuInfo:
    base = GpuInfo(
        uuid=f"GPU-{index}",
        index=index,
        name="NVIDIA H100",
        memory=80 << 30,
        compute_capability="9.0",
        pci=f"00000000:{0x17 + index:02X}:00.0",
        devices=(f"/dev/nvidia{index}",),
    )
    return msgspec.structs.replace(base, **changes)


def linked(count: int, link: Link, **changes: Any) -> tuple[GpuInfo, ...]:
    return tuple(
        gpu(
            index,
            links={f"GPU-{o}": link(index, o) for o in range(count) if o != index},
            **changes,
        )
        for index in range(count)
    )


def in_pairs(one: int, other: int) -> GpuLink:
    """Pairs over NVLink, fours below one host bridge, the rest across sockets."""
    if one // 2 == other // 2:
        return GpuLink.DIRECT
    return GpuLink.HOST_BRIDGE if one // 4 == other // 4 else GpuLink.SYSTEM


def mig(parent: int, instance: int) -> GpuInfo:
    return gpu(
        parent,
        uuid=f"MIG-{parent}-{instance}",
        parent=f"GPU-{parent}",
        name="NVIDIA H100 MIG 1g.10gb",
        memory=10 << 30,
        devices=(f"/dev/nvidia{parent}", f"/dev/nvidia-caps/nvidia-cap{instance}"),
    )


def indexes(gpus: Sequence[GpuInfo], uuids: Sequence[str]) -> list[int]:
    return sorted(gpu.index for gpu in gpus if gpu.uuid in uuids)
