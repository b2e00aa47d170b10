"""Sizes: what machines turned out to have, where that is less than their offers promise.

A machine without the GPUs of its offer, such as one whose image lacks their driver, holds no job
that needs them. Bought by the promise, the next one would be as useless, and so on up to the
budget.
"""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.inventory import NodeCapacity
from controller.lifecycle.machines.model import GpuOffer, Machine, Offer

KNOWN_SECONDS = 3600.0
"""After this time the promise counts again, as after the longest penalty: an image may be mended,
or one machine had a fault."""


class Seen:
    """The latest machine of an offer that became a node. `at`: Unix time."""

    def __init__(self, machine: Machine, capacity: NodeCapacity, at: float) -> None:
        self.name = machine.name
        self.until = at + KNOWN_SECONDS
        self._capacity = capacity

    def at_most(self, offer: Offer) -> Offer:
        """Return the offer with no more than the machine had; the same object if it had that."""
        has = self._capacity
        changed = replace(
            offer,
            cpu=min(offer.cpu, has.cpu),
            memory=min(offer.memory, has.memory),
            disk=min(offer.disk, has.disk),
            gpus=self._gpus(offer),
        )
        return offer if changed == offer else changed

    def _gpus(self, offer: Offer) -> tuple[GpuOffer, ...]:
        # One that is broken is there: another machine of the offer has it.
        left = len({one.board for one in self._capacity.gpus})
        found = []
        for one in offer.gpus:
            count = min(one.count, left)
            left -= count
            found.append(replace(one, count=count))
        return tuple(one for one in found if one.count)


class Sizes:
    """What the latest machine of each offer had. It is not stored: after a restart of the
    controller the promises count again."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}

    def joined(self, machine: Machine, capacity: NodeCapacity, now: float) -> None:
        """Note what a machine has that became a node."""
        self._seen[machine.offer.key] = Seen(machine, capacity, now)

    def of(self, offer: Offer, now: float) -> Offer:
        """Return the offer with what a machine of it really has."""
        seen = self._seen.get(offer.key)
        return offer if seen is None or seen.until <= now else seen.at_most(offer)

    def smaller(self, offer: Offer, now: float) -> Seen | None:
        """Return the machine that had less than this offer of the provider promises; None: none."""
        return None if self.of(offer, now) is offer else self._seen[offer.key]

    def forget(self, provider: str) -> None:
        """Count with the promises of the provider again."""
        self._seen = {
            key: one for key, one in self._seen.items() if not key.startswith(f"{provider}/")
        }
