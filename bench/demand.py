"""How long a look at what to rent takes: `python -m bench.demand`. No daemon, no disk, no network.

Each turn that changed something may look, so a look of half a second holds up all else.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from bench.scheduling import new_job
from controller.lifecycle.inventory import Budget, Fleet, MachinesPolicy
from controller.lifecycle.machines.market import Market, Penalties
from controller.lifecycle.machines.model import Machine, Offer
from controller.scheduling.renting.demand import demand
from controller.scheduling.scheduler import JobSubmittedPipeline

FLEETS, OFFERS, LOOKS = 30, 300, 5
GIB = 1 << 30


def market() -> Market:
    offers = [
        Offer(
            provider="lab",
            instance_type=f"t{number % 100}",
            region="north",
            zone=f"north-{number // 100}",
            price=1.0 + number / 100,
            cpu=4.0 + number % 100,
            memory=512 * GIB,
            disk=100 * GIB,
        )
        for number in range(OFFERS)
    ]
    return Market(offers={"lab": offers}, penalties=Penalties())


def fleet(number: int, *, is_alike: bool, per_hour: float | None) -> Fleet:
    # A price that leaves no offer out makes the terms of each fleet its own.
    policy = MachinesPolicy(provider="lab", max=16, max_price=None if is_alike else 1000.0 + number)
    name, budget = f"f{number}", Budget(per_hour=per_hour)
    return Fleet(name=name, machines=policy, budget=budget, created_at=0.0)


def on_order(fleet: int, number: int) -> Machine:
    tiny = replace(market().offers["lab"][0], cpu=0.5)
    name = f"m{fleet}-{number}"
    return Machine(id=name, name=name, fleet=f"f{fleet}", offer=tiny, token="", ordered_at=0.0)


def look(
    what: str,
    cpu: float,
    *,
    jobs: int = 100,
    nodes: int = 0,
    is_alike: bool = True,
    kinds: int = 2,
    machines: int = 0,
    per_hour: float | None = None,
) -> None:
    """`kinds`: so many of the jobs need different things. `machines`: on order for each fleet, and
    full."""
    pipeline = JobSubmittedPipeline(lambda: "0")
    for number in range(FLEETS):
        one = fleet(number, is_alike=is_alike, per_hour=per_hour)
        pipeline.fleet_changed(one.name, one)
    for number in range(jobs):
        state = new_job(0, nodes=nodes, cpu=cpu + number % kinds)
        pipeline.run_changed(state.run.id, state)
    ordered = [on_order(fleet, number) for fleet in range(FLEETS) for number in range(machines)]
    took, orders = [], 0
    for _ in range(LOOKS):
        began = time.process_time()
        orders = len(demand(pipeline.index, ordered, market(), 1.0).orders)
        took.append(time.process_time() - began)
    print(f"{what:<66} {min(took) * 1000:8.1f} ms of CPU {orders:6} orders", flush=True)


def main() -> None:
    print(f"{FLEETS} fleets, {OFFERS} offers, least of {LOOKS} looks")
    look("100 jobs of two kinds", 1.0)
    look("… that no offer holds", 1000.0)
    look("… that no offer holds, the fleets' terms differ", 1000.0, is_alike=False)
    look("… that no budget allows", 1.0, per_hour=0.1)
    look("20 gangs of 4 that no budget allows", 1.0, jobs=20, nodes=4, per_hour=0.1)
    look("… all of other sizes", 1.0, jobs=20, nodes=4, kinds=20, per_hour=0.1)
    look("… and 4 full machines of each fleet", 1.0, jobs=20, nodes=4, machines=4, per_hour=0.1)


if __name__ == "__main__":
    main()
