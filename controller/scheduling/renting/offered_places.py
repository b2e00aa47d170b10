"""Where the jobs of a run could go: the free nodes, and the offers in the order of their tries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from controller.lifecycle.inventory import Fleet
from controller.lifecycle.machines import market
from controller.lifecycle.machines.market import Market, Purses
from controller.lifecycle.machines.model import Machine, Offer
from controller.lifecycle.renting_reasons import ReusesOnly
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.index import CapacityIndex
from controller.scheduling.queue import Member
from controller.scheduling.renting.fleet_offers import FleetOffers, lost_a_spot_machine
from controller.scheduling.trial_capacity import TrialCapacity
from fairlead.model.answers import OfferedPlace


def offering(
    index: CapacityIndex, machines: Iterable[Machine], shop: Market, run_id: str, now: float
) -> tuple[OfferedPlace, ...]:
    """Return the free nodes and the offers for the waiting jobs of the run, in the order in which
    they are tried; for a fleet without such an offer, why it has none."""
    look = _Places(index, list(machines), shop, now)
    alike: dict[Need, list[Member]] = {}
    user = ""
    for unit in index.units.get(run_id, ()):
        user = unit.run.user
        for member in unit.members:
            alike.setdefault(member.need, []).append(member)
    return tuple(place for members in alike.values() for place in look.of(members, user))


class _Places:
    def __init__(
        self, index: CapacityIndex, machines: Sequence[Machine], shop: Market, now: float
    ) -> None:
        index.refresh()
        self._trial = TrialCapacity(index)
        self._fleets = [one for one in index.fleets.values() if one.machines is not None]
        self._purses = Purses(self._fleets, shop.spending, machines, now, shop.month, shop.orphans)
        self._offers = {one.id: one.offer for one in machines if one.is_live}
        self._market = FleetOffers(shop, now)

    def of(self, members: Sequence[Member], user: str) -> Iterator[OfferedPlace]:
        """Yield where these jobs of the user, whose needs are equal, could go."""
        need, spec = members[0].need, members[0].job.spec
        jobs = tuple(f"{one.job.group}/{one.job.cookie}" for one in members)
        for free in self._trial.sorted(need.scope).fitting(need, self._trial.rooms):
            offer = self._offers.get(free.node.id)
            yield _offered(jobs, free.node.fleet, offer, node=free.node.name)
        for fleet in self._fleets:
            if need.scope[0] and fleet.name not in need.scope[0]:
                continue
            if not spec.rent.buys:
                yield OfferedPlace(jobs=jobs, fleet=fleet.name, why=ReusesOnly().sentence())
                continue
            found = self._market.fitting(fleet, need)
            if not isinstance(found, list):
                yield OfferedPlace(jobs=jobs, fleet=fleet.name, why=found.sentence())
                continue
            on_demand = lost_a_spot_machine(members[0])
            for offer in market.in_order(found, on_demand_first=on_demand):
                yield _offered(jobs, fleet.name, offer, why=self._why_not_now(fleet, offer, user))

    def _why_not_now(self, fleet: Fleet, offer: Offer, user: str) -> str | None:
        if not self._market.open([offer]):
            return self._market.none_now(fleet, [offer]).sentence()
        refusal = self._purses.refuses(fleet.name, user, [offer])
        return None if refusal is None else refusal.sentence()


def _offered(
    jobs: tuple[str, ...],
    fleet: str,
    offer: Offer | None,
    *,
    node: str | None = None,
    why: str | None = None,
) -> OfferedPlace:
    if offer is None:
        return OfferedPlace(jobs=jobs, node=node, fleet=fleet)
    return OfferedPlace(
        jobs=jobs,
        node=node,
        fleet=fleet,
        provider=offer.provider,
        instance_type=offer.instance_type,
        region=offer.region,
        zone=offer.zone,
        spot=offer.spot,
        price=offer.price,
        why=why,
    )
