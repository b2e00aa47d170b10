"""The inventory: fleets and nodes as the controller knows them; runs are placed on it.

Times are Unix seconds, sizes bytes, CPU is in cores.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from fairlead.model.needs import Resources
from fairlead.model.statuses import NodeStatus
from fairlead.wire.amounts import Amounts
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.gpu_names import GpuVendor
from fairlead.wire.shim import RegistryAuth


class Spot(StrEnum):
    """Whether a fleet rents machines that the provider may take back."""

    NEVER = "never"
    ONLY = "only"
    AUTO = "auto"
    """Spot first; on demand where no spot is to be had, and for a job that lost a spot machine."""


class MachinesPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that a fleet may rent (docs/rules.md 12). Prices are per machine and hour, in
    the currency of the installation."""

    provider: str
    min: int = 0
    max: int
    resources: Resources | None = None
    """What each machine has at least; None: anything."""
    instance_types: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    spot: Spot = Spot.AUTO
    idle_duration: float = 900.0
    """Seconds without use after which a machine is released."""
    max_price: float | None = None
    boot_limit: float = 1200.0
    """Seconds from the order until the machine must be a node."""
    leash: float | None = 7200.0
    """Seconds without a task and without a controller after which a machine powers itself off;
    None: never."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet's machines may cost; None: no limit. A month is a month of the UTC calendar."""

    per_hour: float | None = None
    per_month: float | None = None


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What the machines of all fleets may cost: together, those of each user, and those of the
    users that are named. A machine is that user's for whose run it was bought."""

    together: Budget = Budget()
    each_user: Budget = Budget()
    users: Mapping[str, Budget] = {}

    def of(self, user: str) -> Budget:
        """Return the limits of this user."""
        return self.users.get(user, self.each_user)


def unknown_users(limited: Collection[str], known: Collection[str] | None) -> str | None:
    """Return which users of the file's `budget.users` there are not; None: all are there, or nobody
    knows (`known` None)."""
    unknown = [] if known is None else sorted(set(limited).difference(known))
    if known is None or not unknown:
        return None
    name, more = unknown[0], len(unknown) - 1
    others = f", nor for {more} more" if more else ""
    alike = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {alike[0]}?" if alike else ""
    return f"budget.users.{name} limits nobody: there is no user {name}{others}{meant}"


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A set of nodes.

    `placement` names the attribute whose value all nodes of one gang share; None: any nodes of the
    fleet. `attributes` hold for each of its nodes that does not set them itself. With `machines`,
    the fleet rents machines that become nodes of it, within `budget`.
    """

    name: str
    placement: str | None = None
    attributes: dict[str, str] = {}
    machines: MachinesPolicy | None = None
    budget: Budget = Budget()
    images: tuple[str, ...] = ()
    """The images that its nodes pull ahead."""
    registry_auth: RegistryAuth | None = None
    """The login at the registry of the images; its password is the expression of a stored
    secret."""
    created_at: float


DEFAULT_FLEET: Final = Fleet(name="default", created_at=0.0)
"""The fleet of nodes that name no other; it always exists."""


class NodeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The limits by which the controller judges a node's silence, in seconds.

    It probes the node when it heard nothing for `probe_every`. The node is UNREACHABLE after
    `unreachable_after`, LOST after `lost_after`.
    """

    probe_every: float = 10.0
    unreachable_after: float = 30.0
    lost_after: float = 300.0


DEFAULT_NODE_FAILURE: Final = NodeFailure()


class NodeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The way to a node: `local_socket` (same machine), or SSH to `host` with the pinned
    `host_key`.

    Only an EXPECTED node has the key and no host yet.
    """

    shim_socket: str
    local_socket: bool = False
    host: str | None = None
    port: int = 22
    user: str = "fairlead"
    host_key: str | None = None
    """OpenSSH public key line without comment: `ssh-ed25519 AAAA...`."""
    next_host_key: str | None = None
    """The key that takes the place of `host_key`, and is accepted as well until it has."""
    jump_user: str = "fairlead-jump"
    """The user of the node's sshd through which people reach the SSH ports of their tasks."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """An EXPECTED node waits for its address, until `expires_at`."""

    expires_at: float
    token_digest: str | None = None
    """Hex SHA-256 of the one-time token with which the node tells its address itself."""


class NodeGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a node, or one MIG instance of it."""

    uuid: str
    vendor: GpuVendor = GpuVendor.NVIDIA
    name: str
    memory: int
    compute_capability: str | None = None
    healthy: bool = True
    """Whether the GPU may be given to a job: it is not broken, and no other program uses its
    memory."""
    message: str | None = None
    """Why it is not healthy, as a sentence."""
    missing: bool = False
    """The node had this GPU and no longer reports it."""
    parent: str | None = msgspec.field(default=None, name="mig_parent")
    """The UUID of the GPU of which this is a part, such as a MIG instance; None: it is whole."""
    near: dict[str, int] = {}
    """The nearness of other GPUs of its node, by UUID; a greater number is nearer."""

    @property
    def board(self) -> str:
        """The UUID of the card that this GPU is, or is a part of."""
        return self.parent or self.uuid


class NodeAllows(msgspec.Struct, frozen=True, kw_only=True):
    """What the node's operator allows jobs to have; raw sockets: in the node's own network."""

    privileged: bool
    raw_sockets: bool
    volume_prefixes: tuple[str, ...]


class NodeImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that the node pulls ahead for its fleet, by what its shim said last. `state`: the
    shim's name of it; `message`: why the last try failed."""

    image: str
    state: str
    since: float
    message: str | None = None


class NodeCapacity(Amounts, frozen=True, kw_only=True):
    """The capacity that the node's shim last reported as allocatable."""

    gpus: tuple[NodeGpu, ...] = ()
    blocks: int | None = None
    """Equal shares of CPU, memory and GPUs; a job takes whole ones."""
    engine: str = ""
    engine_error: str | None = None
    """Why its engine does not answer; None: it does."""
    isolation: bool = True
    engine_lacks: tuple[EngineAbility, ...] = ()
    """What its engine cannot do."""
    allows: NodeAllows | None = None
    """None: its shim does not tell, and refuses a job that needs more when the job is there."""
    host_network: bool = True
    """Whether a job that holds the whole node gets the node's network; the node's operator may
    forbid it."""
    networks: int | None = None
    """How many runs can have a network of their own there at once; None: no limit."""
    network_kind: str | None = None
    """Who connects containers there, by the shim's name for it; None: the shim does not tell."""
    network_why: str | None = None
    """Why it is not the shim."""
    gateways: bool = False
    """Whether its shim exposes ports to gateways."""
    infiniband: bool = True
    """Whether it has InfiniBand, as far as its shim says."""
    addresses: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    """Fingerprints of the keys with which controllers may log in; empty: the shim does not tell."""
    images: tuple[NodeImage, ...] | None = None
    """The images that it pulls ahead; None: its engine has none, or its shim cannot."""

    @property
    def shares_ports(self) -> bool:
        """Return whether all its jobs listen in the node's own network, as plain processes do."""
        return EngineAbility.IMAGES in self.engine_lacks


class QuarantinedTask(Amounts, frozen=True, kw_only=True):
    """A task on a node that this controller does not know; its allocation is occupied."""

    id: str
    run_id: str
    run_name: str
    allocation_id: str
    status: str
    """The shim's name of the status."""
    gpus: tuple[str, ...] = ()
    whole_node: bool = False
    submitted_at: float
    stopping: bool = False
    """An admin has asked to stop it."""


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the history of a node, at a Unix time. `why`: the reason, as a sentence; `by`:
    the user who asked for it."""

    at: float
    what: str
    why: str | None = None
    by: str | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    fleet: str = "default"
    address: NodeAddress
    attributes: dict[str, str] = {}
    status: NodeStatus = NodeStatus.CONNECTING
    registration: Registration | None = None
    """Set exactly while the node is EXPECTED."""
    draining: bool = False
    drain_reason: str | None = None
    drain_deadline: float | None = None
    """When the jobs that still run there end as node_drained."""
    recalled_at: float | None = None
    """When its provider takes it back, as last announced; while it is draining, its jobs end before
    that. None: nothing is announced, or an admin ended that drain."""
    ended_recall: float | None = None
    """`recalled_at` when an admin ended the drain: its shim goes on telling this recall."""
    cordoned: bool = False
    """Nothing new is placed there; running jobs stay."""
    cordon_reason: str | None = None
    failed_starts: tuple[str, ...] = ()
    """The tasks in a row whose containers could not be created, by a fault of the node. Too many
    cordon it (`nodes.health`)."""
    quarantine: tuple[QuarantinedTask, ...] = ()
    unfit: str | None = None
    """Why the health check lets it take no work; None: it may take work."""
    unfit_since: float | None = None
    """When the check first failed since it last passed (Unix time); None: that is not known."""
    boot_id: str | None = None
    install_id: str | None = None
    capacity: NodeCapacity = NodeCapacity()
    message: str | None = None
    """Why it is not connected, as a sentence."""
    created_at: float
    last_seen_at: float | None = None
    history: tuple[NodeEvent, ...] = ()
    """Its latest events, the newest last (`node_history`)."""


def has_silent_engine(node: Node) -> bool:
    """Return whether the node is connected and its engine does not answer: nothing can be started,
    ended or removed there."""
    return node.status is NodeStatus.CONNECTED and node.capacity.engine_error is not None
