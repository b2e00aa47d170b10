"""What the decisions about machines need of an installation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from controller.clock import iso
from controller.lifecycle.inventory import Fleet, Spending
from controller.lifecycle.machines.market import Month

_LONGER_THAN_A_MONTH = 32 * 86400.0


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller knows of a machine before it boots: its public host key, and the digest
    of the token with which it tells its address."""

    host_key: str
    token_digest: str


class RentalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`pin` derives from a machine's id what its user-data will hold. `month_of` returns the start
    of the month of a time (both Unix seconds). `providers`: their names in the controller's file;
    None: it is not known which it has. `regions`: those that lists are of, by provider, which the
    file names; None: all that the provider has."""

    installation: str
    pin: Callable[[str], Pinned]
    new_id: Callable[[], str]
    month_of: Callable[[float], float]
    spending: Spending = Spending()
    providers: frozenset[str] | None = None
    regions: Mapping[str, Collection[str] | None] = {}
    setups: Mapping[str, str] = {}
    """A digest of what the controller's file says of each provider."""

    def month(self, now: float) -> Month:
        """Return the present month."""
        began = self.month_of(now)
        # No month is longer than that, and none so short that this is in the one after the next.
        ends = self.month_of(began + _LONGER_THAN_A_MONTH)
        return Month(began, ends, iso(ends)[: len("2026-12-01")])


def has_rented(machines: Collection[object], fleets: Iterable[Fleet]) -> bool:
    """Return whether there are machines on record, or fleets that would rent some: what is left of
    them matters also when the controller's file names no provider any more."""
    return bool(machines) or any(one.machines is not None for one in fleets)
