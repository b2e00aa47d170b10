"""One look at the queue, and what tests read of it."""

from __future__ import annotations

import time
from typing import Any

from controller.lifecycle.inventory import Fleet
from controller.lifecycle.machines.market import Market
from controller.lifecycle.machines.model import Machine
from controller.scheduling.renting.demand import Demand, demand
from fairlead.model.needs import RentLimits
from tests.unit.machines.parts import NOW, fleet
from tests.unit.scheduling.cluster import Cluster


def look(cluster: Cluster, market: Market, *machines: Machine, now: float = NOW) -> Demand:
    return demand(cluster.pipeline.index, machines, market, now)


def types(found: Demand) -> list[str]:
    return [order.offer.instance_type for order in found.orders]


def sentences(found: Demand) -> set[str]:
    return {reason.sentence() for reason in found.reasons.values()}


def waiting(count: int, *fleets: Fleet, **more: Any) -> Cluster:
    cluster = Cluster(fleets=fleets or (fleet(),))
    for number in range(count):
        cluster.submit(f"r{number}", **more)
    return cluster


def shown(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))


def limited(**limits: Any) -> Cluster:
    cluster = Cluster(fleets=(fleet(),))
    cluster.submit("a", own={"main": {"rent": RentLimits(**limits)}})
    return cluster
