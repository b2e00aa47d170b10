"""The table of `ps`. Apart from `run_list`, which asks for it before this is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import msgspec

from fairlead.cli import output
from fairlead.documents.runs import RunSummary
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.rest import decode
from fairlead.sweeps import progress_of

_MAX_NODES_NAMED = 8


class _Runs(msgspec.Struct):
    runs: list[RunSummary]
    next_cursor: str | None = None


def show(data: bytes, *, json: bool) -> None:
    """Print the answer."""
    if json:
        output.emit_json(data)
        return
    page = decode(data, _Runs)
    for line in _run_lines(page, output.table_width()):
        output.emit(line)
    if page.next_cursor is not None:
        output.note(f"these are the newest {len(page.runs)}; --limit shows up to 1000")


def repeat(ask: Callable[[], bytes], *, json: bool) -> NoReturn:
    """Print the answers to this, until interrupted."""
    if json:
        output.repeat_json(ask)
    output.repeat(lambda width: _run_lines(decode(ask(), _Runs), width))


def _run_lines(page: _Runs, width: int | None) -> list[str]:
    now = output.utc_now()
    rows = [
        (
            run.name,
            _status(run),
            _nodes(run),
            output.ago(run.submitted_at, now),
            run.user,
            _about(run),
        )
        for run in page.runs
    ]
    return output.table_lines(("NAME", "STATUS", "NODE", "SUBMITTED", "USER", "ABOUT"), rows, width)


def _status(run: RunSummary) -> str:
    suspended = run.suspended and run.status not in FINAL_RUN_STATUSES
    return f"{run.status} (suspended)" if suspended else run.status


def _nodes(run: RunSummary) -> str:
    if len(run.nodes) > _MAX_NODES_NAMED:
        return f"{len(run.nodes)} nodes"
    return ", ".join(run.nodes) or "-"


def _about(run: RunSummary) -> str:
    ended = run.status in FINAL_RUN_STATUSES
    several = run.jobs > 1 and not ended and run.sweep is None
    parts = [f"{run.jobs_running} of {run.jobs} jobs running"] if several else []
    if run.sweep is not None and not ended:
        parts.append(progress_of(run.sweep))
    if run.status == RunStatus.PENDING and run.next_triggered_at and not run.suspended:
        parts.append(f"runs next at {run.next_triggered_at}")
    why_ended = ": ".join(part for part in (run.termination_reason, run.message) if part)
    parts.append(output.shortened(why_ended or run.pending_reason or ""))
    return "; ".join(part for part in parts if part)
