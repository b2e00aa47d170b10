"""Offers, records and fleets for tests of machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.lifecycle.inventory import Budget, Fleet, MachinesPolicy
from controller.lifecycle.machines.market import Market, Penalties
from controller.lifecycle.machines.model import GpuOffer, Machine, Offer
from controller.lifecycle.machines.orphans import KnownOrphan, OrphanStatus
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.renting.settings import Pinned, RentalSettings
from controller.scheduling.index import CapacityIndex

GIB = 1 << 30
NOW = 1_700_000_000.0


def offer(name: str = "small", **more: Any) -> Offer:
    fields: dict[str, Any] = {
        "provider": "lab",
        "region": "north",
        "zone": "north-1",
        "price": 1.0,
        "cpu": 4.0,
        "memory": 16 * GIB,
        "disk": 100 * GIB,
    }
    return Offer(instance_type=name, **(fields | more))


def gpu_offer(name: str = "eight", count: int = 8, **more: Any) -> Offer:
    gpus = (GpuOffer(name="NVIDIA H100 80GB HBM3", count=count, memory=80 * GIB),)
    return offer(name, gpus=gpus, **({"cpu": 64.0, "memory": 512 * GIB, "price": 20.0} | more))


def fleet(name: str = "burst", budget: Budget | None = None, **more: Any) -> Fleet:
    fields: dict[str, Any] = {"provider": "lab", "max": 16}
    policy = MachinesPolicy(**(fields | more))
    return Fleet(name=name, machines=policy, budget=budget or Budget(), created_at=0.0)


def machine(name: str = "m1", **more: Any) -> Machine:
    fields: dict[str, Any] = {"fleet": "burst", "offer": offer(), "token": "t", "ordered_at": NOW}
    return Machine(id=name, name=name, **(fields | more))


def shop(*offers: Offer, **more: Any) -> Market:
    by_provider: dict[str, list[Offer]] = {}
    for one in offers:
        by_provider.setdefault(one.provider, []).append(one)
    return Market(offers=by_provider, **({"penalties": Penalties()} | more))


def rentals_of(
    index: CapacityIndex, *machines: Machine, orphans: Iterable[KnownOrphan] = (), **more: Any
) -> Rentals:
    """The records of a controller that rents nothing more."""
    settings = RentalSettings(
        installation="here",
        pin=lambda one: Pinned(host_key=one, token_digest=one),
        new_id=lambda: "id",
        month_of=lambda now: 0.0,
        **more,
    )
    return Rentals(index, settings, machines, orphans=orphans)


def known_orphan(**more: Any) -> KnownOrphan:
    """An orphan of the fleet burst that has cost 1 an hour for an hour."""
    fields: dict[str, Any] = {
        "id": "o1",
        "provider": "lab",
        "instance_id": "i-1",
        "fleet": "burst",
        "status": OrphanStatus.KEPT,
        "price": 1.0,
        "created_at": NOW - 3600.0,
        "found_at": NOW - 60.0,
        "costs_since": NOW - 3600.0,
    }
    return KnownOrphan(**(fields | more))
