"""The page of one run: its jobs and attempts, its story, and what its owner can do to it."""

from __future__ import annotations

import msgspec

from common.refusals import Invalid
from controller.api.runs.runs import get_run, shown_run
from controller.api.runs.scheduling import explain_run
from controller.clock import iso
from controller.lifecycle.model import Run, RunState, RunType
from controller.service.jobs.terminals import why_no_ssh
from controller.store.base import StoredEvent
from controller.web.page import Done, Page, PageRoute, Visit
from controller.web.pages.dev_environments import ways_of
from controller.web.pages.events import AFTER_ALL, event_rows
from controller.web.pages.jobs import Chosen, as_sentence, chosen_jobs, jobs_page, offered, ran_for
from controller.web.pages.runs import badges, gpus_of, has_ended
from controller.web.pages.sweeps import chosen_sets, page_state, sets_page
from fairlead.configuration.text.written import as_yaml
from fairlead.documents.plans import ExplainView
from fairlead.documents.runs import RunView
from fairlead.model.reasons import RUN_SENTENCES
from fairlead.model.statuses import FINAL_RUN_STATUSES, AttemptStatus, RunStatus
from fairlead.queries import EventQuery
from fairlead.sweeps import progress_of

MAX_EVENTS = 100


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
    if view.sweep is not None:
        return []
    return [(group.name, group.nodes) for group in view.groups]


def address_of(view: RunView) -> str | None:
    """Return where the run answers requests; None: it is no live service."""
    if view.type is not RunType.SERVICE or view.finished_at is not None:
        return None
    return view.url or f"/services/{view.name}/"


class OccurrenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A finished occurrence of a scheduled run; `outcome`: its status and why it ended."""

    number: int
    outcome: str
    started_at: str
    finished_at: str


def occurrence_rows(run: Run) -> list[OccurrenceRow]:
    """Return the latest finished occurrences, the newest first."""
    return [
        OccurrenceRow(
            number=one.number,
            outcome=f"{one.status}: {one.message or RUN_SENTENCES[one.reason]}",
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
    sentences = [f"The run {_IS[run.status]}."]
    if run.suspended and not has_ended(run):
        sentences.append("It is suspended: nothing of it starts.")
    if run.reason is not None:
        sentences.append(RUN_SENTENCES[run.reason])
    if run.message:
        sentences.append(as_sentence(run.message))
    return " ".join(sentences)


def terminal_of(state: RunState) -> Terminal:
    """Return which groups of the run never have a terminal, and why; none once it has ended."""
    if state.run.status in FINAL_RUN_STATUSES:
        return Terminal(missing=(), is_offered=False)
    jobs = [job for job in state.jobs if not job.scaled_down]
    whys = {job.group: why_no_ssh(state, job) for job in jobs}
    missing = tuple((group, why) for group, why in whys.items() if why is not None)
    return Terminal(missing=missing, is_offered=len(missing) < len(whys) or not whys)


async def show_run(visit: Visit) -> Page:
    """Raises NotFound, Forbidden, Invalid, StoreUnavailable."""
    service, now = visit.service, visit.service.clock.now()
    whole = await service.runs.lookup.seen(visit.path("run"), visit.user)
    run_id = whole.run.id
    if whole.run.sweep is None:
        state, chosen = whole, chosen_jobs(visit)
        view = await get_run(visit.as_call(run=run_id))
    else:
        # Its table shows its sets; a document of 10,000 jobs would take a second.
        state, chosen = page_state(whole, visit.query("job"), visit.query("attempt")), Chosen()
        view = shown_run(visit.as_call(run=run_id), state)
    explanation: ExplainView | None = None
    if state.run.status not in FINAL_RUN_STATUSES:
        explanation = what_it_waits_for(await explain_run(visit.as_call(run=run_id)))
    run_address = f"/dashboard/runs/{run_id}"
    events, older = await _events(visit, run_id)
    return Page(
        template="run.html",
        title=state.run.name,
        section="Runs",
        beside={"overview": ("jobs", "offered", "events")},
        context={
            "run": view,
            "run_address": run_address,
            "sentence": sentence_of(state),
            "gpus": gpus_of(state),
            "badges": badges(state),
            "ran": ran_for(state, now),
            "jobs": jobs_page(state, view, chosen, run_address, now),
            "sets": None
            if view.sweep is None
            else sets_page(whole, chosen_sets(visit), run_address, now),
            "progress": None if view.sweep is None else progress_of(view.sweep),
            "offered": offered(view, visit.query("job"), visit.query("attempt")),
            "occurrences": occurrence_rows(state.run),
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
    query = EventQuery(run=run_id, before=AFTER_ALL, limit=MAX_EVENTS + 1)
    found = await visit.service.runs.lookup.events(query, user=visit.user)
    shown = found[-MAX_EVENTS:]
    return shown, shown[0].seq if len(found) > len(shown) else None


async def act(visit: Visit) -> Done:
    """Carry out an action on the run. Raises NotFound, Forbidden, Conflict, StoreUnavailable."""
    what, do, user = visit.path("action"), visit.service.runs.actions, visit.user
    run_id = (await visit.service.runs.lookup.seen(visit.path("run"), user)).run.id
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
    run_id = (await visit.service.runs.lookup.seen(visit.path("run"), visit.user)).run.id
    await visit.service.runs.actions.scale(run_id, group=group, nodes=int(nodes), user=visit.user)
    return Done(message=f"{group} shall have {nodes} jobs")


async def abort_job(visit: Visit) -> Done:
    """Raises NotFound, Forbidden, Conflict, StoreUnavailable."""
    run_id = (await visit.service.runs.lookup.seen(visit.path("run"), visit.user)).run.id
    await visit.service.runs.actions.abort_job(run_id, visit.path("job"), user=visit.user)
    return Done(message="abort of the job was requested")


PAGES: tuple[PageRoute, ...] = (
    PageRoute(path="/runs/{run}", handler=show_run, shared=True),
    PageRoute(method="POST", path="/runs/{run}/actions/{action}", handler=act),
    PageRoute(method="POST", path="/runs/{run}/scale", handler=scale),
    PageRoute(method="POST", path="/runs/{run}/jobs/{job}/abort", handler=abort_job),
)
