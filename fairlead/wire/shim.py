"""The shim's wire types: what its unix socket carries in both directions.

The shim owns them; the controller imports them (and `shim.client`). Unknown fields of a newer peer
are ignored, so a field may be added but never change its meaning. Times are Unix seconds (float),
sizes are bytes, CPU is in cores (float).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fairlead.wire.amounts import Amounts
from fairlead.wire.gpu_names import GpuVendor
from fairlead.wire.sizes import is_count

FENCE_HEADER = "Fairlead-Fence"
"""`<epoch>.<token>`: which controller makes the request."""
INCARNATION_HEADER = "Fairlead-Incarnation"
"""A number; 0 for a run that is not a gang."""
RUN_HEADER = "Fairlead-Run"
"""The run that a fenced request is about."""


class Fence(msgspec.Struct, frozen=True, order=True):
    """`(epoch, token)`; the shim refuses an older pair with 409 `fenced`."""

    epoch: int
    token: int

    def header(self) -> str:
        return f"{self.epoch}.{self.token}"

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Return the fence. Raises ValueError unless `text` is two non-negative decimal numbers
        joined by a dot."""
        epoch, dot, token = text.partition(".")
        if not (dot and is_count(epoch) and is_count(token)):
            raise ValueError(f"not a fence (EPOCH.TOKEN): {text!r:.80}")
        return cls(int(epoch), int(token))


class TaskStatus(StrEnum):
    PENDING = "pending"
    PREPARING = "preparing"
    PULLING = "pulling"
    CREATING = "creating"
    RUNNING = "running"
    TERMINATED = "terminated"


class NetworkMode(StrEnum):
    HOST = "host"
    BRIDGE = "bridge"


class PullPolicy(StrEnum):
    ALWAYS = "always"
    IF_NOT_PRESENT = "if-not-present"
    NEVER = "never"


class RegistryAuth(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials for one pull; never written to a record, a log or a listing."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryAuth(username={self.username!r}, password=***)"


class WantedImage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image that the node pulls ahead. `digest` pins it; `registry_auth` is kept in memory
    alone."""

    image: str
    digest: str | None = None
    registry_auth: RegistryAuth | None = None
    nominated: bool = False
    """A job that waits for room on this node wants it: it goes first, and is in no listing."""


class WantedImages(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `PUT /v1/node/images`: all images that the node pulls ahead, in order. It replaces
    the list of before."""

    images: tuple[WantedImage, ...]


class ImageState(StrEnum):
    WAITING = "waiting"
    PULLING = "pulling"
    HERE = "here"
    FAILED = "failed"
    """It is tried again."""


class ImageAhead(msgspec.Struct, frozen=True, kw_only=True):
    """An image that the node pulls ahead. `message`: why the last try failed, until one succeeds;
    `at` and `retry_at` are Unix times."""

    image: str
    state: ImageState
    at: float
    message: str | None = None
    retry_at: float | None = None


class GpuRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Either `uuids` (verified) or `count` with filters (the shim chooses)."""

    count: int = 0
    uuids: tuple[str, ...] = ()
    vendor: GpuVendor = GpuVendor.NVIDIA
    names: tuple[str, ...] = ()
    min_memory: int = 0
    min_compute_capability: str | None = None


class TaskResources(Amounts, frozen=True, kw_only=True):
    """The resources that the allocation takes from the node.

    `whole_node` also means host networking if the node's operator allows it.
    """

    cpu: float
    memory: int
    shm_size: int | None = None
    gpu: GpuRequest = GpuRequest()
    infiniband: bool = False
    """The container gets the node's `/dev/infiniband`."""
    whole_node: bool = False


class VolumeKind(StrEnum):
    HOST = "host"
    """`source` is a path on the node, below a prefix that its operator allows."""
    NAMED = "named"
    """`source` is the name of a Docker volume of Fairlead, which is made if it is missing."""
    TMPFS = "tmpfs"
    DEVICE = "device"
    """`source` is a block device with a filesystem, which the shim mounts."""


class VolumeMount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One mount. `target` is an absolute path in the container.

    `optional`: it is left out when `source` is missing. `size` is for a tmpfs, in bytes.
    """

    kind: VolumeKind
    target: str
    source: str = ""
    read_only: bool = False
    optional: bool = False
    size: int | None = None


class Ulimit(msgspec.Struct, frozen=True, kw_only=True):
    """A ulimit; -1 means unlimited."""

    name: str
    soft: int
    hard: int


class ContainerOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container's options beyond, or less than, those of an ordinary one.

    `user` is the job's: a container without the right to change users starts as that user. `init`:
    the engine's own init is the first process and the entrypoint its child; the entrypoint reaps
    orphans either way.
    """

    privileged: bool = False
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    ulimits: tuple[Ulimit, ...] = ()
    pids_limit: int | None = None
    read_only_root: bool = False
    init: bool = False
    user: str | None = None


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `PUT /v1/tasks/{id}`, compared by a hash that leaves out `registry_auth`.

    `image_digest` pins `image` to that of an earlier task of the same job. Defaults are left out of
    the encoding, so that new fields of a later version do not change the hash of an older body.
    """

    run_id: str
    run_name: str
    allocation_id: str
    image: str
    resources: TaskResources
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    registry_auth: RegistryAuth | None = None
    hostname: str | None = None
    ssh: SshRequest | None = None
    image_digest: str | None = None
    volumes: tuple[VolumeMount, ...] = ()
    container: ContainerOptions = ContainerOptions()
    stop_when_unheard_seconds: float | None = None
    """Seconds without contact to a controller after which the shim stops the task."""
    needs_host_network: bool = False
    """Its peers on other nodes reach it at its node's address. It is refused with 409
    `no_host_network` where the node's operator gives no task the node's network."""
    python: str | None = None
    """The version of Python that the node brings for the job."""
    carries_jobs: bool = False
    """Its container may run other jobs after its own: all of them get a cgroup each, where the node
    can."""
    needs_of_engine: tuple[str, ...] = ()
    """The EngineAbility values without which the job is not what its user asked for. It is refused
    with 409 `engine_lacks` where the engine lacks one."""


class SshMode(StrEnum):
    AUTO = "auto"
    """The image's own sshd if it has a usable one, else Fairlead's embedded server."""
    EMBEDDED = "embedded"
    INSTALL = "install"
    """openssh-server is installed by the image's package manager while the job runs."""


CLUSTER_SSH_PORT = 10022
"""The port at which the jobs of a multi-node run reach each other; each has its own node."""


class SshRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SSH into the task.

    `authorized_keys`: OpenSSH public key lines without options. `cluster_key`: the public key with
    which the jobs of a multi-node run reach each other. With it, a task in the node's network
    listens on all addresses at CLUSTER_SSH_PORT; without it, on the loopback alone. The jump user
    never gets this key. `terminal_key`: the controller's public key for terminals; it comes through
    the runner, so the jump user does not get this one either.
    """

    authorized_keys: tuple[str, ...]
    mode: SshMode = SshMode.AUTO
    cluster_key: str | None = None
    terminal_key: str | None = None


class PullProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an image's layers, or of outputs on their way to the controller. `total` grows while
    the registry still names layers. `extracted` counts unpacked layers by their downloaded size."""

    downloaded: int = 0
    total: int = 0
    extracted: int = 0


class TaskTimes(msgspec.Struct, frozen=True, kw_only=True):
    submitted_at: float
    preparing_at: float | None = None
    pulling_at: float | None = None
    creating_at: float | None = None
    running_at: float | None = None
    terminated_at: float | None = None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the job's log from outside of the job. A repeated notice has the same `id`; `at`
    is Unix time."""

    id: str
    at: float
    text: str


class RefusalCode(StrEnum):
    """The codes of a refusal by which a controller decides what to do next."""

    NOT_FOUND = "not_found"
    NO_CAPACITY = "no_capacity"
    DRAINING = "draining"
    FENCED = "fenced"
    NO_NETWORK = "no_network"
    NO_HOST_NETWORK = "no_host_network"
    ENGINE_LACKS = "engine_lacks"


class TaskReason(StrEnum):
    """Why a task ended, if the shim itself says so; the names are those of docs/rules.md."""

    CREATING_CONTAINER_ERROR = "creating_container_error"
    IMAGE_PULL_FAILED = "image_pull_failed"
    VOLUME_ERROR = "volume_error"
    PORTS_BINDING_FAILED = "ports_binding_failed"
    CONTAINER_EXITED_WITH_ERROR = "container_exited_with_error"
    OUT_OF_MEMORY = "out_of_memory"
    INSTANCE_UNREACHABLE = "instance_unreachable"
    """The fault is the node's, not the job's."""
    NO_CAPACITY = "interrupted_by_no_capacity"
    """The node was full after all: neither the job nor the node has a fault."""


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One task as the shim knows it.

    `reason` is a TaskReason, or the controller's reason from `terminate`; None: the exit code tells
    all. `exit_record` is the text of the runner's exit record (JSON of `runner.ExitRecord`), which
    outlives the container. The job can forge it, so it is only a claim about that job.
    """

    id: str
    run_id: str
    run_name: str
    allocation_id: str
    status: TaskStatus
    image: str
    incarnation: int = 0
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None
    exit_record: str | None = None
    image_digest: str | None = None
    pull: PullProgress | None = None
    container_id: str | None = None
    network_mode: NetworkMode = NetworkMode.BRIDGE
    address: str | None = None
    """Its IPv4 address in its run's network on this node, where the run's other tasks here reach
    it; None in the node's network, and until it is known."""
    runner_socket: str = ""
    runner_listens: bool | None = None
    """Whether its runner has begun to listen on `runner_socket`; None: an older shim does not
    say."""
    ports: dict[str, int] = {}
    gpus: tuple[str, ...] = ()
    ssh_host_key: str | None = None
    """The public key of the task's SSH server."""
    ssh_host: str = "127.0.0.1"
    """Where the node reaches the SSH server, at `ports["ssh"]`: its loopback, or the container."""
    needs_credentials: bool = False
    gpu_fault: str | None = None
    """The fault of one of its GPUs that was cordoned while the task lived, or when the shim started
    again; None once the task has ended well."""
    has_outputs: bool = False
    """The task has ended, and its job left something in its output folder, to be read before the
    task is removed."""
    notices: tuple[Notice, ...] = ()
    """Lines for the job's log, oldest first; the controller gives them to its runner."""
    version: int = 0
    """It grows by one with each change, so that a stale copy is recognised."""
    times: TaskTimes


class TerminateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a task. `grace`: seconds between the stop signal and the kill of the job; 0 kills
    all at once.

    The container follows within 5 s, so that the runner can record how the job ended.
    """

    grace: float = 10.0
    reason: str | None = None
    message: str | None = None


EXPOSED_OK = b"ok\n"
"""The first line of a connection to an exposed socket; another one says why there is no way."""
ANY_PORT = 0
"""Exposes all ports of a task at one socket."""


class ExposeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Let gateways and followers reach this port of a task. `ANY_PORT`: all of its ports; whoever
    connects writes the number of one first, in a line."""

    port: int


class ExposedPort(msgspec.Struct, frozen=True, kw_only=True):
    """`socket`: the path on the node at which the port is reached. Its name can't be guessed: it is
    for those alone who may reach the port."""

    port: int
    socket: str


class GatewayKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The OpenSSH public keys of all gateways that may log in; none: no gateway may."""

    keys: tuple[str, ...]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The shim's health. `boot_id` is the kernel's; `install_id` is made once for a data folder;
    `epoch` is this life of the shim, the first half of an event cursor."""

    version: str
    api_versions: tuple[str, ...]
    boot_id: str
    install_id: str
    epoch: str
    at: float | None = None
    """The node's clock, Unix seconds."""


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    draining: bool = True
    reason: str | None = None


class EventType(StrEnum):
    TASK = "task"
    """`task` holds the task's state after the change."""
    REMOVED = "removed"
    """`task_id` is gone from the shim."""
    RESYNC = "resync"
    """The cursor is unknown: read `GET /v1/tasks`, then continue from this event's cursor."""
    NODE = "node"
    """The node's drain state, capacity or GPU health changed: read `GET /v1/node`."""
    HEARTBEAT = "heartbeat"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line (JSON, `\\n`) of `GET /v1/events?after=<cursor>`; without `after` it starts with the
    cursor of now. A heartbeat comes at once and then every 10 s when nothing else does."""

    cursor: str
    type: EventType
    task: TaskInfo | None = None
    task_id: str | None = None


OUTPUTS_HEADER = "Fairlead-Outputs"
"""`OutputsAbout` as JSON."""
LOG_START_HEADER = "Fairlead-Log-Start"
"""For `GET /v1/tasks/{id}/logs?offset=`: the payload offset of the first frame in the body. The
body is the raw bytes of the runner's segment files from the segment that holds `offset`; decode it
with `fairlead.wire.frames`."""
