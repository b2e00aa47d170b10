"""Rentals decide about machines inside the turn, after the scheduler's pass.

So what was placed in this turn counts: a machine is never found idle while a job gets an allocation
on it, and nothing is ordered for what has just been placed. Everything that is decided becomes part
of the turn's commit; what calls providers (`controller.machines`) sees committed records alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from controller.lifecycle.events import Event
from controller.lifecycle.inventory import Fleet, Node, NodeAddress, Registration, Spending
from controller.lifecycle.machines import life
from controller.lifecycle.machines.life import InstanceKnown, MachineReport, Place, Surroundings
from controller.lifecycle.machines.market import Market, Penalties, Purses, Supply, not_named
from controller.lifecycle.machines.model import (
    Machine,
    MachineEnd,
    MachineStatus,
    Offer,
    attributes_of_offer,
    token_of,
)
from controller.lifecycle.machines.reconcile import Orphan
from controller.lifecycle.machines.sizes import Sizes
from controller.lifecycle.model import RunState
from controller.lifecycle.orphan_events import OrphanBook
from controller.lifecycle.renting_reasons import BuysMachine, MachineReason
from controller.lifecycle.reports import MachineAnswered
from controller.scheduling.index import CapacityIndex
from controller.scheduling.queue import Unit
from controller.scheduling.renting.demand import Demand, Order, demand
from controller.scheduling.renting.never_rented import why_never
from controller.scheduling.renting.offered_places import offering
from fairlead.model.answers import OfferedPlace, PlannedRent
from fairlead.model.reasons import Reason
from fairlead.model.statuses import NodeStatus

log = logging.getLogger(__name__)
DEMAND_EVERY_SECONDS = 0.5
"""Demand looks at the whole queue, and turns can be many in a second."""
_ANYWAY_SECONDS = 60.0
"""After this time demand is looked at although nothing changed: a month may have ended."""
CLOSED = "its machine is being given back"
SHIM_SOCKET = "/run/fairlead/shim.sock"


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller knows of a machine before it boots: its public host key, and the digest
    of the token with which it tells its address."""

    host_key: str
    token_digest: str


class RentalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`pin` derives from a machine's id what its user-data will hold. `month_of` returns the start
    of the month of a time (both Unix seconds). `providers`: their names in the controller's file;
    None: it is not known which it has."""

    installation: str
    pin: Callable[[str], Pinned]
    new_id: Callable[[], str]
    month_of: Callable[[float], float]
    spending: Spending = Spending()
    providers: frozenset[str] | None = None
    setups: Mapping[str, str] = {}
    """A digest of what the controller's file says of each provider."""


def has_rented(machines: Collection[Machine], fleets: Iterable[Fleet]) -> bool:
    """Return whether there are machines on record, or fleets that would rent some: what is left of
    them matters also when the controller's file names no provider any more."""
    return bool(machines) or any(one.machines is not None for one in fleets)


class GoneNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose machine is gone: its runs must be told. `removed`: the node, too."""

    node_id: str
    reason: Reason
    message: str
    removed: bool


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn changes; a node of None is removed."""

    machines: Mapping[str, Machine] = {}
    nodes: Mapping[str, Node | None] = {}
    gone: Sequence[GoneNode] = ()
    answers: Sequence[MachineAnswered] = ()
    events: Sequence[Event] = ()
    """Of no run; they are offered to each turn until `stored` or `leave_out_events` follows."""


class Rentals:
    """The records of machines, and the market as providers tell it."""

    def __init__(
        self,
        index: CapacityIndex,
        settings: RentalSettings,
        machines: Iterable[Machine] = (),
        could_hold: Callable[[Unit], bool] = lambda unit: False,
        events: Iterable[Event] = (),
    ) -> None:
        """`could_hold`: whether the nodes could hold the unit if they were free. `events`: those
        stored that are of no run, oldest first."""
        self.machines = {machine.id: machine for machine in machines}
        """As decided last; what is committed is in `committed`."""
        self.committed = dict(self.machines)
        self.changed = asyncio.Event()
        """Set when records were committed."""
        self.reasons: Mapping[str, MachineReason] = {}
        """What is done for waiting attempts, or why nothing is, by id."""
        self.penalties = Penalties(self.machines.values(), settings.setups)
        self.sizes = Sizes(self.machines.values(), settings.setups)
        self._index = index
        for machine in self.machines.values():
            index.machine_changed(machine)
        self._settings = settings
        self._could_hold = could_hold
        self._supplies: dict[str, Supply] = {}
        self._away: dict[str, str] = {}
        self._inbox: dict[str, list[MachineReport]] = {}
        self._awaiting: frozenset[str] | None = None
        """Machines that a gang needs with others that are not there yet; None: nobody has looked
        since this controller began."""
        self._wanted: frozenset[str] | None = None
        """Machines on order that something waits for; None: as above."""
        self._next_demand = 0.0
        self._looked_at = float("-inf")
        self._is_dirty = True
        """Something changed since the last look at demand."""
        self._orphans = OrphanBook(events)
        self._wake: Callable[[], None] = lambda: None

    def wake_by(self, wake: Callable[[], None]) -> None:
        """`wake` makes a turn follow."""
        self._wake = wake

    def post(self, report: MachineReport) -> None:
        """Hand in a report about a machine; the next turn decides it."""
        self._inbox.setdefault(report.machine_id, []).append(report)
        self._is_dirty = True
        self._wake()

    def orphans_listed(self, provider: str, orphans: Sequence[Orphan]) -> None:
        """Take the orphans of a whole list; the next turn tells what is new of them."""
        if self._orphans.listed(provider, orphans):
            self._wake()

    def orphan_found_at(self, provider: str, instance_id: str) -> float | None:
        """Return when a list first had this orphan (Unix time), as far as that is committed."""
        return self._orphans.found_at(provider, instance_id)

    def leave_out_events(self) -> None:
        """The database refuses the events that were offered."""
        self._orphans.committed()

    def put(self, machine: Machine) -> None:
        """Take over the record as it is decided."""
        self.machines[machine.id] = machine
        self._index.machine_changed(machine)

    def set_offers(self, provider: str, supply: Supply | str) -> None:
        """Take what the provider rents, or why it tells nothing; what is known stays then."""
        if isinstance(supply, str):
            self._away[provider] = supply
        elif supply.barred is not None:
            self._supplies.pop(provider, None)
            self._away[provider] = supply.barred
        else:
            self._supplies[provider] = supply
            self._away.pop(provider, None)
        self._is_dirty = True
        self._wake()

    def offers_of(self, provider: str) -> Sequence[Offer]:
        known = self._supplies.get(provider)
        return () if known is None else known.offers

    def why_never(self, fleet: Fleet) -> str | None:
        """Return why the fleet rents nothing at all or now, or never its least; None: it may, or
        that is not known."""
        provider = None if fleet.machines is None else fleet.machines.provider
        if provider is None:
            return None
        if (lacks := not_named(provider, self._settings.providers)) is not None:
            return f"it rents nothing: {lacks}"
        if (known := self._supplies.get(provider)) is None:
            away = self._away.get(provider)
            return None if away is None else f"it rents nothing now: {away}"
        return why_never(fleet, known.offers, known.unknown)

    def account_of(self, provider: str) -> str | None:
        """Return the account in which the provider's offers make machines."""
        known = self._supplies.get(provider)
        return None if known is None else known.account

    def found_faultless(self, provider: str) -> None:
        """Order again what the provider refused as a request: a check of it found no fault."""
        self.penalties.forget_refused(provider)
        self.sizes.forget(provider)
        self._is_dirty = True
        self._wake()

    def note_change(self) -> None:
        """Note that runs, nodes or fleets changed in this turn."""
        self._is_dirty = True

    def decide(
        self,
        nodes: Mapping[str, Node],
        fleets: Mapping[str, Fleet],
        is_used: Callable[[str], bool],
        now: float,
    ) -> Turned:
        """Return what changes now. It counts as decided; `stored` must follow the commit."""
        self._note_time(now)
        inbox, self._inbox = self._inbox, {}
        turn = _Turn(self, nodes, fleets, is_used, now, self._settings)
        for machine in list(self.machines.values()):
            if machine.is_live:
                turn.move(machine, inbox.get(machine.id, ()))
        turn.end_broken_orders()
        if now >= self._next_demand and self._must_look(now):
            self._next_demand, self._is_dirty = now + DEMAND_EVERY_SECONDS, False
            self._looked_at = now
            found = self._demand(now)
            self.reasons = found.reasons
            self._awaiting, self._wanted = found.awaiting, found.wanted
            turn.answers = found.answers
            turn.release_unused()
            turn.order(found.orders)
        turn.events = self._orphans.offer(now)
        return turn.result()

    def _note_time(self, now: float) -> None:
        """Wait for no time that is far away because the clock was put back."""
        self.penalties.note_time(now)
        if now < self._looked_at:
            self._looked_at = self._next_demand = now
            self._is_dirty = True

    def market(self, now: float) -> Market:
        """Return what can be bought."""
        told = {name: one.offers for name, one in self._supplies.items()}
        every = (offer for offers in told.values() for offer in offers)
        return Market(
            offers={
                name: [self.sizes.of(offer, now) for offer in offers]
                for name, offers in told.items()
            },
            had_less={
                offer.key: name
                for offer in every
                if (name := self.sizes.smaller(offer, now)) is not None
            },
            unknown={name: one.unknown for name, one in self._supplies.items()},
            away=self._away,
            penalties=self.penalties,
            month_began=self._settings.month_of(now),
            spending=self._settings.spending,
            providers=self._settings.providers,
        )

    def _demand(self, now: float) -> Demand:
        machines = self.machines.values()
        return demand(self._index, machines, self.market(now), now, self._could_hold)

    def offering(self, state: RunState, now: float) -> tuple[OfferedPlace, ...]:
        """Return where the jobs of this run could go if it were submitted now."""
        with self._index.with_run(state):
            machines = self.machines.values()
            return offering(self._index, machines, self.market(now), state.run.id, now)

    def rent_of(self, state: RunState, now: float) -> PlannedRent:
        """Return what would be ordered more if this run were submitted now."""
        before = Counter(order.offer for order in self._demand(now).orders)
        with self._index.with_run(state):
            looked = self._demand(now)
        found = Counter(order.offer for order in looked.orders)
        own = {job.attempts[-1].id for job in state.jobs if job.attempts}
        refusals = [
            reason.sentence()
            for attempt_id, reason in looked.reasons.items()
            if attempt_id in own and not isinstance(reason, BuysMachine)
        ]
        more = sorted((found - before).elements(), key=lambda one: one.key)
        per_hour = max(0.0, _price(found) - _price(before))
        return PlannedRent(
            per_hour=per_hour,
            machines=tuple(one.words() for one in more),
            why=tuple(dict.fromkeys(refusals)),
        )

    @property
    def spending(self) -> Spending:
        """The budgets of users and of the installation."""
        return self._settings.spending

    def _must_look(self, now: float) -> bool:
        """Return whether a look at demand could find something else than the last one."""
        ended = self.penalties.next_end(self._looked_at)
        return self._is_dirty or self._look_anyway_at <= now or (ended is not None and ended <= now)

    @property
    def _look_anyway_at(self) -> float:
        return self._looked_at + _ANYWAY_SECONDS

    def stored(self, machines: Mapping[str, Machine]) -> None:
        """Take over what was committed."""
        self._orphans.committed()
        if machines:
            self.committed.update(machines)
            self.changed.set()

    def wakes_at(
        self, nodes: Mapping[str, Node], fleets: Mapping[str, Fleet], now: float
    ) -> float | None:
        """Return when time alone next changes something."""
        times = [self.penalties.next_end(now)]
        if self._is_dirty:
            times.append(self._next_demand)
        elif self._index.units:
            times.append(self._look_anyway_at)
        standing = self.standing(fleets, now)
        for machine in self.machines.values():
            if machine.is_live:
                around = self.around(machine, nodes.get(machine.id), standing.get(machine.fleet))
                times.append(life.wakes_at(machine, around))
        return min((max(at, now + DEMAND_EVERY_SECONDS) for at in times if at), default=None)

    def standing(self, fleets: Mapping[str, Fleet], now: float) -> dict[str, _Standing]:
        """Return how each fleet stands that rents machines."""
        renting = [fleet for fleet in fleets.values() if fleet.machines is not None]
        machines = list(self.machines.values())
        month, spending = self._settings.month_of(now), self._settings.spending
        purses = Purses(renting, spending, machines, now, month)
        return {fleet.name: _Standing(fleet, machines, purses) for fleet in renting}

    def around(
        self,
        machine: Machine,
        node: Node | None,
        standing: _Standing | None,
        *,
        is_used: bool = False,
    ) -> Surroundings:
        """Return what decides about a machine besides its record."""
        if standing is None:
            return Surroundings(node=node, is_used=is_used)
        return Surroundings(
            node=node,
            is_used=is_used,
            policy=standing.policy,
            may_release=standing.staying > standing.policy.min,
            is_broke=standing.is_broke(machine),
            is_awaited=self._is_awaited(machine),
            is_wanted=self._is_wanted(machine),
        )

    def _is_awaited(self, machine: Machine) -> bool:
        """Return whether a machine that nothing uses is kept."""
        # What changed since the last look may need it: only the next look can tell.
        if self._awaiting is None or self._is_dirty:
            return True
        # One that just became a node was on order at the last look.
        return machine.id in self._awaiting or self._is_wanted(machine) is True

    def _is_wanted(self, machine: Machine) -> bool | None:
        """Return whether something waited for the machine, which was on order at the last look;
        None: nobody has looked."""
        if self._wanted is None:
            return None
        # The look that ordered it did not know it.
        return machine.id in self._wanted or machine.ordered_at >= self._looked_at


def _price(offers: Counter[Offer]) -> float:
    return sum(offer.price * count for offer, count in offers.items())


class _Standing:
    """How a fleet that rents machines stands in this turn."""

    def __init__(self, fleet: Fleet, machines: Iterable[Machine], purses: Purses) -> None:
        assert fleet.machines is not None
        own = [machine for machine in machines if machine.fleet == fleet.name]
        self.policy = fleet.machines
        self._is_broke = purses.fleet(fleet.name).is_over_month
        self._purses = purses
        self.staying = sum(
            one.status in (MachineStatus.PROVISIONING, MachineStatus.JOINED) and not one.closing
            for one in own
        )
        """The machines that nothing has decided to end."""

    def is_broke(self, machine: Machine) -> bool:
        """Return whether a budget of the month that pays for the machine is used up."""
        return self._is_broke or self._purses.is_broke(machine.user)


class _Turn:
    """One turn's decisions about machines."""

    def __init__(
        self,
        rentals: Rentals,
        nodes: Mapping[str, Node],
        fleets: Mapping[str, Fleet],
        is_used: Callable[[str], bool],
        now: float,
        settings: RentalSettings,
    ) -> None:
        self._rentals = rentals
        self._nodes = nodes
        self._fleets = fleets
        self._is_used = is_used
        self._now = now
        self._settings = settings
        self._standing = rentals.standing(fleets, now)
        self._machines: dict[str, Machine] = {}
        self._changed_nodes: dict[str, Node | None] = {}
        self._gone: list[GoneNode] = []
        self.answers: Sequence[MachineAnswered] = ()
        self.events: Sequence[Event] = ()

    def result(self) -> Turned:
        return Turned(
            machines=self._machines,
            nodes=self._changed_nodes,
            gone=self._gone,
            answers=self.answers,
            events=self.events,
        )

    def move(self, machine: Machine, reports: Sequence[MachineReport]) -> None:
        reports = [self._checked(machine, one) for one in reports]
        standing = self._standing.get(machine.fleet)
        used = self._is_used(machine.id)
        around = self._rentals.around(machine, self._nodes.get(machine.id), standing, is_used=used)
        after = life.moved(machine, reports, around, self._now)
        for report in reports:
            if isinstance(report, InstanceKnown) and report.place is not None:
                self._reach(after, report.place)
        self._let_join(after)
        if after is machine:
            return
        stays = after.status in (MachineStatus.PROVISIONING, MachineStatus.JOINED)
        if standing is not None and not machine.closing and (after.closing or not stays):
            standing.staying -= 1
        self._remember_outcome(machine, after, reports)
        self._put(machine, after)

    def _checked(self, machine: Machine, report: MachineReport) -> MachineReport:
        if not isinstance(report, InstanceKnown):
            return report
        refusal = life.of_another(machine, report, self._rentals.machines.values())
        if refusal is None:
            return report
        log.error("machine %s: %s", machine.name, refusal.message)
        return refusal

    def _remember_outcome(
        self, before: Machine, after: Machine, reports: Sequence[MachineReport]
    ) -> None:
        penalties = self._rentals.penalties
        if after.status is MachineStatus.JOINED and before.status is not MachineStatus.JOINED:
            penalties.came(after)
            self._rentals.sizes.joined(after)
        if after.end is not before.end:
            asked = (one.after for one in reports if isinstance(one, life.OrderRefused))
            penalties.add_failed(after, self._now, after=next(asked, None))

    def _put(self, before: Machine, after: Machine) -> None:
        self._rentals.put(after)
        self._machines[after.id] = after
        node = self._node(after.id)
        if after.closing is not before.closing and node is not None and after.is_live:
            closed = after.closing or after.status is MachineStatus.TERMINATING
            self._changed_nodes[node.id] = replace(
                node, cordoned=closed, cordon_reason=CLOSED if closed else None
            )
        if after.status is before.status:
            return
        if after.status is MachineStatus.TERMINATING:
            self._close(after)
        elif after.status is MachineStatus.TERMINATED:
            log.info("machine %s (%s) is gone: %s", after.name, after.id, after.message)
            self._changed_nodes[after.id] = None
            self._tell_runs(after, removed=True)

    def _node(self, node_id: str) -> Node | None:
        if node_id in self._changed_nodes:
            return self._changed_nodes[node_id]
        return self._nodes.get(node_id)

    def _close(self, machine: Machine) -> None:
        """Let nothing new onto a machine that ends; what it lost is told to its runs at once."""
        log.info("machine %s (%s) ends: %s", machine.name, machine.id, machine.message)
        node = self._node(machine.id)
        if node is not None:
            self._changed_nodes[node.id] = replace(node, cordoned=True, cordon_reason=CLOSED)
        if machine.end is MachineEnd.LOST:
            self._tell_runs(machine, removed=False)

    def _tell_runs(self, machine: Machine, *, removed: bool) -> None:
        spot = machine.offer.spot
        reason = Reason.INTERRUPTED_BY_NO_CAPACITY if spot else Reason.INSTANCE_UNREACHABLE
        message = f"its machine is gone: {machine.message}"
        self._gone.append(
            GoneNode(node_id=machine.id, reason=reason, message=message, removed=removed)
        )

    def _reach(self, machine: Machine, place: Place) -> None:
        """Give an expected node its address. A machine that tells it by itself may come first."""
        node = self._node(machine.id)
        if node is None or node.status is not NodeStatus.EXPECTED:
            return
        if place.host is None:
            address = NodeAddress(shim_socket=place.socket or SHIM_SOCKET, local_socket=True)
        else:
            address = replace(
                node.address,
                host=place.host,
                port=place.port,
                user=place.user or node.address.user,
                shim_socket=place.socket or node.address.shim_socket,
            )
        self._changed_nodes[node.id] = replace(
            node, address=address, status=NodeStatus.CONNECTING, registration=None, message=None
        )

    def _let_join(self, machine: Machine) -> None:
        """Let an expected machine join as long as it may boot, also after its fleet's limit has
        changed."""
        node = self._node(machine.id)
        if node is None or node.registration is None or not machine.is_live:
            return
        standing = self._standing.get(machine.fleet)
        until = life.boots_until(machine, None if standing is None else standing.policy)
        if node.registration.expires_at != until:
            registration = replace(node.registration, expires_at=until)
            self._changed_nodes[node.id] = replace(node, registration=registration)

    def end_broken_orders(self) -> None:
        machines = list(self._rentals.machines.values())
        for machine in life.of_broken_orders(machines):
            if machine.status is MachineStatus.JOINED and self._is_used(machine.id):
                continue
            message = "another machine of its gang did not come"
            after = life.ending(machine, MachineEnd.GANG_INCOMPLETE, message, self._now)
            self._put(machine, after)

    def release_unused(self) -> None:
        """Give back what nothing needs, right after a look that knows everything of this turn."""
        for machine in list(self._rentals.machines.values()):
            stays = machine.status in (MachineStatus.PROVISIONING, MachineStatus.JOINED)
            # The scheduler's pass of this turn may have been before its node was there.
            if stays and machine.joined_at != self._now:
                self.move(machine, ())

    def order(self, orders: Sequence[Order]) -> None:
        groups: dict[int, str] = {}
        for order in orders:
            group = None
            if order.group is not None:
                group = groups.setdefault(order.group, self._settings.new_id())
            machine_id = self._settings.new_id()
            machine = Machine(
                id=machine_id,
                name=f"{order.fleet[:40]}-{machine_id[:8]}",
                fleet=order.fleet,
                offer=order.offer,
                token=token_of(self._settings.installation, machine_id, order.offer),
                account=self._rentals.account_of(order.offer.provider),
                setup=self._settings.setups.get(order.offer.provider),
                group=group,
                leash=self._leash_of(order.fleet),
                idle_duration=order.idle_duration,
                user=order.user,
                run_id=order.run_id,
                ordered_at=self._now,
            )
            log.info("machine %s is ordered: %s", machine.name, order.offer.words())
            self._rentals.put(machine)
            self._machines[machine.id] = machine
            self._changed_nodes[machine.id] = self._expected(machine)

    def _leash_of(self, fleet: str) -> float | None:
        policy = self._fleets[fleet].machines
        return None if policy is None else policy.leash

    def _expected(self, machine: Machine) -> Node:
        pinned = self._settings.pin(machine.id)
        fleet = self._fleets[machine.fleet]
        # Its own limit ends the machine; the token must live as long as that takes.
        expires_at = life.boots_until(machine, fleet.machines)
        return Node(
            id=machine.id,
            name=machine.name,
            fleet=machine.fleet,
            attributes=attributes_of_offer(machine.offer),
            address=NodeAddress(shim_socket=SHIM_SOCKET, host_key=pinned.host_key),
            status=NodeStatus.EXPECTED,
            registration=Registration(expires_at=expires_at, token_digest=pinned.token_digest),
            message="its machine was ordered",
            created_at=self._now,
        )
