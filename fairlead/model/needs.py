"""A job's needs before it can start: resources, a node that meets its constraints, its turn."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fairlead.wire.amounts import Amounts
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.gpu_names import GpuVendor


class StartupOrder(StrEnum):
    ANY = "any"
    MASTER_FIRST = "master-first"
    WORKERS_FIRST = "workers-first"


class Operator(StrEnum):
    EQ = "EQ"
    NE = "NE"
    EXISTS = "EXISTS"
    NOT_EXISTS = "NOT_EXISTS"
    GT = "GT"
    GE = "GE"
    LT = "LT"
    LE = "LE"
    IN = "IN"


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on a node's attribute; a preference when not `required` (docs/rules.md 6).

    `values` is empty for EXISTS and NOT_EXISTS; all others but IN have one value.
    """

    attribute: str
    operator: Operator
    values: tuple[str, ...] = ()
    required: bool = True
    rented: bool = False
    """It limits rented machines: a node of one's own that lacks the attribute meets it."""


class SpotPolicy(StrEnum):
    """Which of a provider's machines a job may be on: those that it may take back, or not."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    AUTO = "auto"


class CreationPolicy(StrEnum):
    REUSE = "reuse"
    """Nothing is bought for the job: it waits for machines that others need."""
    REUSE_OR_CREATE = "reuse-or-create"


class RentLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may be rented for a job, and which rented machines it may be on (docs/rules.md 12.13).

    Empty and None: no limit but those of the fleet. `backends` are names of providers; `max_price`
    is per machine and hour, `idle_duration` in seconds.
    """

    spot_policy: SpotPolicy = SpotPolicy.AUTO
    max_price: float | None = None
    backends: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    availability_zones: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    reservation: str | None = None
    creation_policy: CreationPolicy = CreationPolicy.REUSE_OR_CREATE
    idle_duration: float | None = None

    @property
    def buys(self) -> bool:
        """Return whether a machine may be bought for the job."""
        return self.creation_policy is not CreationPolicy.REUSE

    def constraints(self) -> tuple[Constraint, ...]:
        """Return the limits on machines as constraints on their nodes' attributes."""
        if self == NO_RENT_LIMITS:
            return ()
        found = []
        if self.spot_policy is not SpotPolicy.AUTO:
            is_spot = "true" if self.spot_policy is SpotPolicy.SPOT else "false"
            found.append(_limit("spot", Operator.EQ, is_spot))
        if self.max_price is not None:
            found.append(_limit("price", Operator.LE, str(self.max_price)))
        for attribute, names in (
            ("provider", self.backends),
            ("region", self.regions),
            ("zone", self.availability_zones),
            ("instance-type", self.instance_types),
        ):
            if names:
                found.append(_limit(attribute, Operator.IN, *names))
        if self.reservation is not None:
            found.append(_limit("reservation", Operator.EQ, self.reservation))
        return tuple(found)


def _limit(attribute: str, operator: Operator, *values: str) -> Constraint:
    return Constraint(attribute=attribute, operator=operator, values=values, rented=True)


NO_RENT_LIMITS = RentLimits()


class GpuNeed(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that one job needs."""

    count: int = 0
    vendor: GpuVendor = GpuVendor.NVIDIA
    names: tuple[str, ...] = ()
    min_memory: int = 0
    min_compute_capability: str | None = None


class Amount(StrEnum):
    """The amounts that follow the node when a user leaves them out."""

    CPU = "cpu"
    MEMORY = "memory"
    SHM_SIZE = "shm_size"


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """What a job needs its node's operator to allow."""

    privileged: bool = False
    raw_sockets: bool = False
    """Only if the job is in the node's own network."""
    host_paths: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


NO_PERMISSIONS = Permissions()


class Resources(Amounts, frozen=True, kw_only=True):
    """The resources that one job takes from its node.

    In a job's spec an amount in `unset` is the least that the job needs; in an allocation every
    amount is what the job got (`scheduling.fitting.grant`).
    """

    cpu: float = 1.0
    memory: int = 1 << 30
    shm_size: int | None = None
    gpu: GpuNeed = GpuNeed()
    infiniband: bool = False
    whole_node: bool = False
    host_network: bool = False
    """The job uses its node's network, so the run's jobs on other nodes reach it at the node's
    address."""
    gateway: bool = False
    """A gateway must reach the job's port on its node."""
    port: int | None = None
    """The port on which a replica or a dev environment listens, whoever else is on its node."""
    engine: tuple[EngineAbility, ...] = ()
    """What the node's engine must be able to do."""
    permissions: Permissions = NO_PERMISSIONS
    unset: tuple[Amount, ...] = ()
    """The amounts that the user left out."""
