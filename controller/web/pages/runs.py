"""The page of all runs: filters in its address, one page of rows at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from urllib.parse import urlencode

import msgspec

from common.refusals import Invalid
from controller.api.views import run_summary
from controller.clock import iso
from controller.lifecycle.model import Band, Run, RunState
from controller.lifecycle.runs.status import state_of_job
from controller.web.page import Page, PageRoute, Visit
from controller.web.states import Badge, badge
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AttemptStatus,
    IrisState,
    RunStatus,
)
from fairlead.queries import RunQuery

ROWS = 50
LIVE = "live"


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """`where`: its nodes, or its place in the queue and why it waits. `next_at`: when a scheduled
    run that does not run starts next."""

    id: str
    name: str
    user: str
    status: str
    badges: tuple[Badge, ...]
    jobs: int
    gpus: str
    band: str
    where: str
    next_at: str | None
    submitted_at: str


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """The filter in the address; empty: all runs."""

    status: str = ""
    user: str = ""
    text: str = ""
    band: str = ""
    cursor: str = ""

    def address(self, **changed: str) -> str:
        """Return the address of the page with these filters changed."""
        wanted = {**msgspec.structs.asdict(self), "cursor": "", **changed}
        query = urlencode({name: value for name, value in wanted.items() if value})
        return "/dashboard/runs" + (f"?{query}" if query else "")


def filters_of(visit: Visit) -> Filters:
    """Raises Invalid for a status or band that there is not."""
    filters = Filters(**{name: visit.query(name) for name in Filters.__struct_fields__})
    _require_known(filters.status, ("", LIVE, *RunStatus), "status")
    _require_known(filters.band, ("", *Band), "band")
    return filters


def _require_known(value: str, known: Collection[str], field: str) -> None:
    if value not in known:
        names = ", ".join(name for name in known if name)
        raise Invalid(f"{value!r} is no {field}: give one of {names}", field=field)


async def list_runs(visit: Visit) -> Page:
    filters = filters_of(visit)
    states, older = await _read(visit, filters)
    names = visit.service.machines.nodes.names()
    waits = any(map(_waits, states))
    positions = visit.service.runs.queue.positions() if waits else {}
    rows = [run_row(state, names, positions.get(state.run.id)) for state in states]
    return Page(
        template="runs.html",
        title="Runs",
        section="Runs",
        context={
            "rows": rows,
            "filters": filters,
            "live_address": filters.address(cursor=filters.cursor),
            "newest": filters.address() if filters.cursor else None,
            "older": filters.address(cursor=older) if older else None,
            "is_filtered": filters != Filters(cursor=filters.cursor),
            "statuses": choices(("", LIVE, *RunStatus), filters.status, "all"),
            "bands": choices(("", *Band), filters.band, "all"),
        },
    )


async def _read(visit: Visit, filters: Filters) -> tuple[list[RunState], str | None]:
    """Return one page of rows, and the cursor of the older ones."""
    query = RunQuery(
        all=filters.status != LIVE,
        limit=ROWS + 1,
        cursor=filters.cursor or None,
        user=filters.user or None,
        status=None if filters.status == LIVE else filters.status,
        name=f"*{filters.text}*" if filters.text else None,
        band=Band(filters.band) if filters.band else None,
    )
    found = await visit.service.runs.lookup.page(query, user=visit.user)
    return found[:ROWS], found[ROWS - 1].run.id if len(found) > ROWS else None


def choices(values: Collection[str], chosen: str, empty: str) -> list[tuple[str, str, bool]]:
    """Return the options of a choice: value, name, and whether it is chosen."""
    return [(value, value or empty, value == chosen) for value in values]


def _waits(state: RunState) -> bool:
    """Return whether a job of the run has no allocation yet."""
    return not has_ended(state.run) and any(
        job.attempts and job.attempts[-1].status is AttemptStatus.SUBMITTED for job in state.jobs
    )


def run_row(state: RunState, node_names: Mapping[str, str], position: int | None) -> RunRow:
    """`position`: its first place in the queue; None: nothing of it waits there."""
    run = state.run
    summary = run_summary(state, node_names)
    nodes = ", ".join(summary.nodes[:3]) + (" …" if len(summary.nodes) > 3 else "")
    place = "" if position is None else f"place {position} in the queue"
    parts = (place, summary.pending_reason or nodes)
    return RunRow(
        id=run.id,
        name=run.name,
        user=run.user,
        status=status_text(run),
        badges=badges(state),
        jobs=summary.jobs,
        gpus=gpus_of(state),
        band=run.policy.band.value,
        where=": ".join(one for one in parts if one),
        next_at=summary.next_triggered_at if run.status is RunStatus.PENDING else None,
        submitted_at=iso(run.submitted_at),
    )


def status_text(run: Run) -> str:
    """Return our own status with its reason, and whether the run is suspended."""
    reason = "" if run.reason is None else f" ({run.reason.replace('_', ' ')})"
    return f"{run.status}{reason}{', suspended' if run.suspended else ''}"


_ORDER = (
    IrisState.RUNNING,
    IrisState.BUILDING,
    IrisState.ASSIGNED,
    IrisState.PENDING,
    IrisState.FAILED,
    IrisState.UNSCHEDULABLE,
    IrisState.WORKER_FAILED,
    IrisState.PREEMPTED,
    IrisState.SUCCEEDED,
    IrisState.KILLED,
)


def badges(state: RunState) -> tuple[Badge, ...]:
    """Return the run's jobs by state."""
    jobs = [job for job in state.jobs if not job.scaled_down]
    counts = Counter(state_of_job(state.run, job, state.jobs) for job in jobs)
    return tuple(badge(one, counts[one]) for one in _ORDER if counts[one])


def gpus_of(state: RunState) -> str:
    """Return how many GPUs its live attempts hold, and of how many if jobs wait for some; empty:
    none at all."""
    lasts = [(job, job.attempts[-1]) for job in state.jobs if job.attempts]
    live = [(job, last) for job, last in lasts if last.status not in FINAL_ATTEMPT_STATUSES]
    held = sum(len(last.task.gpus) for _, last in live)
    waited_for = sum(job.spec.resources.gpu.count for job, last in live if not last.task.gpus)
    if waited_for:
        return f"{held} of {held + waited_for}"
    return str(held) if held else ""


def has_ended(run: Run) -> bool:
    return run.status in FINAL_RUN_STATUSES


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/runs", handler=list_runs, shared=True),)
