"""Turns: gangs that were refused machines order one at a time (docs/rules.md 12.5).

Two gangs that order together where only one of them has room each get a part, give it back, wait
equally long and order together again, for ever. And a gang for which there is never room enough
would go first for ever, so a refused one gives way to those behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from controller.lifecycle.machines.model import Machine, MachineEnd, MachineStatus, Offer
from controller.scheduling.queue import Kind, Unit

TURNS_SECONDS = 7200.0
"""An offer that was refused may be left out for an hour: both gangs come back only then."""

_Place = tuple[str, str | None]
"""Provider and region; no region: all of the provider, since a quota may be the account's."""
_Class = tuple[bool, int, int]


class GangTurns:
    """What the records tell of gangs' orders, and what the present look adds to them."""

    def __init__(self, machines: Iterable[Machine], now: float) -> None:
        self._refused: set[_Place] = set()
        self._refused_at: dict[str, float] = {}
        """The time of a run's latest order that was refused, by the run's id."""
        self._refused_keys: set[tuple[str, str]] = set()
        """Which run was refused which offer."""
        self._gave_way_at: list[float] = []
        """When those were refused that gave way in this look."""
        self._asking: set[_Place] = set()
        """Where requests for gangs are not answered yet."""
        for one in machines:
            if one.group is None or one.run_id is None:
                continue
            # Either way: the clock may have been put back since.
            if _is_refused(one) and abs(now - one.ordered_at) < TURNS_SECONDS:
                at = max(one.ordered_at, self._refused_at.get(one.run_id, 0.0))
                self._refused_at[one.run_id] = at
                self._refused_keys.add((one.run_id, one.offer.key))
                is_quota = one.end is MachineEnd.QUOTA_REACHED
                self._refused.add((one.offer.provider, None if is_quota else one.offer.region))
            elif one.status is MachineStatus.PROVISIONING and one.instance_id is None:
                self._asking.update(_places(one.offer))

    def in_order(self, units: Sequence[Unit]) -> list[Unit]:
        """Return the units in the order of the queue, but among gangs of one band and priority the
        one that was refused last is the last."""
        if not self._refused_at:
            return list(units)
        gangs: dict[_Class, list[Unit]] = {}
        for unit in units:
            if unit.kind is Kind.TOGETHER:
                gangs.setdefault(_class(unit), []).append(unit)
        turns: dict[_Class, Iterator[Unit]] = {
            name: iter(sorted(found, key=lambda one: self._refused_at.get(one.run.id, 0.0)))
            for name, found in gangs.items()
        }
        return [next(turns[_class(one)]) if one.kind is Kind.TOGETHER else one for one in units]

    def gives_way(self, unit: Unit, offers: Sequence[Offer]) -> bool:
        """Return whether the gang was refused one of these, which it would order now: it comes
        after those behind it."""
        if not self.was_refused(unit, offers):
            return False
        self._gave_way_at.append(self._refused_at[unit.run.id])
        return True

    def was_refused(self, unit: Unit, offers: Sequence[Offer]) -> bool:
        """Return whether the gang was refused one of these not long ago."""
        return any((unit.run.id, offer.key) in self._refused_keys for offer in offers)

    def is_too_late(self, unit: Unit) -> bool:
        """Return whether the gang came only after one before it was refused: that one's next try is
        first. Else ever new gangs would pass it."""
        if unit.kind is not Kind.TOGETHER or not self._gave_way_at:
            return False
        since = min(member.attempt.submitted_at for member in unit.members)
        return since >= min(self._gave_way_at)

    def second_round(self, units: Sequence[Unit]) -> list[Unit]:
        """Return those that gave way, the one that was refused last as the last, and then those
        that came too late."""
        last = float("inf")
        return sorted(units, key=lambda one: self._refused_at.get(one.run.id, last))

    def waits(self, offers: Sequence[Offer]) -> str | None:
        """Return where a gang must wait for another one's turn before it orders these; None: it may
        order them."""
        if len(offers) < 2:
            return None
        wanted = dict.fromkeys(place for offer in offers for place in _places(offer))
        busy = (one for one in wanted if one in self._refused and one in self._asking)
        if (place := next(busy, None)) is None:
            return None
        provider, region = place
        return f"provider {provider}" if region is None else f"region {region}"

    def take(self, offers: Sequence[Offer]) -> None:
        """Note that these are ordered for a gang."""
        if len(offers) > 1:
            self._asking.update(place for offer in offers for place in _places(offer))


def _is_refused(machine: Machine) -> bool:
    refused = machine.end in (MachineEnd.NO_CAPACITY, MachineEnd.QUOTA_REACHED)
    return refused and machine.joined_at is None


def _places(offer: Offer) -> tuple[_Place, _Place]:
    return (offer.provider, offer.region), (offer.provider, None)


def _class(unit: Unit) -> _Class:
    return not unit.is_replacement, unit.band, unit.run.policy.priority
