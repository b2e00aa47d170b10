"""The fields of a run's YAML, each with what it may hold.

The names are dstack's where dstack has them. Errors quote `ALLOWED` and, for services,
`SERVICE_ALLOWED`; `docs/configuration.md` explains both. A test keeps the three together.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from controller.configuration.images import IMAGE_ALLOWED
from controller.configuration.units import (
    CPU_ALLOWED,
    DURATION_ALLOWED,
    OFF_ALLOWED,
    SIZE_ALLOWED,
)
from controller.lifecycle.dev_environment import Ide
from controller.lifecycle.model import (
    Band,
    Constraint,
    GpuNeed,
    OnParentEnd,
    Operator,
    RetryEvent,
    StartupOrder,
    StopCriteria,
)
from controller.lifecycle.services.policy import RateLimitKey, ScalingMetric
from runner.schemas import BucketMode, EnvStyle, IfFolderExists
from shim.schemas import PullPolicy, Ulimit, VolumeMount

MOST_JOBS = 10_000
"""The most jobs of one run."""
MOST_REPLICAS = 1000
"""The most replicas of one group of a service."""


class Size(int):
    """Bytes. `is_least`: written without an upper end, as `8GB..`."""

    is_least = False


class Duration(float):
    """Seconds."""


class DurationOrOff:
    """`seconds` is None when the user switched the limit off."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds


class Cpu(float):
    """Cores. `is_least`: written without an upper end, as `4..`."""

    is_least = False


class RunName(str):
    __slots__ = ()


class Argv(tuple[str, ...]):
    """A program and its arguments."""

    __slots__ = ()


class UserName(str):
    __slots__ = ()


class FolderName(str):
    __slots__ = ()


class ImageName(str):
    __slots__ = ()


class PythonVersion(str):
    """A version such as 3.12 or 3.12.4."""

    __slots__ = ()


class SignalName(str):
    __slots__ = ()


class SshChoice(str):
    __slots__ = ()


class Env(dict[str, str]):
    """Environment variables. The values may be secret: no message repeats one."""

    def __repr__(self) -> str:
        return f"Env({sorted(self)})"


class Gpu:
    def __init__(self, need: GpuNeed) -> None:
        self.need = need


class Volume:
    def __init__(self, mount: VolumeMount) -> None:
        self.mount = mount


class Capability(str):
    """A capability without the prefix CAP_."""

    __slots__ = ()


class Ulimits:
    def __init__(self, limits: tuple[Ulimit, ...]) -> None:
        self.limits = limits


class Secrets(dict[str, str]):
    """Secrets; only the names are shown."""

    def __repr__(self) -> str:
        return f"Secrets({sorted(self)})"


class PortMapping:
    """A port of the job, and the local port that leads to it; `local` 0 is any free one."""

    def __init__(self, port: int, local: int) -> None:
        self.port = port
        self.local = local


class WrittenConstraint:
    """One of the `constraints`."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint


class Names(tuple[str, ...]):
    __slots__ = ()


class Schedule(tuple[str, ...]):
    """Cron expressions, in UTC."""

    __slots__ = ()


class GroupName(str):
    __slots__ = ()


class OutputPath(str):
    """A path or pattern of what is kept of a job."""

    __slots__ = ()


class UrlPath(str):
    """A path of a URL, with its query."""

    __slots__ = ()


class HeaderName(str):
    __slots__ = ()


class ProbeMethod(str):
    """A method of HTTP, in capitals."""

    __slots__ = ()


Times = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
JobCount = Annotated[int, msgspec.Meta(ge=1, le=MOST_JOBS)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
ProcessCount = Annotated[int, msgspec.Meta(ge=8, le=4_194_304)]
"""The programs that start a job need some processes themselves; the kernel has no more pids."""
ExitCode = Annotated[int, msgspec.Meta(ge=1, le=255)]
CoreDumpCount = Annotated[int, msgspec.Meta(ge=0, le=16)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1_000_000_000)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class GpuFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of `resources.gpu`."""

    name: str | tuple[str, ...] = ()
    count: int | str = 1
    memory: str | None = None
    compute_capability: str | float | None = None


class VolumeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of one of `volumes`."""

    path: FolderName
    name: str | None = None
    instance_path: FolderName | None = None
    device: FolderName | None = None
    tmpfs: Size | None = None
    read_only: bool = False
    optional: bool = False


class ResourcesFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cpu: Cpu | None = None
    memory: Size | None = None
    gpu: Gpu | None = None
    disk: Size | None = None
    shm_size: Size | None = None
    infiniband: bool | None = None


class RetryFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    on_events: tuple[RetryEvent, ...] | None = None
    duration: DurationOrOff | None = None
    max_failures: Times | None = None
    max_preemptions: Times | None = None


class RegistryAuthFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    username: Text
    password: Text

    def __repr__(self) -> str:
        return "RegistryAuthFields(***)"


class UploadedRepo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results and uploads of `fairlead apply`; blobs are named by their sha256."""

    url: str | None = None
    hash: str | None = None
    diff: str | None = None
    archive: str | None = None
    token: str | None = None
    private_key: str | None = None
    known_hosts: str | None = None

    def __repr__(self) -> str:
        return f"UploadedRepo(url={self.url!r})"


class RepoFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `repos`. `token` and `private_key` are names of stored secrets, never values."""

    local_path: Text | None = None
    url: Text | None = None
    branch: Text | None = None
    hash: Text | None = None
    path: Text = "."
    if_exists: IfFolderExists = IfFolderExists.ERROR
    token_env: Text | None = None
    key_file: Text | None = None
    token: Text | None = None
    private_key: Text | None = None
    uploaded: UploadedRepo | None = None


class FileFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `files`. `uploaded`: the blob's sha256, and the folder into which it is
    unpacked."""

    local_path: Text
    path: Text | None = None
    uploaded: tuple[Text, Text] | None = None


class BucketUrl(str):
    """s3://BUCKET/PREFIX"""

    __slots__ = ()


class BucketEndpoint(str):
    """https://HOST[:PORT]"""

    __slots__ = ()


class BucketFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `buckets`, which a job gets as a folder."""

    url: BucketUrl
    path: FolderName
    mode: BucketMode = BucketMode.READ
    endpoint: BucketEndpoint | None = None


class Repos(tuple[RepoFields, ...]):
    __slots__ = ()


class FileList(tuple[FileFields, ...]):
    __slots__ = ()


class GangFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    size: AtLeastOne | None = None


class ConstraintFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of one of `constraints`."""

    attribute: Text
    operator: Operator
    value: str | int | float | None = None
    values: tuple[str | int | float, ...] | None = None
    required: bool = True


class DisconnectFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stop_after: Duration


class GroupedFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are allowed at the top level, or in a group for its jobs alone. `None`: not
    given."""

    nodes: JobCount | None = None
    gang: bool | GangFields | None = None
    share_nodes: bool | None = None
    image: ImageName | None = None
    python: PythonVersion | None = None
    nvcc: bool | None = None
    setup: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    entrypoint: Argv | None = None
    shell: Text | None = None
    env: Env | None = None
    working_dir: FolderName | None = None
    user: UserName | None = None
    resources: ResourcesFields = ResourcesFields()
    constraints: tuple[WrittenConstraint, ...] | None = None
    fleets: Names | None = None
    volumes: tuple[Volume, ...] | None = None


class GroupFields(GroupedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `groups`."""

    name: GroupName


class Groups(tuple[GroupFields, ...]):
    __slots__ = ()


class RunFields(GroupedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every type of run. `None` means that the user did not set it: `plan` fills in
    the defaults."""

    name: RunName | None = None
    dialect: Literal["dstack", "fairlead"] | None = None
    on_parent_end: OnParentEnd = OnParentEnd.TERMINATE
    on_disconnect: Literal["keep", "stop"] | DisconnectFields = "keep"
    max_duration: DurationOrOff | None = None
    stop_duration: Duration | None = None
    stop_signal: SignalName | None = None
    restart_exit_code: ExitCode | None = None
    log_quota: Size | None = None
    fail_on_log_quota: bool = False
    retry: bool | RetryFields | None = None
    priority: Percent | None = None
    band: Band | None = None
    scheduling_timeout: DurationOrOff | None = None
    pull_policy: PullPolicy | None = None
    registry_auth: RegistryAuthFields | None = None
    repos: Repos | None = None
    files: FileList | None = None
    secrets: Secrets | None = None
    ports: tuple[PortMapping, ...] = ()
    tty: bool = False
    env_style: tuple[EnvStyle, ...] = ()
    outputs: tuple[OutputPath, ...] = ()
    core_dumps: bool | CoreDumpCount = False
    buckets: tuple[BucketFields, ...] = ()
    ssh: SshChoice | None = None
    privileged: bool = False
    cap_add: tuple[Capability, ...] = ()
    cap_drop: tuple[Capability, ...] = ()
    ulimits: Ulimits | None = None
    pids_limit: ProcessCount | None = None
    read_only_root: bool = False


class TaskConfiguration(RunFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a task."""

    type: Literal["task"]
    groups: Groups | None = None
    monitoring: Literal["random", "by-rank"] = "random"
    placement: Literal["any", "cluster"] = "any"
    startup_order: StartupOrder = StartupOrder.ANY
    schedule: Schedule | None = None
    reincarnation_timeout: Duration | None = None
    stop_criteria: StopCriteria = StopCriteria.ALL_DONE
    max_failed_jobs: Times = 0
    max_failed_attempts: Times | None = None
    fail_on_job_restart: bool = False
    restart_completed_jobs: bool = False
    init: bool = False


class Home:
    """The volume that keeps the home of a dev environment. `source` None: its name names the
    volume; `target` None: the home of root."""

    def __init__(self, source: str | None, target: str | None) -> None:
        self.source = source
        self.target = target


class IdeVersion(str):
    __slots__ = ()


class DevEnvironmentConfiguration(RunFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a dev environment."""

    type: Literal["dev-environment"]
    ide: Ide | None = None
    version: IdeVersion | None = None
    init: tuple[str, ...] = ()
    inactivity_duration: DurationOrOff | None = None
    home: Home | None = None
    schedule: Schedule | None = None


class PortPair:
    """`port`: of the replicas, and under which a gateway offers it (`80:8000`)."""

    def __init__(self, port: int, public: int | None) -> None:
        self.port = port
        self.public = public


class ReplicaRange:
    """From `least` to `most` replicas."""

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most


class ScalingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metric: ScalingMetric
    target: Positive
    window: Literal["30s", "60s", "1m", "5m"] = "60s"
    scale_up_delay: Duration | None = None
    scale_down_delay: Duration | None = None


class HeaderFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: HeaderName
    value: str

    def __repr__(self) -> str:
        return f"HeaderFields({self.name})"


class Headers(tuple[tuple[str, str], ...]):
    """Names and values. The values may be secret: only the names are shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Headers({[name for name, _ in self]})"


class ProbeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `probes`."""

    type: Literal["http", "tcp"]
    url: UrlPath | None = None
    method: ProbeMethod | None = None
    headers: Headers | None = None
    body: str | None = None
    timeout: Duration | None = None
    interval: Duration | None = None
    ready_after: AtLeastOne = 1
    until_ready: bool = False


class RateLimitKeyFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: RateLimitKey
    header: HeaderName | None = None


class RateLimitFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `rate_limits`."""

    prefix: UrlPath | None = None
    key: Literal["ip", "header"] | RateLimitKeyFields = "ip"
    header: HeaderName | None = None
    rps: Positive
    burst: Times = 0


class ModelFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of `model`."""

    name: Text
    type: Literal["chat"] = "chat"
    format: Literal["openai"] = "openai"
    prefix: UrlPath | None = None


class ReplicaGroupFields(GroupedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `replicas`, when they are of several kinds."""

    name: GroupName | None = None
    count: ReplicaRange | None = None
    scaling: ScalingFields | None = None


class Replicas:
    """The replica groups. `several`: the user wrote a list, and not a number or a range."""

    def __init__(self, groups: tuple[ReplicaGroupFields, ...], *, several: bool) -> None:
        self.groups = groups
        self.several = several


class ServiceConfiguration(RunFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a service."""

    type: Literal["service"]
    port: PortPair
    replicas: Replicas | None = None
    scaling: ScalingFields | None = None
    probes: tuple[ProbeFields, ...] | None = None
    rate_limits: tuple[RateLimitFields, ...] = ()
    auth: bool = True
    https: bool | Literal["auto"] = "auto"
    gateway: bool | Text | None = None
    strip_prefix: bool = True
    model: Text | ModelFields | None = None
    headers: Headers | None = None
    surge: AtLeastOne = 1
    rollout_timeout: Duration | None = None
    unhealthy_after: DurationOrOff | None = None
    eject_for: DurationOrOff | None = None
    init: bool = False


_EVENTS = ", ".join(RetryEvent)

ALLOWED = {
    "type": "task, service, dev-environment",
    "name": "a lowercase letter, then up to 40 lowercase letters, digits and hyphens",
    "dialect": "dstack, fairlead",
    "image": IMAGE_ALLOWED,
    "python": "a version such as 3.12 or 3.12.4",
    "nvcc": "true or false",
    "setup": "a list of shell commands",
    "commands": "a list of shell commands",
    "entrypoint": "a list of a program and its arguments, or one line of them",
    "shell": "the path of a shell in the image, such as /bin/bash",
    "env": "a mapping of names to strings or numbers, or a list of NAME=VALUE",
    "working_dir": "an absolute path in the container",
    "user": "a user name or id of the image, optionally followed by :group",
    "nodes": f"a whole number from 1 to {MOST_JOBS}",
    "gang": "true, false, or a mapping with size",
    "gang.size": "a whole number from 1 to nodes",
    "share_nodes": "true or false",
    "groups": "a list of mappings with name, nodes, gang, share_nodes, commands and what else the"
    " group's jobs have of their own",
    "groups.name": "a lowercase letter, then up to 40 lowercase letters, digits and hyphens",
    "monitoring": "random, by-rank",
    "placement": "any, cluster",
    "startup_order": ", ".join(StartupOrder),
    "schedule": "a cron expression in UTC such as 0 8 * * 1-5, or a list of them",
    "reincarnation_timeout": f"{DURATION_ALLOWED}; more than 0",
    "on_parent_end": ", ".join(OnParentEnd),
    "on_disconnect": "keep, stop, or a mapping with stop_after",
    "on_disconnect.stop_after": f"{DURATION_ALLOWED}; at least 30s",
    "constraints": "a list of ATTRIBUTE OPERATOR VALUE, such as gpu.name EQ H100, or of mappings"
    " with attribute, operator, value or values, required",
    "constraints.attribute": "the name of an attribute of nodes",
    "constraints.operator": ", ".join(Operator),
    "constraints.value": "a string or a number",
    "constraints.values": "a list of strings or numbers, for IN",
    "constraints.required": "true, or false for a preference",
    "fleets": "the name of a fleet, or a list of them",
    "resources": "a mapping with cpu, memory, gpu, disk, shm_size, infiniband",
    "resources.cpu": CPU_ALLOWED,
    "resources.memory": f"{SIZE_ALLOWED}, at least 48MiB",
    "resources.gpu": "a count, NAME, NAME:COUNT, NAME:MEMORY:COUNT, or a mapping with name, count,"
    " memory, compute_capability",
    "resources.gpu.name": "a GPU name such as A100, or a list of them",
    "resources.gpu.count": "a whole number, or a range such as 2..",
    "resources.gpu.memory": f"the least memory of each GPU: {SIZE_ALLOWED}",
    "resources.gpu.compute_capability": "the least compute capability, such as 8.0",
    "resources.disk": SIZE_ALLOWED,
    "resources.shm_size": f"{SIZE_ALLOWED}, at most the job's memory",
    "resources.infiniband": "true or false",
    "max_duration": f"{OFF_ALLOWED}; more than 0",
    "stop_duration": DURATION_ALLOWED,
    "stop_signal": "SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2 or SIGKILL",
    "restart_exit_code": "a whole number from 1 to 255",
    "log_quota": f"{SIZE_ALLOWED}, at least 1MiB",
    "fail_on_log_quota": "true or false",
    "retry": "true, false, or a mapping with on_events, duration, max_failures, max_preemptions",
    "retry.on_events": f"a list of {_EVENTS}",
    "retry.duration": OFF_ALLOWED,
    "retry.max_failures": "a whole number from 0 to 1000000000",
    "retry.max_preemptions": "a whole number from 0 to 1000000000",
    "stop_criteria": ", ".join(StopCriteria),
    "max_failed_jobs": "a whole number from 0 to 1000000000",
    "max_failed_attempts": "a whole number from 0 to 1000000000",
    "fail_on_job_restart": "true or false",
    "restart_completed_jobs": "true or false",
    "priority": "a whole number from 0 to 100",
    "band": ", ".join(Band),
    "scheduling_timeout": f"{OFF_ALLOWED}; 0 fails at once when nothing is free",
    "pull_policy": ", ".join(PullPolicy),
    "ssh": "auto, embedded, install, off",
    "registry_auth": "a mapping with username and password",
    "registry_auth.username": "a string, or ${NAME} for a variable of your environment",
    "registry_auth.password": "a string, or ${NAME} for a variable of your environment",
    "repos": "a list of FOLDER[:PATH] or URL[:PATH], or of mappings with local_path or url,"
    " branch, hash, path, if_exists, token_env, key_file, token, private_key",
    "repos.local_path": "a folder of this machine, such as . or ../project",
    "repos.url": "a URL that git can fetch: https, ssh (git@host:path too), git, file",
    "repos.branch": "the name of a branch or tag",
    "repos.hash": "a full commit id (40 hexadecimal digits)",
    "repos.path": "a path in the container, absolute or relative to working_dir",
    "repos.if_exists": ", ".join(IfFolderExists),
    "repos.token_env": "the name of a variable of your environment that holds an access token",
    "repos.key_file": "the path of a private SSH key on this machine",
    "repos.token": "${{ secrets.NAME }}, the stored secret that holds an access token",
    "repos.private_key": "${{ secrets.NAME }}, the stored secret that holds a private SSH key",
    "repos.uploaded": "nothing: `fairlead apply` fills it in",
    "files": "a list of LOCAL_PATH[:PATH], or of mappings with local_path and path",
    "files.local_path": "a file or folder of this machine",
    "files.path": "a path in the container, absolute or relative to working_dir",
    "files.uploaded": "nothing: `fairlead apply` fills it in",
    "secrets": "a mapping of names to strings, ${NAME} or ${{ secrets.NAME }}, or a list of names"
    " of variables of your environment",
    "ports": "a list of PORT or LOCAL:PORT, such as 8080 or 80:8000; LOCAL * is any free port",
    "tty": "true or false",
    "buckets": "a list of mappings with url, path, mode and endpoint",
    "buckets.url": "s3://BUCKET or s3://BUCKET/PREFIX",
    "buckets.path": "an absolute path, such as /data",
    "buckets.mode": "read or write-back",
    "buckets.endpoint": "https://HOST[:PORT] of a storage that is not AWS",
    "core_dumps": "true (one), false, or a whole number from 0 to 16",
    "outputs": "a list of paths in the container, absolute or relative to working_dir, with the"
    " patterns * ? [a-z] and **",
    "env_style": f"a list of {', '.join(EnvStyle)}",
    "volumes": "a list of NAME:/PATH, /PATH/ON/THE/NODE:/PATH (both with :ro if read only), or"
    " mappings with path and one of name, instance_path, device, tmpfs",
    "volumes.path": "an absolute path in the container",
    "volumes.name": "lowercase letters, digits, '_', '.' and '-'",
    "volumes.instance_path": "an absolute path on the node",
    "volumes.device": "the path of a block device on the node, such as /dev/disk/by-id/data",
    "volumes.tmpfs": SIZE_ALLOWED,
    "volumes.read_only": "true or false",
    "volumes.optional": "true or false",
    "privileged": "true or false",
    "cap_add": "a list of capabilities such as SYS_PTRACE",
    "cap_drop": "a list of capabilities, or ALL",
    "ulimits": "a mapping of limits to numbers, SOFT:HARD or unlimited, such as memlock: unlimited",
    "pids_limit": "a whole number from 8 to 4194304",
    "read_only_root": "true or false",
    "init": "true or false",
}

ONLY_OF_TASKS = (
    frozenset(TaskConfiguration.__struct_fields__)
    - frozenset(ServiceConfiguration.__struct_fields__)
) | {"gang"}
_OF_GROUPS = "a list of mappings with count, scaling, commands and what else the group's replicas"
_RANGE = "a whole number such as 2, or a range such as 1..4"
_OF_SERVICES = {
    "port": "a port from 1 to 65535 such as 8000, or PUBLIC:PORT such as 80:8000",
    "replicas": f"{_RANGE}, or {_OF_GROUPS} have of their own",
    "replicas.name": ALLOWED["groups.name"],
    "replicas.count": f"{_RANGE}; at most {MOST_REPLICAS}",
    "replicas.scaling": "a mapping with metric, target, window, scale_up_delay, scale_down_delay",
    "scaling": "a mapping with metric, target, window, scale_up_delay, scale_down_delay",
    "scaling.metric": ", ".join(ScalingMetric),
    "scaling.target": "a number of more than 0: requests per second and replica (rps), requests in"
    " flight per replica (concurrency), or seconds (latency-p95)",
    "scaling.window": "30s, 60s, 1m, 5m",
    "scaling.scale_up_delay": DURATION_ALLOWED,
    "scaling.scale_down_delay": DURATION_ALLOWED,
    "probes": "a list of mappings with type, url, method, headers, body, timeout, interval,"
    " ready_after, until_ready",
    "probes.type": "http, tcp",
    "probes.url": "a path that begins with /, such as /health",
    "probes.method": "get, post, put, patch, delete, head, options",
    "probes.headers": "a list of mappings with name and value, or a mapping of names to values",
    "probes.body": "a string",
    "probes.timeout": f"{DURATION_ALLOWED}; more than 0",
    "probes.interval": f"{DURATION_ALLOWED}; at least 1s",
    "probes.ready_after": "a whole number of at least 1",
    "probes.until_ready": "true or false",
    "rate_limits": "a list of mappings with prefix, key, rps, burst",
    "rate_limits.prefix": "a path that begins with /, such as /api/",
    "rate_limits.key": "ip, header (then header names it), or a mapping with type and header",
    "rate_limits.key.type": ", ".join(RateLimitKey),
    "rate_limits.key.header": "the name of a header, such as X-API-Key",
    "rate_limits.header": "the name of a header, such as X-API-Key",
    "rate_limits.rps": "a number of more than 0",
    "rate_limits.burst": "a whole number of at least 0",
    "auth": "true or false",
    "https": "true, false, auto",
    "gateway": "true (the default gateway), false, or a gateway's name",
    "strip_prefix": "true or false",
    "model": "the model's name, or a mapping with name, type, format, prefix",
    "model.name": "a string",
    "model.type": "chat",
    "model.format": "openai",
    "model.prefix": "a path that begins with /, such as /v1",
    "headers": "a mapping of names to values, or a list of mappings with name and value",
    "surge": "a whole number of at least 1",
    "rollout_timeout": f"{DURATION_ALLOWED}; more than 0",
    "unhealthy_after": f"{OFF_ALLOWED}; more than 0",
    "eject_for": f"{OFF_ALLOWED}; more than 0",
}
SERVICE_ALLOWED = {
    **{
        path: allowed
        for path, allowed in ALLOWED.items()
        if path.partition(".")[0] not in ONLY_OF_TASKS
    },
    **_OF_SERVICES,
}
"""The allowed values of a service's fields."""

_ONE_JOB = frozenset({"commands", "entrypoint", "nodes", "share_nodes"})
NOT_OF_DEV_ENVIRONMENTS = (ONLY_OF_TASKS | _ONE_JOB) - {"schedule"}
DEV_ENVIRONMENT_ALLOWED = {
    **{
        path: allowed
        for path, allowed in ALLOWED.items()
        if path.partition(".")[0] not in NOT_OF_DEV_ENVIRONMENTS
    },
    "ide": ", ".join(Ide),
    "version": "letters, digits, '.', '+', '-' and '@', such as 4.4.2",
    "init": "a list of shell commands",
    "inactivity_duration": f"{OFF_ALLOWED}; more than 0",
    "home": "true, the name of a volume, or a folder on the node; then :/PATH for a home elsewhere",
}
"""The allowed values of a dev environment's fields."""
