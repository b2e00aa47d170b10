"""The jobs of a run: one page of rows at a time, filtered by state and words, in a chosen order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup

from common.refusals import Invalid
from controller.lifecycle.model import Attempt, Job, RunState
from controller.web.page import Visit
from controller.web.pages.durations import lasting
from controller.web.states import Badge, badge
from fairlead.documents.jobs import JobView
from fairlead.documents.runs import RunView
from fairlead.model.job_links import JobLink
from fairlead.model.reasons import ROWS as REASONS
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    IrisState,
    RunStatus,
)

ROWS = 50
MAX_ATTEMPTS = 5
"""The rows of one job, the newest first: a job may be tried again for weeks."""
FEW_JOBS = 10
"""With more jobs on the page, each has a row for its latest attempt alone."""
MAX_OFFERED = 1000
"""The jobs whose logs are offered beside the one that the address names."""
WIDTH = 1000.0
RETRIED = "retried"
"""Chooses the jobs with more than one attempt, whatever their state is."""
ORDERS = {
    "": "by number",
    "state": "failed first",
    "longest": "longest first",
    "latest": "latest change first",
}


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A span of an attempt's life, as a part of a line that is `WIDTH` wide."""

    name: str
    left: float
    width: float
    label: str


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """`badge` None: its state is the job's own, which stands beside it. `why`: the reason with its
    sentence and message; `pending`: why it has no allocation."""

    id: str
    number: int
    badge: Badge | None
    status: str
    why: str
    pending: str
    node: str
    gpus: int
    exit_code: int | None
    incarnation: str
    phases: tuple[Phase, ...]
    submitted_at: str
    links: tuple[JobLink, ...]


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """`note`: what is special about the job; `ran`: for how long its latest attempt runs or ran;
    `left_out`: how many earlier attempts have no row."""

    id: str
    label: str
    badge: Badge
    pending: str
    note: str
    ran: str
    can_abort: bool
    attempts: tuple[AttemptRow, ...]
    left_out: int


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that the address asks for; empty: all, by their number, from the first on."""

    find: str = ""
    state: str = ""
    sort: str = ""
    page: str = ""

    def address(self, run_address: str, **changed: str) -> str:
        """Return the address of the page with these changes, from its first row on."""
        wanted = {**msgspec.structs.asdict(self), "page": "", **changed}
        query = urlencode({name: value for name, value in wanted.items() if value})
        return run_address + (f"?{query}" if query else "")


class StateLink(msgspec.Struct, frozen=True, kw_only=True):
    """Leads to the jobs of one state, or, without a `badge`, to those that `label` says."""

    badge: Badge | None
    label: str
    address: str
    is_chosen: bool


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """`begin` and `end`: which of the `found` jobs have rows, from 1 on; `total`: of all jobs."""

    chosen: Chosen
    rows: tuple[JobRow, ...]
    states: tuple[StateLink, ...]
    orders: tuple[tuple[str, str, bool], ...]
    begin: int
    end: int
    found: int
    total: int
    before: str | None
    after: str | None


def chosen_jobs(visit: Visit) -> Chosen:
    """Raises Invalid for a state, an order or a page that there is not."""
    chosen = Chosen(**{name: visit.query(name) for name in Chosen.__struct_fields__})
    if chosen.state not in ("", RETRIED, *IrisState):
        raise Invalid(f"{chosen.state!r} is no state of a job", field="state")
    if chosen.sort not in ORDERS:
        raise Invalid(f"{chosen.sort!r} is no order of jobs", field="sort")
    page = chosen.page
    if page and not (page.isascii() and page.isdecimal() and 0 < len(page) < 6):
        raise Invalid(f"{page!r} is not the number of a page", field="page")
    return chosen


def jobs_page(
    state: RunState, view: RunView, chosen: Chosen, run_address: str, now: float
) -> JobsPage:
    """`view`: the document of the same state; `now`: Unix seconds."""
    pairs = list(zip(state.jobs, view.jobs, strict=True))
    found = [pair for pair in pairs if _matches(pair[1], chosen)]
    found = _in_order(found, chosen.sort, now)
    pages = max(-(-len(found) // ROWS), 1)
    page = min(max(int(chosen.page or 1), 1), pages)
    shown = found[(page - 1) * ROWS : page * ROWS]
    return JobsPage(
        chosen=msgspec.structs.replace(chosen, page=str(page) if page > 1 else ""),
        rows=_rows(state, shown, now),
        states=_state_links(view, chosen, run_address),
        orders=tuple((value, name, value == chosen.sort) for value, name in ORDERS.items()),
        begin=(page - 1) * ROWS + 1,
        end=(page - 1) * ROWS + len(shown),
        found=len(found),
        total=len(pairs),
        before=chosen.address(run_address, page=str(page - 1)) if page > 1 else None,
        after=chosen.address(run_address, page=str(page + 1)) if page < pages else None,
    )


def _matches(job: JobView, chosen: Chosen) -> bool:
    if chosen.state == RETRIED and not _is_retried(job):
        return False
    if chosen.state not in ("", RETRIED, job.state):
        return False
    if not chosen.find:
        return True
    last = job.attempts[-1:]
    words = [f"{job.group}/{job.cookie}", job.id, *(one.node or "" for one in last)]
    words += [str(one.termination_reason or "") for one in last]
    return any(chosen.find.lower() in word.lower() for word in words)


def _is_retried(job: JobView) -> bool:
    return len(job.attempts) > 1


ORDER_OF_STATES = (
    IrisState.FAILED,
    IrisState.UNSCHEDULABLE,
    IrisState.WORKER_FAILED,
    IrisState.PREEMPTED,
    IrisState.PENDING,
    IrisState.ASSIGNED,
    IrisState.BUILDING,
    IrisState.RUNNING,
    IrisState.KILLED,
    IrisState.SUCCEEDED,
)
"""Those that a reader looks for come first."""


def _in_order(
    pairs: Sequence[tuple[Job, JobView]], order: str, now: float
) -> list[tuple[Job, JobView]]:
    match order:
        case "state":
            return sorted(pairs, key=lambda pair: ORDER_OF_STATES.index(pair[1].state))
        case "longest":
            return sorted(pairs, key=lambda pair: -(running_for(pair[0], now) or 0.0))
        case "latest":
            return sorted(pairs, key=lambda pair: -_changed_at(pair[0]))
    return list(pairs)


def running_for(job: Job, now: float) -> float | None:
    """Return for how many seconds the job's latest attempt runs, or ran; None: it never ran."""
    last = job.attempts[-1] if job.attempts else None
    if last is None or last.running_at is None:
        return None
    ends = (at for at in (last.terminating_at, last.finished_at) if at is not None)
    return max(next(ends, now) - last.running_at, 0.0)


def _changed_at(job: Job) -> float:
    if not job.attempts:
        return 0.0
    last = job.attempts[-1]
    times = (last.finished_at, last.terminating_at, last.running_at, last.pulling_at)
    return next((at for at in (*times, last.provisioned_at) if at is not None), last.submitted_at)


def _state_links(view: RunView, chosen: Chosen, run_address: str) -> tuple[StateLink, ...]:
    counts = Counter(job.state for job in view.jobs)
    retried = sum(map(_is_retried, view.jobs))
    links: list[tuple[str, Badge | None, str]] = [("", None, f"all {len(view.jobs)}")]
    links += [
        (one.value, badge(one, counts[one]), "")
        for one in ORDER_OF_STATES
        if counts[one] or chosen.state == one
    ]
    if retried or chosen.state == RETRIED:
        links.append((RETRIED, None, f"tried again \N{MULTIPLICATION SIGN} {retried}"))
    return tuple(
        StateLink(
            badge=shown,
            label=label,
            address=chosen.address(run_address, state=value),
            is_chosen=chosen.state == value,
        )
        for value, shown, label in links
    )


def _rows(state: RunState, shown: Sequence[tuple[Job, JobView]], now: float) -> tuple[JobRow, ...]:
    most = MAX_ATTEMPTS if len(shown) <= FEW_JOBS else 1
    begin = min(
        (one.submitted_at for job, _ in shown for one in job.attempts[-most:]),
        default=state.run.submitted_at,
    )
    end = now if state.run.finished_at is None else state.run.finished_at
    return tuple(_row(state, pair, (begin, end), now, most) for pair in shown)


def _row(
    state: RunState, pair: tuple[Job, JobView], span: tuple[float, float], now: float, most: int
) -> JobRow:
    job, seen = pair
    last = job.attempts[-1] if job.attempts else None
    is_live = last is not None and last.status not in FINAL_ATTEMPT_STATUSES
    pairs = list(zip(job.attempts, seen.attempts, strict=True))[-most:]
    ran = running_for(job, now)
    return JobRow(
        id=job.id,
        label=f"{job.group}/{job.cookie}",
        badge=badge(seen.state),
        pending=seen.pending_reason or seen.not_ready or "",
        note=_note(seen),
        ran="" if ran is None else lasting(ran),
        can_abort=is_live and state.run.status is not RunStatus.TERMINATING,
        left_out=len(job.attempts) - len(pairs),
        attempts=tuple(
            AttemptRow(
                id=one.id,
                number=one.number,
                badge=None if one is last and shown.state == seen.state else badge(shown.state),
                status=one.status.value,
                why=_why(one),
                pending=one.waits_for or "",
                node=shown.node or "",
                gpus=len(one.task.gpus),
                exit_code=one.exit_code,
                incarnation="" if one.incarnation is None else str(one.incarnation.number),
                phases=phases(one, *span),
                submitted_at=shown.submitted_at,
                links=one.links,
            )
            for one, shown in reversed(pairs)
        ),
    )


def phases(attempt: Attempt, begin: float, end: float) -> tuple[Phase, ...]:
    """Return the attempt's phases on a line from `begin` to `end` (Unix seconds); a phase that
    lasts reaches the end."""
    marks = (
        ("waiting", attempt.submitted_at),
        ("starting", attempt.provisioned_at),
        ("pulling", attempt.pulling_at),
        ("running", attempt.running_at),
        ("terminating", attempt.terminating_at),
        ("", attempt.finished_at),
    )
    reached = [(name, at) for name, at in marks if at is not None]
    span = max(end - begin, 0.001)
    found = []
    for (name, start), (_, stop) in zip(reached, [*reached[1:], ("", end)], strict=True):
        if name:
            found.append(
                Phase(
                    name=name,
                    left=round((start - begin) / span * WIDTH, 2),
                    width=round(max(max(stop, start) - start, 0.0) / span * WIDTH, 2),
                    label=f"{name} for {lasting(stop - start)}",
                )
            )
    return tuple(found)


def _note(job: JobView) -> str:
    notes = (
        "" if job.rank is None else f"rank {job.rank}",
        "abandoned" if job.abandoned else "",
        "scaled down" if job.scaled_down else "",
    )
    return ", ".join(one for one in notes if one)


def _why(attempt: Attempt) -> str:
    if attempt.reason is None:
        return attempt.message or ""
    sentence = f"{attempt.reason}: {REASONS[attempt.reason].sentence}"
    return f"{sentence} {as_sentence(attempt.message)}" if attempt.message else sentence


def as_sentence(message: str) -> str:
    ends = "" if message.endswith((".", "!", "?")) else "."
    return f"{message[0].upper()}{message[1:]}{ends}"


def ran_for(state: RunState, now: float) -> str:
    """Return for how long the run's present occurrence runs or ran, since its first attempt that
    ran; empty: none has run."""
    begun = [
        one.running_at
        for job in state.jobs
        for one in job.attempts
        if one.running_at is not None and one.occurrence == state.run.occurrence
    ]
    end = now if state.run.finished_at is None else state.run.finished_at
    return lasting(end - min(begun)) if begun else ""


def offered(view: RunView, job: str, attempt: str) -> Markup:
    """Return, as JSON in an element's text for the page's modules, the jobs whose logs and
    terminals are offered: [id, label, group, [[attempt, number, state, whether it is live], …]],
    the newest attempt first.

    `job` and `attempt`: what the address names is among them.
    """
    jobs = [
        one
        for at, one in enumerate(view.jobs)
        if at < MAX_OFFERED or one.id == job or any(a.id == attempt for a in one.attempts)
    ]
    listed = [
        [
            one.id,
            f"{one.group}/{one.cookie}",
            one.group,
            [
                [past.id, past.number, past.state, past.finished_at is None]
                for past in reversed(one.attempts)
            ],
        ]
        for one in jobs
    ]
    text = msgspec.json.encode(listed).decode()
    # What users wrote must not end the element: JSON reads \u003c as <, and HTML does not.
    for letter in "&<>":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # quotes stay, which are most of it
