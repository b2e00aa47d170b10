"""How states look: the one table of their colours and signs.

Names and colours are those of Iris's dashboard. The stylesheet is made from the table.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.model.statuses import IrisState


class Look(msgspec.Struct, frozen=True):
    """White text on `colour` has a contrast of at least 4.5; `sign` tells states apart without
    colours."""

    colour: str
    sign: str


LOOKS: Mapping[IrisState, Look] = {
    IrisState.PENDING: Look("#9a6700", "○"),
    IrisState.ASSIGNED: Look("#bc4c00", "◔"),
    IrisState.BUILDING: Look("#8250df", "◑"),
    IrisState.RUNNING: Look("#0969da", "▶"),
    IrisState.SUCCEEDED: Look("#1a7f37", "✓"),
    IrisState.FAILED: Look("#cf222e", "✕"),
    IrisState.KILLED: Look("#57606a", "■"),
    IrisState.UNSCHEDULABLE: Look("#cf222e", "⊘"),
    IrisState.WORKER_FAILED: Look("#8250df", "↯"),
    IrisState.PREEMPTED: Look("#bc4c00", "⇤"),
}


class Badge(msgspec.Struct, frozen=True, kw_only=True):
    """A state as a template shows it. `note` stands beside it."""

    name: str
    sign: str
    note: str = ""
    count: int = 1


def badge(state: IrisState, count: int = 1) -> Badge:
    note = "(worker failure)" if state is IrisState.WORKER_FAILED else ""
    return Badge(name=state.value, sign=LOOKS[state].sign, note=note, count=count)


def stylesheet() -> str:
    """Return the rules of all states, for badges (`.status-NAME`) and fills of plots."""
    return "".join(
        f".status-{state.value}{{--state:{look.colour};background:{look.colour};"
        f"fill:{look.colour};color:#fff}}\n"
        for state, look in LOOKS.items()
    )
