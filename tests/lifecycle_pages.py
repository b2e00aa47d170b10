"""Writes the state machines as pages of `docs/lifecycle`: `./dev pages`.

The pages are generated from the tables that the code itself uses; a test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from controller.lifecycle.gangs.incarnation import PHASE_MOVES, Phase
from controller.lifecycle.gangs.switching import SWITCHES
from controller.lifecycle.machines.model import MACHINE_MOVES, MachineStatus
from controller.lifecycle.runs import schedules
from fairlead.model.reasons import (
    ATTEMPT_REASON_OF_RUN,
    ENDS_NO_RUN,
    FINAL_STATUS_OF_RUN,
    ROWS,
    RUN_SENTENCES,
    ComesBack,
    Reason,
    ReasonClass,
)
from fairlead.model.statuses import (
    ALLOCATION_MOVES,
    ATTEMPT_MOVES,
    RUN_MOVES,
    STATES,
    AllocationState,
    AttemptStatus,
    RunStatus,
)

FOLDER = Path("docs/lifecycle")

_NONE = "-"
_NOTE = "Written by `./dev pages`; change the tables, not this page.\n"


def mermaid(moves: Mapping[Any, frozenset[Any]], initial: tuple[StrEnum, ...]) -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {status}" for status in initial]
    for source, targets in moves.items():
        lines += [f"    {source} --> {target}" for target in sorted(targets)]
        if not targets:
            lines.append(f"    {source} --> [*]")
    return "\n".join([*lines, "```", ""])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, ""])


def _attempt_page() -> str:
    rows = [
        (
            f"`{reason}`",
            row.final.upper(),
            str(row.reason_class),
            row.event or _NONE,
            row.budget or _NONE,
            row.gang_switch or _NONE,
            str(row.iris),
            f"`{row.run}`" if _can_end_a_run(reason) else _NONE,
            str(row.grace),
            row.sentence,
        )
        for reason, row in ROWS.items()
    ]
    head = (
        *("reason", "final", "class", "event", "budget", "gang switch", "Iris"),
        *("for good, its run ends", "grace", "says"),
    )
    return "\n".join(
        [
            "# Attempt\n",
            "To see the attempts of a run and why each ended, run `fairlead inspect RUN`.\n",
            _NOTE,
            mermaid(ATTEMPT_MOVES, (AttemptStatus.SUBMITTED,)),
            "## Termination reasons\n",
            _table(head, rows),
            "If a limit of the retry policy ended the job, its run ends `retry_limit_exceeded`. "
            "Only a used-up `max_preemptions` is `worker_failed`.\n",
            "## What Iris calls it\n",
            "Once an attempt has a reason, its `state` in the API is the name in the table above. "
            "Before that, it follows the status:\n",
            _table(("status", "state"), [(s.upper(), state) for s, state in STATES.items()]),
            "A job has the state of its last attempt. Once that has ended and another one will "
            "come, the job is `pending`.\n",
        ]
    )


def _can_end_a_run(reason: Reason) -> bool:
    row = ROWS[reason]
    comes_back = isinstance(row.event, ComesBack)
    return not (comes_back or row.reason_class is ReasonClass.SUCCESS or reason in ENDS_NO_RUN)


def _run_page() -> str:
    rows = [
        (
            f"`{reason}`",
            status.upper(),
            f"`{ATTEMPT_REASON_OF_RUN[reason]}`",
            RUN_SENTENCES[reason],
        )
        for reason, status in FINAL_STATUS_OF_RUN.items()
    ]
    head = ("reason", "final", "its active attempts end", "says")
    return "\n".join(
        [
            "# Run\n",
            "To see a run's status and why it ended, run `fairlead ps -a`.\n",
            _NOTE,
            mermaid(RUN_MOVES, (RunStatus.SUBMITTED, RunStatus.PENDING)),
            "## Why a run ends\n",
            _table(head, rows),
        ]
    )


def _allocation_page() -> str:
    initial = (AllocationState.NOMINATED, AllocationState.HELD)
    told = "To see the allocations of a run change, run `fairlead events RUN`.\n"
    return "\n".join(["# Allocation\n", told, _NOTE, mermaid(ALLOCATION_MOVES, initial)])


def _machine_page() -> str:
    told = "To see the machines and what each does, run `fairlead machine list --all`.\n"
    more = (
        "A machine that is wanted and has no offer yet is PENDING: it has no record, and "
        "`fairlead explain RUN` says why. One that joined is IDLE or BUSY to its users. "
        "[The rules](../rules.md#12-machines) say what moves it.\n"
    )
    moves = mermaid(MACHINE_MOVES, (MachineStatus.PROVISIONING,))
    return "\n".join(["# Machine\n", told, _NOTE, moves, more])


def _incarnation_page() -> str:
    switches = [
        (f"`{reason}`", "all" if whole else "those that do not survive", says)
        for reason, whole, says in SWITCHES
    ]
    head = ("switch", "allocations given back", "when")
    return "\n".join(
        [
            "# Incarnation of a gang\n",
            "To see a gang's incarnations and why it switched, run `fairlead inspect RUN`.\n",
            _NOTE,
            mermaid(PHASE_MOVES, (Phase.GATHERING,)),
            "The controller derives a phase from the attempts and never stores it.\n",
            "## Why a gang switches\n",
            _table(head, switches),
        ]
    )


def _occurrence_page() -> str:
    return "\n".join(
        [
            "# Occurrence of a scheduled run\n",
            "To see an occurrence, run `fairlead inspect RUN --occurrence N`.\n",
            _NOTE,
            mermaid(schedules.PHASE_MOVES, (schedules.Phase.WAITING,)),
            "The controller derives a phase from the run and never stores it. It skips and records "
            "a trigger that comes while the occurrence goes on.\n",
        ]
    )


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    return {
        "attempt.md": _attempt_page(),
        "run.md": _run_page(),
        "allocation.md": _allocation_page(),
        "incarnation.md": _incarnation_page(),
        "occurrence.md": _occurrence_page(),
        "machine.md": _machine_page(),
    }


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(FOLDER)
