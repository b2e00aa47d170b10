"""Why offers are left out: what their provider refused before, in the words of a waiting job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.lifecycle.machines.market import FAILED, Penalties, Penalty
from controller.lifecycle.machines.model import MachineEnd, Offer, Reach
from controller.lifecycle.renting_reasons import NoCapacity, QuotaOfProvider, SetupRefused

LeftOut = NoCapacity | QuotaOfProvider | SetupRefused
MAX_TRIES = 25
"""The number of offers that one unit tries in one look at the queue."""


def why_left_out(
    fleet: str, offers: Iterable[Offer], penalties: Penalties, now: float, unknown: str | None
) -> LeftOut:
    """Return why those of the offers that are left out may not be tried now; one is at least.
    `unknown`: which offers are not known, and why."""
    left_out = [
        (one, why) for one in offers if (why := penalties.of(one)) is not None and why.until > now
    ]
    shared = [(one, why) for one, why in left_out if why.reach is not Reach.OFFER]
    alone = _each_once(left_out)[:MAX_TRIES]
    first = min(why.until for _, why in (*shared, *alone))
    where = tuple(dict.fromkeys(one.within(why.reach) for one, why in shared))
    setup = shared[0][1].message or "it does not say why" if shared else None
    if setup is not None and not alone:
        return SetupRefused(fleet=fleet, where=where, detail=setup, next_at=first, unknown=unknown)
    if setup is None and all(why.end is MachineEnd.QUOTA_REACHED for _, why in alone):
        detail = alone[0][1].message or "it does not say which"
        return QuotaOfProvider(fleet=fleet, detail=detail, next_at=first, unknown=unknown)
    cause = _why_besides_capacity(alone)
    if setup is not None:
        cause = f"each order {', '.join(where)} would be refused: {setup}"
    return NoCapacity(
        fleet=fleet,
        tried=tuple(one.words() for one, why in alone if why.end not in FAILED),
        failed=tuple(one.words() for one, why in alone if why.end in FAILED),
        next_at=first,
        detail=cause,
        unknown=unknown,
    )


def _each_once(left_out: Iterable[tuple[Offer, Penalty]]) -> list[tuple[Offer, Penalty]]:
    """Return the offers that were refused for themselves. Of those that share a quota, only the
    first one was asked for."""
    alone = ((one, why) for one, why in left_out if why.reach is Reach.OFFER)
    first: dict[int, tuple[Offer, Penalty]] = {}
    for offer, why in alone:
        first.setdefault(id(why), (offer, why))
    return list(first.values())


def _why_besides_capacity(refused: Sequence[tuple[Offer, Penalty]]) -> str | None:
    """Return why the first of these offers was refused that has another reason than capacity."""
    for at, (offer, why) in enumerate(refused):
        if why.end is not MachineEnd.NO_CAPACITY and why.message is not None:
            # A quota behind three zones that are full is what an admin can change.
            return why.message if at == 0 else f"{offer.words()}: {why.message}"
    return None
