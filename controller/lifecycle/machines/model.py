"""The record of a rented machine, and the offer that it was ordered by.

Times are Unix seconds, sizes bytes, CPU is in cores, prices are per hour.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from controller.lifecycle.inventory import Fleet, Node, NodeAddress, NodeCapacity, NodeGpu
from fairlead.model.costs import price_words
from fairlead.model.statuses import NodeStatus
from fairlead.wire.gpu_names import GpuVendor

_TOKEN_LENGTH = 52


class Reach(StrEnum):
    """Which offers share the cause of a refusal: what the controller's file names for them, such as
    an image."""

    OFFER = "offer"
    ZONE = "zone"
    REGION = "region"
    PROVIDER = "provider"


class GpuOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of an offer; `memory` of each, in bytes."""

    name: str
    count: int
    memory: int
    vendor: GpuVendor = GpuVendor.NVIDIA
    compute_capability: str | None = None


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A type of machine that a provider rents in one zone."""

    provider: str
    """The provider's name in the controller's file."""
    instance_type: str
    region: str
    zone: str | None = None
    spot: bool = False
    price: float
    """What budgets count, in the currency of the installation."""
    rate: float = 1.0
    """What 1 of the provider's currency was in that of the installation when it told the price."""
    cpu: float
    memory: int
    disk: int
    gpus: tuple[GpuOffer, ...] = ()
    reservation: str | None = None
    """The capacity that the account has reserved; it is for the runs that name it."""

    @property
    def key(self) -> str:
        """Return what a refusal is remembered by."""
        kind = "spot" if self.spot else "on-demand"
        parts = [self.provider, self.region, self.zone or "-", self.instance_type, kind]
        return "/".join(parts if self.reservation is None else [*parts, self.reservation])

    @property
    def place(self) -> tuple[str, str, str | None]:
        """Return the zone; the machines of one gang share it."""
        return self.provider, self.region, self.zone

    def within(self, reach: Reach) -> str:
        """Return the place in which a refusal of this reach holds, as users read it."""
        match reach:
            case Reach.OFFER:
                return f"for {self.words()}"
            case Reach.ZONE:
                return f"in zone {self.zone or '-'} of provider {self.provider}"
            case Reach.REGION:
                return f"in region {self.region} of provider {self.provider}"
            case Reach.PROVIDER:
                return f"at provider {self.provider}"

    @property
    def bid(self) -> float | None:
        """Return the most that an hour of a spot machine may cost, in the provider's currency: what
        budgets count. None: its price is fixed."""
        return self.price / self.rate if self.spot else None

    def words(self) -> str:
        """Return the offer as users read it."""
        where = self.zone or self.region
        kind = "spot" if self.spot else "on demand"
        return f"{self.instance_type} in {where} ({kind}, {price_words(self.price)} an hour)"


class MachineStatus(StrEnum):
    """The stages of a record. A machine that is wanted and has no offer yet is PENDING: it has no
    record, and the waiting job's explanation says why."""

    PROVISIONING = "provisioning"
    JOINED = "joined"
    """It is a node: users see IDLE or BUSY, which follow from the node's allocations."""
    TERMINATING = "terminating"
    TERMINATED = "terminated"


MACHINE_MOVES: Mapping[MachineStatus, frozenset[MachineStatus]] = {
    MachineStatus.PROVISIONING: frozenset(
        {MachineStatus.JOINED, MachineStatus.TERMINATING, MachineStatus.TERMINATED}
    ),
    # TERMINATED: it told its address by itself, and then its provider said that it made none.
    MachineStatus.JOINED: frozenset({MachineStatus.TERMINATING, MachineStatus.TERMINATED}),
    MachineStatus.TERMINATING: frozenset({MachineStatus.TERMINATED}),
    MachineStatus.TERMINATED: frozenset(),
}


class MachineEnd(StrEnum):
    """Why a machine ends."""

    IDLE = "idle"
    NO_CAPACITY = "no_capacity"
    QUOTA_REACHED = "quota_reached"
    REFUSED = "refused"
    GANG_INCOMPLETE = "gang_incomplete"
    BOOT_FAILED = "boot_failed"
    LOST = "lost"
    FLEET_REMOVED = "fleet_removed"
    ASKED = "asked"


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine had when it became a node. `gpus`: how many, broken ones included."""

    cpu: float
    memory: int
    disk: int
    gpus: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that was ordered. Its id is also the id of its node."""

    id: str
    name: str
    """The name of its node."""
    fleet: str
    offer: Offer
    token: str
    """The same at each try of the same order, so that a provider with idempotent requests makes one
    machine."""
    status: MachineStatus = MachineStatus.PROVISIONING
    user: str | None = None
    """The user for whose run it was bought; None: it is one of those that its fleet keeps."""
    run_id: str | None = None
    group: str | None = None
    """The order of a gang: its machines come together, or none stays."""
    instance_id: str | None = None
    """The provider's id; None: no answer has told it yet."""
    account: str | None = None
    """The provider's account in which it was ordered, or in which a list had it; None: the provider
    tells none."""
    unmade: bool = False
    """No call so far can have made it, so it is in no account."""
    end: MachineEnd | None = None
    message: str | None = None
    """Why it ends, as a sentence."""
    short_lived: bool = False
    """It was lost soon after it became a node, and nobody had announced that: its offer is left
    out for a while."""
    reach: Reach = Reach.OFFER
    """Which offers its refusal holds for."""
    setup: str | None = None
    """A digest of what the controller's file said of its provider when it was ordered."""
    trouble: str | None = None
    """Why the last call about it failed, as a sentence; None: it did not."""
    leash: float | None = None
    """The fleet's `leash` when it was ordered, in seconds: its user-data stays the same."""
    idle_duration: float | None = None
    """The `idle_duration` of the run that it was bought for, in seconds; None: it has none."""
    closing: bool = False
    """It was found idle and is closed to placement; its shim has not confirmed yet."""
    size: Size | None = None
    """None: it was no node yet, or a controller of an earlier version saw it become one."""
    ordered_at: float
    joined_at: float | None = None
    idle_since: float | None = None
    terminating_at: float | None = None
    terminated_at: float | None = None

    @property
    def is_live(self) -> bool:
        """Return whether it may cost money."""
        return self.status is not MachineStatus.TERMINATED

    def is_of_another_setup(self, setups: Mapping[str, str]) -> bool:
        """Return whether the controller's file said something else of its provider when it was
        ordered. `setups`: a digest of what it says of each provider."""
        return self.setup is not None and setups.get(self.offer.provider, self.setup) != self.setup


def token_of(installation: str, machine_id: str, offer: Offer) -> str:
    """Return the token of an order: ASCII letters and digits, the same for the same order.

    It names the offer, because providers refuse a known token with other parameters (EC2:
    IdempotentParameterMismatch).
    """
    content = f"{installation}|{machine_id}|{offer.key}".encode()
    return base64.b32encode(hashlib.sha256(content).digest()).decode()[:_TOKEN_LENGTH].lower()


def cost_between(machine: Machine, start: float, end: float) -> float:
    """Return what the machine has cost between two times; it counts from its order."""
    until = end if machine.terminated_at is None else min(end, machine.terminated_at)
    return max(0.0, until - max(start, machine.ordered_at)) / 3600.0 * machine.offer.price


def node_of(offer: Offer, fleet: Fleet, machine_id: str, name: str) -> Node:
    """Return the node that a machine of this offer will be, as if it were there and empty."""
    return Node(
        id=machine_id,
        name=name,
        fleet=fleet.name,
        address=NodeAddress(shim_socket=""),
        attributes=attributes_of_offer(offer),
        status=NodeStatus.CONNECTED,
        capacity=capacity_of(offer),
        created_at=0.0,
    )


def capacity_of(offer: Offer) -> NodeCapacity:
    """Return what a machine of this offer will have."""
    gpus = tuple(
        NodeGpu(
            uuid=f"GPU-{number}-{part}",
            vendor=gpu.vendor,
            name=gpu.name,
            memory=gpu.memory,
            compute_capability=gpu.compute_capability,
        )
        for part, gpu in enumerate(offer.gpus)
        for number in range(gpu.count)
    )
    return NodeCapacity(
        cpu=offer.cpu, memory=offer.memory, disk=offer.disk, gpus=gpus, gateways=True
    )


def attributes_of_offer(offer: Offer) -> dict[str, str]:
    """Return the attributes that each machine of the offer gets as a node."""
    found = {
        "provider": offer.provider,
        "region": offer.region,
        "instance-type": offer.instance_type,
        "spot": "true" if offer.spot else "false",
        "price": str(offer.price),
    }
    if offer.zone is not None:
        found["zone"] = offer.zone
    if offer.reservation is not None:
        found["reservation"] = offer.reservation
    return found
