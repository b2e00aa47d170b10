"""Renting reasons say what is rented for a waiting job, or why nothing is. They are values, and
`sentence` is the text for people.

The values are stored with the attempts that wait, so a value changes only when what it tells does:
its times are points in time (Unix seconds), and the tags stay when a class is renamed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.model.costs import price_words


class _Reason(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """What all are stored with. The union `MachineReason` is the type: each has its `sentence`."""


def _time_of_day(at: float) -> str:
    """Return the time (Unix seconds) as users read it; the day is always today's or yesterday's."""
    minutes, second = divmod(int(at % 86400), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02} UTC"


def _some(offers: Sequence[str]) -> str:
    """Return the first of these offers, as users read them."""
    return ", ".join(offers[:3]) + (", …" if len(offers) > 3 else "")


def _also(unknown: str | None) -> str:
    return "" if unknown is None else f"; of the offers, {unknown} are not known"


class BuysMachine(_Reason, frozen=True, kw_only=True, tag="buys_machine"):
    """A machine was ordered that will hold the job.

    `machine`: the name of the first one; None: it was ordered just now. `since`: the time of the
    order. `boots`: its provider has made it. `trouble`: why the last call about it failed, or why
    its node takes no work yet. `boot_limit`: the seconds that it may take to become a node.
    """

    offer: str
    fleet: str
    machine: str | None = None
    count: int = 1
    since: float
    boots: bool = False
    trouble: str | None = None
    boot_limit: float = 1200.0

    def sentence(self) -> str:
        what = "a machine" if self.count == 1 else f"{self.count} machines"
        return f"fleet {self.fleet} rents {what} for it: {self.offer}, {self._stage()}"

    def as_replacement(self) -> str:
        """Return what is told of a job that still stops on the machine that it loses."""
        many = "" if self.count == 1 else f", and {self.count - 1} more"
        name = "" if self.machine is None else f"{self.machine}: "
        return f"a replacement is ordered (machine {name}{self.offer}, {self._stage()}{many})"

    def _stage(self) -> str:
        why = "" if self.trouble is None else f" ({self.trouble})"
        stage = f"booting{why}, ordered" if self.boots else f"ordered{why}"
        return f"{stage} at {_time_of_day(self.since)}"


class NoOffer(_Reason, frozen=True, kw_only=True, tag="no_offer"):
    """No offer that the fleet allows could hold the job. `lacks`: what the nearest one lacks.
    `unknown`: which offers are not known, and why."""

    fleet: str
    lacks: str
    unknown: str | None = None

    def sentence(self) -> str:
        return f"fleet {self.fleet} rents no machine for it: {self.lacks}{_also(self.unknown)}"


class NoCapacity(_Reason, frozen=True, kw_only=True, tag="no_capacity"):
    """Each offer that would do is left out. `tried`: those that the provider refused; `failed`:
    those whose machine did not become a node, or was lost soon after. `next_at`: the time of the
    next try. `detail`: why the first one is left out that did not lack capacity. `unknown`: as
    above."""

    fleet: str
    tried: tuple[str, ...]
    failed: tuple[str, ...] = ()
    next_at: float
    detail: str | None = None
    unknown: str | None = None

    def sentence(self) -> str:
        parts = []
        if self.tried:
            parts.append(f"the provider of fleet {self.fleet} has refused {_some(self.tried)}")
        if self.failed:
            parts.append(f"the last machine of {_some(self.failed)} failed")
        check = "an admin's `fairlead provider check` tries what orders need"
        if not self.tried:
            check = "an admin's `fairlead provider check --boot` tries one"
        why = "" if self.detail is None else f": {self.detail} ({check})"
        return (
            f"{', and '.join(parts)}{why}; the next try is at "
            f"{_time_of_day(self.next_at)}{_also(self.unknown)}"
        )


class SetupRefused(_Reason, frozen=True, kw_only=True, tag="setup_refused"):
    """The provider refuses what the controller's file names for each offer that would do, such as
    the image of a region. `where`: the places, in words; `detail`: the field, and the provider's
    words. `next_at`, `unknown`: as above."""

    fleet: str
    where: tuple[str, ...]
    detail: str
    next_at: float
    unknown: str | None = None

    def sentence(self) -> str:
        return (
            f"fleet {self.fleet} rents nothing {', '.join(self.where)}, since each order there "
            f"would be refused: {self.detail}; once an admin has corrected that, `fairlead "
            f"provider check` has it tried at once, else the next try is at "
            f"{_time_of_day(self.next_at)}"
            f"{_also(self.unknown)}"
        )


class QuotaOfProvider(_Reason, frozen=True, kw_only=True, tag="quota"):
    """The account may have no more machines of each offer that would do. `detail`: the provider's
    words, which name the quota. `unknown`: as above."""

    fleet: str
    detail: str
    next_at: float
    unknown: str | None = None

    def sentence(self) -> str:
        return (
            f"the account of fleet {self.fleet} at its provider has reached a quota: {self.detail};"
            f" the next try is at {_time_of_day(self.next_at)}{_also(self.unknown)}"
        )


class OverBudget(_Reason, frozen=True, kw_only=True, tag="over_budget"):
    """What is needed would cost more than its fleet, its user or this installation may.
    `owner`: which, in words; `limit`: its time. `orphans`: how many machines without a record are
    among those that cost this. `also`: what refuses it, too, in words. `next_month`: the day on
    which the next month begins, if what is needed is allowed then by all that refuse it now."""

    owner: str
    limit: str
    allowed: float
    spent: float
    asked: float
    orphans: int = 0
    also: tuple[str, ...] = ()
    next_month: str | None = None

    def sentence(self) -> str:
        then = ""
        if self.next_month is not None:
            then = f"; the next try is on {self.next_month} at 00:00:00 UTC"
        return "; ".join((self.words(), *self.also)) + then

    def words(self) -> str:
        """Return what this limit alone says."""
        without = ""
        if self.orphans:
            without = f" ({self.orphans} of them without a record: `fairlead machine orphans`)"
        return (
            f"{self.owner} may cost {price_words(self.allowed)} {self.limit}; its machines cost "
            f"{price_words(self.spent)}{without}, and what is needed would add "
            f"{price_words(self.asked)}"
        )


class FleetAtMost(_Reason, frozen=True, kw_only=True, tag="fleet_at_most"):
    """What is needed together is more than its fleet may still have. `asked`: how many machines;
    `has`: how many there are of its `most`, None: all of them. `also`: what refuses it, too."""

    owner: str
    most: int
    has: int | None = None
    asked: int = 1
    also: tuple[str, ...] = ()

    def sentence(self) -> str:
        return "; ".join((self.words(), *self.also))

    def words(self) -> str:
        """Return what this limit alone says."""
        if self.has is None:
            return f"{self.owner} has its most machines ({self.most})"
        return (
            f"{self.owner} may have {self.most} machine{'' if self.most == 1 else 's'} "
            f"(`machines.nodes.max`); it has {self.has}, and what is needed would add {self.asked}"
        )


def all_of(refusals: Sequence[OverBudget | FleetAtMost]) -> OverBudget | FleetAtMost:
    """Return the first of these with what the others say. A day is told only if none of them
    refuses what is needed on that day."""
    first, *others = refusals
    also = tuple(one.words() for one in others)
    if isinstance(first, FleetAtMost):
        return msgspec.structs.replace(first, also=also)
    days = {one.next_month if isinstance(one, OverBudget) else None for one in refusals}
    day = None if None in days else max(one for one in days if one is not None)
    return msgspec.structs.replace(first, also=also, next_month=day)


class ProviderAway(_Reason, frozen=True, kw_only=True, tag="provider_away"):
    """The provider has not told its offers. `detail` keeps its words while they stay the same."""

    fleet: str
    provider: str
    detail: str

    def sentence(self) -> str:
        return f"provider {self.provider} of fleet {self.fleet} rents nothing now: {self.detail}"


class GangsInTurn(_Reason, frozen=True, kw_only=True, tag="gangs_in_turn"):
    """Another gang has its turn to order. `where`: in which region, or at which provider."""

    fleet: str
    where: str

    def sentence(self) -> str:
        return (
            f"fleet {self.fleet} rents nothing for it yet: gangs order one at a time in "
            f"{self.where} since one was refused there, and another one has its turn"
        )


class ReusesOnly(_Reason, frozen=True, kw_only=True, tag="reuses_only"):
    """The run's `creation_policy` is `reuse`."""

    def sentence(self) -> str:
        return "no machine is rented for it: its creation_policy is reuse"


MachineReason = (
    BuysMachine
    | NoOffer
    | NoCapacity
    | SetupRefused
    | QuotaOfProvider
    | OverBudget
    | FleetAtMost
    | ProviderAway
    | GangsInTurn
    | ReusesOnly
)


def is_definite(reason: MachineReason | None) -> bool:
    """Return whether this is an answer: a provider that tells nothing, or not everything, refuses
    nothing and grants nothing. Nor does another gang's turn."""
    if isinstance(reason, ProviderAway | GangsInTurn):
        return False
    if isinstance(reason, NoOffer | NoCapacity | SetupRefused | QuotaOfProvider):
        return reason.unknown is None
    return True
