"""Rentals decide about machines inside the turn, after the scheduler's pass.

So what was placed in this turn counts: a machine is never found idle while a job gets an allocation
on it, and nothing is ordered for what has just been placed. Everything that is decided becomes part
of the turn's commit; what calls providers (`controller.machines`) sees committed records alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.lifecycle.inventory import Fleet, Node, Spending
from controller.lifecycle.machines import life
from controller.lifecycle.machines.homes import homeless_orphan
from controller.lifecycle.machines.life import MachineReport
from controller.lifecycle.machines.market import Market, Supply, not_named
from controller.lifecycle.machines.model import (
    Machine,
    Offer,
)
from controller.lifecycle.machines.orphans import (
    KEPT_SECONDS,
    KnownOrphan,
    OrphanMachines,
    OrphanTerms,
)
from controller.lifecycle.machines.reconcile import Orphan
from controller.lifecycle.model import RunState
from controller.lifecycle.orphan_events import OrphanBook
from controller.lifecycle.renting_reasons import BuysMachine, MachineReason
from controller.pipelines.renting.last_demand import DEMAND_EVERY_SECONDS, LastDemand
from controller.pipelines.renting.machine_turn import MachineTurn, Turned
from controller.pipelines.renting.records import MachineRecords
from controller.pipelines.renting.settings import RentalSettings
from controller.pipelines.renting.standing import purses_of, standing_of, surroundings
from controller.scheduling.index import CapacityIndex
from controller.scheduling.queue import Unit
from controller.scheduling.renting.demand import Demand, demand
from controller.scheduling.renting.never_rented import why_never
from controller.scheduling.renting.offered_places import offering
from fairlead.model.answers import OfferedPlace, PlannedRent

_FORGETS_EVERY_SECONDS = 86400.0


class Rentals:
    """The records of machines, and the market as providers tell it."""

    def __init__(
        self,
        index: CapacityIndex,
        settings: RentalSettings,
        machines: Iterable[Machine] = (),
        could_hold: Callable[[Unit], bool] = lambda unit: False,
        orphans: Iterable[KnownOrphan] = (),
    ) -> None:
        """`could_hold`: whether the nodes could hold the unit if they were free. `orphans`: those
        that are stored."""
        self._records = MachineRecords(index, machines, settings.setups)
        self.machines = self._records.machines
        """As decided last; what is committed is in `committed`."""
        self.committed = dict(self.machines)
        self.changed = asyncio.Event()
        """Set when records were committed."""
        self.reasons: Mapping[str, MachineReason] = {}
        """What is done for waiting attempts, or why nothing is, by id."""
        self._last = LastDemand()
        self._index = index
        self._settings = settings
        self._could_hold = could_hold
        self._supplies: dict[str, Supply] = {}
        self._away: dict[str, str] = {}
        self._inbox: dict[str, list[MachineReport]] = {}
        self._orphans = OrphanBook(
            orphans, lambda one: self._homeless(one) is not None, self._names
        )
        self._no_list: dict[str, str] = {}
        """Why the last list of a provider failed."""
        self._as_machines = OrphanMachines()
        self._forgot_at = float("-inf")
        self._wake: Callable[[], None] = lambda: None

    def wake_by(self, wake: Callable[[], None]) -> None:
        """`wake` makes a turn follow."""
        self._wake = wake

    def post(self, report: MachineReport) -> None:
        """Hand in a report about a machine; the next turn decides it."""
        self._inbox.setdefault(report.machine_id, []).append(report)
        self._last.note_change()
        self._wake()

    def orphans_listed(
        self, provider: str, orphans: Sequence[Orphan], account: str | None = None
    ) -> None:
        """Take the orphans of a whole list of this account; the next turn tells what is new of
        them."""
        self._no_list.pop(provider, None)
        if self._orphans.listed(provider, orphans, account):
            self._wake()

    def orphan_found_at(self, provider: str, instance_id: str) -> float | None:
        """Return when a list first had this orphan (Unix time), as far as that is committed."""
        return self._orphans.found_at(provider, instance_id)

    def end_orphans(self, provider: str, instance_ids: Iterable[str], by: str) -> None:
        """Have these orphans ended; it counts once the next turn is committed."""
        self._orphans.ask_for_end(provider, instance_ids, by)
        self._wake()

    def forget_orphan(self, provider: str, instance_id: str, by: str) -> None:
        """Have an orphan in another account forgotten; it counts once the next turn is
        committed."""
        self._orphans.forget(provider, instance_id, by)
        self._wake()

    def list_failed(self, provider: str, why: str) -> None:
        """Note why the provider told no list."""
        self._no_list[provider] = why

    def why_unlisted(self, orphan: KnownOrphan) -> str | None:
        """Return why no list tells now whether the orphan is there; None: one does."""
        if (why := self.out_of_reach(orphan)) is not None:
            return why
        if self._orphans.has_list(orphan.provider):
            return None
        return self.not_listed_yet(orphan.provider)

    def not_listed_yet(self, provider: str) -> str:
        why = self._no_list.get(provider)
        return (
            f"provider {provider} has not listed its machines yet since this controller began to "
            f"lead{'' if why is None else f' ({why})'}"
        )

    def out_of_reach(self, orphan: KnownOrphan) -> str | None:
        """Return why no list can have the orphan as things are, and the fix; None: one can."""
        if self._orphans.lists(orphan):
            # Some providers list what is in all regions.
            return None
        return self._homeless(orphan) or self._orphans.elsewhere(orphan)

    def _homeless(self, orphan: KnownOrphan) -> str | None:
        providers, regions = self._settings.providers, self._settings.regions
        if providers is None:
            return None
        return homeless_orphan({name: regions.get(name) for name in providers}, orphan)

    @property
    def orphans(self) -> list[KnownOrphan]:
        """The orphans that are there, as committed, the oldest first."""
        return [one for one in self.all_orphans if self._names(one.provider)]

    @property
    def all_orphans(self) -> list[KnownOrphan]:
        """Return also those at providers that the controller's file names no more."""
        return sorted(self._orphans.there, key=lambda one: (one.created_at, one.name))

    def orphans_as_machines(
        self, now: float, found_after: float = float("-inf")
    ) -> tuple[Machine, ...]:
        """Return the orphans that have cost something and were found after this time, as costs
        count them."""
        found = (one for one in self._orphans.committed_ones if one.found_at > found_after)
        return self._paid(found, now)

    def _paid(self, orphans: Iterable[KnownOrphan], now: float) -> tuple[Machine, ...]:
        # Nobody can end what is at a provider that the file names no more, or tell that it is gone.
        named = (one for one in orphans if self._names(one.provider))
        return self._as_machines.of(named, now)

    def _names(self, provider: str) -> bool:
        return not_named(provider, self._settings.providers) is None

    def orphan(self, provider: str, instance_id: str) -> KnownOrphan | None:
        """Return the orphan as it is committed; None: it is not, or is gone."""
        return self._orphans.get(provider, instance_id)

    def orphan_is_to_end(self, provider: str, instance_id: str) -> bool:
        """Return whether an admin had this orphan ended, as far as that is committed."""
        return self._orphans.is_to_end(provider, instance_id)

    def leave_out_events(self) -> None:
        """The database refuses the events that were offered, or the orphans."""
        self._orphans.refused()

    def put(self, machine: Machine) -> None:
        """Take over the record as it is decided."""
        self._records.put(machine)

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
            self._orphans.terms_changed()
        self._last.note_change()
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
        self._records.penalties.forget_refused(provider)
        self._records.sizes.forget(provider)
        self._last.note_change()
        self._wake()

    def note_change(self) -> None:
        """Note that runs, nodes or fleets changed in this turn."""
        self._last.note_change()

    def decide(
        self,
        nodes: Mapping[str, Node],
        fleets: Mapping[str, Fleet],
        is_used: Callable[[str], bool],
        now: float,
    ) -> Turned:
        """Return what changes now. It counts as decided; `stored` must follow the commit."""
        self._forget_old(now)
        penalties = self._records.penalties
        penalties.note_time(now)
        self._last.note_time(now)
        self._last.note_month(self._settings.month_of(now))
        inbox, self._inbox = self._inbox, {}
        # Before anything is ordered: what a list has just shown counts in this turn's budgets.
        terms = OrphanTerms(self._offers, fleets, self.machines)
        events = self._orphans.offer(now, terms)
        if self._orphans.offered:
            # What is gone or forgotten leaves room in budgets; a price that is known takes some.
            self._last.note_change()
        orphans = self._paid(self._orphans.decided, now)
        turn = MachineTurn(
            self._records, self._last, self._settings, nodes, fleets, is_used, orphans, now
        )
        turn.events, turn.orphans = events, self._orphans.offered
        for machine in list(self.machines.values()):
            if machine.is_live:
                turn.move(machine, inbox.get(machine.id, ()))
        turn.end_broken_orders()
        if self._last.is_due(now, penalties.next_end(self._last.at)):
            self._last.begin(now)
            found = self._demand(now)
            self.reasons = found.reasons
            self._last.found(found)
            turn.answers = found.answers
            turn.release_unused()
            turn.order(found.orders, self.account_of)
        return turn.result()

    def _forget_old(self, now: float) -> None:
        """Forget once a day what a controller that starts would not load: each turn goes through
        all records, and the days of these are summed up."""
        since = now - self._forgot_at
        if 0.0 <= since < _FORGETS_EVERY_SECONDS:
            return
        self._forgot_at = now
        # A clock that jumps may be put back, and the month's budget must still know its machines.
        if 0.0 <= since < 2 * _FORGETS_EVERY_SECONDS:
            for machine_id in self._records.forget_ended(now - KEPT_SECONDS):
                self.committed.pop(machine_id, None)

    @property
    def _offers(self) -> dict[str, tuple[Offer, ...]]:
        return {name: one.offers for name, one in self._supplies.items()}

    def market(self, now: float) -> Market:
        """Return what can be bought."""
        rented_out = self._offers
        every = (offer for offers in rented_out.values() for offer in offers)
        return Market(
            offers={
                name: [self._records.sizes.of(offer, now) for offer in offers]
                for name, offers in rented_out.items()
            },
            had_less={
                offer.key: name
                for offer in every
                if (name := self._records.sizes.smaller(offer, now)) is not None
            },
            unknown={name: one.unknown for name, one in self._supplies.items()},
            away=self._away,
            penalties=self._records.penalties,
            month=self._settings.month(now),
            spending=self._settings.spending,
            orphans=self._paid(self._orphans.decided, now),
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
        times = [self._records.penalties.next_end(now)]
        times.append(self._last.next_at(has_units=bool(self._index.units)))
        month, machines = self._settings.month(now), self.machines.values()
        orphans = self._paid(self._orphans.decided, now)
        purses = purses_of(fleets, machines, self._settings.spending, now, month, orphans)
        standing = standing_of(fleets, machines, purses)
        # A kept machine changes nothing by itself, however long: its budget ends all the same.
        times.append(purses.used_up_at())
        if standing and month.ends > now:
            # What a fleet keeps is ordered again although nothing waits.
            times.append(month.ends)
        for machine in machines:
            if machine.is_live:
                node, own = nodes.get(machine.id), standing.get(machine.fleet)
                around = surroundings(machine, node, own, self._last)
                times.append(life.wakes_at(machine, around))
        return min((max(at, now + DEMAND_EVERY_SECONDS) for at in times if at), default=None)


def _price(offers: Counter[Offer]) -> float:
    return sum(offer.price * count for offer, count in offers.items())
