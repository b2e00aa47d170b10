"""How a job's container is made: volumes, ports, rights and limits, the login of its registry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import msgspec

from fairlead.configuration.convert import convert_entry
from fairlead.configuration.field import Field, mapping_of
from fairlead.configuration.values.commands import STRING, FolderName, Text
from fairlead.configuration.values.units import Size, shown
from fairlead.wire.shim import Ulimit, VolumeKind, VolumeMount

_VOLUME_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
_CAPABILITY = re.compile(r"(?:CAP_)?([A-Z][A-Z_]{1,30})", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_UNLIMITED = "unlimited"
_MAPPED = re.compile(r"(?:(?P<local>\d{1,5}|\*):)?(?P<port>\d{1,5})", re.ASCII)
_MAX_PORT = 65535
_LOGIN_ALLOWED = "a string, or ${NAME} for a variable of your environment"
ProcessCount = Annotated[
    int, msgspec.Meta(ge=8, le=4_194_304), Field("a whole number from 8 to 4194304")
]
"""The programs that start a job need some processes themselves; the kernel has no more pids."""


class VolumeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of one of `volumes`."""

    HINTS: ClassVar[Mapping[str, str]] = {
        "volumes.source": "write name for a named volume, instance_path for a folder of the node"
    }

    path: Annotated[FolderName, Field(called=("volumes.target",))]
    name: Annotated[str | None, Field("lowercase letters, digits, '_', '.' and '-'")] = None
    instance_path: Annotated[FolderName | None, Field("an absolute path on the node")] = None
    device: Annotated[
        FolderName | None,
        Field("the path of a block device on the node, such as /dev/disk/by-id/data"),
    ] = None
    tmpfs: Size | None = None
    read_only: bool = False
    optional: bool = False


class Volume:
    __slots__ = ("mount",)
    FIELDS = VolumeFields
    SCHEMA: ClassVar[dict[str, Any]] = {"anyOf": [STRING, mapping_of(VolumeFields)]}

    def __init__(self, mount: VolumeMount) -> None:
        self.mount = mount

    @property
    def plain(self) -> VolumeMount:
        return self.mount

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, dict):
            return cls(_of_mapping(value))
        if not isinstance(value, str):
            raise ValueError(f"{shown(value)} is not a volume")
        return cls.of_text(value)

    @classmethod
    def of_text(cls, value: str) -> Self:
        """Return the volume of `SOURCE:PATH`. Raises ValueError."""
        source, colon, rest = value.partition(":")
        target, _, access = rest.partition(":")
        if not colon or access not in ("", "ro", "rw"):
            raise ValueError(f"{shown(value)} is not SOURCE:PATH")
        kind = VolumeKind.HOST if source.startswith("/") else VolumeKind.NAMED
        return cls(_checked(kind, source, target, read_only=access == "ro"))


def _of_mapping(value: dict[object, object]) -> VolumeMount:
    fields = convert_entry(value, VolumeFields, "volumes")
    sources = {
        VolumeKind.NAMED: fields.name,
        VolumeKind.HOST: fields.instance_path,
        VolumeKind.DEVICE: fields.device,
        VolumeKind.TMPFS: fields.tmpfs,
    }
    given = [kind for kind, source in sources.items() if source is not None]
    if len(given) != 1:
        raise ValueError("needs exactly one of name, instance_path, device, tmpfs")
    kind = given[0]
    if kind is VolumeKind.TMPFS:
        if fields.read_only or fields.optional:
            raise ValueError("is a tmpfs: read_only and optional do not apply to it")
        size = None if fields.tmpfs is None else int(fields.tmpfs)
        return VolumeMount(kind=kind, target=str(fields.path), size=size)
    return _checked(
        kind,
        str(sources[kind]),
        fields.path,
        read_only=fields.read_only,
        optional=fields.optional,
    )


def _checked(
    kind: VolumeKind, source: str, target: str, *, read_only: bool, optional: bool = False
) -> VolumeMount:
    if not target.startswith("/") or target == "/" or ".." in target.split("/"):
        raise ValueError(f"{shown(target)} is not an absolute path in the container")
    if kind is VolumeKind.NAMED and source.startswith((".", "~")):
        raise ValueError(
            f"{shown(source)} is no folder of the node, whose path begins with /;"
            " files sends a folder of your machine"
        )
    if kind is VolumeKind.NAMED and not _VOLUME_NAME.fullmatch(source):
        raise ValueError(f"{shown(source)} is not the name of a volume")
    if kind is VolumeKind.NAMED and optional:
        raise ValueError("is created when it is missing, so it cannot be optional")
    if kind is not VolumeKind.NAMED and ".." in source.split("/"):
        raise ValueError(f"{shown(source)} must not contain '..'")
    return VolumeMount(
        kind=kind, source=source, target=str(target), read_only=read_only, optional=optional
    )


class Capability(str):
    """A capability without the prefix CAP_."""

    __slots__ = ()
    SCHEMA = STRING

    @classmethod
    def read(cls, value: object) -> Self:
        match = _CAPABILITY.fullmatch(value.upper()) if isinstance(value, str) else None
        from fairlead.wire.container_rules import CAPABILITIES

        if match is None or match[1] not in CAPABILITIES | {"ALL"}:
            raise ValueError(f"{shown(value)} is not a capability")
        return cls(match[1])


class Ulimits:
    __slots__ = ("limits",)
    ALLOWED = "a mapping of limits to numbers, SOFT:HARD or unlimited, such as memlock: unlimited"
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "object",
        "additionalProperties": {"type": ["integer", "string"]},
    }

    def __init__(self, limits: tuple[Ulimit, ...]) -> None:
        self.limits = limits

    @property
    def plain(self) -> tuple[Ulimit, ...]:
        return self.limits

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, dict):
            raise ValueError("is not a mapping of limits to numbers")
        return cls(tuple(_ulimit(name, limit) for name, limit in value.items()))


def _ulimit(name: object, limit: object) -> Ulimit:
    from fairlead.wire.container_rules import ULIMITS

    if not isinstance(name, str) or name not in ULIMITS:
        raise ValueError(f"{shown(name)} is not one of the limits {', '.join(sorted(ULIMITS))}")
    first, colon, second = str(limit).partition(":")
    soft = _bound(name, first)
    hard = _bound(name, second) if colon else soft
    # -1 is RLIM_INFINITY, which is more than every number (setrlimit(2)).
    if hard != -1 and not -1 < soft <= hard:
        raise ValueError(f"{name}: the soft limit is greater than the hard limit")
    return Ulimit(name=name, soft=soft, hard=hard)


def _bound(name: str, text: str) -> int:
    if text.strip() in (_UNLIMITED, "-1"):
        return -1
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{shown(text)} is not a value for {name}")
    return int(text)


class PortMapping:
    """A port of the job, and the local port that leads to it; `local` 0 is any free one."""

    __slots__ = ("local", "port")
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 65535},
            {"type": "string", "pattern": r"^(([0-9]{1,5}|\*):)?[0-9]{1,5}$"},
        ]
    }

    def __init__(self, port: int, local: int) -> None:
        self.port = port
        self.local = local

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the mapping of `PORT` or `LOCAL:PORT`. Raises ValueError."""
        found = _MAPPED.fullmatch(str(value)) if type(value) in (int, str) else None
        if found is None:
            raise ValueError(f"{shown(value)} is not a port")
        port = int(found["port"])
        local = 0 if found["local"] == "*" else int(found["local"] or port)
        if not (1 <= port <= _MAX_PORT and local <= _MAX_PORT):
            raise ValueError(f"{shown(value)} is out of range: ports are 1 to {_MAX_PORT}")
        return cls(port, local)


port_mapping = PortMapping.read


class RegistryAuthFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    username: Annotated[Text, Field(_LOGIN_ALLOWED, called=("registry_auth.user",))]
    password: Annotated[Text, Field(_LOGIN_ALLOWED)]

    def __repr__(self) -> str:
        return "RegistryAuthFields(***)"
