"""Volumes, capabilities and limits as people write them: dstack's forms, and what they leave out.

A ValueError holds the sentence for the user; the field's path is added by whoever asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from controller.configuration import schema
from controller.configuration.convert import convert_entry
from controller.configuration.units import shown
from controller.lifecycle.model import Ulimit, VolumeMount

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
_CAPABILITY = re.compile(r"(?:CAP_)?([A-Z][A-Z_]{1,30})", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_UNLIMITED = "unlimited"


def volume(value: object, make: Callable[[type, Any], Any]) -> schema.Volume:
    if isinstance(value, dict):
        return schema.Volume(_of_mapping(value, make))
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a volume")
    source, colon, rest = value.partition(":")
    target, _, access = rest.partition(":")
    if not colon or access not in ("", "ro", "rw"):
        raise ValueError(f"{shown(value)} is not SOURCE:PATH")
    kind = "host" if source.startswith("/") else "named"
    return schema.Volume(_checked(kind, source, target, read_only=access == "ro"))


def capability(value: object) -> schema.Capability:
    match = _CAPABILITY.fullmatch(value.upper()) if isinstance(value, str) else None
    from shim.container_rules import CAPABILITIES  # few runs ask

    if match is None or match[1] not in CAPABILITIES | {"ALL"}:
        raise ValueError(f"{shown(value)} is not a capability")
    return schema.Capability(match[1])


def ulimits(value: object) -> schema.Ulimits:
    if not isinstance(value, dict):
        raise ValueError("is not a mapping of limits to numbers")
    return schema.Ulimits(tuple(_ulimit(name, limit) for name, limit in value.items()))


def _of_mapping(value: dict[object, object], make: Callable[[type, Any], Any]) -> VolumeMount:
    fields = convert_entry(value, schema.VolumeFields, make, "volumes")
    sources = {
        "named": fields.name,
        "host": fields.instance_path,
        "device": fields.device,
        "tmpfs": fields.tmpfs,
    }
    given = [kind for kind, source in sources.items() if source is not None]
    if len(given) != 1:
        raise ValueError("needs exactly one of name, instance_path, device, tmpfs")
    kind = given[0]
    if kind == "tmpfs":
        if fields.read_only or fields.optional:
            raise ValueError("is a tmpfs: read_only and optional say nothing about it")
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
    kind: str, source: str, target: str, *, read_only: bool, optional: bool = False
) -> VolumeMount:
    if not target.startswith("/") or target == "/" or ".." in target.split("/"):
        raise ValueError(f"{shown(target)} is not an absolute path in the container")
    if kind == "named" and not _NAME.fullmatch(source):
        raise ValueError(f"{shown(source)} is not the name of a volume")
    if kind == "named" and optional:
        raise ValueError("is made when it is not there, so it cannot be optional")
    if kind != "named" and ".." in source.split("/"):
        raise ValueError(f"{shown(source)} may not have '..' in it")
    return VolumeMount(
        kind=kind, source=source, target=str(target), read_only=read_only, optional=optional
    )


def _ulimit(name: object, limit: object) -> Ulimit:
    from shim.container_rules import ULIMITS  # few runs ask

    if not isinstance(name, str) or name not in ULIMITS:
        raise ValueError(f"{shown(name)} is not one of the limits {', '.join(sorted(ULIMITS))}")
    first, colon, second = str(limit).partition(":")
    soft = _bound(name, first)
    hard = _bound(name, second) if colon else soft
    if hard != -1 and not -1 < soft <= hard:
        raise ValueError(f"{name}: the soft limit is more than the hard one")
    return Ulimit(name=name, soft=soft, hard=hard)


def _bound(name: str, text: str) -> int:
    if text.strip() in (_UNLIMITED, "-1"):
        return -1
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{shown(text)} is no value for {name}")
    return int(text)
