"""Constraints compare a node's attributes with what a job asks for; all functions are pure.

A node's attributes are its own, its fleet's and the built-in ones. A domain is one value of the
fleet's `placement` attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from controller.lifecycle.model import Constraint, Fleet, Node, Operator
from controller.lifecycle.pending_reasons import domain_words
from fairlead.wire.gpu_names import is_called


def attributes_of(node: Node, fleet: Fleet | None) -> dict[str, str]:
    """Return a node's attributes, its own and its fleet's included.

    Built in are `node`, `fleet`, `cpu` (cores), `memory` and `disk` (bytes) and `gpu.count` (cards,
    also where they are split). If all GPUs are alike, `gpu.name` and `gpu.memory` are added.
    """
    capacity = node.capacity
    found = {
        "node": node.name,
        "fleet": node.fleet,
        "cpu": f"{capacity.cpu:g}",
        "memory": str(capacity.memory),
        "disk": str(capacity.disk),
        "gpu.count": str(len({gpu.board for gpu in capacity.gpus})),
    }
    if len({gpu.name for gpu in capacity.gpus}) == 1:
        found["gpu.name"] = capacity.gpus[0].name
    if len({gpu.memory for gpu in capacity.gpus}) == 1:
        found["gpu.memory"] = str(capacity.gpus[0].memory)
    if fleet is not None:
        found |= fleet.attributes
    return found | node.attributes


class Domain(tuple[str, str | None]):
    """One fleet and one value of its placement attribute, which all nodes of one gang share.

    Value None: the fleet names no such attribute, so all its nodes are one domain.
    """

    __slots__ = ()

    @property
    def fleet(self) -> str:
        return self[0]

    @property
    def value(self) -> str | None:
        return self[1]

    def __str__(self) -> str:
        return domain_words(self.fleet, self.value)


def domain_of(node: Node, fleets: Mapping[str, Fleet]) -> Domain | None:
    """Return the node's domain; None if its fleet names an attribute that the node does not
    have."""
    fleet = fleets.get(node.fleet)
    if fleet is None or fleet.placement is None:
        return Domain((node.fleet, None))
    value = attributes_of(node, fleet).get(fleet.placement)
    return None if value is None else Domain((node.fleet, value))


GPU_NAME = "gpu.name"
_OF_MACHINES = "spot"
"""Every rented machine has this attribute, the oldest included."""


def holds(constraint: Constraint, attributes: Mapping[str, str]) -> bool:
    """Return whether the constraint holds. A node without the attribute meets only NE and
    NOT_EXISTS, and a limit on rented machines where it is none."""
    has = attributes.get(constraint.attribute)
    if constraint.rented and has is None and _OF_MACHINES not in attributes:
        return True
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
    """Return whether the attribute has this value. GPU names match like in `resources.gpu`: by
    words of the driver's name."""
    if attribute == GPU_NAME and is_called(has, value):
        return True
    return compare(has, value) == 0


def compare(one: str, other: str) -> int:
    """Return -1, 0 or 1: as numbers if both are numbers, else as strings."""
    left, right = _number(one), _number(other)
    if left is not None and right is not None:
        return (left > right) - (left < right)
    return (one > other) - (one < other)


def _number(text: str) -> float | None:
    """Return the number, or None. `nan` and `inf` are strings: they have no order that a user would
    expect."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0.0 else None


def unmet(constraints: Sequence[Constraint], attributes: Mapping[str, str]) -> Constraint | None:
    """Return the first required constraint that does not hold."""
    return next((c for c in constraints if c.required and not holds(c, attributes)), None)


def all_unmet(constraints: Sequence[Constraint], attributes: Mapping[str, str]) -> list[Constraint]:
    """Return the required constraints that do not hold, in their order."""
    return [c for c in constraints if c.required and not holds(c, attributes)]


def disliked(constraints: Sequence[Constraint], attributes: Mapping[str, str]) -> int:
    """Return how many preferred constraints do not hold: fewer is better."""
    return sum(not c.required and not holds(c, attributes) for c in constraints)
