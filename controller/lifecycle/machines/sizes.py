"""Sizes: what machines turned out to have, where that is less than their offers promise.

A machine without the GPUs of its offer, such as one whose image lacks their driver, holds no job
that needs them. Bought by the promise, the next one would be as useless, and so on up to the
budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from controller.lifecycle.inventory import NodeCapacity
from controller.lifecycle.machines.model import GpuOffer, Machine, Offer, Size

KNOWN_SECONDS = 3600.0
"""After this time the promise counts again, as after the longest penalty: an image may be mended,
or one machine had a fault."""


def size_of(capacity: NodeCapacity) -> Size:
    """Return what a node has. A GPU that is broken is there: another machine of the offer has
    it."""
    return Size(
        cpu=capacity.cpu,
        memory=capacity.memory,
        disk=capacity.disk,
        gpus=len({one.board for one in capacity.gpus}),
    )


class Sizes:
    """What the latest machine of each offer had. It is not stored, and follows from the records of
    machines: a controller that is restarted does not buy the useless ones again."""

    def __init__(
        self, machines: Iterable[Machine] = (), setups: Mapping[str, str] | None = None
    ) -> None:
        """`machines`: the records so far. `setups`: a digest of what the controller's file says of
        each provider."""
        self._seen: dict[str, Machine] = {}
        for one in sorted(machines, key=lambda one: one.joined_at or 0.0):
            if not one.is_of_another_setup(setups or {}):
                self.joined(one)

    def joined(self, machine: Machine) -> None:
        """Note what a machine has that became a node."""
        if machine.joined_at is not None and machine.size is not None:
            self._seen[machine.offer.key] = machine

    def of(self, offer: Offer, now: float) -> Offer:
        """Return the offer with what a machine of it really has; the same object if it has that."""
        seen = self._seen.get(offer.key)
        if seen is None or seen.size is None or seen.joined_at is None:
            return offer
        # The clock may have been put back since.
        is_known = abs(now - seen.joined_at) < KNOWN_SECONDS
        return _at_most(offer, seen.size) if is_known else offer

    def smaller(self, offer: Offer, now: float) -> str | None:
        """Return the name of the machine that had less than this offer of the provider promises;
        None: none."""
        return None if self.of(offer, now) is offer else self._seen[offer.key].name

    def forget(self, provider: str) -> None:
        """Count with the promises of the provider again."""
        self._seen = {key: one for key, one in self._seen.items() if one.offer.provider != provider}


def _at_most(offer: Offer, size: Size) -> Offer:
    changed = replace(
        offer,
        cpu=min(offer.cpu, size.cpu),
        memory=min(offer.memory, size.memory),
        disk=min(offer.disk, size.disk),
        gpus=_gpus_at_most(offer, size.gpus),
    )
    return offer if changed == offer else changed


def _gpus_at_most(offer: Offer, count: int) -> tuple[GpuOffer, ...]:
    left, found = count, []
    for one in offer.gpus:
        some = min(one.count, left)
        left -= some
        found.append(replace(one, count=some))
    return tuple(one for one in found if one.count)
