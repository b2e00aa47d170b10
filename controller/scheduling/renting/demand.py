"""Demand: which machines the queue needs that no node, and no ordered machine, could hold.

The waiting units are taken in the order of the queue. Each goes into what is on order first, and
then onto a new machine. A gang goes into one zone as a whole, or nowhere. All of it is a pure
function of the index, the records of machines and the market.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from controller.lifecycle.inventory import Fleet
from controller.lifecycle.machines import market
from controller.lifecycle.machines.market import Market, Purses
from controller.lifecycle.machines.model import Machine, Offer
from controller.lifecycle.renting_reasons import (
    BuysMachine,
    GangsInTurn,
    MachineReason,
    NoOffer,
    ReusesOnly,
    is_definite,
)
from controller.lifecycle.reports import MachineAnswered
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.fit import Room, shortfalls
from controller.scheduling.gang_placement import (
    has_room,
    whole_of,
)
from controller.scheduling.index import CapacityIndex
from controller.scheduling.queue import Kind, Member, Unit, in_order
from controller.scheduling.renting.answers import HELD, ORDERED, Answer, changed
from controller.scheduling.renting.coming_back import coming_back, stops_now, without_freed
from controller.scheduling.renting.fleet_offers import (
    FleetOffers,
    InTurn,
    lost_a_spot_machine,
    lost_spot_machines,
    policy_of,
)
from controller.scheduling.renting.gang_turns import GangTurns
from controller.scheduling.renting.machine_bins import Bin, Plan, empty_bin, room_after
from controller.scheduling.renting.machine_pool import MachinePool
from controller.scheduling.trial_capacity import TrialCapacity


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One machine to order. `group`: equal for the machines of one gang. `idle_duration`: that of
    the run that it is for. `user` and `run_id` None: its fleet keeps it."""

    fleet: str
    offer: Offer
    group: int | None = None
    idle_duration: float | None = None
    user: str | None = None
    run_id: str | None = None


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """`reasons`: what is done, or why nothing is, by the id of the waiting attempt. `answers`: what
    has become different for attempts that no node could hold. `awaiting`: ids of machines that are
    there and that a gang needs with others that are not. `wanted`: ids of machines on order that
    something waits for."""

    orders: tuple[Order, ...] = ()
    reasons: Mapping[str, MachineReason] = {}
    awaiting: frozenset[str] = frozenset()
    wanted: frozenset[str] = frozenset()
    answers: tuple[MachineAnswered, ...] = ()


def demand(
    index: CapacityIndex,
    machines: Iterable[Machine],
    shop: Market,
    now: float,
    could_hold: Callable[[Unit], bool] = lambda unit: False,
) -> Demand:
    """Return what to order now, and why each waiting job gets no more than that.

    `could_hold`: whether the nodes that are there could hold the unit if they were free.
    """
    return _Look(index, list(machines), shop, now, could_hold).take()


class _Look:
    """One look at the queue; use it once."""

    def __init__(
        self,
        index: CapacityIndex,
        machines: list[Machine],
        shop: Market,
        now: float,
        could_hold: Callable[[Unit], bool],
    ) -> None:
        index.refresh()
        self._index = index
        self._market = FleetOffers(shop, now)
        self._now = now
        self._trial = TrialCapacity(index)
        self._fleets = {
            name: fleet for name, fleet in index.fleets.items() if fleet.machines is not None
        }
        self._purses = Purses(
            self._fleets.values(), shop.spending, machines, now, shop.month, shop.orphans
        )
        self._turns = GangTurns(machines, now)
        self._behind: list[Unit] = []
        """Gangs that are served once all others were."""
        self._pool = MachinePool(index, self._fleets, machines, now)
        self._could_hold = could_hold
        self._orders: list[Order] = []
        self._answered: dict[str, Answer] = {}
        """Why no machine may come for an attempt, by its id; None: one may."""
        self._reasons: dict[str, MachineReason] = {}
        self._in_vain: dict[tuple[str, Need, bool], MachineReason] = {}
        """What was refused already; users differ in what they may spend."""
        self._groups = 0
        self._awaiting: set[str] = set()
        self._replacing: dict[tuple[str, str], MachineReason] = {}
        """What is done for jobs that still stop, by run and job."""
        self._left: dict[str, Room] = {}
        """What jobs that come back leave of nodes that are not rented, by id."""

    def take(self) -> Demand:
        every = [unit for units in self._index.units.values() for unit in units]
        if self._fleets:
            stopping: list[Unit] = []
            stopped: list[Unit] = []
            for unit in coming_back(self._index, self._now):
                (stopping if stops_now(self._index, unit) else stopped).append(unit)
            for unit in self._in_order(every + stopping):
                if unit.comes_back:
                    self._await_back(unit, orders=True)
                elif unit.nominated:
                    continue
                elif self._turns.is_too_late(unit):
                    self._behind.append(unit)
                else:
                    self._serve(unit)
            for unit in self._turns.second_round(self._behind):
                self._serve(unit, is_second=True)
            for unit in self._in_order(stopped):
                self._await_back(unit, orders=False)
            for fleet in self._fleets.values():
                self._keep_least(fleet)
        else:
            for unit in every:
                self._answer(unit, None)
        return Demand(
            orders=tuple(self._orders),
            reasons=self._reasons,
            awaiting=frozenset(self._awaiting),
            wanted=frozenset(self._pool.wanted),
            answers=tuple(changed(self._index, self._answered, self._reasons, self._replacing)),
        )

    def _in_order(self, units: Sequence[Unit]) -> list[Unit]:
        return self._turns.in_order(in_order(units, self._index.use, self._now))

    def _serve(self, unit: Unit, *, is_second: bool = False) -> None:
        fleets = [fleet for fleet in self._fleets.values() if _is_asked(unit, fleet)]
        if not fleets:
            self._answer(unit, None)
            return
        if unit.kind is Kind.RESERVED:
            # It goes where the ranks are, and takes over what they leave. What was ordered for the
            # whole gang may come after the ranks have begun.
            for need in {member.need for member in unit.members}:
                self._pool.keep_orders(need)
            return
        if unit.kind is Kind.TOGETHER:
            reason = self._serve_together(unit, fleets, is_second=is_second)
        else:
            reason = self._serve_one(unit, unit.members[0], fleets)
        if reason is not None:
            self._reasons |= {member.attempt.id: reason for member in unit.members}
        if is_definite(reason):
            self._answer(unit, reason)

    def _await_back(self, unit: Unit, *, orders: bool) -> None:
        """Keep or order the machines of what comes back, so that they boot while it still stops.
        `orders`: false during a wait for its retry."""
        fleets = [fleet for fleet in self._fleets.values() if _is_asked(unit, fleet)]
        if unit.kind is Kind.TOGETHER:
            reason = self._await_gang(unit, fleets, orders=orders)
        else:
            reason = self._await_one(unit, unit.members[0], fleets, orders=orders)
        if reason is not None:
            self._replacing |= {(unit.run.id, member.job.id): reason for member in unit.members}

    def _await_one(
        self, unit: Unit, member: Member, fleets: list[Fleet], *, orders: bool
    ) -> MachineReason | None:
        need = member.need
        if self._goes_home(unit, member):
            return None
        there = (one for fleet in fleets for one in self._pool.joined_in(fleet) if one.holds(need))
        if (joined := next(there, None)) is not None:
            joined.put(unit, member)
            self._awaiting.add(joined.room.node.id)
            return None
        if (known := self._pool.first_that_holds(need)) is not None:
            known.put(unit, member)
            self._pool.want(known)
            return None if known.is_back else self._buys(known, is_named=True)
        if not orders:
            return None
        return self._buy_for(unit, member, fleets) if member.job.spec.rent.buys else ReusesOnly()

    def _await_gang(self, unit: Unit, fleets: list[Fleet], *, orders: bool) -> MachineReason | None:
        """What is there or on order comes first, as in the pass that will place the gang."""
        for fleet in fleets:
            if (own := next(self._pool.plans(unit, fleet, ()), None)) is not None:
                self._take_plan(unit, fleet, own)
                self._awaiting |= self._pool.rented(own.used)
                return self._buys_all(own, is_named=True)
        if not orders or has_room(self._trial, unit):
            return None
        if not all(member.job.spec.rent.buys for member in unit.members):
            return ReusesOnly()
        refusal: MachineReason | None = None
        for fleet in fleets:
            result = self._cheapest_zone(unit, fleet)
            if not isinstance(result, Plan):
                refusal = _first_or_away(refusal, result)
            elif not self._turns.was_refused(unit, result.offers):
                self._take_plan(unit, fleet, result)
                return self._buys_all(result, is_named=True)
        return refusal

    def _goes_home(self, unit: Unit, member: Member) -> bool:
        """Take room for a job that comes back on a node that is not rented; False: none has it."""
        for one in self._with_room(member.need):
            left = replace(self._left.get(one.node.id, one), starts=0)
            if not self._pool.has(one.node.id) and not shortfalls(member.need.resources, left):
                self._left[one.node.id] = room_after(unit, member, left)
                return True
        return False

    def _answer(self, unit: Unit, reason: MachineReason | None) -> None:
        """Note whether a machine may come for the unit's attempts."""
        if isinstance(reason, BuysMachine):
            answer = ORDERED
        elif reason is None:
            answer = HELD
        elif self._pool.could_hold(unit):
            answer = ORDERED
        elif self._could_hold(unit):
            answer = HELD
        else:
            answer = Answer(why=reason.sentence())
        self._answered |= {member.attempt.id: answer for member in unit.members}

    # -- one job ----------------------------------------------------------------------------

    def _serve_one(self, unit: Unit, member: Member, fleets: list[Fleet]) -> MachineReason | None:
        need = member.need
        if self._waits_for_pace(need):
            self._pool.keep_orders(need)
            return None
        known = self._pool.first_that_holds(need)
        if known is not None:
            known.put(unit, member)
            self._pool.want(known)
            return None if known.is_back else self._buys(known)
        if not member.job.spec.rent.buys:
            return ReusesOnly()
        return self._buy_for(unit, member, fleets)

    def _buy_for(self, unit: Unit, member: Member, fleets: list[Fleet]) -> MachineReason | None:
        need = member.need
        rather_on_demand = lost_a_spot_machine(member)
        key = unit.run.user, need, rather_on_demand
        if key in self._in_vain:
            return self._in_vain[key]
        refusal: MachineReason | None = None
        for fleet in fleets:
            chosen = self._choose(fleet, need, unit.run.user, on_demand_first=rather_on_demand)
            if isinstance(chosen, Offer):
                bought = self._buy(fleet, chosen, unit)
                bought.put(unit, member)
                return self._buys(bought)
            refusal = _first_or_away(refusal, chosen)
        if refusal is not None:
            self._in_vain[key] = refusal
        return refusal

    def _buys(self, bin_: Bin, count: int = 1, *, is_named: bool = False) -> BuysMachine:
        machine = bin_.machine
        return BuysMachine(
            offer=bin_.offer.words(),
            fleet=bin_.fleet.name,
            machine=machine.name if is_named and machine is not None else None,
            count=count,
            since=self._now if machine is None else machine.ordered_at,
            boots=machine is not None and machine.instance_id is not None,
            trouble=None if machine is None else machine.trouble or self._unfit(machine),
            boot_limit=policy_of(bin_.fleet).boot_limit,
        )

    def _unfit(self, machine: Machine) -> str | None:
        """Return why the machine's node, which is there, takes no work yet."""
        node = self._index.nodes.get(machine.id)
        return None if node is None else node.unfit

    def _waits_for_pace(self, need: Need) -> bool:
        """Return whether a node has room, and the next turns place the job."""
        return any(True for _ in self._with_room(need))

    def _with_room(self, need: Need) -> Iterator[Room]:
        """Yield the nodes that have room for the need, whatever their pace."""
        for _, one, _ in self._trial.sorted(need.scope).bins(self._trial.rooms):
            if not shortfalls(need.resources, replace(one, starts=0)):
                yield one

    def _choose(
        self, fleet: Fleet, need: Need, user: str, *, on_demand_first: bool = False
    ) -> Offer | MachineReason:
        """Return the first offer that may be bought for the need, or why there is none."""
        offers = self._market.in_turn(fleet, need, on_demand_first=on_demand_first)
        if not isinstance(offers, InTurn):
            return offers
        open_ = offers.open
        if not open_:
            return self._market.none_now(fleet, offers.ordered)
        refuses = self._purses.refuses
        affordable = (one for one in open_ if refuses(fleet.name, user, [one]) is None)
        if (chosen := next(affordable, None)) is not None:
            return chosen
        refusal = refuses(fleet.name, user, open_[:1])
        assert refusal is not None
        return refusal

    # -- a gang -----------------------------------------------------------------------------

    def _serve_together(
        self, unit: Unit, fleets: list[Fleet], *, is_second: bool
    ) -> MachineReason | None:
        whole = without_freed(self._index, whole_of(unit))
        if whole is None or has_room(self._trial, unit):
            return None
        if not all(member.job.spec.rent.buys for member in unit.members):
            return ReusesOnly()
        refusal: MachineReason | None = None
        gives_way = False
        for fleet in fleets:
            result = self._cheapest_zone(whole, fleet)
            if not isinstance(result, Plan):
                refusal = _first_or_away(refusal, result)
            elif not is_second and self._turns.gives_way(unit, result.offers):
                gives_way = True
            else:
                self._take_plan(whole, fleet, result)
                return self._buys_all(result) if result.is_incomplete else None
        if gives_way:
            self._behind.append(unit)
        return refusal

    def _buys_all(self, plan: Plan, *, is_named: bool = False) -> BuysMachine | None:
        """Tell of the machine that comes last, and of all that are not there yet."""
        used = (one for one in plan.used if one.machine is not None and not one.is_back)
        coming = {id(one): one for one in used}
        if (first := next(iter([*plan.new, *coming.values()]), None)) is None:
            return None
        count = len({id(one) for one in plan.new} | coming.keys())
        return self._buys(first, count, is_named=is_named)

    def _cheapest_zone(self, unit: Unit, fleet: Fleet) -> Plan | MachineReason:
        # What is on order is waited for also while its offer is left out, or nobody tells offers.
        own = self._pool.plans(unit, fleet, ())
        if (enough := next(own, None)) is not None:
            return enough
        needs = {member.need for member in unit.members}
        on_demand = lost_spot_machines(self._index, unit)
        offers = self._market.for_gang(fleet, needs, on_demand_first=on_demand)
        if not isinstance(offers, InTurn):
            return offers
        if not offers.open:
            return self._market.none_now(fleet, offers.ordered)
        plans = list(self._pool.plans(unit, fleet, offers.open))
        if not plans:
            lacks = "no zone's offers could hold the whole gang where its other jobs are"
            return NoOffer(fleet=fleet.name, lacks=lacks, unknown=self._market.unknown(fleet))
        refusal = None
        for plan in sorted(plans, key=lambda one: one.price):
            refusal = self._purses.refuses(fleet.name, unit.run.user, plan.offers)
            if refusal is None:
                where = self._turns.waits(plan.offers)
                if where is not None:
                    return GangsInTurn(fleet=fleet.name, where=where)
                return self._pool.as_of(plan, unit, fleet)
        assert refusal is not None
        return refusal

    def _take_plan(self, unit: Unit, fleet: Fleet, plan: Plan) -> None:
        for one, left in plan.rooms:
            one.room = left
        if plan.is_incomplete:
            self._awaiting |= self._pool.rented(plan.used)
        for one in plan.used:
            self._pool.want(one)
        self._groups += 1
        group = self._groups if len(plan.new) > 1 else None
        self._pool.add(plan.new)
        self._turns.take(plan.offers)
        self._note(fleet, plan.offers, group, unit)

    # -- orders -----------------------------------------------------------------------------

    def _keep_least(self, fleet: Fleet) -> None:
        purse, policy = self._purses.fleet(fleet.name), policy_of(fleet)
        if purse.count >= policy.min:
            return
        fitting = self._market.that_are_allowed(fleet)
        if not isinstance(fitting, list):
            return
        open_ = self._market.open(market.in_order(fitting))
        refuses = self._purses.refuses
        while purse.count < policy.min:
            affordable = (one for one in open_ if refuses(fleet.name, None, [one]) is None)
            if (chosen := next(affordable, None)) is None:
                return
            self._buy(fleet, chosen, None)

    def _buy(self, fleet: Fleet, offer: Offer, unit: Unit | None) -> Bin:
        bin_ = empty_bin(fleet, offer)
        self._pool.add([bin_])
        self._note(fleet, [offer], None, unit)
        return bin_

    def _note(
        self, fleet: Fleet, offers: Sequence[Offer], group: int | None, unit: Unit | None
    ) -> None:
        user = None if unit is None else unit.run.user
        self._purses.take(fleet.name, user, offers)
        self._orders += (
            Order(
                fleet=fleet.name,
                offer=one,
                group=group,
                idle_duration=None if unit is None else _idle_duration(unit),
                user=user,
                run_id=None if unit is None else unit.run.id,
            )
            for one in offers
        )


def _is_asked(unit: Unit, fleet: Fleet) -> bool:
    """Return whether all jobs of the unit may go to the fleet."""
    return all(
        not member.need.scope[0] or fleet.name in member.need.scope[0] for member in unit.members
    )


def _first_or_away(first: MachineReason | None, next_: MachineReason) -> MachineReason:
    """Return the first fleet's refusal, or that of a provider that may still grant a machine."""
    return next_ if first is None or not is_definite(next_) else first


def _idle_duration(unit: Unit) -> float | None:
    """Return the shortest `idle_duration` of the unit's jobs; None: none has one."""
    asked = (member.job.spec.rent.idle_duration for member in unit.members)
    return min((one for one in asked if one is not None), default=None)
