"""Orphans as they are stored: what is to become of each, and what it costs (docs/rules.md 12.9).

An orphan costs money as each machine does, so budgets and costs count it. Its price is stored once
it is known, as a machine's is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from controller.lifecycle.inventory import Fleet
from controller.lifecycle.machines.market import allowed
from controller.lifecycle.machines.model import Machine, MachineStatus, Offer
from controller.lifecycle.machines.reconcile import ORPHAN_GRACE_SECONDS, Orphan, Traits

KEPT_SECONDS = 35 * 86400.0
"""How long one that is gone counts: its month, as ended machines do."""
_ID_LENGTH = 32
_MAX_LABEL = 63
_NOT_IN_LABELS = re.compile(r"[^a-z0-9_-]")


class OrphanStatus(StrEnum):
    """What is to become of an orphan, as events and users read it."""

    FOUND = "found"
    """It ends after its grace."""
    KEPT = "kept"
    """It is quarantined: it stays until an admin has it ended."""
    ENDING = "ending"
    """An admin has it ended."""
    GONE = "gone"
    """A whole list lacked it."""


class KnownOrphan(msgspec.Struct, frozen=True, kw_only=True):
    """An orphan. `id`: another one where its provider gives its id again. `account`: the provider's
    in which a list had it, if it tells that. `fleet`: of its tag, and
    `user`: of its record; None: that is not known. `price`: of an hour; None: it is not known, and
    counts as nothing. Times are Unix seconds; `costs_since`: it may lie in the future."""

    id: str
    provider: str
    instance_id: str
    account: str | None = None
    machine_id: str | None = None
    fleet: str | None = None
    user: str | None = None
    status: OrphanStatus
    traits: Traits = Traits()
    price: float | None = None
    created_at: float
    found_at: float
    costs_since: float
    gone_at: float | None = None

    @property
    def name(self) -> str:
        return name_of(self.provider, self.instance_id)

    def as_unlisted(self, why: str) -> Orphan:
        """Return it as lists have orphans. `why`: none has it now."""
        return Orphan(
            provider=self.provider,
            instance_id=self.instance_id,
            machine_id=self.machine_id,
            created_at=self.created_at,
            seen_at=self.found_at,
            quarantined=self.status is OrphanStatus.KEPT,
            is_to_end=self.status is OrphanStatus.ENDING,
            fleet=self.fleet,
            traits=self.traits,
            unlisted=why,
        )

    def has_cost(self, now: float) -> bool:
        """Return whether it has cost something by now."""
        # The clock may have been put back since it was found.
        return self.costs_since <= max(now, self.found_at)

    def costs_at(self, now: float) -> bool:
        """Return whether it costs money at this time."""
        return self.gone_at is None and self.has_cost(now)

    def as_machine(self) -> Machine:
        """Return it as a machine that no run pays for, with what counts its cost."""
        traits = self.traits
        return Machine(
            id=self.id,
            name=self.instance_id,
            fleet=self.fleet or "",
            user=self.user,
            offer=Offer(
                provider=self.provider,
                instance_type=traits.instance_type or "",
                region=traits.region or "",
                zone=traits.zone,
                spot=traits.spot,
                price=self.price or 0.0,
                cpu=0.0,
                memory=0,
                disk=0,
            ),
            token="",
            status=MachineStatus.JOINED if self.gone_at is None else MachineStatus.TERMINATED,
            instance_id=self.instance_id,
            ordered_at=self.costs_since,
            terminated_at=self.gone_at,
        )


def name_of(provider: str, instance_id: str) -> str:
    """Return how events name an orphan."""
    return f"{provider}/{instance_id}"


def known(orphan: Orphan, status: OrphanStatus, record: Machine | None, now: float) -> KnownOrphan:
    """Return what is stored of an orphan when a list first has it. `record`: that of its machine,
    which has ended, or has another machine."""
    key = f"{name_of(orphan.provider, orphan.instance_id)} {now}"
    # A program that tells no time says 0, and a provider's clock may be ahead.
    since = min(orphan.created_at or now, now)
    if record is not None and not orphan.is_duplicate:
        # Its record counted it until now, and a list may have what has just ended.
        since = now + ORPHAN_GRACE_SECONDS
    return KnownOrphan(
        id=hashlib.sha256(key.encode()).hexdigest()[:_ID_LENGTH],
        provider=orphan.provider,
        instance_id=orphan.instance_id,
        machine_id=orphan.machine_id,
        fleet=orphan.fleet,
        user=None if record is None else record.user,
        status=status,
        traits=orphan.traits,
        created_at=orphan.created_at,
        found_at=now,
        costs_since=since,
    )


class OrphanTerms:
    """What tells the price and the fleet of orphans. `offers`: the present ones, by provider;
    `records`: those of machines, by id."""

    def __init__(
        self,
        offers: Mapping[str, Sequence[Offer]] | None = None,
        fleets: Mapping[str, Fleet] | None = None,
        records: Mapping[str, Machine] | None = None,
    ) -> None:
        self._offers = offers or {}
        self._fleets = fleets or {}
        self._records = records or {}
        self._exact: dict[str, dict[tuple[object, ...], float]] = {}
        """By provider, the prices by type, region, zone and whether it is a spot machine."""
        self._dearest: dict[tuple[str, str], float] = {}
        """By provider and type."""
        self._of_fleets: dict[str, float | None] = {}

    def record(self, orphan: Orphan) -> Machine | None:
        return self._records.get(orphan.machine_id or "")

    def fleet(self, tag: str | None) -> str | None:
        """Return the fleet that a tag names. A provider's labels may allow fewer characters than
        names of fleets have."""
        if tag is None or tag in self._fleets:
            return tag
        alike = [name for name in self._fleets if _as_label(name) == _as_label(tag)]
        return alike[0] if len(alike) == 1 else tag

    def price(self, orphan: KnownOrphan) -> float | None:
        """Return the price of an hour: that of its order where the record is known; of the present
        offer of its type, region and zone; the dearest of its type; or the dearest that its fleet's
        file allows. None: none of them is known."""
        if (record := self._records.get(orphan.machine_id or "")) is not None:
            return record.offer.price
        self._read(orphan.provider)
        traits = orphan.traits
        key = traits.instance_type, traits.region, traits.zone, traits.spot
        if (price := self._exact[orphan.provider].get(key)) is not None:
            return price
        if (price := self._dearest.get((orphan.provider, traits.instance_type or ""))) is not None:
            return price
        return self._most_of(orphan)

    def _read(self, provider: str) -> None:
        if provider in self._exact:
            return
        exact = self._exact[provider] = {}
        for one in self._offers.get(provider, ()):
            # What is reserved is paid for whether a machine uses it or not.
            if one.reservation is None:
                exact.setdefault((one.instance_type, one.region, one.zone, one.spot), one.price)
                key = provider, one.instance_type
                self._dearest[key] = max(one.price, self._dearest.get(key, 0.0))

    def _most_of(self, orphan: KnownOrphan) -> float | None:
        fleet = self._fleets.get(orphan.fleet or "")
        policy = None if fleet is None else fleet.machines
        if fleet is None or policy is None or policy.provider != orphan.provider:
            return None
        if fleet.name not in self._of_fleets:
            offers = allowed(policy, self._offers.get(orphan.provider, ()))
            self._of_fleets[fleet.name] = max((one.price for one in offers), default=None)
        return self._of_fleets[fleet.name]


def _as_label(name: str) -> str:
    return _NOT_IN_LABELS.sub("-", name.lower())[:_MAX_LABEL]


class OrphanMachines:
    """Orphans as machines, as budgets count them. Each turn asks for them, so each is made once."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[KnownOrphan, Machine]] = {}

    def of(self, orphans: Iterable[KnownOrphan], now: float) -> tuple[Machine, ...]:
        """Return those of the orphans that have cost something by now."""
        found = tuple(self._machine(one) for one in orphans if one.has_cost(now))
        if len(self._made) > 2 * len(found):
            # What is forgotten must not stay for as long as a controller runs.
            there = {one.id for one in found}
            self._made = {key: one for key, one in self._made.items() if key in there}
        return found

    def _machine(self, orphan: KnownOrphan) -> Machine:
        known = self._made.get(orphan.id)
        if known is None or known[0] is not orphan:
            known = self._made[orphan.id] = orphan, orphan.as_machine()
        return known[1]
