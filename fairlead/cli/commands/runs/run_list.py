"""`ps`: the list of runs.

The command is in `show`; see `applying` for why this is apart.
"""

from __future__ import annotations

from functools import partial

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.documents.runs import RunSummary
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.queries import RunQuery
from fairlead.rest import decode
from fairlead.sweeps import progress_of

_MAX_NODES_NAMED = 8


class _Runs(msgspec.Struct):
    runs: list[RunSummary]
    next_cursor: str | None = None


def ps(
    name: str | None = None,
    *,
    all_: bool = False,
    status: tuple[str, ...] = (),
    user: str | None = None,
    watch: bool = False,
    limit: int = 100,
    json: bool = False,
) -> int:
    """Print the runs. Return the exit status."""
    query = RunQuery(all=all_, limit=limit, status=",".join(status) or None, user=user, name=name)
    ask = partial(settings.client().get, "/v1/runs", **query.parameters())
    if watch and json:
        output.repeat_json(ask)
    if watch:
        output.repeat(lambda width: _run_lines(decode(ask(), _Runs), width))
    data = ask()
    if json:
        output.emit_json(data)
        return 0
    page = decode(data, _Runs)
    for line in _run_lines(page, output.table_width()):
        output.emit(line)
    if page.next_cursor is not None:
        output.note(f"these are the newest {len(page.runs)}; --limit shows up to 1000")
    return 0


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
