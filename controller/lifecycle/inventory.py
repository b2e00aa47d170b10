"""Fleets and nodes as the controller knows them: the inventory that runs are placed on.

`model` gives these names too. Times are Unix seconds, sizes bytes, CPU is in cores.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A set of nodes. `placement` names the attribute whose value the nodes of one gang share;
    None: the whole fleet is one place. `attributes` hold for all its nodes that don't say else."""

    name: str
    placement: str | None = None
    attributes: dict[str, str] = {}
    created_at: float


DEFAULT_FLEET: Final = Fleet(name="default", created_at=0.0)
"""Always there: where nodes are that name no other."""


class NodeStatus(StrEnum):
    """How the controller sees a node's link (docs/rules.md 7)."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    UNREACHABLE = "unreachable"
    LOST = "lost"


class NodeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What is made of a node's silence, in seconds: when nothing was heard for `probe_every` it is
    asked; it is UNREACHABLE after `unreachable_after`, LOST after `lost_after`."""

    probe_every: float = 10.0
    unreachable_after: float = 30.0
    lost_after: float = 300.0


DEFAULT_NODE_FAILURE: Final = NodeFailure()


class NodeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Either `local_socket` (same machine) or SSH to `host` with the pinned `host_key`."""

    shim_socket: str
    local_socket: bool = False
    host: str | None = None
    port: int = 22
    user: str = "fairlead"
    host_key: str | None = None
    """OpenSSH public key line without comment: `ssh-ed25519 AAAA...`."""
    jump_user: str = "fairlead-jump"
    """As whom people come through the node's sshd to the SSH ports of their tasks."""


class NodeGpu(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    name: str
    memory: int
    compute_capability: str | None = None
    healthy: bool = True
    """Whether it may be given to a job: not broken, and nobody else's memory on it."""
    message: str | None = None
    """Why it is not healthy, for a person."""
    missing: bool = False
    """The node had it and does not name it any more."""
    mig_parent: str | None = None
    """Of an instance of a GPU in MIG mode: that GPU's UUID."""
    near: dict[str, int] = {}
    """How near other GPUs of its node are, by UUID; greater is nearer."""

    @property
    def board(self) -> str:
        """The UUID of the card that it is, or is an instance of."""
        return self.mig_parent or self.uuid


class NodeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the node's shim last said it can allocate."""

    cpu: float = 0.0
    memory: int = 0
    disk: int = 0
    gpus: tuple[NodeGpu, ...] = ()
    blocks: int | None = None
    """Equal shares of CPU, memory and GPUs; a job takes whole ones."""
    engine: str = ""
    isolation: bool = True
    host_network: bool = True
    """A job that holds the whole node gets the node's network: its operator may say no."""
    addresses: tuple[str, ...] = ()


class QuarantinedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task on a node of which this controller knows nothing; its place is occupied."""

    id: str
    run_id: str
    run_name: str
    allocation_id: str
    status: str
    """As the shim names it."""
    cpu: float = 0.0
    memory: int = 0
    disk: int = 0
    gpus: tuple[str, ...] = ()
    whole_node: bool = False
    submitted_at: float
    stopping: bool = False
    """An admin has asked for its end."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    fleet: str = "default"
    address: NodeAddress
    attributes: dict[str, str] = {}
    status: NodeStatus = NodeStatus.CONNECTING
    draining: bool = False
    drain_reason: str | None = None
    drain_deadline: float | None = None
    """When what still runs there ends as node_drained."""
    cordoned: bool = False
    """Nothing new is placed there; what runs goes on, and nobody waits for it to end."""
    cordon_reason: str | None = None
    quarantine: tuple[QuarantinedTask, ...] = ()
    unfit: str | None = None
    """Why the health gate does not let it take work; None: it may."""
    boot_id: str | None = None
    install_id: str | None = None
    capacity: NodeCapacity = NodeCapacity()
    message: str | None = None
    """Why it is not connected, for a person."""
    created_at: float
    last_seen_at: float | None = None
