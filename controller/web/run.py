"""The page of one run: its jobs and attempts, its story, and what its owner can do to it."""

from __future__ import annotations

import msgspec

from controller.api.documents import ExplainView, JobView, RunView
from controller.api.runs import get_run
from controller.api.scheduling import explain_run
from controller.api.views import iso
from controller.configuration.written import as_yaml
from controller.lifecycle.model import Attempt, Run, RunState, RunType
from controller.lifecycle.reasons import ROWS, RUN_SENTENCES
from controller.lifecycle.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AttemptStatus,
    RunStatus,
)
from controller.service.errors import Invalid
from controller.service.terminals import why_no_ssh
from controller.store.base import StoredEvent
from controller.web.dev_environments import ways_of
from controller.web.durations import lasting
from controller.web.events import AFTER_ALL, event_rows
from controller.web.pages import Done, Page, PageRoute, Visit
from controller.web.runs import gpus_of, has_ended
from controller.web.states import Badge, badge

MOST_EVENTS = 200
MOST_JOBS = 200


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A span of an attempt's life, as a part of a line that is `WIDTH` wide."""

    name: str
    left: float
    width: float
    said: str


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """`why`: the reason with its sentence and message; `pending`: why it has no allocation."""

    id: str
    number: int
    badge: Badge
    status: str
    why: str
    pending: str
    node: str
    gpus: int
    exit_code: int | None
    incarnation: str
    phases: tuple[Phase, ...]
    submitted_at: str


class JobRows(msgspec.Struct, frozen=True, kw_only=True):
    """`note`: what is special about the job."""

    id: str
    label: str
    badge: Badge
    pending: str
    note: str
    can_abort: bool
    attempts: tuple[AttemptRow, ...]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    label: str
    question: str
    is_dangerous: bool = False


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """`missing`: groups without a terminal, each with the reason. `is_offered`: the run lives, and
    another group has one, or there are no jobs yet."""

    missing: tuple[tuple[str, str], ...]
    is_offered: bool


WIDTH = 1000.0


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
                    said=f"{name} for {lasting(stop - start)}",
                )
            )
    return tuple(found)


def job_rows(state: RunState, view: RunView, now: float) -> list[JobRows]:
    """Return the jobs with their attempts, the newest attempt first."""
    begin = min(
        (one.submitted_at for job in state.jobs for one in job.attempts),
        default=state.run.submitted_at,
    )
    end = now if state.run.finished_at is None else state.run.finished_at
    rows = []
    for job, shown in zip(state.jobs, view.jobs, strict=True):
        last = job.attempts[-1] if job.attempts else None
        is_live = last is not None and last.status not in FINAL_ATTEMPT_STATUSES
        pairs = list(zip(job.attempts, shown.attempts, strict=True))
        rows.append(
            JobRows(
                id=job.id,
                label=f"{job.group}/{job.cookie}",
                badge=badge(shown.state),
                pending=shown.pending_reason or shown.not_ready or "",
                note=_note(shown),
                can_abort=is_live and state.run.status is not RunStatus.TERMINATING,
                attempts=tuple(
                    AttemptRow(
                        id=one.id,
                        number=one.number,
                        badge=badge(seen.state),
                        status=one.status.value,
                        why=_why(one),
                        pending=(one.pending_reason.sentence() if one.pending_reason else ""),
                        node=seen.node or "",
                        gpus=len(one.gpus),
                        exit_code=one.exit_code,
                        incarnation="" if one.incarnation is None else str(one.incarnation.number),
                        phases=phases(one, begin, end),
                        submitted_at=seen.submitted_at,
                    )
                    for one, seen in reversed(pairs)
                ),
            )
        )
    return rows


def _note(job: JobView) -> str:
    said = (
        "" if job.rank is None else f"rank {job.rank}",
        "abandoned" if job.abandoned else "",
        "scaled down" if job.scaled_down else "",
    )
    return ", ".join(one for one in said if one)


def _why(attempt: Attempt) -> str:
    if attempt.reason is None:
        return attempt.message or ""
    told = f"{attempt.reason}: {ROWS[attempt.reason].sentence}"
    return f"{told} {_as_sentence(attempt.message)}" if attempt.message else told


def _as_sentence(message: str) -> str:
    ends = "" if message.endswith((".", "!", "?")) else "."
    return f"{message[0].upper()}{message[1:]}{ends}"


def actions(state: RunState) -> list[Action]:
    """Return what can be done to the run as it is now."""
    run = state.run
    if run.status in FINAL_RUN_STATUSES:
        return []
    stop = Action(
        name="stop",
        label="Stop",
        question=f"Stop {run.name}? Its jobs get {run.policy.stop_duration:.0f} s to end.",
    )
    abort = Action(
        name="abort",
        label="Abort",
        question=f"Abort {run.name} at once? Its jobs get no time to save their work.",
        is_dangerous=True,
    )
    if run.status is RunStatus.TERMINATING:
        return [abort]
    if run.suspended:
        pause = Action(
            name="resume", label="Resume", question=f"Resume {run.name}? Its jobs start again."
        )
    else:
        pause = Action(
            name="suspend",
            label="Suspend",
            question=f"Suspend {run.name}? Nothing of it starts any more; running jobs stay.",
        )
    complete = Action(name="complete", label="Complete", question=f"End {run.name} as done now?")
    return [pause, complete, stop, abort]


def scalable(view: RunView) -> list[tuple[str, int]]:
    """Return the groups whose number of jobs a user may change, with their numbers. A service
    scales its groups itself, and a dev environment is one job."""
    if view.type is not RunType.TASK or view.finished_at or view.incarnation is not None:
        return []
    return [(group.name, group.nodes) for group in view.groups]


def address_of(view: RunView) -> str | None:
    """Return where the run answers requests; None: it is no live service."""
    if view.type is not RunType.SERVICE or view.finished_at is not None:
        return None
    return view.url or f"/services/{view.name}/"


class OccurrenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A finished occurrence of a scheduled run; `said`: its status and why it ended."""

    number: int
    said: str
    started_at: str
    finished_at: str


def occurrence_rows(run: Run) -> list[OccurrenceRow]:
    """Return the latest finished occurrences, the newest first."""
    return [
        OccurrenceRow(
            number=one.number,
            said=f"{one.status}: {one.message or RUN_SENTENCES[one.reason]}",
            started_at=iso(one.started_at),
            finished_at=iso(one.finished_at),
        )
        for one in reversed(run.occurrences)
    ]


_IS = {
    **{status: f"is {status}" for status in RunStatus},
    RunStatus.TERMINATED: "was terminated",
    RunStatus.FAILED: "failed",
}


def sentence_of(state: RunState) -> str:
    """Return the run's status and reason as a sentence."""
    run = state.run
    said = [f"The run {_IS[run.status]}."]
    if run.suspended and not has_ended(run):
        said.append("It is suspended: nothing of it starts.")
    if run.reason is not None:
        said.append(RUN_SENTENCES[run.reason])
    if run.message:
        said.append(_as_sentence(run.message))
    return " ".join(said)


def terminal_of(state: RunState) -> Terminal:
    """Return which groups of the run never have a terminal, and why; none once it has ended."""
    if state.run.status in FINAL_RUN_STATUSES:
        return Terminal(missing=(), is_offered=False)
    jobs = [job for job in state.jobs if not job.scaled_down]
    whys = {job.group: why_no_ssh(state, job) for job in jobs}
    missing = tuple((group, why) for group, why in whys.items() if why is not None)
    return Terminal(missing=missing, is_offered=len(missing) < len(whys) or not whys)


async def show_run(visit: Visit) -> Page:
    """Raises NotFound, Forbidden, StoreUnavailable."""
    service = visit.service
    state = await service.runs.seen(visit.path("run"), visit.user)
    run_id = state.run.id
    view = await get_run(visit.as_call(run=run_id))
    explanation: ExplainView | None = None
    if state.run.status not in FINAL_RUN_STATUSES:
        explanation = what_it_waits_for(await explain_run(visit.as_call(run=run_id)))
    jobs = job_rows(state, view, service.clock.now())
    events, older = await _events(visit, run_id)
    return Page(
        template="run.html",
        title=state.run.name,
        section="Runs",
        context={
            "run": view,
            "run_address": f"/dashboard/runs/{run_id}",
            "sentence": sentence_of(state),
            "gpus": gpus_of(state),
            "jobs": jobs[:MOST_JOBS],
            "occurrences": occurrence_rows(state.run),
            "jobs_left_out": max(len(jobs) - MOST_JOBS, 0),
            "explanation": explanation,
            "actions": actions(state),
            "groups": scalable(view),
            "ways": ways_of(state, view),
            "address": address_of(view),
            "terminal": terminal_of(state),
            "configuration": as_yaml(view.configuration),
            "events": await event_rows(visit, events),
            "older_events": older,
        },
    )


def what_it_waits_for(found: ExplainView) -> ExplainView | None:
    """Return the explanation unless it only says that the jobs are running."""
    under_way = tuple(one for one in found.under_way if one.status is not AttemptStatus.RUNNING)
    if found.under_way and not found.waiting and not under_way:
        return None
    return msgspec.structs.replace(found, under_way=under_way)


async def _events(visit: Visit, run_id: str) -> tuple[list[StoredEvent], int | None]:
    """Return the run's latest events; and, if there are older ones, the number of the first."""
    found = await visit.service.runs.events(
        run_id, before=AFTER_ALL, limit=MOST_EVENTS + 1, user=visit.user
    )
    shown = found[-MOST_EVENTS:]
    return shown, shown[0].seq if len(found) > len(shown) else None


async def act(visit: Visit) -> Done:
    """Carry out an action on the run. Raises NotFound, Forbidden, Conflict, StoreUnavailable."""
    what, do, user = visit.path("action"), visit.service.actions, visit.user
    run_id = (await visit.service.runs.seen(visit.path("run"), user)).run.id
    match what:
        case "stop" | "abort":
            await do.stop(run_id, abort=what == "abort", user=user)
        case "complete":
            await do.complete(run_id, user=user)
        case "suspend":
            await do.suspend(run_id, abort_running=False, user=user)
        case "resume":
            await do.resume(run_id, user=user)
        case _:
            raise Invalid(f"there is no action {what!r}", field="action")
    return Done(message=f"{what} was requested")


async def scale(visit: Visit) -> Done:
    """Raises NotFound, Forbidden, Conflict, Invalid, StoreUnavailable."""
    form = await visit.request.post()
    nodes, group = str(form.get("nodes", "")), str(form.get("group", ""))
    if not (nodes.isascii() and nodes.isdecimal() and len(nodes) < 7):
        raise Invalid(f"{nodes!r} is not a number of jobs", field="nodes")
    run_id = (await visit.service.runs.seen(visit.path("run"), visit.user)).run.id
    await visit.service.actions.scale(run_id, group=group, nodes=int(nodes), user=visit.user)
    return Done(message=f"{group} shall have {nodes} jobs")


async def abort_job(visit: Visit) -> Done:
    """Raises NotFound, Forbidden, Conflict, StoreUnavailable."""
    run_id = (await visit.service.runs.seen(visit.path("run"), visit.user)).run.id
    await visit.service.actions.abort_job(run_id, visit.path("job"), user=visit.user)
    return Done(message="abort of the job was requested")


PAGES: tuple[PageRoute, ...] = (
    PageRoute(path="/runs/{run}", handler=show_run),
    PageRoute(method="POST", path="/runs/{run}/actions/{action}", handler=act),
    PageRoute(method="POST", path="/runs/{run}/scale", handler=scale),
    PageRoute(method="POST", path="/runs/{run}/jobs/{job}/abort", handler=abort_job),
)
