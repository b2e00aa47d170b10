"""Whether a fleet's file can rent anything of what its provider has.

So a region that is misspelt is told when the file is applied, and not by the first job that waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.lifecycle.inventory import Fleet, MachinesPolicy
from controller.lifecycle.machines.market import allowed, unknown_for, why_none_allowed
from controller.lifecycle.machines.model import Offer, node_of
from controller.scheduling.fitting.fit import Shortfall, distance, room, shortfalls
from fairlead.model.costs import price_words


def why_never(fleet: Fleet, offers: Sequence[Offer], unknown: Mapping[str, str]) -> str | None:
    """Return why the fleet rents nothing at all, or never its least, and the fix; None: it may.

    `offers`: the present ones of its provider; `unknown`: as in its supply.
    """
    policy = fleet.machines
    if policy is None or unknown_for(policy, unknown) is not None:
        return None
    found = allowed(policy, offers)
    if not found:
        return f"it rents nothing: {why_none_allowed(policy, offers)}"
    enough = [one for one in found if not _lacking(policy, fleet, one)]
    if not enough:
        lacking = {one.instance_type: _lacking(policy, fleet, one) for one in found}
        return f"it rents nothing: {no_least(lacking)}"
    open_ = [one for one in enough if one.reservation is None]
    if policy.min and not open_:
        return (
            "it never has its least machines: its file allows only reserved ones, which are for "
            "runs that name their reservation; lower `machines.nodes.min`"
        )
    return _over_budget(fleet, enough, open_)


def _lacking(policy: MachinesPolicy, fleet: Fleet, offer: Offer) -> list[Shortfall]:
    """Return what a machine of the offer lacks of what the fleet's machines have at least."""
    empty = room(node_of(offer, fleet, offer.key, offer.key), ())
    return [] if policy.resources is None else shortfalls(policy.resources, empty)


def no_least(lacking: Mapping[str, Sequence[Shortfall]]) -> str:
    """Return why no machine has what the fleet's file asks of each. `lacking`: by type of machine,
    one at least; each lacks something."""
    nearest = min(lacking, key=lambda name: distance(lacking[name], name))
    needed, has = lacking[nearest][0].lack.words()
    return (
        f"no offer has the `machines.resources` of its file: it asks for {needed}, and the nearest "
        f"offer, {nearest}, has {has}"
    )


def _over_budget(fleet: Fleet, offers: Sequence[Offer], open_: Sequence[Offer]) -> str | None:
    """`open_`: the offers that are not reserved, of which alone the least machines are."""
    assert fleet.machines is not None
    cheapest, count = min(one.price for one in offers), fleet.machines.min
    least = count * min((one.price for one in open_), default=0.0)
    for field, most in (
        ("per_hour", fleet.budget.per_hour),
        ("per_month", fleet.budget.per_month),
    ):
        if most is None:
            continue
        if cheapest > most:
            return (
                f"it rents nothing: its cheapest machine costs {price_words(cheapest)} an hour, "
                f"and `budget.{field}` is {price_words(most)}"
            )
        if least > most:
            return (
                f"it never has its least machines: {count} of the cheapest ones cost "
                f"{price_words(least)} an hour, and `budget.{field}` is {price_words(most)}; raise "
                f"it, or lower `machines.nodes.min`"
            )
    return None
