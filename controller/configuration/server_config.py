"""The controller's own file (`fairlead controller --config FILE`): limits, defaults, networks.

A missing field has the same value as without the file. Errors name file, line and field, as for a
task's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any

import msgspec

from controller.configuration import source
from controller.configuration.convert import ConfigurationError, convert
from controller.configuration.images import IMAGE_ALLOWED, default_image_name
from controller.configuration.plan import Defaults
from controller.configuration.schema import Duration, DurationOrOff, ImageName
from controller.configuration.source import SourceError
from controller.configuration.units import DURATION_ALLOWED, OFF_ALLOWED, shown
from controller.configuration.values import make
from controller.lifecycle.inventory import NodeFailure
from controller.lifecycle.model import Limits

_LEAST_PROBE_EVERY = 1.0
_SOME_TIME = f"{DURATION_ALLOWED}, more than 0"
ALLOWED: Mapping[str, str] = {
    "limits": "a mapping",
    "limits.waiting_instance": _SOME_TIME,
    "limits.waiting_container": _SOME_TIME,
    "limits.waiting_runner": _SOME_TIME,
    "limits.reincarnation_timeout": _SOME_TIME,
    "limits.short_life": DURATION_ALLOWED,
    "limits.waits": "a list of durations, the last of which is repeated, such as [0s, 15s, 1m]",
    "limits.no_capacity_wait": DURATION_ALLOWED,
    "limits.jitter": "a number from 0 to 1",
    "node_failure": "a mapping",
    "node_failure.probe_every": f"{DURATION_ALLOWED}, at least 1s",
    "node_failure.unreachable_after": _SOME_TIME,
    "node_failure.after": f"{DURATION_ALLOWED}, at least unreachable_after",
    "defaults": "a mapping",
    "defaults.image": f"{IMAGE_ALLOWED}; {{python}} in it is a job's version of Python",
    "defaults.nvcc_image": IMAGE_ALLOWED,
    "defaults.stop_duration": DURATION_ALLOWED,
    "defaults.max_duration": OFF_ALLOWED,
    "defaults.scheduling_timeout": OFF_ALLOWED,
    "defaults.priority": "a whole number from 0 to 100",
    "cluster_networks": "a list of IPv4 networks, the preferred one first, such as [10.1.0.0/16]",
}


class _DefaultImage(str):
    __slots__ = ()


class _LimitsFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    waiting_instance: Duration | None = None
    waiting_container: Duration | None = None
    waiting_runner: Duration | None = None
    reincarnation_timeout: Duration | None = None
    short_life: Duration | None = None
    waits: tuple[Duration, ...] | None = None
    no_capacity_wait: Duration | None = None
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class _NodeFailureFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    probe_every: Duration | None = None
    unreachable_after: Duration | None = None
    after: Duration | None = None


class _DefaultsFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    image: _DefaultImage | None = None
    nvcc_image: ImageName | None = None
    stop_duration: Duration | None = None
    max_duration: DurationOrOff | None = None
    scheduling_timeout: DurationOrOff | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None


class _Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limits: _LimitsFields = _LimitsFields()
    node_failure: _NodeFailureFields = _NodeFailureFields()
    defaults: _DefaultsFields = _DefaultsFields()
    cluster_networks: tuple[IPv4Network, ...] = ()


class Operating(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings. `defaults.limits` has the limits; `cluster_networks`: where the jobs
    of multi-node runs reach each other, the preferred network first."""

    defaults: Defaults = Defaults()
    node_failure: NodeFailure = NodeFailure()
    cluster_networks: tuple[IPv4Network, ...] = ()


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
        known = ", ".join(name for name in ALLOWED if "." not in name)
        raise ConfigurationError("", f"is a mapping of fields to values, not {shown(data)}", known)
    fields = convert(data, _Fields, _make, allowed=ALLOWED)
    _check_times(fields)
    return Operating(
        defaults=_defaults(fields),
        node_failure=_node_failure(fields.node_failure),
        cluster_networks=fields.cluster_networks,
    )


def _make(type_: type, value: Any) -> Any:
    if type_ is _DefaultImage:
        return _DefaultImage(default_image_name(value))
    if type_ is not IPv4Network:
        return make(type_, value)
    try:
        return IPv4Network(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"{shown(value)} is not an IPv4 network") from None


def _check_times(fields: _Fields) -> None:
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
            raise ConfigurationError(field, "is 0", ALLOWED[field])
    if limits.waits == ():
        raise ConfigurationError("limits.waits", "is empty", ALLOWED["limits.waits"])


def _node_failure(written: _NodeFailureFields) -> NodeFailure:
    """Return how silence is judged. Raises ConfigurationError."""
    changes = _given(written, "probe_every", "unreachable_after")
    if written.after is not None:
        changes["lost_after"] = float(written.after)
    failure = msgspec.structs.replace(NodeFailure(), **changes)
    if failure.probe_every < _LEAST_PROBE_EVERY:
        field = "node_failure.probe_every"
        raise ConfigurationError(field, f"is {failure.probe_every:g} s", ALLOWED[field])
    if failure.lost_after < failure.unreachable_after:
        field = "node_failure.after"
        beside = f"is {failure.lost_after:g} s beside unreachable_after"
        raise ConfigurationError(
            field, f"{beside}: {failure.unreachable_after:g} s", ALLOWED[field]
        )
    return failure


def _defaults(fields: _Fields) -> Defaults:
    written = fields.defaults
    changes = _given(written, "image", "nvcc_image", "stop_duration", "priority")
    for name in ("max_duration", "scheduling_timeout"):
        if (limit := getattr(written, name)) is not None:
            changes[name] = limit.seconds
    return msgspec.structs.replace(Defaults(), limits=_limits(fields), **changes)


def _limits(fields: _Fields) -> Limits:
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
