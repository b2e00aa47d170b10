"""Commands that ask about runs, and `stop`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from controller.api.documents import AttemptView, EventView, RunSummary, RunView
from controller.cli import output, settings
from controller.cli.client import ControllerClient, decode, run_path
from controller.cli.commands.options import Flag, Json
from controller.cli.progress import job_name, why

_PAGE = 1000


class _Runs(msgspec.Struct):
    runs: list[RunSummary]


class _Events(msgspec.Struct):
    events: list[msgspec.Raw]


def ps(
    *,
    all_: Annotated[bool, Parameter(name=["-a", "--all"], negative=())] = False,
    limit: int = 100,
    json: Json = False,
) -> int:
    """List the runs that live.

    Parameters
    ----------
    all_
        Finished runs too.
    limit
        The newest so many, up to 1000.
    """
    data = settings.client().get("/v1/runs", all=all_, limit=limit)
    if json:
        output.emit_json(data)
        return 0
    now = output.utc_now()
    output.emit_table(
        ("NAME", "STATUS", "NODE", "SUBMITTED", "USER", "ABOUT"),
        [
            (
                run.name,
                run.status,
                ", ".join(run.nodes) or "-",
                output.ago(run.submitted_at, now),
                run.user,
                run.pending_reason or run.message or run.termination_reason or "",
            )
            for run in decode(data, _Runs).runs
        ],
    )
    return 0


def inspect(run: str, /, *, json: Json = False) -> int:
    """Show all about a run (id or name)."""
    data = settings.client().get(run_path(run))
    if json:
        output.emit_json(data)
        return 0
    show_run(decode(data, RunView))
    return 0


def show_run(run: RunView) -> None:
    about = f"{run.name} ({run.id}), a {run.type} of {run.user}: {run.status}"
    output.emit(about if run.termination_reason is None else f"{about}: {why(run)}")
    output.emit_table(
        ("JOB", "ATTEMPT", "STATUS", "REASON", "EXIT", "NODE", "RUNNING", "FINISHED"),
        [
            (job_name(job), *_attempt_cells(number, attempt))
            for job in run.jobs
            for number, attempt in enumerate(job.attempts)
        ],
    )
    for job in run.jobs:
        if job.pending_reason:
            output.emit(f"{job_name(job)} waits: {job.pending_reason}")


def _attempt_cells(number: int, attempt: AttemptView) -> tuple[str, ...]:
    return (
        str(number),
        attempt.status,
        attempt.termination_reason or "-",
        "-" if attempt.exit_code is None else str(attempt.exit_code),
        attempt.node or "-",
        attempt.running_at or "-",
        attempt.finished_at or "-",
    )


def stop(run: str, /, *, abort: Annotated[bool, Flag] = False, json: Json = False) -> int:
    """Stop a run; returns when the controller has recorded it.

    Parameters
    ----------
    abort
        At once, without the grace that the job has to end by itself.
    """
    data = settings.client().post(run_path(run, "stop"), {"abort": abort})
    if json:
        output.emit_json(data)
        return 0
    state = decode(data, RunView)
    output.emit(f"{state.name}: {state.status}")
    return 0


def events(run: str | None = None, /, *, after: int = 0, json: Json = False) -> int:
    """Tell what happened, oldest first.

    Parameters
    ----------
    run
        Id or name; else everything.
    after
        Only what came after the event with this number.
    """
    told = _all_events(settings.client(), run, after)
    if json:
        output.emit_json(msgspec.json.encode({"events": told}))
        return 0
    output.emit_table(
        ("SEQ", "AT", "WHAT", "CHANGE", "REASON", "CAUSE"),
        [_event_cells(decode(event, EventView)) for event in told],
    )
    return 0


def _all_events(client: ControllerClient, run: str | None, after: int) -> list[msgspec.Raw]:
    told: list[msgspec.Raw] = []
    while True:
        data = client.get("/v1/events", run=run, after=after, limit=_PAGE)
        page = decode(data, _Events).events
        told += page
        if len(page) < _PAGE:
            return told
        after = decode(page[-1], EventView).seq


def _event_cells(event: EventView) -> tuple[str, ...]:
    subject = event.attempt_id or event.run_id
    change = f"{event.from_status or 'new'} → {event.to_status}" if event.to_status else ""
    reason = ": ".join(part for part in (event.reason, event.message) if part)
    return (str(event.seq), event.at, f"{event.kind} {subject}", change, reason, event.cause or "")
