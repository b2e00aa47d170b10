"""The market: which offers a fleet allows, in which order they are tried, and what may be spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from controller.lifecycle.inventory import Budget, Fleet, MachinesPolicy, Spending, Spot
from controller.lifecycle.machines.model import Machine, MachineEnd, Offer, Reach, cost_between
from controller.lifecycle.renting_reasons import FleetAtMost, OverBudget, all_of
from fairlead.model.costs import price_words

_FIRST_PENALTY = {
    # Karpenter leaves an offering out for 3 minutes after it had no capacity.
    MachineEnd.NO_CAPACITY: 180.0,
    MachineEnd.QUOTA_REACHED: 600.0,
    MachineEnd.REFUSED: 600.0,
    MachineEnd.BOOT_FAILED: 600.0,
    # Once may be bad luck, and the fleet may have no other offer.
    MachineEnd.LOST: 180.0,
}
FAILED = frozenset({MachineEnd.BOOT_FAILED, MachineEnd.LOST})
"""Of these, the provider had made a machine."""
_MAX_PENALTY = 3600.0
_TOLERANCE = 1e-9
"""Of a budget: three machines for 0.1 cost 0.30000000000000004."""


class Penalty(msgspec.Struct, frozen=True, kw_only=True):
    """An offer that was refused is not tried again before `until`, nor is another one in `reach`
    of the refusal. `message`: the refusal."""

    until: float
    wait: float
    end: MachineEnd
    reach: Reach = Reach.OFFER
    message: str | None = None
    short_lived: bool = False
    """Its machines become nodes and are lost: that another one becomes a node tells nothing."""


class Penalties:
    """What was refused, by the offers that the refusal holds for. It is not stored, and follows
    from the records of machines: a controller that is restarted in a drought does not ask for
    everything again."""

    def __init__(
        self, machines: Iterable[Machine] = (), setups: Mapping[str, str] | None = None
    ) -> None:
        """`machines`: the records so far. `setups`: a digest of what the controller's file says of
        each provider."""
        self._known: dict[_Key, Penalty] = {}
        for at, came, machine in sorted(_outcomes(machines), key=lambda one: one[:2]):
            if came:
                self.came(machine)
            elif machine.end is not MachineEnd.REFUSED or not machine.is_of_another_setup(
                setups or {}
            ):
                self.add_failed(machine, at)

    def add_failed(self, machine: Machine, now: float, after: float | None = None) -> None:
        """Leave out the offer of a machine that failed (`failure_of`), if it did."""
        end = failure_of(machine)
        if end is not None:
            message = machine.message
            if machine.short_lived:
                message = f"machine {machine.name} was lost: {message}"
            self.add(
                machine.offer,
                end,
                now,
                after=after,
                message=message,
                reach=machine.reach,
                ordered_at=machine.ordered_at,
                short_lived=machine.short_lived,
            )

    def add(
        self,
        offer: Offer,
        end: MachineEnd,
        now: float,
        after: float | None = None,
        message: str | None = None,
        reach: Reach = Reach.OFFER,
        ordered_at: float | None = None,
        short_lived: bool = False,
    ) -> None:
        """Leave the offer out for some time, and those in `reach`; each refusal in a row doubles
        it.

        `after`: the least time that the provider asks for. `ordered_at`: when what failed was
        ordered; None: now.
        """
        key = _quota_key(offer) if end is MachineEnd.QUOTA_REACHED else _key(offer, reach)
        before = self._known.get(key)
        # Machines of one order are refused together: that is one refusal, not eight.
        if before is not None and before.until > now:
            return
        first = _FIRST_PENALTY[end]
        # From the order: a boot may take longer to fail than its offer was left out.
        tried_at = now if ordered_at is None else ordered_at
        is_in_a_row = before is not None and tried_at - before.until < before.wait
        wait = min(_MAX_PENALTY, 2 * before.wait) if before and is_in_a_row else first
        wait = max(wait, after or 0.0)
        self._known[key] = Penalty(
            until=now + wait,
            wait=wait,
            end=end,
            reach=reach,
            message=message,
            short_lived=short_lived,
        )

    def came(self, machine: Machine) -> None:
        """Forget refusals that hold for the offer of a machine that became a node. What was ordered
        before a refusal tells nothing of it: the last machine of a quota boots after it."""
        for key in _keys(machine.offer):
            known = self._known.get(key)
            if known is None or known.short_lived:
                continue
            if known.end in FAILED or machine.ordered_at > known.until - known.wait:
                del self._known[key]

    def forget_refused(self, provider: str) -> None:
        """Forget the requests that the provider refused as such: they would work now."""
        self._known = {
            key: one
            for key, one in self._known.items()
            if key[1] != provider or one.end is not MachineEnd.REFUSED
        }

    def note_time(self, now: float) -> None:
        """Leave no offer out for longer from now on than its refusal says, as if the clock had been
        put back since."""
        for key, one in self._known.items():
            if one.until - now > one.wait:
                self._known[key] = msgspec.structs.replace(one, until=now + one.wait)

    def until(self, offer: Offer, now: float) -> float | None:
        """Return when the offer may be tried again; None: now."""
        known = self.of(offer)
        return None if known is None or known.until <= now else known.until

    def of(self, offer: Offer) -> Penalty | None:
        """Return the refusal that keeps the offer out for longest."""
        known = [one for key in _keys(offer) if (one := self._known.get(key)) is not None]
        return max(known, key=lambda one: one.until, default=None)

    def tried(self, offers: Iterable[Offer], now: float) -> list[Offer]:
        """Return the offers but those that are left out for what another one was refused for: what
        the file names wrong for all of them, or a quota, of which the first one stays."""
        found, quotas = [], set[_Key]()
        for one in offers:
            known = self.of(one)
            if known is not None and known.until > now:
                if known.reach is not Reach.OFFER or (key := _quota_key(one)) in quotas:
                    continue
                if known.end is MachineEnd.QUOTA_REACHED:
                    quotas.add(key)
            found.append(one)
        return found

    def next_end(self, now: float) -> float | None:
        """Return when the next penalty ends."""
        return min((one.until for one in self._known.values() if one.until > now), default=None)


_Key = tuple[str, str, str]


def _keys(offer: Offer) -> list[_Key]:
    """Return what each refusal that holds for the offer would be remembered by."""
    return [*(_key(offer, reach) for reach in Reach), _quota_key(offer)]


def _quota_key(offer: Offer) -> _Key:
    """Return what a quota is remembered by: clouds have one for each region and kind of machine,
    so the other zones of the region would be refused, too."""
    return "quota", offer.provider, msgspec.structs.replace(offer, zone=None).key


def _key(offer: Offer, reach: Reach) -> _Key:
    """Return what a refusal of this reach is remembered by; its second part is the provider."""
    match reach:
        case Reach.OFFER:
            where = offer.key
        case Reach.ZONE:
            where = f"{offer.region}/{offer.zone}"
        case Reach.REGION:
            where = offer.region
        case Reach.PROVIDER:
            where = ""
    return reach, offer.provider, where


def failure_of(machine: Machine) -> MachineEnd | None:
    """Return how the machine failed, so that its offer is left out; None: it did not."""
    if machine.short_lived:
        return MachineEnd.LOST
    never_came = machine.joined_at is None and machine.end in _FIRST_PENALTY
    return machine.end if never_came else None


def _outcomes(machines: Iterable[Machine]) -> Iterator[tuple[float, bool, Machine]]:
    """Yield when each machine came (True) or failed; the record of a refused one has no later time
    than its order."""
    for one in machines:
        if one.joined_at is not None:
            yield one.joined_at, True, one
        if failure_of(one) is not None:
            yield one.terminating_at or one.ordered_at, False, one


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider rents. `account`: where it makes machines, if it tells that. `unknown`: why
    the offers of a region or zone are not known, by its name. `barred`: why nothing is bought from
    it; it has no offers then."""

    offers: tuple[Offer, ...] = ()
    account: str | None = None
    unknown: Mapping[str, str] = {}
    barred: str | None = None


class Month(msgspec.Struct, frozen=True):
    """A month of the UTC calendar (Unix times), as budgets count it. It ends when the next one
    begins; `next_day`: that day, such as 2026-12-01."""

    began: float = 0.0
    ends: float = math.inf
    next_day: str | None = None


class Market(msgspec.Struct, frozen=True, kw_only=True):
    """What can be bought now. `away`: why a provider tells no offers. `unknown`: as in its
    supply."""

    offers: Mapping[str, Sequence[Offer]] = {}
    """By provider."""
    unknown: Mapping[str, Mapping[str, str]] = {}
    """By provider."""
    away: Mapping[str, str] = {}
    penalties: Penalties
    month: Month = Month()
    """The present one."""
    spending: Spending = Spending()
    providers: frozenset[str] | None = None
    """Those of the controller's file; None: it is not known which it has."""
    orphans: Sequence[Machine] = ()
    """Those that cost money, as machines: budgets count them."""
    had_less: Mapping[str, str] = {}
    """The machines that had less than their provider promised, by the key of the offer; `offers`
    has what they had."""


def not_named(provider: str, providers: frozenset[str] | None) -> str | None:
    """Return what is wrong with a fleet's provider that the controller's file does not name, and
    the fix; None: it names it. A file may lose a provider as soon as no machine of it lives."""
    if providers is None or provider in providers:
        return None
    has = ", ".join(sorted(providers)) or "none"
    return (
        f"the controller's file names no provider {provider} (it has {has}): put it back there, or "
        "apply the fleet with another one or with `machines: off`"
    )


def allowed(policy: MachinesPolicy, offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers that the fleet's file allows; what a machine must have is not asked
    here."""
    return [offer for offer in offers if all(allows(policy, offer) for _, allows in _LIMITS)]


def unknown_for(policy: MachinesPolicy, unknown: Mapping[str, str]) -> str | None:
    """Return which offers that the fleet's file may allow are not known, and why; None: all are.
    `unknown`: by the name of a region or zone; a zone's name begins with that of its region."""
    places = [*policy.zones, *([] if policy.zones else policy.regions)]
    found = [
        f"those in {name} ({why})"
        for name, why in unknown.items()
        if not places or any(one.startswith(name) or name.startswith(one) for one in places)
    ]
    return ", ".join(found) or None


def why_none_allowed(policy: MachinesPolicy, offers: Sequence[Offer]) -> str:
    """Return why the fleet's file allows none of these, by the field that leaves out the last of
    them."""
    left = list(offers)
    if not left:
        return "its provider has no offers"
    for field, allows in _LIMITS:
        if not (kept := [one for one in left if allows(policy, one)]):
            among = "" if len(left) == len(offers) else " that its other fields allow"
            there = _there(field, left)
            return f"`machines.{field}` of its file allows no offer of its provider{among}{there}"
        left = kept
    return "its provider has no offer for it"


def _there(field: str, offers: Iterable[Offer]) -> str:
    """Return what the offers have in place of what the field wants, as the end of a sentence."""
    if field == "max_price":
        return f", whose cheapest costs {price_words(min(one.price for one in offers))} an hour"
    if field == "spot":
        return f", which has {'spot machines' if next(iter(offers)).spot else 'none as spot'} alone"
    if (value := _VALUES.get(field)) is None:
        return ""
    known = sorted({found for one in offers if (found := value(one)) is not None})
    if not known:
        return ", which names none"
    more = ", …" if len(known) > _MAX_NAMED else ""
    return f", which has {', '.join(known[:_MAX_NAMED])}{more}"


_MAX_NAMED = 4
_VALUES: Mapping[str, Callable[[Offer], str | None]] = {
    "instance_types": lambda one: one.instance_type,
    "regions": lambda one: one.region,
    "availability_zones": lambda one: one.zone,
}
_LIMITS: tuple[tuple[str, Callable[[MachinesPolicy, Offer], bool]], ...] = (
    (
        "instance_types",
        lambda policy, one: not policy.instance_types or one.instance_type in policy.instance_types,
    ),
    ("regions", lambda policy, one: not policy.regions or one.region in policy.regions),
    ("availability_zones", lambda policy, one: not policy.zones or one.zone in policy.zones),
    ("max_price", lambda policy, one: policy.max_price is None or one.price <= policy.max_price),
    (
        "spot",
        lambda policy, one: policy.spot is Spot.AUTO or one.spot is (policy.spot is Spot.ONLY),
    ),
)
"""The fields of a fleet's file that limit offers."""


def in_order(offers: Iterable[Offer], *, on_demand_first: bool = False) -> list[Offer]:
    """Sort the offers as they are tried: spot first, then by price. `on_demand_first`: for a job
    that lost a spot machine."""
    return sorted(
        offers, key=lambda one: (one.spot == on_demand_first, one.price, one.cpu, one.key)
    )


class Purse:
    """What its owner (a fleet, a user, the installation) may still buy, counted down by each order
    of one turn. `machines`: the owner's; `most`: how many there may be; `orphans`: the owner's, as
    machines, which cost money and are none of these."""

    def __init__(
        self,
        owner: str,
        budget: Budget,
        machines: Iterable[Machine],
        now: float,
        month: Month,
        most: int | None = None,
        orphans: Iterable[Machine] = (),
    ) -> None:
        own, others = list(machines), list(orphans)
        live = [one for one in own if one.is_live]
        live_orphans = [one for one in others if one.is_live]
        self._owner = owner
        self._most = most
        self._budget = budget
        self._count = len(live)
        self._orphans = len(live_orphans)
        self._per_hour = sum(one.offer.price for one in (*live, *live_orphans))
        self._month = month
        self._spent = sum(cost_between(one, month.began, now) for one in (*own, *others))

    def refuses(self, offers: Sequence[Offer]) -> FleetAtMost | OverBudget | None:
        """Return why these offers together may not be bought; None: they may."""
        price = sum(offer.price for offer in offers)
        if self._most is not None and self._count + len(offers) > self._most:
            if self._count >= self._most:
                return FleetAtMost(owner=self._owner, most=self._most)
            return FleetAtMost(
                owner=self._owner, most=self._most, has=self._count, asked=len(offers)
            )
        if (most := self._budget.per_hour) is not None and _exceeds(self._per_hour + price, most):
            return self._over("an hour", most, self._per_hour, price, None)
        # All that is live may go on for an hour, the longest step in which providers bill.
        soon = self._spent + self._per_hour
        if (most := self._budget.per_month) is not None and _exceeds(soon + price, most):
            # What is spent grows all the time: by hundredths, so that the reason, which is stored
            # with each job that waits, does not change at each look.
            step = most / 100 or 1.0
            # The next month begins with what is live now, and that may be too much for it, too.
            helps = not _exceeds(self._per_hour + price, most)
            next_month = self._month.next_day if helps else None
            return self._over("a month", most, math.ceil(soon / step) * step, price, next_month)
        return None

    def take(self, offers: Sequence[Offer]) -> None:
        self._count += len(offers)
        self._per_hour += sum(offer.price for offer in offers)

    @property
    def count(self) -> int:
        """The machines that are live or ordered."""
        return self._count

    @property
    def is_over_month(self) -> bool:
        """Whether the month's budget is used up."""
        return self._budget.per_month is not None and self._spent >= self._budget.per_month

    def used_up_at(self, now: float) -> float | None:
        """Return when the month's budget will be used up by what is live; None: it is already, or
        nothing uses it."""
        most = self._budget.per_month
        if most is None or self.is_over_month or not self._per_hour:
            return None
        return now + (most - self._spent) / self._per_hour * 3600.0

    def _over(
        self, limit: str, most: float, spent: float, asked: float, next_month: str | None
    ) -> OverBudget:
        return OverBudget(
            owner=self._owner,
            limit=limit,
            allowed=most,
            spent=spent,
            asked=asked,
            orphans=self._orphans,
            next_month=next_month,
        )


def _exceeds(cost: float, most: float) -> bool:
    return cost > most * (1.0 + _TOLERANCE)


def purse_of_fleet(
    fleet: Fleet,
    machines: Iterable[Machine],
    now: float,
    month: Month,
    orphans: Iterable[Machine] = (),
) -> Purse:
    """Return what the fleet may buy."""
    assert fleet.machines is not None
    own = (one for one in machines if one.fleet == fleet.name)
    others = (one for one in orphans if one.fleet == fleet.name)
    most = fleet.machines.max
    return Purse(f"fleet {fleet.name}", fleet.budget, own, now, month, most, others)


class Purses:
    """The purses from which an order is paid: its fleet's, its user's, the installation's."""

    def __init__(
        self,
        fleets: Iterable[Fleet],
        spending: Spending,
        machines: Sequence[Machine],
        now: float,
        month: Month,
        orphans: Sequence[Machine] = (),
    ) -> None:
        """`orphans`: those that cost money, as machines."""
        self._machines = machines
        self._orphans = orphans
        self._spending = spending
        self._now = now
        self._month = month
        self._users: dict[str, Purse] = {}
        self._fleets = {
            one.name: purse_of_fleet(one, machines, now, month, orphans) for one in fleets
        }
        self._together = Purse(
            "this installation", spending.together, machines, now, month, orphans=orphans
        )

    def fleet(self, name: str) -> Purse:
        return self._fleets[name]

    def refuses(
        self, fleet: str, user: str | None, offers: Sequence[Offer]
    ) -> FleetAtMost | OverBudget | None:
        """Return why these offers together may not be bought; None: they may."""
        every = [
            refusal for one in self._of(fleet, user) if (refusal := one.refuses(offers)) is not None
        ]
        return all_of(every) if every else None

    def take(self, fleet: str, user: str | None, offers: Sequence[Offer]) -> None:
        for one in self._of(fleet, user):
            one.take(offers)

    def is_broke(self, user: str | None) -> bool:
        """Return whether the month's budget of the user, or of the installation, is used up."""
        broke = self._together.is_over_month
        return broke or (user is not None and self._user(user).is_over_month)

    def used_up_at(self) -> float | None:
        """Return when what is live will have used up the first budget of the month; None: none."""
        every_one = (*self._machines, *self._orphans)
        users = {one.user for one in every_one if one.is_live and one.user is not None}
        # Each purse goes through all records, in each turn: none for those without a limit.
        limited = [one for one in users if self._spending.of(one).per_month is not None]
        every = (*self._fleets.values(), self._together, *map(self._user, limited))
        times = (one.used_up_at(self._now) for one in every)
        return min((at for at in times if at is not None), default=None)

    def _of(self, fleet: str, user: str | None) -> list[Purse]:
        always = [self._fleets[fleet], self._together]
        return always if user is None else [*always, self._user(user)]

    def _user(self, user: str) -> Purse:
        if user not in self._users:
            own = (one for one in self._machines if one.user == user)
            orphans = (one for one in self._orphans if one.user == user)
            budget = self._spending.of(user)
            self._users[user] = Purse(
                f"user {user}", budget, own, self._now, self._month, orphans=orphans
            )
        return self._users[user]
