"""Why the queue gets no further machine, as values; `sentence` is the text for people."""

from __future__ import annotations

import msgspec


class _Reason(msgspec.Struct, frozen=True, kw_only=True):
    def sentence(self) -> str:
        raise NotImplementedError


class BuysMachine(_Reason, frozen=True, kw_only=True):
    """A machine was ordered that will hold the job."""

    offer: str
    fleet: str
    count: int = 1

    def sentence(self) -> str:
        what = "a machine" if self.count == 1 else f"{self.count} machines"
        return f"fleet {self.fleet} rents {what} for it: {self.offer}"


class NoOffer(_Reason, frozen=True, kw_only=True):
    """No offer that the fleet allows could hold the job. `lacks`: what the nearest one lacks."""

    fleet: str
    lacks: str

    def sentence(self) -> str:
        return f"fleet {self.fleet} rents no machine for it: {self.lacks}"


class NoCapacity(_Reason, frozen=True, kw_only=True):
    """The provider refused each offer that would do. `next_try`: seconds until the next try."""

    fleet: str
    tried: tuple[str, ...]
    next_try: float

    def sentence(self) -> str:
        shown = ", ".join(self.tried[:3]) + (", …" if len(self.tried) > 3 else "")
        return (
            f"the provider of fleet {self.fleet} has refused {shown}; the next try is in "
            f"{max(0.0, self.next_try):.0f} s"
        )


class QuotaOfProvider(_Reason, frozen=True, kw_only=True):
    """The account may have no more machines of each offer that would do. `detail`: the provider's
    words, which name the quota."""

    fleet: str
    detail: str
    next_try: float

    def sentence(self) -> str:
        return (
            f"the account of fleet {self.fleet} at its provider has reached a quota: {self.detail};"
            f" the next try is in {max(0.0, self.next_try):.0f} s"
        )


class OverBudget(_Reason, frozen=True, kw_only=True):
    """One more machine would cost more than its fleet, its user or this installation may.
    `owner`: which, in words; `limit`: its time."""

    owner: str
    limit: str
    allowed: float
    spent: float
    asked: float

    def sentence(self) -> str:
        return (
            f"{self.owner} may cost {self.allowed:g} {self.limit}; its machines cost "
            f"{self.spent:.2f}, and one more would add {self.asked:g}"
        )


class FleetAtMost(_Reason, frozen=True, kw_only=True):
    owner: str
    most: int

    def sentence(self) -> str:
        return f"{self.owner} has its most machines ({self.most})"


class ProviderAway(_Reason, frozen=True, kw_only=True):
    """The provider has not told its offers. `detail` keeps its words while they stay the same."""

    fleet: str
    provider: str
    detail: str

    def sentence(self) -> str:
        return f"provider {self.provider} of fleet {self.fleet} does not answer: {self.detail}"


class ReusesOnly(_Reason, frozen=True, kw_only=True):
    """The run's `creation_policy` is `reuse`."""

    def sentence(self) -> str:
        return "no machine is rented for it: its creation_policy is reuse"


MachineReason = (
    BuysMachine
    | NoOffer
    | NoCapacity
    | QuotaOfProvider
    | OverBudget
    | FleetAtMost
    | ProviderAway
    | ReusesOnly
)
