"""Runs as REST: submit, list, show, act on and watch a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec.structs import asdict

from controller.api.documents import RunSummary, RunView, WatchLine
from controller.api.paging import cut
from controller.api.routes import NDJSON, Call, Instead, PositiveInt, Query, Route
from controller.api.streams import HEARTBEAT_SECONDS, cancel_this, reader_may_leave, registered
from controller.api.views import run_summary, run_view, with_collections
from controller.lifecycle.model import RunState
from controller.lifecycle.statuses import FINAL_RUN_STATUSES, AttemptStatus, RunStatus
from controller.service.errors import Invalid
from controller.service.submissions import IfExists, Submission
from shim.schemas import PullProgress

ClientKey = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class SubmitBody(msgspec.Struct, frozen=True, kw_only=True):
    """`configuration`: the YAML's content. The same `client_key` gives the same run again."""

    configuration: dict[str, Any]
    name: str | None = None
    client_key: ClientKey | None = None
    ssh_keys: tuple[str, ...] = ()
    """OpenSSH public key lines: they give SSH access to the run's containers."""
    if_exists: IfExists = IfExists.ERROR
    """When a live run has the name: refuse, answer with that run (status 200), or stop it and
    answer with it (status 202). In the last case the same request submits this run once the old one
    has ended. Until then, and for 30 s after, the name is reserved for this client."""
    parent: str | None = None
    """Id or name of the live run that is this run's parent."""


class StopBody(msgspec.Struct, frozen=True, kw_only=True):
    abort: bool = False


class SuspendBody(msgspec.Struct, frozen=True, kw_only=True):
    """`abort_running`: also end running jobs, with a grace of 10 s."""

    abort_running: bool = False


class ScaleBody(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes`: the new number of jobs of the group."""

    group: str
    nodes: int


class RunsQuery(Query, frozen=True):
    """`cursor`: the `next_cursor` of the previous page (`before` is its old name). `status`: one or
    several, with commas between them. `user`: the owner. `name`: a pattern with `*` and `?`."""

    all: bool = False
    limit: PositiveInt = 100
    cursor: str | None = None
    before: str | None = None
    status: str | None = None
    user: str | None = None
    name: str | None = None


class RunsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[RunSummary, ...]
    next_cursor: str | None


async def submit_run(call: Call) -> Instead | RunView:
    body: SubmitBody = call.body
    submission = Submission(**asdict(body))
    submitted = await call.service.submissions.submit(submission, user=call.caller)
    view = shown_run(call, submitted.state)
    if submitted.kept or submitted.ending:
        return Instead(answer=view, status=200 if submitted.kept else 202)
    return view


async def list_runs(call: Call) -> RunsAnswer:
    query: RunsQuery = call.query
    states = await call.service.runs.page(
        include_finished=query.all,
        limit=query.limit + 1,
        before=query.cursor or query.before,
        user=call.caller,
        owner=query.user,
        statuses=_statuses(query.status),
        name=query.name,
    )
    names = call.service.nodes.names()
    states, cursor = cut(states, query.limit, lambda state: state.run.id)
    return RunsAnswer(runs=tuple(run_summary(state, names) for state in states), next_cursor=cursor)


def _statuses(text: str | None) -> tuple[RunStatus, ...]:
    try:
        return tuple(RunStatus(word.strip()) for word in text.split(",")) if text else ()
    except ValueError:
        known = ", ".join(RunStatus)
        raise Invalid(
            f"{text!r} is no status: give one or several of {known}", field="status"
        ) from None


async def get_run(call: Call) -> RunView:
    state = await call.service.runs.get(call.path("run"))
    service = call.service
    children, url = await service.runs.family(state), service.gateways.url(state.run)
    return with_collections(run_view(state, service.nodes.names(), children, url), service.progress)


def shown_run(call: Call, state: RunState) -> RunView:
    service = call.service
    children, url = service.runs.children(state), service.gateways.url(state.run)
    view = run_view(state, service.nodes.names(), children, url)
    return with_collections(view, service.progress)


async def stop_run(call: Call) -> RunView:
    body: StopBody = call.body
    actions = call.service.actions
    return shown_run(call, await actions.stop(call.path("run"), abort=body.abort, user=call.caller))


async def complete_run(call: Call) -> RunView:
    actions = call.service.actions
    return shown_run(call, await actions.complete(call.path("run"), user=call.caller))


async def suspend_run(call: Call) -> RunView:
    body: SuspendBody = call.body
    state = await call.service.actions.suspend(
        call.path("run"), abort_running=body.abort_running, user=call.caller
    )
    return shown_run(call, state)


async def resume_run(call: Call) -> RunView:
    actions = call.service.actions
    return shown_run(call, await actions.resume(call.path("run"), user=call.caller))


async def scale_run(call: Call) -> RunView:
    body: ScaleBody = call.body
    state = await call.service.actions.scale(
        call.path("run"), group=body.group, nodes=body.nodes, user=call.caller
    )
    return shown_run(call, state)


def progress_view(state: RunState, progress: Mapping[str, PullProgress]) -> dict[str, PullProgress]:
    """Return the progress of the attempts whose image is pulled or whose outputs are collected."""
    current = (job.attempts[-1] for job in state.jobs if job.attempts)
    return {
        attempt.id: progress[attempt.id]
        for attempt in current
        if attempt.status in (AttemptStatus.PULLING, AttemptStatus.TERMINATING)
        and attempt.id in progress
    }


async def watch_run(call: Call) -> web.StreamResponse:
    """Send a line at once, one after each change, and a heartbeat when nothing changes; the final
    state is the last line."""
    run_id = (await call.service.runs.get(call.path("run"))).run.id
    response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-store"})
    with registered(call.request, cancel_this()), reader_may_leave():
        await response.prepare(call.request)
        async for line in _watch_lines(call, run_id):
            await response.write(line + b"\n")
        await response.write_eof()
    return response


async def _watch_lines(call: Call, run_id: str) -> AsyncIterator[bytes]:
    heartbeat = msgspec.json.encode(WatchLine(run=None))
    last = b""
    async with call.service.runs.watch(run_id) as watch:
        while True:
            state = await watch.next(HEARTBEAT_SECONDS)
            line = heartbeat if state is None else _watch_line(call, state)
            if line != last or state is None:
                yield line
                last = last if state is None else line
            if state is not None and state.run.status in FINAL_RUN_STATUSES:
                return


def _watch_line(call: Call, state: RunState) -> bytes:
    return msgspec.json.encode(
        WatchLine(
            run=shown_run(call, state),
            progress=progress_view(state, call.service.progress),
        )
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/runs",
        summary="Submit a run",
        handler=submit_run,
        body=SubmitBody,
        answer=RunView,
        status=201,
        also={
            200: "The live run that has the name and keeps it (`if_exists: keep`)",
            202: "The live run that has the name, which is being stopped (`if_exists: replace`);"
            " the same request submits the new one once it has ended",
        },
    ),
    Route(
        method="GET",
        path="/v1/runs",
        summary="The live runs, or all, newest first",
        handler=list_runs,
        query=RunsQuery,
        answer=RunsAnswer,
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}",
        summary="Everything about one run (id, or name: the live one, else the newest)",
        handler=get_run,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/stop",
        summary="Stop a run, with the grace of its stop_duration; with `abort` at once",
        handler=stop_run,
        body=StopBody,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/complete",
        summary="End a run as done now",
        handler=complete_run,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/suspend",
        summary="Suspend a run: no placements, retries, triggers or timeouts; running jobs stay",
        handler=suspend_run,
        body=SuspendBody,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/resume",
        summary="Resume a run: jobs that ended while it was suspended are decided again",
        handler=resume_run,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/scale",
        summary="Change the number of jobs of an independent group",
        handler=scale_run,
        body=ScaleBody,
        answer=RunView,
    ),
    Route(
        method="GET",
        path="/v1/runs/{run}/watch",
        summary="The run now and after each change, one JSON line each, until it is final",
        handler=watch_run,
        answer=WatchLine,
        media=NDJSON,
    ),
)
