"""Where and when a job may run: constraints, fleets, schedules."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

import msgspec

from fairlead.configuration.convert import convert_entry
from fairlead.configuration.field import Field, mapping_of
from fairlead.configuration.values.commands import STRING, STRINGS, Text
from fairlead.configuration.values.units import parse_number, parse_size, shown
from fairlead.model.needs import Constraint, Operator

_ATTRIBUTE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}", re.ASCII)
_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_SIZES = frozenset({"memory", "disk", "gpu.memory"})
"""Attributes of every node that count bytes."""
_WITHOUT_VALUE = frozenset({Operator.EXISTS, Operator.NOT_EXISTS})
_MAX_EXPRESSIONS = 20
_CRON_FIELDS = 5
_ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)


class ConstraintFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of one of `constraints`."""

    attribute: Annotated[Text, Field("the name of an attribute of nodes")]
    operator: Operator
    value: Annotated[str | int | float | None, Field("a string or a number")] = None
    values: Annotated[
        tuple[str | int | float, ...] | None, Field("a list of strings or numbers, for IN")
    ] = None
    required: Annotated[bool, Field("true, or false for a preference")] = True


class WrittenConstraint:
    """One of the `constraints`."""

    __slots__ = ("constraint",)
    FIELDS = ConstraintFields
    SCHEMA: ClassVar[dict[str, Any]] = {"anyOf": [STRING, mapping_of(ConstraintFields)]}

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint

    @property
    def plain(self) -> Constraint:
        return self.constraint

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, str):
            return cls(_of_text(value))
        if not isinstance(value, dict):
            raise ValueError(f"{shown(value)} must be a string or a mapping")
        fields = convert_entry(value, ConstraintFields, "constraints")
        if fields.value is not None and fields.values is not None:
            raise ValueError("has both value and values: give one of them")
        given = (fields.value,) if fields.value is not None else fields.values or ()
        texts = tuple(str(one) for one in given)
        return cls(_checked(fields.attribute, fields.operator, texts, fields.required))


def _of_text(text: str) -> Constraint:
    """Return the constraint of `ATTRIBUTE OPERATOR [VALUE]`; commas separate the values of IN."""
    words = text.split(None, 2)
    operator = words[1].upper() if len(words) > 1 else ""
    if operator not in set(Operator):
        raise ValueError(f"{shown(text)} is not ATTRIBUTE OPERATOR VALUE{_by_name(text)}")
    rest = words[2].strip() if len(words) > 2 else ""
    parts = rest.split(",") if operator == Operator.IN else [rest]
    values = tuple(part.strip() for part in parts if part.strip())
    return _checked(words[0], Operator(operator), values, required=True)


_SIGNS = {"=": "EQ", "==": "EQ", "!=": "NE", ">=": "GE", "<=": "LE", ">": "GT", "<": "LT"}
_WITH_SIGN = re.compile(r"\s*([\w.-]+)\s*([=!<>]=?)\s*([\w.-]+)\s*", re.ASCII)


def _by_name(text: str) -> str:
    """Return how to write `rack=r1`."""
    match = _WITH_SIGN.fullmatch(text)
    operator = None if match is None else _SIGNS.get(match[2])
    return f": write {match[1]} {operator} {match[3]}" if match and operator else ""


def _checked(
    attribute: str, operator: Operator, values: tuple[str, ...], required: bool
) -> Constraint:
    if not _ATTRIBUTE.fullmatch(attribute):
        raise ValueError(f"{shown(attribute)} is not the name of an attribute")
    if operator in _WITHOUT_VALUE and values:
        raise ValueError(f"{operator} takes no value")
    if operator is Operator.IN and not values:
        raise ValueError("IN needs at least one value")
    if operator not in _WITHOUT_VALUE | {Operator.IN} and len(values) != 1:
        raise ValueError(f"{operator} needs one value; IN takes several")
    if attribute in _SIZES:
        values = tuple(_bytes(value) for value in values)
    return Constraint(attribute=attribute, operator=operator, values=values, required=required)


def _bytes(value: str) -> str:
    """Return the size in bytes, as a string; a plain number counts bytes already. Raises
    ValueError."""
    return value if parse_number(value) is not None else str(parse_size(value))


class Names(tuple[str, ...]):
    __slots__ = ()
    ALLOWED = "the name of a fleet, or a list of them"
    SCHEMA: ClassVar[dict[str, Any]] = {"anyOf": [STRING, {**STRINGS, "minItems": 1}]}

    @classmethod
    def read(cls, value: object) -> Self:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not names:
            raise ValueError(f"{shown(value)} names no fleet")
        for name in names:
            if not isinstance(name, str) or not _FLEET.fullmatch(name):
                raise ValueError(f"{shown(name)} is not the name of a fleet")
        return cls(dict.fromkeys(names))


class Schedule(tuple[str, ...]):
    """Cron expressions, in UTC."""

    __slots__ = ()
    ALLOWED = "a cron expression in UTC such as 0 8 * * 1-5, or a list of them"
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            STRING,
            {**STRINGS, "minItems": 1},
            {"type": "object", "required": ["cron"], "additionalProperties": False}
            | {"properties": {"cron": {"anyOf": [STRING, STRINGS]}}},
        ]
    }

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the schedule of a string, a list of strings, or dstack's mapping with `cron`."""
        is_dstacks = isinstance(value, dict) and value.keys() == {"cron"}
        given = value.get("cron") if isinstance(value, dict) and is_dstacks else value
        expressions = [given] if isinstance(given, str) else given
        if not isinstance(expressions, list | tuple):
            raise ValueError(f"{shown(value)} is not a schedule")
        if not expressions:
            raise ValueError("is empty")
        if len(expressions) > _MAX_EXPRESSIONS:
            raise ValueError(f"has more than {_MAX_EXPRESSIONS} expressions")
        return cls(dict.fromkeys(_expression(one) for one in expressions))


def _expression(text: object) -> str:
    from cronsim import CronSim, CronSimError  # few runs are scheduled

    if not isinstance(text, str):
        raise ValueError(f"{shown(text)} is not a cron expression; quote it")
    fields = text.split()
    if len(fields) != _CRON_FIELDS:
        raise ValueError(f"{shown(text)} is not a cron expression of {_CRON_FIELDS} fields")
    expression = " ".join(fields)
    try:
        # cronsim finds no fault in 30 February: it looks for a day in the next 50 years.
        next(CronSim(expression, _ANY_TIME))
    except CronSimError as error:
        raise ValueError(f"{shown(text)} is not a cron expression: {str(error).lower()}") from None
    except StopIteration:
        raise ValueError(f"{shown(text)} never fires") from None
    return expression
