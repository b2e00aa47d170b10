"""The price list of Compute Engine, from Cloud Billing.

It has no prices of types. It has those of a core, of a GiB of memory and of a GPU, for each family
and region, which it names in descriptions for people. A type whose every part is found has a price;
nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from controller.clouds.gcp.types import TypeInfo

SKUS_PATH = "v1/services/6F81-5844-456A/skus"
"""The list of Compute Engine."""
_ON_DEMAND, _SPOT = "OnDemand", "Preemptible"
_CORE_OR_MEMORY = re.compile(
    r"(?:Spot Preemptible )?(?P<family>[A-Z]\d+[A-Za-z]*)(?: AMD)?(?: Predefined)? Instance "
    r"(?P<part>Core|Ram) running in .*"
)
_COMPUTE_OPTIMIZED = re.compile(
    r"(?:Spot Preemptible )?Compute optimized (?P<part>Core|Ram) running in .*"
)
"""The family C2 is called so."""
_GPU = re.compile(r"(?P<gpu>Nvidia .+?) GPU (?:attached to Spot Preemptible VMs )?running in .*")
_GPUS = {
    "Nvidia L4": "nvidia-l4",
    "Nvidia Tesla A100": "nvidia-tesla-a100",
    "Nvidia Tesla A100 80GB": "nvidia-a100-80gb",
    "Nvidia H100 80GB": "nvidia-h100-80gb",
    "Nvidia H100 80GB Plus": "nvidia-h100-mega-80gb",
    "Nvidia H200 141GB": "nvidia-h200-141gb",
    "Nvidia B200": "nvidia-b200",
}
_UNITS = {"Core": "h", "Ram": "GiBy.h", "gpu": "h"}
_MIB_OF_GIB = 1024


class _Category(msgspec.Struct, frozen=True, rename="camel"):
    resource_family: str = ""
    usage_type: str = ""


class _Money(msgspec.Struct, frozen=True, rename="camel"):
    units: str = "0"
    nanos: int = 0
    currency_code: str = ""


class _Rate(msgspec.Struct, frozen=True, rename="camel"):
    unit_price: _Money = _Money()


class _Expression(msgspec.Struct, frozen=True, rename="camel"):
    usage_unit: str = ""
    tiered_rates: tuple[_Rate, ...] = ()


class _Pricing(msgspec.Struct, frozen=True, rename="camel"):
    pricing_expression: _Expression = _Expression()


class Sku(msgspec.Struct, frozen=True, rename="camel"):
    """A line of the list."""

    description: str = ""
    category: _Category = _Category()
    service_regions: tuple[str, ...] = ()
    pricing_info: tuple[_Pricing, ...] = ()


class Skus(msgspec.Struct, frozen=True, rename="camel"):
    """A page of the list."""

    skus: tuple[Sku, ...] = ()
    next_page_token: str = ""


class PriceList:
    """Prices of parts, by region, kind and what they are of."""

    def __init__(self, skus: Iterable[Sku]) -> None:
        self._prices: dict[tuple[str, bool, str, str], float] = {}
        for one in skus:
            self._take(one)

    def of(self, one: TypeInfo, region: str, *, spot: bool) -> float | None:
        """Return the price of an hour of the type; None: a part of it has none."""
        # A shared core is billed as a part of one, and disks of the host have a price of their own.
        if one.is_shared_cpu or one.bundled_local_ssds is not None:
            return None
        family = one.name.partition("-")[0]
        parts: list[tuple[str, str, float]] = [
            ("Core", family, one.guest_cpus),
            ("Ram", family, one.memory_mb / _MIB_OF_GIB),
        ]
        parts += [
            ("gpu", gpu.guest_accelerator_type, gpu.guest_accelerator_count)
            for gpu in one.accelerators
        ]
        total = 0.0
        for part, name, count in parts:
            if (price := self._prices.get((region, spot, part, name))) is None:
                return None
            total += price * count
        return round(total, 6)

    def _take(self, sku: Sku) -> None:
        if sku.category.usage_type not in (_ON_DEMAND, _SPOT) or not sku.pricing_info:
            return
        if (found := _part_of(sku.description)) is None:
            return
        part, name = found
        expression = sku.pricing_info[-1].pricing_expression
        if expression.usage_unit != _UNITS[part] or len(expression.tiered_rates) != 1:
            return
        money = expression.tiered_rates[0].unit_price
        price = int(money.units) + money.nanos / 1e9
        # A part that costs nothing, as in a trial, would make its type too cheap.
        if money.currency_code != "USD" or price <= 0:
            return
        for region in sku.service_regions:
            key = (region, sku.category.usage_type == _SPOT, part, name)
            # Of two lines about the same part the dearer one counts, in any order.
            self._prices[key] = max(price, self._prices.get(key, 0.0))


def _part_of(description: str) -> tuple[str, str] | None:
    """Return what the line is the price of: Core or Ram of a family, or a GPU."""
    if (found := _CORE_OR_MEMORY.fullmatch(description)) is not None:
        return found["part"], found["family"].lower()
    if (found := _COMPUTE_OPTIMIZED.fullmatch(description)) is not None:
        return found["part"], "c2"
    if (found := _GPU.fullmatch(description)) is not None and found["gpu"] in _GPUS:
        return "gpu", _GPUS[found["gpu"]]
    return None
