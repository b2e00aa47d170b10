"""The types of the answers to `explain` and `plan`.

The command reads these types, so they import no scheduler.
"""

from __future__ import annotations

import msgspec


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`why`: each reason why the job does not fit on this node now; empty: it fits."""

    node: str
    why: tuple[str, ...]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for the same thing.

    `position` is that of the first of them, counted from 1 over all waiting units. `ahead` has the
    runs before it, the nearest last, at most MAX_AHEAD.
    """

    jobs: tuple[str, ...]
    together: bool
    why: str
    position: int
    ahead: tuple[str, ...]
    nominated: tuple[str, ...]
    victims: int
    nodes: tuple[NodeAnswer, ...]
    machines: str | None = None
    """What fleets that rent machines do for these jobs, or why they do nothing."""


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """What follows the node if a user leaves it out (null): CPU in cores, sizes in bytes.

    All that is counted is in `fairlead.wire.amounts`.
    """

    cpu: float | None
    memory: int | None
    shm_size: int | None


class OfferedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place where some jobs of a run could go: a node that has room now (`node`), or a machine
    that would be rented.

    `price` is per hour; null: the node costs nothing. `jobs`: those with the same needs. `why`: why
    the machine is not rented now; null: it may be. Without `instance_type` on a fleet that rents,
    `why` says why the fleet has no offer for them.
    """

    jobs: tuple[str, ...]
    node: str | None = None
    fleet: str
    provider: str | None = None
    instance_type: str | None = None
    region: str | None = None
    zone: str | None = None
    spot: bool = False
    price: float | None = None
    why: str | None = None


class PlannedRent(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that a run would have rented for it. `per_hour`: what they cost together;
    `machines`: each in words. `why`: why nothing is rented for some of its jobs, each once."""

    per_hour: float = 0.0
    machines: tuple[str, ...] = ()
    why: tuple[str, ...] = ()


class PlannedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The node that a job of a preview would get.

    `node` is None when the job would wait; `why` then says for what. `victims` are the runs whose
    jobs it would evict first. `asked` and `granted`: what its user wrote, and what it would get.
    """

    job: str
    node: str | None
    gpus: tuple[str, ...] = ()
    why: str | None = None
    victims: tuple[str, ...] = ()
    asked: Amounts | None = None
    granted: Amounts | None = None
