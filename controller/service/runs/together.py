"""Several runs that are submitted as one act may wait for each other by name.

They are made in an order in which each waits only for runs before it. Runs that wait for each other
in a circle are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.refusals import Invalid
from fairlead.model.beginning import After

MAX_TOGETHER = 100
"""The most runs of one act."""


def in_order(names: Sequence[str], after: Sequence[Sequence[After]]) -> list[int]:
    """Return the numbers of the runs so that each comes after those that it waits for.

    `names` and `after` are those of the runs, in the order of the request. Runs that are not among
    them are left out. Raises Invalid for a name that comes twice, and for a circle.
    """
    numbers = {name: number for number, name in enumerate(names)}
    if len(numbers) != len(names):
        number = next(n for n, name in enumerate(names) if numbers[name] != n)
        raise Invalid(
            f"two runs are named {names[number]}: give each a name of its own",
            field=f"runs[{numbers[names[number]]}].name",
        )
    order: list[int] = []
    on_the_way: list[int] = []

    def visit(number: int) -> None:
        if number in order:
            return
        if number in on_the_way:
            raise _circle(names, [*on_the_way[on_the_way.index(number) :], number])
        on_the_way.append(number)
        for one in after[number]:
            if one.run in numbers:
                visit(numbers[one.run])
        on_the_way.pop()
        order.append(number)

    for number in range(len(names)):
        visit(number)
    return order


def _circle(names: Sequence[str], way: Sequence[int]) -> Invalid:
    shown = " waits for ".join(names[number] for number in way)
    return Invalid(
        f"{shown}: none of them could ever begin; take one of the conditions out",
        field=f"runs[{way[0]}].configuration.after",
        code="dependency_cycle",
    )
