"""Where jobs may go, and when: `constraints`, `fleets` and `schedule` as people write them.

A ValueError holds the sentence for the user; the field's path is added by whoever asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controller.configuration import schema
from controller.configuration.convert import convert_entry
from controller.configuration.units import parse_number, parse_size, shown
from controller.lifecycle.model import Constraint, Operator

_ATTRIBUTE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}", re.ASCII)
_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_SIZES = frozenset({"memory", "disk", "gpu.memory"})
"""Attributes of every node that count bytes."""
_WITHOUT_VALUE = frozenset({Operator.EXISTS, Operator.NOT_EXISTS})
_MOST_EXPRESSIONS = 20
_CRON_FIELDS = 5
_ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)


def needs(value: object, make: Callable[[type, Any], Any]) -> schema.Needs:
    if isinstance(value, str):
        return schema.Needs(_of_text(value))
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is neither a text nor a mapping")
    fields = convert_entry(value, schema.ConstraintFields, make, "constraints")
    if fields.value is not None and fields.values is not None:
        raise ValueError("has both value and values: give one of them")
    given = (fields.value,) if fields.value is not None else fields.values or ()
    texts = tuple(str(one) for one in given)
    return schema.Needs(_checked(fields.attribute, fields.operator, texts, fields.required))


def fleets(value: object) -> schema.Names:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(f"{shown(value)} names no fleet")
    for name in names:
        if not isinstance(name, str) or not _FLEET.fullmatch(name):
            raise ValueError(f"{shown(name)} is not the name of a fleet")
    return schema.Names(dict.fromkeys(names))


def schedule(value: object) -> schema.Schedule:
    """A text, a list of texts, or dstack's mapping with `cron`."""
    given = value.get("cron") if isinstance(value, dict) and value.keys() == {"cron"} else value
    expressions = [given] if isinstance(given, str) else given
    if not isinstance(expressions, list | tuple):
        raise ValueError(f"{shown(value)} is not a schedule")
    if not expressions:
        raise ValueError("is empty")
    if len(expressions) > _MOST_EXPRESSIONS:
        raise ValueError(f"has more than {_MOST_EXPRESSIONS} expressions")
    return schema.Schedule(dict.fromkeys(_expression(one) for one in expressions))


def _of_text(text: str) -> Constraint:
    """`ATTRIBUTE OPERATOR [VALUE]`; the values of IN are separated by commas."""
    words = text.split(None, 2)
    operator = words[1].upper() if len(words) > 1 else ""
    if operator not in set(Operator):
        raise ValueError(f"{shown(text)} is not ATTRIBUTE OPERATOR VALUE")
    rest = words[2].strip() if len(words) > 2 else ""
    parts = rest.split(",") if operator == Operator.IN else [rest]
    values = tuple(part.strip() for part in parts if part.strip())
    return _checked(words[0], Operator(operator), values, required=True)


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
    """A plain number is bytes already. Raises ValueError."""
    return value if parse_number(value) is not None else str(parse_size(value))


def _expression(text: object) -> str:
    from cronsim import CronSim, CronSimError  # few runs are scheduled

    if not isinstance(text, str):
        raise ValueError(f"{shown(text)} is not a cron expression; quote it")
    fields = text.split()
    if len(fields) != _CRON_FIELDS:
        raise ValueError(f"{shown(text)} is not a cron expression of {_CRON_FIELDS} fields")
    expression = " ".join(fields)
    try:
        next(CronSim(expression, _ANY_TIME))
    except CronSimError as error:
        raise ValueError(f"{shown(text)} is not a cron expression: {str(error).lower()}") from None
    except StopIteration:
        raise ValueError(f"{shown(text)} never comes") from None
    return expression
