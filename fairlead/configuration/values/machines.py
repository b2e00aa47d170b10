"""What a fleet may rent, and for how much: `machines` and `budget` of `type: fleet`."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import Field
from fairlead.configuration.values.resources import ResourcesFields
from fairlead.configuration.values.units import (
    DURATION_ALLOWED,
    OFF_ALLOWED,
    Duration,
    DurationOrOff,
    Positive,
    shown,
)

_NODES = "a mapping of min and max, a range such as 0..16, or a number"
_MAX_MACHINES = 10_000
_NUMBER = re.compile(r"\s*([0-9]{1,9})\s*")
_RANGE = re.compile(r"\s*([0-9]{1,9})?\s*\.\.\s*([0-9]{1,9})?\s*")


class Nodes(tuple[int, int]):
    """The least and the most machines of a fleet."""

    __slots__ = ()
    ALLOWED = _NODES
    SCHEMA: ClassVar[dict[str, Any]] = {"type": ["integer", "string", "object"]}

    @classmethod
    def read(cls, value: object) -> Self:
        least, most = _range_of(value)
        if not 0 <= least <= _MAX_MACHINES or not 0 <= most <= _MAX_MACHINES:
            raise ValueError(f"{shown(value)} is not within 0 and {_MAX_MACHINES}")
        if least > most:
            raise ValueError(f"its min {least} is more than its max {most}")
        if most == 0:
            raise ValueError("its max is 0; `machines: off` rents nothing any more")
        return cls((least, most))


def _range_of(value: object) -> tuple[int, int]:
    if isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a number of machines")
    if isinstance(value, int):
        return value, value
    if isinstance(value, dict):
        return _range_of_mapping(value)
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value)) is not None:
        return int(match[1]), int(match[1])
    if isinstance(value, str) and (match := _RANGE.fullmatch(value)) is not None:
        if match[2] is None:
            raise ValueError(f"{shown(value)} has no max: a fleet never rents without limit")
        return int(match[1] or 0), int(match[2])
    raise ValueError(f"{shown(value)} is no range of machines")


def _range_of_mapping(value: dict[Any, Any]) -> tuple[int, int]:
    if "target" in value:
        raise ValueError("it has no `target`: the machines of its `min` are rented at once")
    if unknown := [one for one in value if one not in ("min", "max")]:
        raise ValueError(f"{shown(unknown[0])} is not a field of it")
    if "max" not in value:
        raise ValueError("its max is missing")
    least, most = value.get("min", 0), value["max"]
    for name, one in (("min", least), ("max", most)):
        if type(one) is not int:
            raise ValueError(f"its {name}, {shown(one)}, is not a number of machines")
    return least, most


_NAMES = "a list of names"
_Words = Annotated[tuple[str, ...], Field(_NAMES)]


class MachinesFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    provider: Annotated[
        str,
        Field(
            "the name of a provider in the controller's file",
            called=("machines.backend", "machines.backends", "machines.cloud"),
        ),
    ]
    nodes: Nodes
    resources: Annotated[ResourcesFields | None, Field("a mapping, as in a job's file")] = None
    instance_types: _Words = ()
    regions: _Words = ()
    availability_zones: Annotated[tuple[str, ...], Field(_NAMES, called=("machines.zones",))] = ()
    spot: Annotated[
        Literal["never", "only", "auto"],
        Field(
            "never, only, or auto: spot first, on demand after an interruption",
            called=("machines.spot_policy",),
        ),
    ] = "auto"
    idle_duration: Annotated[
        Duration,
        Field(f"{DURATION_ALLOWED}, after which an unused machine is given back; `nodes.min` stay"),
    ] = Duration(900)
    boot_limit: Annotated[
        Duration, Field(f"{DURATION_ALLOWED}, within which a machine must be a node")
    ] = Duration(1200)
    leash: Annotated[
        DurationOrOff,
        Field(f"{OFF_ALLOWED}, after which a machine without jobs and controller powers off"),
    ] = DurationOrOff(7200)
    max_price: Annotated[Positive | None, Field("a price an hour, more than 0")] = None


PerHour = Annotated[
    Positive | None, Field("a price of more than 0: what all machines together may cost an hour")
]
PerMonth = Annotated[
    Positive | None, Field("a price of more than 0: what they may cost in a month of UTC")
]


class BudgetFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    per_hour: PerHour = None
    per_month: PerMonth = None


def check_machines(machines: MachinesFields, budget: BudgetFields) -> None:
    """Refuse what could never rent anything. Raises ConfigurationError."""
    if not machines.boot_limit > 0:
        raise ConfigurationError("machines.boot_limit", "is 0", "a duration of more than 0")
    leash = machines.leash.seconds
    if leash is not None and leash < 60:
        allowed = "at least 1m, or off"
        raise ConfigurationError("machines.leash", f"is {leash:g} s", allowed)
    hour, month = budget.per_hour, budget.per_month
    if hour is not None and month is not None and hour > month:
        raise ConfigurationError(
            "budget.per_hour", f"{hour:g} is more than per_month ({month:g})", "at most per_month"
        )
