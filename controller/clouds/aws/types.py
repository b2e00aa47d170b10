"""What Amazon's APIs tell of its types of machines and their prices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from controller.clouds.catalog import MachineType
from controller.lifecycle.machines.model import GpuOffer

_MIB = 1 << 20
TYPE_FILTERS = (
    {"Name": "processor-info.supported-architecture", "Values": ["x86_64"]},
    {"Name": "bare-metal", "Values": ["false"]},
)
_VENDOR = "NVIDIA"


class _Dimension(msgspec.Struct, frozen=True):
    unit: str
    price: Mapping[str, str] = msgspec.field(name="pricePerUnit")


class _Term(msgspec.Struct, frozen=True):
    dimensions: Mapping[str, _Dimension] = msgspec.field(name="priceDimensions")


class _Terms(msgspec.Struct, frozen=True):
    on_demand: Mapping[str, _Term] = msgspec.field(name="OnDemand", default_factory=dict)


class _Attributes(msgspec.Struct, frozen=True):
    instance_type: str = msgspec.field(name="instanceType", default="")


class _Product(msgspec.Struct, frozen=True):
    attributes: _Attributes


class _Listed(msgspec.Struct, frozen=True):
    """An entry of the price list, which is a document in a string."""

    product: _Product
    terms: _Terms


def price_filters(region: str) -> list[dict[str, str]]:
    """Return what chooses the prices of plain Linux machines on demand."""
    chosen = {
        "regionCode": region,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    return [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in chosen.items()
    ]


def prices_of(listed: Iterable[str]) -> dict[str, float]:
    """Return the prices of an hour in US dollars, by type. Raises msgspec.MsgspecError,
    ValueError."""
    prices: dict[str, float] = {}
    for text in listed:
        entry = msgspec.json.decode(text, type=_Listed)
        for term in entry.terms.on_demand.values():
            for one in term.dimensions.values():
                price = float(one.price.get("USD", 0.0))
                if one.unit == "Hrs" and price > 0:
                    name = entry.product.attributes.instance_type
                    # Of two terms the dearer one counts, in any order.
                    prices[name] = max(price, prices.get(name, 0.0))
    return prices


def merged(
    by_region: Mapping[str, Iterable[Mapping[str, Any]]],
    zones: Mapping[str, Mapping[str, tuple[str, ...]]],
    prices: Mapping[str, Mapping[str, float]],
    known: Mapping[str, MachineType],
    others: Collection[str],
) -> list[MachineType]:
    """Return the types that are worth renting: those with GPUs of NVIDIA, the `known` ones of the
    release, and `others`. `zones` and `prices` are by region and type."""
    infos: dict[str, Mapping[str, Any]] = {}
    where: defaultdict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for region, types in by_region.items():
        for one in types:
            name = one["InstanceType"]
            if not (name in known or name in others or _gpus(one)):
                continue
            if there := zones[region].get(name):
                infos[name] = one
                where[name][region] = there
    return [
        msgspec.structs.replace(
            _described(one, known.get(name)),
            zones=where[name],
            prices={
                region: prices[region][name] for region in where[name] if name in prices[region]
            },
        )
        for name, one in sorted(infos.items())
    ]


def _described(one: Mapping[str, Any], known: MachineType | None) -> MachineType:
    gpus = tuple(
        GpuOffer(
            name=f"{_VENDOR} {gpu['Name']}",
            count=gpu["Count"],
            memory=gpu["MemoryInfo"]["SizeInMiB"] * _MIB,
        )
        for gpu in _gpus(one)
    )
    return MachineType(
        name=one["InstanceType"],
        cpu=float(one["VCpuInfo"]["DefaultVCpus"]),
        memory=one["MemoryInfo"]["SizeInMiB"] * _MIB,
        # The release names GPUs as their driver does, and knows what the driver keeps of them.
        gpus=gpus if known is None else known.gpus,
        prices={},
    )


def _gpus(one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the whole GPUs of NVIDIA: the types of g6f have a part of one."""
    return [
        gpu
        for gpu in one.get("GpuInfo", {}).get("Gpus", ())
        if gpu.get("Manufacturer", "").upper() == _VENDOR
        and gpu["Count"] >= 1
        and gpu.get("GpuPartitionSize", 1.0) == 1.0
    ]
