"""The seam between the shim and the software that runs a task.

An engine performs single, repeatable acts and reports exits; it decides nothing. Every act may be
repeated after a crash: to create what exists returns it; to start what runs, or remove what is
gone, does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Protocol

import msgspec

from common.files.task_folder import ImageConfig
from fairlead.wire.amounts import Amounts
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.node import EngineKind, GpuInfo
from fairlead.wire.shim import (
    ContainerOptions,
    NetworkMode,
    PullProgress,
    RegistryAuth,
    TaskReason,
    VolumeKind,
)
from shim.errors import EngineError
from shim.gpus.base import GpuDelivery
from shim.settings import NetworkKind


class NodeFault(EngineError):
    """The node has a fault: the job did not fail and is tried again."""

    reason = TaskReason.INSTANCE_UNREACHABLE


class NodeFull(EngineError):
    """The node has no room for the task after all. Neither the job nor the node has a fault: other
    tasks may start there."""

    reason = TaskReason.NO_CAPACITY


class PortsTaken(EngineError):
    """No port of the node could be published for the container."""

    reason = TaskReason.PORTS_BINDING_FAILED


class EngineUnavailable(NodeFault):
    """The engine does not answer; the same act may succeed later."""


class ImageProblem(StrEnum):
    """Why an image cannot be had, as far as its user can act on it."""

    BAD_NAME = "bad_name"
    REFUSED = "refused"
    MISSING = "missing"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    NO_SPACE = "no_space"
    STALLED = "stalled"
    NOT_HERE = "not_here"
    OTHER = "other"


class ImageError(EngineError):
    """The image cannot be had; the message names the image and what to do."""

    reason = TaskReason.IMAGE_PULL_FAILED

    def __init__(self, message: str, problem: ImageProblem = ImageProblem.OTHER) -> None:
        super().__init__(message)
        self.problem = problem
        if problem is ImageProblem.NO_SPACE:
            self.reason = NodeFault.reason


class Storage(msgspec.Struct, frozen=True):
    """The disk that holds the images, in bytes."""

    used: int
    total: int


class ImageInfo(ImageConfig, frozen=True, kw_only=True):
    """An image on the node, with its own command. A container is made from its `id`."""

    id: str
    digest: str | None = None
    by_id: bool = False
    """The reference was an id, which no registry knows."""


_HUB = ("docker.io/", "index.docker.io/", "library/")


def pinned(reference: str, digest: str | None) -> str:
    """Return the reference with its digest, if there is one: a tag may have moved meanwhile."""
    return reference if digest is None else f"{_without_tag(reference)}@{digest}"


def repository_of(reference: str) -> str:
    """Return the repository as an engine shortens it: without tag, digest and the prefix of
    Docker's own hub."""
    name = _without_tag(reference)
    for prefix in _HUB:
        name = name.removeprefix(prefix)
    return name


def _without_tag(reference: str) -> str:
    folder, slash, last = reference.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"


class MountSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One volume for the engine. `source` is a path that the shim has mounted, or the result of
    `ensure_volume`."""

    kind: VolumeKind
    target: str
    source: str = ""
    read_only: bool = False
    size: int | None = None


class ContainerSpec(Amounts, frozen=True, kw_only=True):
    """One container to make. The task's record can be rebuilt from `record`."""

    task_id: str
    run_id: str
    allocation_id: str
    image: str
    record: str
    job_folder: str
    run_folder: str
    network_mode: NetworkMode
    hostname: str | None
    shm_size: int | None
    address: str | None = None
    """Its address in the run's network; None: the engine chooses."""
    publish: int | None = None
    """A port of the container that gets an ephemeral one on the node's 127.0.0.1."""
    gpus: tuple[str, ...] = ()
    gpu_units: tuple[GpuInfo, ...] = ()
    """The known facts about those of `gpus` that are there."""
    gpu_delivery: GpuDelivery = GpuDelivery()
    infiniband: bool = False
    mounts: tuple[MountSpec, ...] = ()
    options: ContainerOptions = ContainerOptions()
    user: str = "0:0"
    """The user of the first process; root changes to the job's user itself."""


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A container of this shim. `record` is None when its labels cannot be read.

    The labels of run, allocation and GPUs are plain text, so even then they tell what it holds.
    """

    container_id: str
    task_id: str
    state: ContainerState
    record: str | None
    run_id: str = ""
    allocation_id: str = ""
    gpus: tuple[str, ...] = ()


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a container.

    `exit_code` None: unknown. `gone`: it was removed. `stopped`: the engine was told to stop it, or
    stopped itself. `unseen`: it ended before the engine's present life, perhaps together with the
    previous one.
    """

    exit_code: int | None
    oom_killed: bool = False
    gone: bool = False
    stopped: bool = False
    unseen: bool = False


class NetworkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Who connects the containers of a node. `why`: the reason that it is not the shim, where the
    shim chose; None: it is, or the operator chose."""

    kind: NetworkKind
    why: str | None = None


class Engine(Protocol):
    """Runs tasks. All methods raise EngineUnavailable when the engine does not answer, EngineError
    when it refuses.

    A cancelled method returns only after its side effect has ended or is complete.
    """

    @property
    def kind(self) -> EngineKind:
        """The engine's name, as the node reports it. Code that depends on an engine asks for one of
        the abilities below."""

    @property
    def isolation(self) -> bool:
        """Whether tasks see neither each other nor the node."""

    @property
    def has_networks(self) -> bool:
        """Whether a task can have its own network; otherwise each task uses the node's."""

    @property
    def network_choice(self) -> NetworkChoice | None:
        """Who connects containers here; None: nobody does, or the engine is not open yet."""

    def routes_to(self, run_id: str) -> bool:
        """Return whether the node reaches each port of the run's containers at their addresses, so
        that none needs to be published."""

    @property
    def abilities(self) -> frozenset[EngineAbility]:
        """What it can do for tasks that ask for it; the controller places no task that needs
        another ability here."""

    def cgroups(self, container_id: str) -> tuple[str, ...]:
        """Return where the kernel may account for the container, below the root of its cgroups."""

    def first_process(self, container_id: str) -> int | None:
        """Return the pid of a container's first process, where there are no `cgroups` of it."""

    async def open(self) -> None:
        """Connect to the engine for the first time."""

    async def close(self) -> None:
        """Disconnect; running tasks stay."""

    async def ready(self) -> None:
        """Return once the engine answers (again)."""

    async def version(self) -> str | None: ...

    async def images(self) -> tuple[str, ...]: ...

    async def local_image(self, reference: str) -> ImageInfo | None: ...

    async def pull(
        self,
        reference: str,
        auth: RegistryAuth | None,
        progress: Callable[[PullProgress], None],
    ) -> ImageInfo:
        """Pull an image. Raises ImageError. Cancelling aborts the download."""

    def expect(self, image: ImageInfo) -> None:
        """Begin what has to be known of an image before its first container starts, since one may
        be made soon. `create` needs no such call."""

    async def ask_registry(
        self, reference: str, digest: str | None, auth: RegistryAuth | None
    ) -> None:
        """Raise ImageError unless the registry gives the image to these credentials (None: to all).
        Nothing is pulled.

        The image is named by its digest if it has one.
        """

    async def prove_content(
        self, reference: str, image: ImageInfo, auth: RegistryAuth | None
    ) -> None:
        """Raise ImageError unless the registry that the reference names has the image's content,
        not only its name, and gives it to these credentials."""

    async def remove_image(self, reference: str) -> bool:
        """Remove an image. Return False when a container uses it; True also when it was not
        there."""

    async def storage(self) -> Storage | None:
        """Return the images' disk; None when images take no room."""

    async def ensure_volume(self, name: str) -> str:
        """Return the volume's name for the engine. Its content outlives tasks."""

    def networks(self) -> int | None:
        """Return how many runs can have a network at once; None: no limit."""

    async def ensure_network(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        """Make sure that the run has a network; return an address in it for a task.

        `taken` are the addresses of the run's other tasks; `wanted` is one that the task got
        before. None: the engine chooses addresses. Raises NodeFull.
        """

    async def remove_network(self, run_id: str) -> None: ...

    async def create(self, spec: ContainerSpec) -> str:
        """Create a container and return its id."""

    async def start(self, container_id: str) -> None:
        """Start a container. One that was started before stays as it is, also when it has ended."""

    async def published_port(self, container_id: str, port: int) -> int | None:
        """Return where a port of a started container is published; None: it is not."""

    async def signal_stop(self, container_id: str) -> None:
        """Send SIGTERM to the container's first process."""

    async def kill(self, container_id: str) -> None:
        """Send SIGKILL to everything in the container."""

    async def wait(self, container_id: str) -> Exit:
        """Return once the container has ended, also when it ended before the call."""

    async def remove(self, task_id: str) -> None:
        """Remove the task's container, whatever its id, running or not."""

    async def list(self) -> tuple[Found, ...]:
        """Return all containers of this shim."""
