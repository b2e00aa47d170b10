"""A node as its shim tells of it: what it has and what is held of it, what an examination found,
and how much is used.

The shim owns these types as it owns those of tasks (`fairlead.wire.shim`).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fairlead.wire.amounts import Amounts
from fairlead.wire.gpu_names import GpuVendor
from fairlead.wire.shim import ImageAhead, TaskStatus


class EngineKind(StrEnum):
    DOCKER = "docker"
    PODMAN = "podman"
    PROCESS = "process"


class HostNetwork(StrEnum):
    """The tasks that get the node's network, by decision of the node's operator."""

    NEVER = "never"
    WHOLE_NODE = "whole-node"
    """Tasks that hold the whole node."""


class AllocationInfo(Amounts, frozen=True, kw_only=True):
    """The content of an allocation; it can outlive its tasks and is released only by its owner."""

    id: str
    run_id: str
    gpus: tuple[str, ...] = ()
    whole_node: bool = False
    task_ids: tuple[str, ...] = ()
    incarnation: int = 0
    """The newest of its run's incarnations that the shim knows, for a controller that does not know
    the run: an older one is refused. Only listings have it."""


class GpuLink(StrEnum):
    """The link between two GPUs, the nearest first, with the names of `nvidia-smi topo`."""

    DIRECT = "NV"
    """A link of their own, such as NVLink."""
    SAME_BOARD = "INT"
    ONE_SWITCH = "PIX"
    SWITCHES = "PXB"
    HOST_BRIDGE = "PHB"
    NUMA_NODE = "NODE"
    SYSTEM = "SYS"


NEARNESS = {link: len(GpuLink) - position for position, link in enumerate(GpuLink)}
"""The nearness of two GPUs by their link; greater is nearer."""


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One allocatable unit: a GPU, or a part of one, such as a MIG instance (`parent` is then that
    GPU's UUID; `index`, `pci` and `numa` are its)."""

    uuid: str
    index: int
    vendor: GpuVendor = GpuVendor.NVIDIA
    name: str
    memory: int
    compute_capability: str | None = None
    healthy: bool = True
    """False: it is not offered until its operator clears it (cordoned), or until it answers
    again."""
    held: bool = False
    """Its memory is in use though no allocation has it: it is not offered until the memory is
    free."""
    message: str | None = None
    """Why it is not healthy or held, as a sentence."""
    allocation_id: str | None = None
    pci: str | None = None
    numa: int | None = None
    parent: str | None = msgspec.field(default=None, name="mig_parent")
    links: dict[str, GpuLink] = {}
    """The link to each other GPU, by its UUID."""
    devices: tuple[str, ...] = ()
    """The node's device files that are this GPU's own."""


class NodeAllows(msgspec.Struct, frozen=True, kw_only=True):
    """What the node's operator allows jobs to have."""

    privileged: bool
    """Privileged containers and capabilities of the host."""
    raw_sockets: bool
    """Raw sockets in the node's own network."""
    volume_prefixes: tuple[str, ...]
    """The paths below which jobs may mount what is on the node."""


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """The node's provider takes it back. `at`: when (Unix seconds); `why`: a sentence."""

    at: float
    why: str


class NodeInfo(Amounts, frozen=True, kw_only=True):
    """`GET /v1/node`. The amounts are what may be allocated; `*_allocated` is what is held."""

    hostname: str
    engine: EngineKind
    engine_version: str | None
    isolation: bool
    """False for the process engine, which is for development only."""
    engine_lacks: tuple[str, ...] | None = None
    """The EngineAbility values that its engine lacks; None: an older shim does not say."""
    abilities: tuple[str, ...] = ()
    """The EngineAbility values that it has. An older shim does not say: it lacks those that are not
    in KNOWN_TO_ALL."""
    allows: NodeAllows | None = None
    """None: an older shim does not say."""
    host_network: HostNetwork = HostNetwork.WHOLE_NODE
    cpu_allocated: float
    memory_allocated: int
    disk_allocated: int
    addresses: tuple[str, ...]
    gpus: tuple[GpuInfo, ...] = ()
    gpu_boards: tuple[str, ...] = ()
    """UUIDs of the driver's cards, split or not: a GPU that is missing in `gpus` is not lost while
    its card is here."""
    gpu_driver: str | None = None
    blocks: int | None = None
    """The node is split into so many equal shares of CPU, memory and GPUs, and every allocation
    takes whole ones; None: it is not split."""
    images: tuple[str, ...] = ()
    images_ahead: tuple[ImageAhead, ...] | None = None
    """The images that it pulls ahead; None: its engine has no images, or an older shim cannot."""
    images_asked: int = 0
    """How many images it was asked to pull ahead, those of waiting jobs included."""
    draining: bool = False
    recall: Recall | None = None
    """None: its provider has announced none, or an older shim does not look."""
    disk_free: int | None = None
    """Free bytes of the filesystem of the shim's data folder."""
    engine_error: str | None = None
    """Why the engine does not answer, as a sentence."""
    unlabelled: tuple[str, ...] = ()
    """Leftovers that the shim found and did not touch."""
    networks: int | None = None
    """How many runs can have a network of their own here at once; None: no limit."""
    network_kind: str | None = None
    """Who connects containers: `docker`, the engine, or `agent`, the shim; None: nobody does, or an
    older shim does not say."""
    network_why: str | None = None
    """Why it is not the shim where the shim chose, as a sentence."""
    gateways: bool = False
    """Gateways can reach what is exposed here."""
    infiniband: bool | None = None
    """Whether it has device files of InfiniBand; None: an older shim does not say."""
    controllers: tuple[str, ...] = ()
    """Fingerprints of the keys with which controllers may log in, where the shim was told of the
    file."""


class HostKey(msgspec.Struct, frozen=True, kw_only=True):
    """The public half of the node's SSH host key: algorithm and key, without comment."""

    key: str


class FindingLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of `GET /v1/node/doctor`: what was found, and how to repair it."""

    check: str
    level: FindingLevel
    message: str
    fix: str = ""


class TaskMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A task's container as the kernel accounts for it; None where that cannot be read."""

    id: str
    run_id: str
    run_name: str
    status: TaskStatus
    memory_limit: int
    cpu_seconds: float | None = None
    memory: int | None = None
    gpus: tuple[str, ...] = ()


class GpuMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU in bytes, percent, degrees Celsius and watts; None where the driver does not report
    it."""

    uuid: str
    index: int
    name: str
    memory: int
    healthy: bool
    allocation_id: str | None = None
    memory_used: int | None = None
    utilization: int | None = None
    temperature: int | None = None
    power: float | None = None


class NodeMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/node/metrics`, and as Prometheus text at `/metrics`. `disk_*` is the filesystem of
    the shim's data folder.

    A new field has a default: without one, the client refuses the answer of an older shim.
    """

    at: float
    cpu: float
    cpu_allocated: float
    cpu_seconds: float
    """CPU seconds of all cores since the boot, without idle time."""
    load: float
    memory: int
    memory_allocated: int
    memory_available: int
    disk: int
    disk_allocated: int
    disk_total: int
    disk_free: int
    shim_memory: int
    shim_cpu_seconds: float
    draining: bool
    tasks: tuple[TaskMetrics, ...] = ()
    gpus: tuple[GpuMetrics, ...] = ()
