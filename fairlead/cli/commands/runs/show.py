"""Commands that show runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Flag, Json, Watch
from fairlead.cli.commands.runs import run_list
from fairlead.cli.commands.runs.sweeps import list_sets
from fairlead.cli.durations import seconds_of
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.documents.jobs import AttemptView, JobView, PastAttemptView
from fairlead.documents.metrics import MetricPoint, MetricsAnswer, MetricsHistoryAnswer
from fairlead.documents.runs import EventView, RunView
from fairlead.errors import ApiError
from fairlead.follow import follow_events, until_answered
from fairlead.patience import Outages
from fairlead.queries import EventQuery
from fairlead.rest import ControllerClient, decode, run_path
from fairlead.summaries.job_names import job_name
from fairlead.summaries.progress import grants, why
from fairlead.wire.node import GpuMetrics
from fairlead.wire.sizes import human_size

_PAGE = 1000
CHART_WIDTH = 40
WATCHED_TIME = "10m"
_BARS = "▁▂▃▄▅▆▇█"


class _Events(msgspec.Struct):
    events: list[msgspec.Raw]


def ps(
    name: Annotated[str | None, Parameter(name="PATTERN")] = None,
    /,
    *,
    all_: Annotated[bool, Parameter(name=["-a", "--all"], negative=())] = False,
    status: Annotated[tuple[str, ...], Parameter(name=["-s", "--status"], negative=())] = (),
    user: Annotated[str | None, Parameter(name=["-u", "--user"])] = None,
    watch: Watch = False,
    limit: int = 100,
    jobs: Annotated[bool, Flag] = False,
    where: str | None = None,
    json: Json = False,
) -> int:
    """List live runs, or the parameter sets of a sweep.

    Parameters
    ----------
    name
        Only runs whose name matches; * stands for any characters and ? for one character.
    all_
        List finished runs too.
    status
        Only runs with this status, finished ones too; may be repeated.
    user
        Only runs of this user.
    limit
        List the N newest runs, up to 1000.
    jobs
        List the parameter sets of this sweep (id or name), not runs; -s chooses them by status.
    where
        With --jobs: list only these sets, by numbers (3,7-9) or values (seed=3).
    """
    if jobs:
        if name is None:
            raise CliError("--jobs: name the run whose parameter sets to list", EXIT_USAGE)
        return list_sets(name, where, status, watch=watch, json=json)
    if where is not None:
        raise CliError("--where chooses parameter sets: give --jobs too", EXIT_USAGE)
    return run_list.ps(
        name, all_=all_, status=status, user=user, watch=watch, limit=limit, json=json
    )


def inspect(
    run: str,
    /,
    *,
    occurrence: int | None = None,
    incarnation: str | None = None,
    configuration: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> int:
    """Show a run (id or name) in full, with the recent attempts of each job.

    Parameters
    ----------
    occurrence
        Show all attempts of this occurrence instead; a run without schedule has occurrence 1.
    incarnation
        Show all attempts of this incarnation of a gang (its number or id) instead.
    configuration
        Show the YAML that was submitted instead; secrets and the values of variables are hidden.
    """
    client = settings.client()
    data = client.get(run_path(run))
    if configuration:
        _show_configuration(decode(data, RunView), json)
        return 0
    recent = occurrence is None and incarnation is None
    if json and recent:
        output.emit_json(data)
        return 0
    found = decode(data, RunView)
    if not recent:
        found = with_history(client, found, occurrence=occurrence, incarnation=incarnation)
    if json:
        output.emit_json(msgspec.json.encode(found))
        return 0
    show_run(found)
    if recent and any(job.attempts and job.attempts[0].number for job in found.jobs):
        which = "--occurrence N" if found.incarnation is None else "--incarnation N"
        output.emit(f"earlier attempts: `fairlead inspect {found.name} {which}`")
    return 0


def _show_configuration(run: RunView, json: bool) -> None:
    if json:
        output.emit_json(msgspec.json.encode(run.configuration))
        return
    from fairlead.configuration.text.written import as_yaml

    output.emit(as_yaml(run.configuration))


def show_run(run: RunView) -> None:
    about = f"{run.name} ({run.id}), a {run.type} of {run.user}: {run.status}"
    reason = run.termination_reason
    output.emit(about if reason is None else f"{about} ({reason}): {why(run)}")
    for line in _facts(run):
        output.emit(line)
    gang = any(group.gang_size is not None for group in run.groups)
    now = output.utc_now()
    output.emit_table(
        (
            *("ATTEMPT", "STATUS", "NODE", "STARTED (UTC)", "RAN"),
            *(("INCARNATION", "RANK") if gang else ()),
            "REASON",
        ),
        [
            (
                *_attempt_cells(job, attempt, now),
                *(_gang_cells(attempt) if gang else ()),
                _reason(attempt),
            )
            for job in run.jobs
            for attempt in job.attempts
        ],
    )
    for switch in run.switches:
        because = f"{switch.reason}: {switch.message}" if switch.message else switch.reason
        by = f", by attempt {switch.attempt_id}" if switch.attempt_id else ""
        output.emit(f"incarnation {switch.incarnation} since {switch.at} ({because}{by})")
    for job in run.jobs:
        if job.pending_reason:
            output.emit(f"{job_name(job)} waits: {job.pending_reason}")


def _facts(run: RunView) -> Iterator[str]:
    if run.suspended:
        yield "suspended: no placements, retries or triggers (`fairlead resume` continues it)"
    if run.schedule:
        yield f"scheduled {', '.join(run.schedule)} (UTC); next {run.next_triggered_at or '-'}"
    for one in run.after:
        same = ", job by job" if one.job == "same" else ""
        yield f"after {one.name} ({one.run_id}) is {one.when}{same}{': met' if one.met else ''}"
    if run.begins_at is not None:
        yield f"begins at {run.begins_at} or later"
    if run.start_before is not None:
        yield f"must run by {run.start_before}"
    for occurrence in run.occurrences:
        yield (
            f"occurrence {occurrence.number}: {occurrence.status} "
            f"({occurrence.message or occurrence.termination_reason}), "
            f"{occurrence.started_at} to {occurrence.finished_at}"
        )
    if run.gathering is not None:
        yield (
            f"{run.gathering}; the gang releases its allocations at {run.gives_up_at} unless a "
            f"pull or a placement makes progress"
        )
    if run.parent_id is not None:
        yield f"child of {run.parent_id}"
    for child in run.children:
        yield f"parent of {child.name} ({child.id}): {child.status}"
    yield from grants(run).values()
    for job in run.jobs:
        for link in job.attempts[-1].links if job.attempts else ():
            yield f"{job_name(job)} printed its {link.kind} link: {link.url}"
        if job.abandoned or job.scaled_down:
            yield f"{job_name(job)} is {'abandoned' if job.abandoned else 'scaled down'}"


def _gang_cells(attempt: AttemptView) -> tuple[str, str]:
    number = "-" if attempt.incarnation is None else str(attempt.incarnation.number)
    return number, "reserved" if attempt.rank is None else str(attempt.rank)


def _attempt_cells(job: JobView, attempt: AttemptView, now: datetime) -> tuple[str, ...]:
    return (
        f"{job_name(job)} #{attempt.number}",
        f"{attempt.status} (disconnected)" if attempt.disconnected else attempt.status,
        attempt.node or "-",
        output.short_time(attempt.running_at),
        output.lasted(attempt.running_at, attempt.terminating_at or attempt.finished_at, now),
    )


def _reason(attempt: AttemptView) -> str:
    parts = [] if attempt.termination_reason is None else [str(attempt.termination_reason)]
    if attempt.exit_code is not None:
        parts.append(f"exit code {attempt.exit_code}")
    return ", ".join(parts) or "-"


def events(
    run: str | None = None,
    /,
    *,
    after: int = 0,
    follow: Annotated[bool, Parameter(name=["-f", "--follow"], negative=())] = False,
    json: Json = False,
) -> int:
    """Show what happened, oldest first.

    Parameters
    ----------
    run
        Id or name; default: all runs.
    after
        Show only events with a number above this.
    follow
        Continue until the run has ended, one line for each event (with --json: one document).
    """
    client = settings.client()
    if follow:
        _follow_events(client, run, after, json)
        return 0
    found = _all_events(client, run, after)
    if json:
        output.emit_json(msgspec.json.encode({"events": found}))
        return 0
    names = {} if run is None else _names(client.run(run))
    output.emit_table(
        ("SEQ", "AT", "WHAT", "CHANGE", "REASON", "CAUSE"),
        [_event_cells(decode(event, EventView), names) for event in found],
    )
    return 0


def _follow_events(client: ControllerClient, run: str | None, after: int, json: bool) -> None:
    outages = Outages(output.note)
    run_id = None if run is None else until_answered(outages, partial(client.run, run)).id
    names: dict[str, str] = {}
    for event in follow_events(client, run_id, after, outages):
        if json:
            output.emit_json(msgspec.json.encode(event))
            continue
        if event.attempt_id is not None and event.attempt_id not in names:
            names |= until_answered(outages, partial(_names_of, client, event.run_id))
        output.emit("  ".join(cell for cell in _event_cells(event, names) if cell))


def _names_of(client: ControllerClient, run_id: str) -> dict[str, str]:
    try:
        return _names(client.run(run_id))
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return {}  # forgotten meanwhile


def _names(run: RunView) -> dict[str, str]:
    """Return the names of the run's jobs and attempts for people, by id."""
    jobs = {job.id: job_name(job) for job in run.jobs}
    attempts = {
        attempt.id: f"{jobs[job.id]} #{attempt.number}"
        for job in run.jobs
        for attempt in job.attempts
    }
    return jobs | attempts


def _all_events(client: ControllerClient, run: str | None, after: int) -> list[msgspec.Raw]:
    found: list[msgspec.Raw] = []
    while True:
        query = EventQuery(run=run, after=after, limit=_PAGE)
        data = client.get("/v1/events", **query.parameters())
        page = decode(data, _Events).events
        found += page
        if len(page) < _PAGE:
            return found
        after = decode(page[-1], EventView).seq


def _event_cells(event: EventView, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the cells of an event. An attempt is shown as `GROUP/COOKIE #NUMBER` if its run is
    known."""
    subject = event.attempt_id or event.job_id or event.run_id
    subject = names.get(subject, subject)
    change = f"{event.from_status or 'new'} → {event.to_status}" if event.to_status else ""
    reason = ": ".join(part for part in (event.reason, event.message) if part)
    # An event that is of no run has no subject.
    what = f"{event.kind} {subject}".rstrip()
    return (str(event.seq), event.at, what, change, reason, event.because)


def metrics(
    run: str,
    job: Annotated[str | None, Parameter(name="JOB")] = None,
    /,
    *,
    last: str | None = None,
    watch: Watch = False,
    json: Json = False,
) -> int:
    """Show what the running jobs use now, or what jobs used.

    Parameters
    ----------
    run
        Id or name.
    job
        Id, index or GROUP/COOKIE; default: all.
    last
        Show the use over this time, such as 1h, as small charts; at most 7d. The charts of
        an ended job show the time before its end.
    """
    client = settings.client()
    seconds = seconds_of(last or (WATCHED_TIME if watch else None), "--last")
    if seconds is None:
        data = client.get(run_path(run, "metrics"), job=job)
        if json:
            output.emit_json(data)
        else:
            _show_use(decode(data, MetricsAnswer))
        return 0
    path = run_path(run, "metrics/history")
    ask = partial(client.get, path, job=job, seconds=seconds, points=CHART_WIDTH)
    if watch and json:
        output.repeat_json(ask)
    if watch:
        output.repeat(lambda width: _charts(decode(ask(), MetricsHistoryAnswer), width))
    if json:
        output.emit_json(client.get(path, job=job, seconds=seconds, points=1000))
        return 0
    for line in _charts(decode(ask(), MetricsHistoryAnswer), output.table_width()):
        output.emit(line)
    return 0


def _charts(found: MetricsHistoryAnswer, width: int | None) -> list[str]:
    rows = [
        (f"{job.group}/{job.cookie}", *cells)
        for job in found.jobs
        for cells in _charts_of(job.points)
    ]
    return output.table_lines(("JOB", "USE", "NOW", "MOST", ""), rows, width)


def _charts_of(points: Sequence[MetricPoint]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, last value, most and chart of each measure that is known."""
    if not points:
        yield ("nothing is known", "-", "-", "")
    measures: tuple[tuple[str, list[float | None], Callable[[float], str]], ...] = (
        ("CPU", [point.cpu for point in points], lambda value: f"{value:.2f}"),
        ("MEMORY", [point.memory for point in points], lambda value: human_size(int(value))),
        ("GPU", [point.gpu_utilization for point in points], lambda value: f"{value:.0f}%"),
        ("GPU MEMORY", [point.gpu_memory for point in points], lambda v: human_size(int(v))),
    )
    for name, values, shown in measures:
        known = [value for value in values if value is not None]
        if known:
            yield name, shown(known[-1]), shown(max(known)), sparkline(values)


def sparkline(values: Sequence[float | None]) -> str:
    """Return one character for each value, by its share of the most; a space where none is
    known."""
    most = max((value for value in values if value is not None), default=0.0)
    steps = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[round(value / most * steps) if most else 0]
        for value in values
    )


def _show_use(found: MetricsAnswer) -> None:
    output.emit_table(
        ("JOB", "NODE", "CPU SECONDS", "MEMORY", "PEAK", "LIMIT", "GPUS", "ABOUT"),
        [
            (
                f"{use.group}/{use.cookie}",
                use.node,
                "-" if use.cpu_seconds is None else f"{use.cpu_seconds:.1f}",
                _size(use.memory_working_set),
                _size(use.memory_peak),
                _size(use.memory_limit),
                ", ".join(_gpu(gpu) for gpu in use.gpus) or "-",
                use.message or "",
            )
            for use in found.jobs
        ],
    )


def _size(amount: int | None) -> str:
    return "-" if amount is None else human_size(amount)


def _gpu(gpu: GpuMetrics) -> str:
    busy = "-" if gpu.utilization is None else f"{gpu.utilization}%"
    return f"{gpu.index}: {busy} {_size(gpu.memory_used)}"


class _PastAttempts(msgspec.Struct):
    attempts: list[PastAttemptView]
    next_cursor: str | None = None


def with_history(
    client: ControllerClient,
    run: RunView,
    *,
    occurrence: int | None = None,
    incarnation: str | None = None,
) -> RunView:
    """Return the run with all attempts of this occurrence, or of this incarnation (its number or
    id), and no others.

    Raises CliError.
    """
    attempts: dict[str, list[AttemptView]] = defaultdict(list)
    for attempt in _past_attempts(client, run, occurrence=occurrence, incarnation=incarnation):
        attempts[attempt.job_id].append(attempt)
    if not attempts:
        raise CliError(_no_attempts_of(run, occurrence, incarnation))
    jobs = (msgspec.structs.replace(job, attempts=tuple(attempts[job.id])) for job in run.jobs)
    return msgspec.structs.replace(run, jobs=tuple(jobs))


def _past_attempts(
    client: ControllerClient, run: RunView, *, occurrence: int | None, incarnation: str | None
) -> Iterator[PastAttemptView]:
    path, cursor = run_path(run.id, "attempts"), None
    while True:
        asked = {"occurrence": occurrence, "incarnation": incarnation, "cursor": cursor}
        page = decode(client.get(path, **asked), _PastAttempts)
        yield from page.attempts
        cursor = page.next_cursor
        if cursor is None:
            return


def _no_attempts_of(run: RunView, occurrence: int | None, incarnation: str | None) -> str:
    if incarnation is None:
        return (
            f"--occurrence: no attempt of occurrence {occurrence} of {run.name} is kept; its "
            f"present one is {run.occurrence}"
        )
    if run.incarnation is None:
        return f"--incarnation: {run.name} has no gang, and so no incarnations"
    of = "" if occurrence is None else f" and occurrence {occurrence}"
    return (
        f"--incarnation: no attempt of incarnation {incarnation}{of} of {run.name} is kept; its "
        f"present one is {run.incarnation.number}"
    )
