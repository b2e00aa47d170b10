"""The controller's own file (`fairlead controller --config FILE`): limits, defaults, networks.

A missing field has the same value as without the file. Errors name file, line and field, as for a
task's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from controller.currencies import ALLOWED as CURRENCY_ALLOWED
from controller.currencies import require_code
from controller.lifecycle.inventory import Budget, NodeFailure, Spending
from controller.provider_config.reading import ProviderConfig, read_providers
from fairlead.configuration.convert import ConfigurationError, convert, read_itself
from fairlead.configuration.field import Field, fields_of
from fairlead.configuration.runs.plan import Defaults
from fairlead.configuration.text import source
from fairlead.configuration.text.source import SourceError
from fairlead.configuration.values.images import IMAGE_ALLOWED, ImageName, default_image_name
from fairlead.configuration.values.machines import PerHour, PerMonth
from fairlead.configuration.values.units import (
    DURATION_ALLOWED,
    Duration,
    DurationOrOff,
    Percent,
    shown,
)
from fairlead.model.spec import Limits

_MIN_PROBE_EVERY = 1.0
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


class _UserBudgetFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Of its own: an error says what is allowed only of fields that are not inherited.
    per_hour: PerHour = None
    per_month: PerMonth = None


class _BudgetOfAllFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    per_hour: PerHour = None
    per_month: PerMonth = None
    each_user: Annotated[_UserBudgetFields, Field("a mapping of per_hour and per_month")] = (
        _UserBudgetFields()
    )
    users: Annotated[
        dict[str, Any],
        Field("a mapping of users to mappings of per_hour and per_month"),
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
    currency: Annotated[str | None, Field(CURRENCY_ALLOWED)] = None


class Operating(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings. `defaults.limits` has the limits; `cluster_networks`: where the jobs
    of multi-node runs reach each other, the preferred network first."""

    defaults: Defaults = Defaults()
    node_failure: NodeFailure = NodeFailure()
    cluster_networks: tuple[IPv4Network, ...] = ()
    providers: Mapping[str, ProviderConfig] = {}
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
    if fields.currency is not None:
        require_code("currency", fields.currency)
    return Operating(
        defaults=_defaults(fields),
        node_failure=_node_failure(fields.node_failure),
        cluster_networks=fields.cluster_networks,
        providers=read_providers(fields.providers, fields.currency),
        spending=_spending(fields.budget),
    )


def _spending(written: _BudgetOfAllFields) -> Spending:
    return Spending(
        together=_budget(written, "budget"),
        each_user=_budget(written.each_user, "budget.each_user"),
        users={name: _budget_of(name, one) for name, one in written.users.items()},
    )


def _budget_of(user: str, written: object) -> Budget:
    field = f"budget.users.{user}"
    if not isinstance(written, dict):
        message = f"is a mapping of fields to values, not {shown(written)}"
        raise ConfigurationError(field, message, "a mapping of per_hour and per_month")
    # Each by itself: what a field of an entry may hold is said by the entry's type.
    return _budget(convert(written, _UserBudgetFields, within=field), field)


def _budget(written: _UserBudgetFields | _BudgetOfAllFields, field: str) -> Budget:
    """Raises ConfigurationError."""
    hour, month = written.per_hour, written.per_month
    if hour is not None and month is not None and hour > month:
        message = f"{hour:g} is more than per_month ({month:g})"
        raise ConfigurationError(f"{field}.per_hour", message, "at most per_month")
    return Budget(per_hour=hour, per_month=month)


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
