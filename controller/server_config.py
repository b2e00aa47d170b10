"""The controller's own file (`fairlead controller --config FILE`): limits, defaults, networks.

A missing field has the same value as without the file. Errors name file, line and field, as for a
task's file.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec

from controller.lifecycle.inventory import Budget, NodeFailure, Spending
from fairlead.configuration.convert import ConfigurationError, convert, read_itself
from fairlead.configuration.field import Field, fields_of
from fairlead.configuration.plan import Defaults
from fairlead.configuration.text import source
from fairlead.configuration.text.source import SourceError
from fairlead.configuration.values.images import IMAGE_ALLOWED, ImageName, default_image_name
from fairlead.configuration.values.machines import BudgetFields
from fairlead.configuration.values.units import (
    DURATION_ALLOWED,
    SIZE_ALLOWED,
    AtLeastOne,
    Duration,
    DurationOrOff,
    Percent,
    Size,
    shown,
)
from fairlead.model.spec import Limits

_MIN_PROBE_EVERY = 1.0
_PROVIDER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_MAX_FOLDER = 60
_MIN_MEMORY = 512_000_000
_MIN_DISK = 5_000_000_000
_ISO_PROGRAMS = ("genisoimage", "mkisofs", "xorrisofs")
_SOME_TIME = f"{DURATION_ALLOWED}, more than 0"
_SomeTime = Annotated[Duration, Field(_SOME_TIME)]


class _DefaultImage(str):
    __slots__ = ()
    ALLOWED = f"{IMAGE_ALLOWED}; {{python}} in it is a job's version of Python"

    @classmethod
    def read(cls, value: object) -> Self:
        return cls(default_image_name(value))


class _LimitsFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    waiting_instance: _SomeTime | None = None
    waiting_container: _SomeTime | None = None
    waiting_runner: _SomeTime | None = None
    reincarnation_timeout: _SomeTime | None = None
    short_life: Duration | None = None
    waits: Annotated[
        tuple[Duration, ...] | None,
        Field("a list of durations, the last of which is repeated, such as [0s, 15s, 1m]"),
    ] = None
    no_capacity_wait: Duration | None = None
    no_capacity: Duration | None = None
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1), Field("a number from 0 to 1")] | None = None


class _NodeFailureFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    probe_every: Annotated[Duration | None, Field(f"{DURATION_ALLOWED}, at least 1s")] = None
    unreachable_after: _SomeTime | None = None
    after: Annotated[Duration | None, Field(f"{DURATION_ALLOWED}, at least unreachable_after")] = (
        None
    )


class _DefaultsFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    image: _DefaultImage | None = None
    nvcc_image: ImageName | None = None
    stop_duration: Duration | None = None
    max_duration: DurationOrOff | None = None
    scheduling_timeout: DurationOrOff | None = None
    priority: Percent | None = None


class _ProviderFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Annotated[
        Literal["exec"],
        Field("exec: a program of yours makes the machines; or qemu: this host does"),
    ]
    command: Annotated[
        tuple[str, ...], Field("a list: an absolute path of a program, and its arguments")
    ]
    timeout: _SomeTime | None = None
    idempotent: Annotated[
        bool, Field("true: the program makes one machine for one token, however often it is asked")
    ] = False
    visible_after: Annotated[
        Duration | None,
        Field(f"{DURATION_ALLOWED}: how long a new machine may be missing from its list"),
    ] = None


class _InstanceTypeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cpu: AtLeastOne
    memory: Annotated[Size, Field(f"{SIZE_ALLOWED}, at least 512MB")]
    disk: Annotated[Size, Field(f"{SIZE_ALLOWED}, at least 5GB")]
    price: Annotated[float, msgspec.Meta(ge=0), Field("a number of at least 0, an hour")] = 0.0


class _QemuFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Annotated[Literal["qemu"], Field("qemu: virtual machines of this host")]
    image: Annotated[str, Field("the absolute path of a node's image (qcow2)")]
    folder: Annotated[str, Field("an absolute path of at most 60 characters, for the disks")]
    instance_types: Annotated[
        dict[str, _InstanceTypeFields],
        Field("a mapping of names to mappings of cpu, memory, disk and price"),
    ]
    machines: AtLeastOne
    user: Annotated[str | None, Field("an account, other than root, for the machines")] = None
    accelerator: Annotated[
        Literal["auto", "kvm", "tcg"], Field("auto (kvm where it boots), kvm, or tcg")
    ] = "auto"
    network: Annotated[
        Literal["closed", "open"],
        Field("closed: machines reach nothing; open: what this host's accounts reach"),
    ] = "closed"


class _BudgetOfAllFields(BudgetFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    each_user: Annotated[BudgetFields, Field("a mapping of per_hour and per_month")] = (
        BudgetFields()
    )
    users: Annotated[
        dict[str, BudgetFields], Field("a mapping of users to mappings of per_hour and per_month")
    ] = msgspec.field(default_factory=dict)


class OperatingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limits: Annotated[_LimitsFields, Field("a mapping")] = _LimitsFields()
    node_failure: Annotated[_NodeFailureFields, Field("a mapping")] = _NodeFailureFields()
    defaults: Annotated[_DefaultsFields, Field("a mapping")] = _DefaultsFields()
    cluster_networks: Annotated[
        tuple[IPv4Network, ...],
        Field(
            "a list of IPv4 networks, the preferred one first, such as [10.1.0.0/16]",
        ),
    ] = ()
    providers: Annotated[
        dict[str, dict[str, Any]], Field("a mapping of names to providers of machines")
    ] = {}
    budget: Annotated[_BudgetOfAllFields, Field("a mapping")] = _BudgetOfAllFields()


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A provider of machines that is a program. Times in seconds."""

    command: tuple[str, ...]
    timeout: float = 300.0
    idempotent: bool = False
    visible_after: float = 60.0


class QemuConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that is this host. `types`: cores, bytes of memory and of disk, and the price an
    hour, by name. `programs`: QEMU, qemu-img, and one with the options of mkisofs."""

    image: Path
    folder: Path
    types: Mapping[str, tuple[int, int, int, float]]
    most: int
    user: str | None
    accelerator: str | None
    is_open: bool
    programs: tuple[str, str, str]


class Operating(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings. `defaults.limits` has the limits; `cluster_networks`: where the jobs
    of multi-node runs reach each other, the preferred network first."""

    defaults: Defaults = Defaults()
    node_failure: NodeFailure = NodeFailure()
    cluster_networks: tuple[IPv4Network, ...] = ()
    providers: Mapping[str, ProviderConfig | QemuConfig] = {}
    spending: Spending = Spending()


def load(path: Path) -> Operating:
    """Read the file; an empty one changes nothing. Raises SourceError."""
    document = source.load(path)
    try:
        return parse({} if document.data is None else document.data)
    except ConfigurationError as error:
        raise SourceError(document.explain(error)) from None


def parse(data: object) -> Operating:
    """Return the settings of this data. Raises ConfigurationError."""
    if not isinstance(data, dict):
        known = ", ".join(OperatingFields.__struct_fields__)
        raise ConfigurationError("", f"is a mapping of fields to values, not {shown(data)}", known)
    fields = convert(data, OperatingFields, _make)
    _check_times(fields)
    return Operating(
        defaults=_defaults(fields),
        node_failure=_node_failure(fields.node_failure),
        cluster_networks=fields.cluster_networks,
        providers={name: _provider(name, written) for name, written in fields.providers.items()},
        spending=_spending(fields.budget),
    )


def _spending(written: _BudgetOfAllFields) -> Spending:
    return Spending(
        together=_budget(written, "budget"),
        each_user=_budget(written.each_user, "budget.each_user"),
        users={name: _budget(one, f"budget.users.{name}") for name, one in written.users.items()},
    )


def _budget(written: BudgetFields, field: str) -> Budget:
    """Raises ConfigurationError."""
    hour, month = written.per_hour, written.per_month
    if hour is not None and month is not None and hour > month:
        message = f"{hour:g} is more than per_month ({month:g})"
        raise ConfigurationError(f"{field}.per_hour", message, "at most per_month")
    return Budget(per_hour=hour, per_month=month)


def _provider(name: str, data: dict[str, Any]) -> ProviderConfig | QemuConfig:
    """Raises ConfigurationError."""
    if not _PROVIDER_NAME.fullmatch(name):
        raise ConfigurationError(
            f"providers.{name}", "is not a provider's name", "1 to 40 of a-z, 0-9 and '-'"
        )
    if data.get("type") == "qemu":
        return _qemu(f"providers.{name}", data)
    written = convert(data, _ProviderFields, within=f"providers.{name}")
    field = f"providers.{name}.command"
    allowed = "a list: an absolute path of a program, and its arguments"
    if not written.command:
        raise ConfigurationError(field, "is empty", allowed)
    program = Path(written.command[0])
    if not program.is_absolute():
        raise ConfigurationError(field, f"{program} is not an absolute path", allowed)
    if not os.access(program, os.X_OK):
        raise ConfigurationError(field, f"{program} is no program that can be run", allowed)
    changes = _given(written, "timeout", "visible_after")
    return ProviderConfig(command=written.command, idempotent=written.idempotent, **changes)


def _qemu(field: str, data: dict[str, Any]) -> QemuConfig:
    """Raises ConfigurationError."""
    written = convert(data, _QemuFields, within=field)
    known = fields_of(_QemuFields)

    def require(is_right: bool, name: str, message: str) -> None:
        if not is_right:
            raise ConfigurationError(f"{field}.{name}", message, known[name].allowed)

    image, folder = Path(written.image), Path(written.folder)
    require(image.is_absolute(), "image", f"{image} is not an absolute path")
    require(image.is_file(), "image", f"there is no file {image}")
    require(folder.is_absolute(), "folder", f"{folder} is not an absolute path")
    require(len(str(folder)) <= _MAX_FOLDER, "folder", "is too long for a socket's path")
    require(bool(written.instance_types), "instance_types", "is empty")
    for name, one in written.instance_types.items():
        require(bool(_PROVIDER_NAME.fullmatch(name)), "instance_types", f"{name!r} is no name")
        require(one.memory >= _MIN_MEMORY, "instance_types", f"{name} has too little memory")
        require(one.disk >= _MIN_DISK, "instance_types", f"{name} has too small a disk")
    _require_account(written.user, require)
    return QemuConfig(
        image=image,
        folder=folder,
        types={
            name: (one.cpu, int(one.memory), int(one.disk), one.price)
            for name, one in written.instance_types.items()
        },
        most=written.machines,
        user=written.user,
        accelerator=None if written.accelerator == "auto" else written.accelerator,
        is_open=written.network == "open",
        programs=_qemu_programs(field),
    )


def _require_account(name: str | None, require: Callable[[bool, str, str], None]) -> None:
    """A process of QEMU shares its memory with whoever breaks out of a machine."""
    if name is None:
        require(os.geteuid() != 0, "user", "is missing, and this controller runs as root")
        return
    try:
        uid: int | None = pwd.getpwnam(name).pw_uid
    except KeyError:
        uid = None
    require(uid is not None, "user", f"there is no account {name}")
    require(uid != 0, "user", f"{name} is root")
    is_own = os.geteuid() in (0, uid)
    require(is_own, "user", f"only a controller that runs as root can start processes of {name}")


def _qemu_programs(field: str) -> tuple[str, str, str]:
    machine = os.uname().machine
    system = shutil.which(f"qemu-system-{machine}")
    img = shutil.which("qemu-img")
    iso = next(filter(None, map(shutil.which, _ISO_PROGRAMS)), None)
    if system is None or img is None or iso is None:
        missing = f"qemu-system-{machine}" if system is None else "qemu-img"
        missing = _ISO_PROGRAMS[0] if system is not None and img is not None else missing
        raise ConfigurationError(
            f"{field}.type", f"qemu needs the program {missing}, which is not installed", "exec"
        )
    return system, img, iso


def _allowed(field: str) -> str:
    return fields_of(OperatingFields)[field].allowed


def _make(type_: type[Any], value: Any) -> Any:
    if type_ is not IPv4Network:
        return read_itself(type_, value)
    try:
        return IPv4Network(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"{shown(value)} is not an IPv4 network") from None


def _check_times(fields: OperatingFields) -> None:
    """Refuse limits of 0: they would end every job at once."""
    limits = fields.limits
    some = {
        "limits.waiting_instance": limits.waiting_instance,
        "limits.waiting_container": limits.waiting_container,
        "limits.waiting_runner": limits.waiting_runner,
        "limits.reincarnation_timeout": limits.reincarnation_timeout,
        "node_failure.unreachable_after": fields.node_failure.unreachable_after,
        "node_failure.after": fields.node_failure.after,
    }
    for field, seconds in some.items():
        if seconds is not None and not seconds > 0:
            raise ConfigurationError(field, "is 0", _allowed(field))
    if limits.waits == ():
        raise ConfigurationError("limits.waits", "is empty", _allowed("limits.waits"))


def _node_failure(written: _NodeFailureFields) -> NodeFailure:
    """Return how silence is judged. Raises ConfigurationError."""
    changes = _given(written, "probe_every", "unreachable_after")
    if written.after is not None:
        changes["lost_after"] = float(written.after)
    failure = msgspec.structs.replace(NodeFailure(), **changes)
    if failure.probe_every < _MIN_PROBE_EVERY:
        field = "node_failure.probe_every"
        raise ConfigurationError(field, f"is {failure.probe_every:g} s", _allowed(field))
    if failure.lost_after < failure.unreachable_after:
        field = "node_failure.after"
        beside = f"is {failure.lost_after:g} s beside unreachable_after"
        raise ConfigurationError(
            field, f"{beside}: {failure.unreachable_after:g} s", _allowed(field)
        )
    return failure


def _defaults(fields: OperatingFields) -> Defaults:
    written = fields.defaults
    changes = _given(written, "image", "nvcc_image", "stop_duration", "priority")
    for name in ("max_duration", "scheduling_timeout"):
        if (limit := getattr(written, name)) is not None:
            changes[name] = limit.seconds
    return msgspec.structs.replace(Defaults(), limits=_limits(fields), **changes)


def _limits(fields: OperatingFields) -> Limits:
    changes = _given(fields.limits, *fields.limits.__struct_fields__)
    if "waits" in changes:
        changes["waits"] = tuple(map(float, changes["waits"]))
    if fields.node_failure.after is not None:
        changes["node_lost_after"] = float(fields.node_failure.after)
    return msgspec.structs.replace(Limits(), **changes)


def _given(written: msgspec.Struct, *names: str) -> dict[str, Any]:
    """Return the given fields as the plain values that are stored."""
    values = {name: getattr(written, name) for name in names}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    for type_ in (float, str):
        if isinstance(value, type_):
            return type_(value)
    return value
