"""Machines whose provider or region the controller's file does not name: nothing could end them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping

from controller.lifecycle.machines.model import Machine
from controller.lifecycle.machines.orphans import KnownOrphan


def homeless(
    regions: Mapping[str, Collection[str] | None], machines: Iterable[Machine]
) -> str | None:
    """Return which live machine the file leaves out, and the fix; None: it names all of them.

    `regions`: those that the file names, by provider; None: the provider has no regions.
    """
    for machine in machines:
        if not machine.is_live:
            continue
        provider, region = machine.offer.provider, machine.offer.region
        if provider not in regions:
            missing, where = f"provider {provider}", "`providers`"
        elif (named := regions[provider]) is not None and region not in named:
            missing, where = f"region {region} of provider {provider}", f"providers.{provider}"
        else:
            continue
        return (
            f"machine {machine.name} lives at {missing}, which --config does not "
            f"name: put it back under {where}, until `fairlead machine list` is empty"
        )
    return None


def homeless_orphan(
    regions: Mapping[str, Collection[str] | None], orphan: KnownOrphan
) -> str | None:
    """Return why no list can have this orphan, and the fix; None: one can. `regions`: as above."""
    provider, region = orphan.provider, orphan.traits.region
    fix = (
        f"put it back, or see at the provider that the machine has ended and run `fairlead machine "
        f"forget {shlex.quote(orphan.name)}`"
    )
    if provider not in regions:
        what = (
            f"the controller's file names no provider {provider}, so no budget counts the machine"
        )
        return f"{what} and nothing ends it: {fix}"
    named = regions[provider]
    if named is None or region is None or region in named:
        return None
    what = f"the controller's file names no region {region} of provider {provider}"
    return f"{what}, so nothing ends it: {fix}"
