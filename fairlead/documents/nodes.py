"""Nodes and fleets."""

from __future__ import annotations

from fairlead.documents.base import View
from fairlead.documents.machines import FleetMachinesView


class GpuView(View, frozen=True):
    uuid: str
    name: str
    memory: int
    healthy: bool
    message: str | None
    in_use: bool


class NodeEventView(View, frozen=True):
    """An event in the history of a node. `why`: the reason; `by`: the user who asked for it."""

    at: str
    what: str
    why: str | None
    by: str | None


class NodeImageView(View, frozen=True):
    """An image that the node's fleet has it pull ahead. `state`: `here`, `pulling`, `waiting`,
    `failed` (it is tried again) or `not asked`; `message`: why."""

    image: str
    state: str
    message: str | None
    since: str | None


class NodeAllowsView(View, frozen=True):
    """What the node's operator allows jobs to have; raw sockets: in the node's own network."""

    privileged: bool
    raw_sockets: bool
    volume_prefixes: tuple[str, ...]


class NodeView(View, frozen=True):
    """CPU in cores, sizes in bytes; `*_allocated` is what runs hold there. `unfit`: why the health
    check gives it no work. `attributes` are its own. `ended_runs`: runs that may have something
    left there; `quarantined` counts tasks that this controller does not know."""

    id: str
    name: str
    fleet: str
    address: str
    host_key_fingerprint: str | None
    status: str
    message: str | None
    draining: bool
    drain_reason: str | None
    drain_deadline: str | None
    cordoned: bool
    cordon_reason: str | None
    unfit: str | None
    attributes: dict[str, str]
    engine: str
    isolation: bool
    host_network: bool
    cpu: float
    cpu_allocated: float
    memory: int
    memory_allocated: int
    disk: int
    disk_allocated: int
    gpus: tuple[GpuView, ...]
    runs: tuple[str, ...]
    ended_runs: tuple[str, ...]
    quarantined: int
    created_at: str
    last_seen_at: str | None
    controllers: tuple[str, ...] = ()
    """Fingerprints of the keys with which controllers may log in there, this one's included; empty:
    the node does not tell."""
    networks: int | None = None
    """How many runs can have a network of their own there at once; None: no limit."""
    network_kind: str | None = None
    """Who connects containers there: `docker` (the engine) or `agent` (the shim); None: the node
    does not tell."""
    network_why: str | None = None
    """Why the shim does not, where it chose so."""
    engine_lacks: tuple[str, ...] = ()
    """What its engine cannot do."""
    allows: NodeAllowsView | None = None
    """None: the node does not tell."""
    register_until: str | None = None
    """The end of the time in which an expected node can be registered."""
    events: tuple[NodeEventView, ...] = ()
    """Its latest events, the newest last; lists of nodes leave them out."""
    images: tuple[NodeImageView, ...] = ()
    """What its fleet has it pull ahead; lists of nodes leave it out."""


class QuarantinedTaskView(View, frozen=True):
    """A task on a node that this controller does not know. `status` is the shim's name."""

    id: str
    run_id: str
    run_name: str
    status: str
    cpu: float
    memory: int
    gpus: tuple[str, ...]
    submitted_at: str
    stopping: bool


class FleetView(View, frozen=True):
    """`placement`: the attribute whose value the nodes of one gang share. `nodes`: their names."""

    name: str
    placement: str | None
    attributes: dict[str, str]
    nodes: tuple[str, ...]
    machines: FleetMachinesView | None = None
    """What it may rent; null: nothing."""
    images: tuple[str, ...] = ()
    """The images that its nodes pull ahead."""
