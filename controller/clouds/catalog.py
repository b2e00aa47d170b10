"""The catalog of types and prices that comes with a release, one file for each cloud that has no
prices in its API of machines.

A file has a line for each type. Its columns after the GPUs are regions, with the price of an hour
on demand; an empty one says that the type is not rented there, or that its price is not known.
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Mapping

import msgspec

from controller.lifecycle.machines.model import GpuOffer

_GIB = 1 << 30
_MIB = 1 << 20
_OWN = ("type", "cpu", "memory_gib", "gpu", "gpus", "gpu_memory_mib")


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of machine; `prices` by region."""

    name: str
    cpu: float
    memory: int
    gpus: tuple[GpuOffer, ...]
    prices: Mapping[str, float]


def load(cloud: str) -> list[MachineType]:
    """Return the types that the release knows of this cloud."""
    file = importlib.resources.files(__package__).joinpath(f"{cloud}_catalog.csv")
    return [_type(row) for row in csv.DictReader(file.read_text().splitlines())]


def _type(row: dict[str, str]) -> MachineType:
    gpus: tuple[GpuOffer, ...] = ()
    if row["gpu"]:
        memory = int(row["gpu_memory_mib"]) * _MIB
        gpus = (GpuOffer(name=row["gpu"], count=int(row["gpus"]), memory=memory),)
    return MachineType(
        name=row["type"],
        cpu=float(row["cpu"]),
        memory=int(float(row["memory_gib"]) * _GIB),
        gpus=gpus,
        prices={
            region: float(price) for region, price in row.items() if region not in _OWN and price
        },
    )
