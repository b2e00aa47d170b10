"""The fields that every type of run has.

The names are dstack's where dstack has them. `docs/configuration.md` explains each; a test keeps
the two together.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fairlead.configuration import secrecy
from fairlead.configuration.field import Field
from fairlead.configuration.values.commands import (
    Argv,
    CaughtSignalName,
    Env,
    FolderName,
    PythonVersion,
    Secrets,
    SignalName,
    SshChoice,
    Text,
    UserName,
)
from fairlead.configuration.values.container import (
    Capability,
    PortMapping,
    ProcessCount,
    RegistryAuthFields,
    Ulimits,
    Volume,
)
from fairlead.configuration.values.files import BucketFields, FileList, OutputPath, Repos
from fairlead.configuration.values.images import ImageName
from fairlead.configuration.values.names import RunName
from fairlead.configuration.values.placement import Names, WrittenConstraint
from fairlead.configuration.values.resources import ResourcesFields
from fairlead.configuration.values.units import (
    DURATION_ALLOWED,
    OFF_ALLOWED,
    SIZE_ALLOWED,
    AtLeastOne,
    Duration,
    DurationOrOff,
    Percent,
    Positive,
    Size,
    Times,
)
from fairlead.model.needs import CreationPolicy, SpotPolicy
from fairlead.model.reasons import RetryEvent
from fairlead.model.spec import Band, OnParentEnd, RunType
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.job import EndSignal, EnvStyle
from fairlead.wire.shim import PullPolicy

MAX_JOBS = 10_000
"""The most jobs of one run."""
TYPES_ALLOWED = ", ".join(RunType)
COMMANDS_ALLOWED = "a list of shell commands"
JobCount = Annotated[
    int, msgspec.Meta(ge=1, le=MAX_JOBS), Field(f"a whole number from 1 to {MAX_JOBS}")
]
_OF_PROVIDER = "a list of names, as the provider has them"
ExitCode = Annotated[int, msgspec.Meta(ge=1, le=255), Field("a whole number from 1 to 255")]
CoreDumpCount = Annotated[int, msgspec.Meta(ge=0, le=16)]


class RetryFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    on_events: tuple[RetryEvent, ...] | None = None
    duration: DurationOrOff | None = None
    max_failures: Annotated[
        Times | None,
        Field(
            called=("retry.max", "retries", "max_retries", "max_retries_failure", "max_failures")
        ),
    ] = None
    max_preemptions: Annotated[
        Times | None, Field(called=("max_retries_preemption", "max_preemptions"))
    ] = None


class GangFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    size: Annotated[AtLeastOne | None, Field("a whole number from 1 to nodes")] = None


class DisconnectFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stop_after: Annotated[Duration, Field(f"{DURATION_ALLOWED}; at least 30s")]


class SignalFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: CaughtSignalName
    before: Annotated[Duration, Field(f"{DURATION_ALLOWED}; more than 0")]

    @property
    def plain(self) -> EndSignal:
        return EndSignal(name=str(self.name), before=float(self.before))


class GroupedFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are allowed at the top level, or in a group for its jobs alone. `None`: not
    given."""

    nodes: Annotated[
        JobCount | None,
        Field(called=("job_count", "num_nodes")),
    ] = None
    gang: Annotated[
        bool | GangFields | None,
        Field("true, false, or a mapping with size", called=("gang_options", "coscheduling")),
    ] = None
    share_nodes: bool | None = None
    image: Annotated[
        ImageName | None,
        Field(called=("container", "docker_image", "container_image"), needs=EngineAbility.IMAGES),
    ] = None
    python: PythonVersion | None = None
    nvcc: Annotated[bool | None, Field(needs=EngineAbility.IMAGES)] = None
    setup: Annotated[tuple[str, ...], Field(COMMANDS_ALLOWED)] = ()
    commands: Annotated[
        tuple[str, ...], Field(COMMANDS_ALLOWED, called=("run", "script", "cmd", "command"))
    ] = ()
    entrypoint: Argv | None = None
    shell: Annotated[Text | None, Field("the path of a shell in the image, such as /bin/bash")] = (
        None
    )
    env: Annotated[
        Env | None, Field(called=("environment",), public=secrecy.env_without_secrets)
    ] = None
    working_dir: Annotated[FolderName | None, Field(called=("workdir", "work_dir", "cwd"))] = None
    user: UserName | None = None
    resources: ResourcesFields = ResourcesFields()
    constraints: Annotated[
        tuple[WrittenConstraint, ...] | None,
        Field(
            "a list of ATTRIBUTE OPERATOR VALUE, such as gpu.name EQ H100, or of mappings"
            " with attribute, operator, value or values, required",
            called=("nodelist",),
        ),
    ] = None
    fleets: Annotated[Names | None, Field(called=("fleet", "partition"))] = None
    spot_policy: SpotPolicy | None = None
    max_price: Annotated[Positive | None, Field("a price an hour, more than 0")] = None
    backends: Annotated[
        tuple[Text, ...] | None, Field("a list of names of the controller's providers")
    ] = None
    regions: Annotated[tuple[Text, ...] | None, Field(_OF_PROVIDER)] = None
    availability_zones: Annotated[tuple[Text, ...] | None, Field(_OF_PROVIDER)] = None
    instance_types: Annotated[tuple[Text, ...] | None, Field(_OF_PROVIDER)] = None
    reservation: Annotated[Text | None, Field("the name of a reservation at the provider")] = None
    creation_policy: CreationPolicy | None = None
    idle_duration: DurationOrOff | None = None
    volumes: Annotated[
        tuple[Volume, ...] | None,
        Field(
            "a list of NAME:/PATH, /PATH/ON/THE/NODE:/PATH (both with :ro if read only), or"
            " mappings with path and one of name, instance_path, device, tmpfs",
            called=("mounts",),
            needs=EngineAbility.VOLUMES,
        ),
    ] = None


class CommonFields(GroupedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`None` means that the user did not set it: the plan fills in the defaults."""

    name: RunName | None = None
    dialect: Literal["dstack", "fairlead"] | None = None
    on_parent_end: OnParentEnd = OnParentEnd.TERMINATE
    on_disconnect: Annotated[
        Literal["keep", "stop"] | DisconnectFields,
        Field("keep, stop, or a mapping with stop_after"),
    ] = "keep"
    max_duration: Annotated[
        DurationOrOff | None, Field(f"{OFF_ALLOWED}; more than 0", called=("timeout",))
    ] = None
    stop_duration: Duration | None = None
    stop_signal: SignalName | None = None
    signal: Annotated[
        SignalFields | None,
        Field("a mapping with name and before", needs=EngineAbility.SIGNAL),
    ] = None
    restart_exit_code: ExitCode | None = None
    log_quota: Annotated[Size | None, Field(f"{SIZE_ALLOWED}, at least 1MiB")] = None
    fail_on_log_quota: bool = False
    retry: Annotated[
        bool | RetryFields | None,
        Field("true, false, or a mapping with on_events, duration, max_failures, max_preemptions"),
    ] = None
    priority: Percent | None = None
    band: Annotated[Band | None, Field(called=("priority_band",))] = None
    scheduling_timeout: Annotated[
        DurationOrOff | None, Field(f"{OFF_ALLOWED}; 0 fails at once when nothing is free")
    ] = None
    pull_policy: PullPolicy | None = None
    registry_auth: Annotated[
        RegistryAuthFields | None,
        Field(
            "a mapping with username and password",
            called=("registry", "image_auth"),
            public=secrecy.login_without_password,
        ),
    ] = None
    repos: Annotated[Repos | None, Field(called=("code",), public=secrecy.repos_without_tokens)] = (
        None
    )
    files: Annotated[FileList | None, Field(called=("file_paths",))] = None
    secrets: Annotated[Secrets | None, Field(public=secrecy.names_of_secrets)] = None
    ports: Annotated[
        tuple[PortMapping, ...],
        Field("a list of PORT or LOCAL:PORT, such as 8080 or 80:8000; LOCAL * is any free port"),
    ] = ()
    tty: bool = False
    env_style: tuple[EnvStyle, ...] = ()
    outputs: Annotated[
        tuple[OutputPath, ...],
        Field(
            "a list of paths in the container, absolute or relative to working_dir, with the"
            " patterns * ? [a-z] and **"
        ),
    ] = ()
    core_dumps: Annotated[
        bool | CoreDumpCount, Field("true (one), false, or a whole number from 0 to 16")
    ] = False
    buckets: Annotated[
        tuple[BucketFields, ...], Field("a list of mappings with url, path, mode and endpoint")
    ] = ()
    ssh: SshChoice | None = None


class RunFields(CommonFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every type of run.

    The fields that are written here are options of the container. Each has the name that it has in
    the shim's `ContainerOptions`, and goes there as it is.
    """

    privileged: Annotated[bool, Field(needs=EngineAbility.OPTIONS)] = False
    cap_add: Annotated[
        tuple[Capability, ...],
        Field("a list of capabilities such as SYS_PTRACE", needs=EngineAbility.OPTIONS),
    ] = ()
    cap_drop: Annotated[
        tuple[Capability, ...],
        Field("a list of capabilities, or ALL", needs=EngineAbility.OPTIONS),
    ] = ()
    ulimits: Annotated[Ulimits | None, Field(needs=EngineAbility.OPTIONS)] = None
    pids_limit: Annotated[
        ProcessCount | None,
        Field(needs=EngineAbility.OPTIONS),
    ] = None
    read_only_root: Annotated[bool, Field(needs=EngineAbility.OPTIONS)] = False


CONTAINER_OPTIONS = tuple(RunFields.__annotations__)
