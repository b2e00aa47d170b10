"""The spec of a job and the policy of its run, as the plan fills them from the fields.

A field of `JobSpec` that has the name of a field of the YAML is filled from it; an empty value is
the default of both. Only what several fields, or the operator's defaults, decide together has a
function here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import fields_of, own_fields
from fairlead.configuration.runs.common import (
    CONTAINER_OPTIONS,
    DisconnectFields,
    GroupedFields,
    RetryFields,
    RunFields,
)
from fairlead.configuration.runs.groups import GroupPlan
from fairlead.configuration.values.files import (
    BucketFields,
    FileFields,
    RepoFields,
    UploadedRepo,
)
from fairlead.configuration.values.images import DEFAULT_IMAGE, image_for
from fairlead.configuration.values.resources import ResourcesFields
from fairlead.model.needs import NO_RENT_LIMITS, Amount, Permissions, RentLimits, Resources
from fairlead.model.reasons import RetryEvent
from fairlead.model.service import Serves
from fairlead.model.spec import Band, JobRepo, JobSpec, Limits, RetryPolicy, RunPolicy
from fairlead.wire.container_rules import needs_privilege, wants_raw_sockets
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.gpu_names import GpuVendor
from fairlead.wire.job import BucketFolder, Files
from fairlead.wire.shim import ContainerOptions, PullPolicy, RegistryAuth, Ulimit, VolumeKind
from fairlead.wire.sizes import size_words

_T = TypeVar("_T")


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """The values for fields that the user leaves out; the operator may change them."""

    image: str = DEFAULT_IMAGE
    nvcc_image: str | None = None
    """The image of jobs with `nvcc`; None: there is none."""
    resources: Resources = Resources(memory=2 << 30)
    """For a job that neither holds its whole node nor asks for GPUs; the least for the others."""
    stop_duration: float = 300.0
    stop_signal: str = "SIGTERM"
    max_duration: float | None = None
    scheduling_timeout: float | None = None
    priority: int = 50
    band: Band = Band.INTERACTIVE
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    ssh: str = "auto"
    ssh_keys: tuple[str, ...] = ()
    """The project's public keys: they are added to every run besides its user's own."""
    retry_true_duration: float = 3600.0
    """Seconds for which `retry: true` tries again."""
    gang_max_failures: int = 10
    """The number of retried failures of an explicit `gang` if the user sets none."""
    outputs_limit: int = 1 << 30
    """Bytes of outputs that are kept of one attempt."""
    limits: Limits = Limits()


# -- a job's spec ---------------------------------------------------------------------------------


class _Written(msgspec.Struct, frozen=True):
    """What one group's jobs are made of: the fields of the run and those of the group, the
    operator's defaults, and the user's keys."""

    run: RunFields
    planned: GroupPlan
    defaults: Defaults
    ssh_keys: tuple[str, ...]

    @property
    def own(self) -> GroupedFields:
        return self.planned.written


def job_spec(
    configuration: RunFields,
    planned: GroupPlan,
    defaults: Defaults,
    ssh_keys: tuple[str, ...],
    serves: Serves | None,
) -> JobSpec:
    """Return the spec of a group's jobs. `serves`: what they offer to the proxy.

    Raises ConfigurationError for what only the defaults, or `fairlead apply`, can complete.
    """
    written = _Written(configuration, planned, defaults, ssh_keys)
    values: dict[str, Any] = {}
    for names, fields in ((_OF_A_GROUP, planned.written), (_OF_THE_RUN, configuration)):
        for name in names:
            value = getattr(fields, name)
            if value:
                values[name] = value if type(value) in _AS_IT_IS else plain(value)
            elif value is None and name in _WITH_DEFAULT:
                values[name] = getattr(defaults, name)
    for name, make in _TOGETHER.items():
        values[name] = make(written)
    return JobSpec(serves=serves, **values)


_AS_IT_IS = frozenset({str, bool, int, PullPolicy})


def plain(value: Any) -> Any:
    """Return what a value of the YAML is for the wire and the database, which know plain types
    alone."""
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, tuple):
        return tuple([one if type(one) in _AS_IT_IS else plain(one) for one in value])
    if (held := getattr(value, "plain", None)) is not None:
        return held
    if isinstance(value, str) and not isinstance(value, StrEnum):
        return str(value)
    return dict(value) if isinstance(value, dict) else value


def _image(planned: GroupPlan, defaults: Defaults) -> str:
    own = planned.written
    if own.image is not None:
        return str(own.image)
    if not own.nvcc:
        return image_for(defaults.image, own.python)
    if own.resources.gpu is not None and own.resources.gpu.need.vendor is not GpuVendor.NVIDIA:
        raise ConfigurationError(
            planned.named("nvcc"),
            "brings the CUDA compiler, and the job asks for GPUs of another vendor: name an image"
            " of theirs, such as rocm/dev-ubuntu-24.04",
        )
    if defaults.nvcc_image is None:
        raise ConfigurationError(
            planned.named("nvcc"),
            "needs an image with the CUDA compiler, and this controller's operator has named none:"
            " name one as image, or ask for defaults.nvcc_image in the controller's file",
            "image, with the name of a -devel image of CUDA",
        )
    return defaults.nvcc_image


def _env(own: GroupedFields) -> dict[str, str]:
    """Return the variables. The default image has one Python for all, into which uv installs."""
    shared = own.image is None and own.python is None and not own.nvcc
    return {**({"UV_SYSTEM_PYTHON": "1"} if shared else {}), **(own.env or {})}


def _stop_when_unheard(written: _Written) -> float | None:
    """Return the seconds of `on_disconnect`. A plain `stop` waits as long as the controller waits
    before it gives the node up."""
    asked = written.run.on_disconnect
    if not isinstance(asked, DisconnectFields):
        return written.defaults.limits.node_lost_after if asked == "stop" else None
    return float(asked.stop_after)


def _outputs_limit(written: _Written) -> int | None:
    has_outputs = written.run.outputs or written.run.core_dumps
    return written.defaults.outputs_limit if has_outputs else None


def _container(written: _Written) -> ContainerOptions:
    options = {
        name: plain(value)
        for fields, names in ((written.run, CONTAINER_OPTIONS), (written.own.resources, _DEVICES))
        for name in names
        if (value := getattr(fields, name))
    }
    limits: tuple[Ulimit, ...] = options.get("ulimits", ())
    if written.run.core_dumps and all(limit.name != "core" for limit in limits):
        options["ulimits"] = (*limits, Ulimit(name="core", soft=0, hard=-1))
    has_init = getattr(written.run, "init", False) is True
    return ContainerOptions(init=has_init, **options)


def _of_engine(written: _Written) -> tuple[EngineAbility, ...]:
    """Return what the user asks for that not every engine can do.

    Nobody has asked for the default image. `init` is none: every engine ends what a job leaves.
    """
    own, asked = written.own, set[EngineAbility]()
    for needs, fields in zip(_needs(), (own, own.resources, written.run), strict=True):
        for name, ability in needs:
            if getattr(fields, name):
                asked.add(ability)
    if written.run.ssh == "install":
        asked.add(EngineAbility.OPTIONS)
    return tuple(ability for ability in _ABILITIES if ability in asked) if asked else ()


def _of_operator(written: _Written) -> Permissions:
    """Return what not every node's operator allows."""
    options = _container(written)
    mounts = [volume.mount for volume in written.own.volumes or ()]
    return Permissions(
        privileged=needs_privilege(options),
        raw_sockets=wants_raw_sockets(options),
        host_paths=tuple(one.source for one in mounts if one.kind is VolumeKind.HOST),
        devices=tuple(one.source for one in mounts if one.kind is VolumeKind.DEVICE),
    )


_ABILITIES = tuple(EngineAbility)


@functools.cache
def _needs() -> tuple[tuple[tuple[str, EngineAbility], ...], ...]:
    """Return the fields that need something of the engine: of a group, of its resources, and of the
    whole file without what a group can have."""
    structs: tuple[type[msgspec.Struct], ...] = (GroupedFields, ResourcesFields, RunFields)
    return tuple(
        tuple(
            (name, described.field.needs)
            for name, described in own_fields(struct).items()
            if described.field.needs is not None
            and (struct is not RunFields or name not in GroupedFields.__struct_fields__)
        )
        for struct in structs
    )


def _repos(written: _Written) -> tuple[JobRepo, ...]:
    return tuple(_repo(number, repo) for number, repo in enumerate(written.run.repos or ()))


def _repo(number: int, written: RepoFields) -> JobRepo:
    uploaded = written.uploaded or UploadedRepo()
    if written.local_path is not None and uploaded.url is None and uploaded.archive is None:
        raise _not_uploaded(f"repos[{number}]")
    return JobRepo(
        path=written.path,
        url=uploaded.url or written.url,
        branch=written.branch,
        commit=uploaded.hash or written.hash,
        diff=uploaded.diff,
        archive=uploaded.archive,
        if_exists=written.if_exists,
        token=written.token or uploaded.token,
        private_key=written.private_key or uploaded.private_key,
        known_hosts=uploaded.known_hosts,
    )


def _files(written: _Written) -> tuple[Files, ...]:
    return tuple(_file(number, file) for number, file in enumerate(written.run.files or ()))


def _file(number: int, written: FileFields) -> Files:
    if written.uploaded is None:
        raise _not_uploaded(f"files[{number}]")
    archive, path = written.uploaded
    return Files(path=path, archive=archive)


def _bucket(written: BucketFields) -> BucketFolder:
    return BucketFolder(
        url=str(written.url),
        path=str(written.path),
        mode=written.mode,
        endpoint=None if written.endpoint is None else str(written.endpoint),
    )


def _not_uploaded(field: str) -> ConfigurationError:
    return ConfigurationError(
        field, "was not uploaded: only `fairlead apply` can send files of your machine"
    )


def _credentials(written: _Written) -> RegistryAuth | None:
    login = written.run.registry_auth
    return None if login is None else RegistryAuth(username=login.username, password=login.password)


def _resources(written: _Written) -> Resources:
    planned, defaults = written.planned, written.defaults.resources
    asked = planned.written.resources
    amounts: dict[str, Any] = {}
    for name in _COUNTED:
        value = getattr(asked, name)
        amounts[name] = getattr(defaults, name) if value is None else plain(value)
    if asked.memory is None:
        amounts["memory"] = defaults.memory + int(asked.shm_size or 0)
    if asked.shm_size is not None and asked.shm_size > amounts["memory"]:
        field = "resources.shm_size"
        message = (
            f"is more than resources.memory ({size_words(amounts['memory'])}), as which it counts:"
            " ask for more memory, or leave memory out"
        )
        allowed = fields_of(RunFields)[field].allowed
        raise ConfigurationError(planned.named(field), message, allowed)
    follows = defaults.unset if planned.whole_node or amounts["gpu"].count > 0 else ()
    return Resources(
        **amounts,
        whole_node=planned.whole_node,
        engine=_of_engine(written),
        permissions=_of_operator(written),
        unset=tuple(
            amount
            for amount in _AMOUNTS
            if (one := getattr(asked, amount)) is None
            or (amount in follows and getattr(one, "is_least", False))
        ),
    )


def _rent(own: GroupedFields) -> RentLimits:
    given = {
        name: plain(value)
        for name in RentLimits.__struct_fields__
        if (value := getattr(own, name)) not in (None, ())
    }
    if own.idle_duration is not None:
        given["idle_duration"] = own.idle_duration.seconds
    return RentLimits(**given) if given else NO_RENT_LIMITS


_DEVICES = tuple(
    name for name in ContainerOptions.__struct_fields__ if name in ResourcesFields.__struct_fields__
)
"""Resources that a container gets as they are, such as a device of its node. No amount of them is
counted: the engine has the ability, or lacks it."""
_COUNTED = tuple(
    name for name in ResourcesFields.__struct_fields__ if name in Resources.__struct_fields__
)
_AMOUNTS = tuple(Amount)
_TOGETHER: Mapping[str, Callable[[_Written], object]] = {
    "image": lambda written: _image(written.planned, written.defaults),
    "env": lambda written: _env(written.own),
    "registry_auth": _credentials,
    "ssh_keys": lambda written: tuple(
        dict.fromkeys((*written.ssh_keys, *written.defaults.ssh_keys))
    ),
    "repos": _repos,
    "files": _files,
    "resources": _resources,
    "rent": lambda written: _rent(written.own),
    "container": _container,
    "buckets": lambda written: tuple(_bucket(one) for one in written.run.buckets),
    "core_dumps": lambda written: int(written.run.core_dumps),
    "outputs_limit": _outputs_limit,
    "stop_when_unheard": _stop_when_unheard,
}
"""The fields of the spec that need more than the field of their name."""
_BY_NAME = [name for name in JobSpec.__struct_fields__ if name not in _TOGETHER]
_OF_A_GROUP = tuple(name for name in _BY_NAME if name in GroupedFields.__struct_fields__)
_OF_THE_RUN = tuple(
    name
    for name in _BY_NAME
    if name in RunFields.__struct_fields__ and name not in GroupedFields.__struct_fields__
)
_WITH_DEFAULT = frozenset(Defaults.__struct_fields__)


# -- a run's policy -------------------------------------------------------------------------------


def common_policy(configuration: RunFields, defaults: Defaults, retry: RetryPolicy) -> RunPolicy:
    max_duration, timeout = configuration.max_duration, configuration.scheduling_timeout
    stop = configuration.stop_duration
    return RunPolicy(
        retry=retry,
        stop_duration=defaults.stop_duration if stop is None else float(stop),
        max_duration=defaults.max_duration if max_duration is None else max_duration.seconds,
        scheduling_timeout=defaults.scheduling_timeout if timeout is None else timeout.seconds,
        on_parent_end=configuration.on_parent_end,
        priority=_or(configuration.priority, defaults.priority),
        band=_or(configuration.band, defaults.band),
        limits=defaults.limits,
    )


def retry_policy(
    written: bool | RetryFields | None, defaults: Defaults, *, gang: bool
) -> RetryPolicy:
    """Return the retry policy (docs/rules.md 3). A mapping without `on_events` means all of them.

    `gang`: the user wrote `gang` explicitly.
    """
    if written is None and gang:
        events = frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION})
        return RetryPolicy(on_events=events, max_failures=defaults.gang_max_failures)
    if written is None:
        return RetryPolicy()
    if written is False:
        return RetryPolicy(on_events=frozenset())
    everything = frozenset(RetryEvent)
    if written is True:
        return RetryPolicy(on_events=everything, duration=defaults.retry_true_duration)
    events = everything if written.on_events is None else frozenset(written.on_events)
    return RetryPolicy(
        on_events=events,
        duration=None if written.duration is None else written.duration.seconds,
        max_failures=written.max_failures,
        max_preemptions=_or(written.max_preemptions, RetryPolicy().max_preemptions),
    )


def _or(written: _T | None, default: _T) -> _T:
    return default if written is None else written
