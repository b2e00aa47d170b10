"""Pending reasons say why an attempt has no allocation yet. They are values: decided, compared and
stored.

A new pending reason is a class here, and the rule that finds it. `sentence` is the text for people:
views, explanations and messages call it, and no decision depends on its words. The tags are stored
with the attempts, so they stay when a class is renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from controller.lifecycle.lacks import Lack, gpu_words
from fairlead.model.needs import Constraint, Operator, Resources, StartupOrder
from fairlead.wire.sizes import number, size_words

# -- why a node takes no work -------------------------------------------------------------------


class Obstacle(StrEnum):
    EXPECTED = "expected"
    CONNECTING = "connecting"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    DRAINING = "draining"
    CORDONED = "cordoned"
    UNFIT = "unfit"


class Unusable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that takes no work; `detail`: the message of its link, its health or a user."""

    node: str
    obstacle: Obstacle
    detail: str | None = None

    def words(self) -> str:
        return f"{self.obstacle}: {self.detail}" if self.detail else self.obstacle.value


# -- why an attempt waits -----------------------------------------------------------------------


class _Reason(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Why an attempt waits. `sentence` of each reason says it to people."""


class RunSuspended(_Reason, frozen=True, tag="run_suspended"):
    def sentence(self) -> str:
        return "the run is suspended"


class WaitsForItsTurn(_Reason, frozen=True, kw_only=True, tag="turn"):
    """Other jobs start first."""

    startup_order: StartupOrder

    def sentence(self) -> str:
        return f"waits for its turn (startup_order: {self.startup_order})"


class WaitsForContainer(_Reason, frozen=True, tag="container"):
    """A job of a sweep is to run in a container that is there, or waits until there is one."""

    def sentence(self) -> str:
        return "waits for a container of its sweep (reuse_container)"


class RankComesBack(_Reason, frozen=True, tag="rank_comes_back"):
    """A reserved job waits for a rank of its run that is tried again."""

    def sentence(self) -> str:
        return "it is reserved: a rank of its run comes back and is placed first"


class RanksFirst(_Reason, frozen=True, tag="ranks_first"):
    """A reserved job waits for the ranks of its gang."""

    def sentence(self) -> str:
        return "it is reserved: the gang's ranked jobs are placed first"


class VictimsLeave(_Reason, frozen=True, kw_only=True, tag="victims_leave"):
    count: int

    def sentence(self) -> str:
        return f"waiting for {self.count} victim{_s(self.count)} to leave"


class NominatedNodeSilent(_Reason, frozen=True, kw_only=True, tag="nominated_node_silent"):
    node: str

    def sentence(self) -> str:
        return f"waiting for node {self.node} to be connected again"


_WHOLE = "a gang is placed as a whole or not at all"


class GangInPart(_Reason, frozen=True, kw_only=True, tag="gang_in_part"):
    """Room was found only for some of the waiting ranks."""

    found: int
    waiting: int

    def sentence(self) -> str:
        return f"room was found for only {self.found} of {self.waiting} ranks: {_WHOLE}"


class GangApart(_Reason, frozen=True, kw_only=True, tag="gang_apart"):
    """The allocations that were found have more than one placement value."""

    values: int

    def sentence(self) -> str:
        return f"its allocations were in {self.values} placement values: {_WHOLE}"


class DoesNotFit(_Reason, frozen=True, kw_only=True, tag="does_not_fit"):
    """No node fits. `node`: the closest one. `away`: one that could hold it but takes no work."""

    node: str
    lacks: tuple[Lack, ...]
    away: Unusable | None = None

    def sentence(self) -> str:
        words = [lack.words() for lack in self.lacks]
        needs, has = ", ".join(need for need, _ in words), ", ".join(has for _, has in words)
        why = f"needs {needs}; best node {self.node} has {has}"
        return why if self.away is None else f"{why}; {_could_hold(self.away)}"


class ConstraintUnmet(_Reason, frozen=True, kw_only=True, tag="constraint_unmet"):
    """A constraint refuses every node. `node`: the one that the fewest constraints refuse. `has`:
    its value of the attribute."""

    constraint: Constraint
    node: str
    has: str | None = None
    away: Unusable | None = None

    def sentence(self) -> str:
        needs = f"needs {constraint_words(self.constraint)}"
        if self.away is not None:
            return f"{needs}; {_could_hold(self.away)}"
        has = f"no {self.constraint.attribute}" if self.has is None else self.has
        return f"{needs}; node {self.node} has {has}, and none is better"


class NoNodeInFleets(_Reason, frozen=True, kw_only=True, tag="no_node_in_fleets"):
    fleets: tuple[str, ...]

    def sentence(self) -> str:
        return f"no node is in {_fleets(self.fleets)}"


class NoSuchFleet(_Reason, frozen=True, kw_only=True, tag="no_such_fleet"):
    fleets: tuple[str, ...]

    def sentence(self) -> str:
        return f"there is no {_fleets(self.fleets)}"


class OtherFleetsOnly(_Reason, frozen=True, kw_only=True, tag="other_fleets_only"):
    """The gang is in none of the fleets that the job may use."""

    fleets: tuple[str, ...]

    def sentence(self) -> str:
        return f"it may only go to {_fleets(self.fleets)}"


class NoNodeInDomain(_Reason, frozen=True, kw_only=True, tag="no_node_in_domain"):
    """No node of the gang's domain takes work. `value` None: the whole fleet."""

    fleet: str
    value: str | None = None

    def sentence(self) -> str:
        return f"no node of {domain_words(self.fleet, self.value)} takes work"


class NoNodeConnected(_Reason, frozen=True, tag="no_node_connected"):
    def sentence(self) -> str:
        return "no node is connected"


class AllDraining(_Reason, frozen=True, tag="all_draining"):
    def sentence(self) -> str:
        return "every connected node is draining"


class NoNodeUsable(_Reason, frozen=True, kw_only=True, tag="no_node_usable"):
    """No connected node takes work. `example`: one of them."""

    example: Unusable

    def sentence(self) -> str:
        first = f"{self.example.node} is {self.example.words()}"
        return f"no connected node takes work; {first}"


class NodeOfGangGone(_Reason, frozen=True, tag="node_of_gang_gone"):
    def sentence(self) -> str:
        return "the node that its other jobs are on is gone"


class NoFleetWithPlacement(_Reason, frozen=True, tag="no_fleet_with_placement"):
    """`same_placement` needs a fleet that names a placement attribute."""

    def sentence(self) -> str:
        return "needs a fleet that names a placement attribute; no fleet with a usable node does"


class NoPlacementValue(_Reason, frozen=True, tag="no_placement_value"):
    def sentence(self) -> str:
        return "no node has the placement attribute that its fleet names"


class BoundToGang(_Reason, frozen=True, kw_only=True, tag="bound_to_gang"):
    """The job must go to the gang's value of the attribute `placement`. `why`: why it waits
    there."""

    placement: str
    value: str
    why: PendingReason

    def sentence(self) -> str:
        where = f"must be in {self.placement} {self.value}, where its gang is"
        return f"{where}: {self.why.sentence()}"


class NotTogether(_Reason, frozen=True, kw_only=True, tag="not_together"):
    """Each kind of the gang's jobs finds room there, and all of them together do not.

    `all_tried` False: there were too many ways to place them to try each.
    """

    all_tried: bool = True

    def sentence(self) -> str:
        if self.all_tried:
            return "each kind of its jobs has room there, but not all of them at once"
        return (
            "each kind of its jobs has room there; no way to place all of them at once was found, "
            "and there are too many to try each"
        )


class Alike(msgspec.Struct, frozen=True, kw_only=True):
    """Some jobs of a gang with equal needs."""

    count: int
    each: Resources


class GangDoesNotFit(_Reason, frozen=True, kw_only=True, tag="gang_does_not_fit"):
    """No domain has room for the gang.

    `best`: the value of `placement`, or the fleet, with room for the most jobs at once (`found`).
    `each`: the need of most of its jobs; `others`: those of the `count` jobs that need something
    else. `why`: what the nodes there lack; None: they are too few.
    """

    count: int
    each: Resources
    placement: str
    best: str
    found: int
    why: PendingReason | None = None
    others: tuple[Alike, ...] = ()

    def sentence(self) -> str:
        """Return, for example: needs 4 places with 8 GPU in one rack; best rack r2 has 3."""
        first = self.count - sum(alike.count for alike in self.others)
        asked = [_allocations(first, self.each)]
        asked += [_allocations(alike.count, alike.each) for alike in self.others]
        lacks = "" if self.why is None else f" ({self.why.sentence()})"
        needs = f"needs {' and '.join(asked)} in one {self.placement}"
        return f"{needs}; best {self.placement} {self.best} has {self.found}{lacks}"


PendingReason = (
    RunSuspended
    | WaitsForItsTurn
    | WaitsForContainer
    | RankComesBack
    | RanksFirst
    | VictimsLeave
    | NominatedNodeSilent
    | GangInPart
    | GangApart
    | DoesNotFit
    | ConstraintUnmet
    | NoNodeInFleets
    | NoSuchFleet
    | OtherFleetsOnly
    | NoNodeInDomain
    | NoNodeConnected
    | AllDraining
    | NoNodeUsable
    | NodeOfGangGone
    | NoFleetWithPlacement
    | NoPlacementValue
    | BoundToGang
    | NotTogether
    | GangDoesNotFit
)


# -- words --------------------------------------------------------------------------------------


def _could_hold(away: Unusable) -> str:
    return f"node {away.node} could hold it, but is {away.obstacle}"


def is_described_alike(one: Resources, other: Resources) -> bool:
    """Return whether a sentence about a gang names these needs with the same words."""
    return _allocations(1, one) == _allocations(1, other)


def _allocations(count: int, need: Resources) -> str:
    """Return the request in words; it is one job when a gang lacks one in the allocations that
    survived."""
    gpus = [gpu_words(need.gpu)] if need.gpu.count else []
    if need.whole_node:
        return " ".join([f"{count} whole node{_s(count)}", *(f"with {one}" for one in gpus)])
    each = gpus or [f"{number(need.cpu)} CPU", f"{size_words(need.memory)} memory"]
    return f"{count} place{_s(count)} with {', '.join(each)}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _fleets(names: Sequence[str]) -> str:
    return f"fleet {' or '.join(names)}"


def domain_words(fleet: str, value: str | None) -> str:
    return f"fleet {fleet}" if value is None else f"{value} of {fleet}"


_SIGNS = {
    Operator.EQ: "=",
    Operator.NE: "≠",
    Operator.GT: ">",
    Operator.GE: "≥",
    Operator.LT: "<",
    Operator.LE: "≤",
    Operator.IN: "in",
}


def constraint_words(constraint: Constraint) -> str:
    """Return the constraint as a user reads it: `zone = a`, `rack exists`, `gpu.name in H100 or
    H200`."""
    if constraint.operator is Operator.EXISTS:
        return f"{constraint.attribute} exists"
    if constraint.operator is Operator.NOT_EXISTS:
        return f"no {constraint.attribute}"
    sign, values = _SIGNS[constraint.operator], " or ".join(constraint.values)
    words = f"{constraint.attribute} {sign} {values}"
    return f"{words} (its {_LIMITS[constraint.attribute]})" if constraint.rented else words


_LIMITS = {
    "spot": "spot_policy",
    "price": "max_price",
    "provider": "backends",
    "region": "regions",
    "zone": "availability_zones",
    "instance-type": "instance_types",
    "reservation": "reservation",
}
"""The fields of a run that limit what is rented, by the attribute that each compares."""
