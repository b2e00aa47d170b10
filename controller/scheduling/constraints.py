"""Whether a node's attributes are what a job asks for: the nine operators of LIFECYCLE.md 6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from controller.lifecycle.model import Constraint, Operator
from controller.scheduling.gpus import is_called

GPU_NAME = "gpu.name"

_WORDS = {
    Operator.EQ: "=",
    Operator.NE: "≠",
    Operator.GT: ">",
    Operator.GE: "≥",
    Operator.LT: "<",
    Operator.LE: "≤",
    Operator.IN: "in",
}


def holds(constraint: Constraint, attributes: Mapping[str, str]) -> bool:
    """A node without the attribute meets only NE and NOT_EXISTS."""
    has = attributes.get(constraint.attribute)
    match constraint.operator:
        case Operator.EXISTS:
            return has is not None
        case Operator.NOT_EXISTS:
            return has is None
        case Operator.NE:
            return has is None or not _is(constraint.attribute, has, constraint.values[0])
    if has is None:
        return False
    if constraint.operator in (Operator.EQ, Operator.IN):
        return any(_is(constraint.attribute, has, value) for value in constraint.values)
    return _ORDERINGS[constraint.operator](compare(has, constraint.values[0]))


_ORDERINGS: dict[Operator, Callable[[int], bool]] = {
    Operator.GT: lambda order: order > 0,
    Operator.GE: lambda order: order >= 0,
    Operator.LT: lambda order: order < 0,
    Operator.LE: lambda order: order <= 0,
}


def _is(attribute: str, has: str, value: str) -> bool:
    """GPUs are called as `resources.gpu` calls them: by words of their driver's name."""
    if attribute == GPU_NAME and is_called(has, value):
        return True
    return compare(has, value) == 0


def compare(one: str, other: str) -> int:
    """-1, 0 or 1; as numbers where both are, else as texts."""
    left, right = _number(one), _number(other)
    if left is not None and right is not None:
        return (left > right) - (left < right)
    return (one > other) - (one < other)


def _number(text: str) -> float | None:
    """`nan` and `inf` are texts: they have no order among numbers that a user would expect."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0.0 else None


def unmet(constraints: Sequence[Constraint], attributes: Mapping[str, str]) -> Constraint | None:
    """The first required constraint that does not hold."""
    return next((c for c in constraints if c.required and not holds(c, attributes)), None)


def all_unmet(constraints: Sequence[Constraint], attributes: Mapping[str, str]) -> list[Constraint]:
    """The required constraints that do not hold, in their order."""
    return [c for c in constraints if c.required and not holds(c, attributes)]


def disliked(constraints: Sequence[Constraint], attributes: Mapping[str, str]) -> int:
    """How many of the preferred ones do not hold: fewer is better."""
    return sum(not c.required and not holds(c, attributes) for c in constraints)


def words(constraint: Constraint) -> str:
    """As a person says it: `zone = a`, `rack exists`, `gpu.name in H100 or H200`."""
    if constraint.operator is Operator.EXISTS:
        return f"{constraint.attribute} exists"
    if constraint.operator is Operator.NOT_EXISTS:
        return f"no {constraint.attribute}"
    sign, values = _WORDS[constraint.operator], " or ".join(constraint.values)
    return f"{constraint.attribute} {sign} {values}"
