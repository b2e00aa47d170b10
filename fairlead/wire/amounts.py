"""The amounts that are counted: what a node offers, a job asks for and an allocation holds.

A new amount is a field here, in `ResourcesFields` (`fairlead.configuration.values.resources`), and
in `shim.node.machine.capacity`, which says how much of it the node has. Jobs, allocations, the
scheduler's rooms and the shim's ledger have the fields of `Amounts` and count each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from operator import attrgetter, sub
from typing import Annotated, Any, get_type_hints

import msgspec


class Unit(StrEnum):
    CORES = "cores"
    """Fractions of a core are summed as floats."""
    BYTES = "bytes"
    PIECES = "pieces"


def _in(unit: Unit) -> msgspec.Meta:
    return msgspec.Meta(extra={"unit": unit})


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    cpu: Annotated[float, _in(Unit.CORES)] = 0.0
    memory: Annotated[int, _in(Unit.BYTES)] = 0
    disk: Annotated[int, _in(Unit.BYTES)] = 0


def _unit(hint: Any) -> Unit:
    (meta,) = hint.__metadata__
    return Unit(meta.extra["unit"])


UNITS: Mapping[str, Unit] = {
    name: _unit(hint) for name, hint in get_type_hints(Amounts, include_extras=True).items()
}
"""The amounts by name, in the order in which users read them."""


_in_order: Callable[[Amounts], tuple[Any, ...]] = attrgetter(*UNITS)


def amounts_in(one: Amounts) -> tuple[float, ...]:
    """Return its amounts in the order of `UNITS`, to be compared. The scheduler calls this for
    each node and job."""
    return _in_order(one)


def amounts_of(one: Amounts) -> dict[str, Any]:
    """Return its amounts by name, for another struct that has them."""
    return dict(zip(UNITS, _in_order(one), strict=True))


def sums_of(many: Iterable[Amounts]) -> dict[str, Any]:
    """Return the sum of each amount."""
    columns = zip(*map(_in_order, (_NONE, *many)), strict=True)
    return dict(zip(UNITS, map(sum, columns), strict=True))


def left_of(whole: Amounts, *taken: Amounts) -> dict[str, Any]:
    """Return what is left of each amount; below 0 where more is taken than there is."""
    left: Iterable[Any] = _in_order(whole)
    for one in taken:
        left = map(sub, left, _in_order(one))
    return dict(zip(UNITS, left, strict=True))


_NONE = Amounts()
NOTHING = amounts_of(_NONE)
