"""Runs as REST: submit, list, show, act on and watch a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec.structs import asdict

from common.refusals import Invalid
from controller.api.http.errors import as_refusal
from controller.api.http.paging import cut, one_more
from controller.api.http.routes import NDJSON, Call, Instead, Route
from controller.api.http.streams import HEARTBEAT_SECONDS, cancel_this, reader_may_leave, registered
from controller.api.views import run_summary, run_view, with_collections
from controller.lifecycle.model import RunState
from controller.service import ControllerService
from controller.service.runs.submission_stages import IfExists, Submission, Submitted, Texts
from controller.service.runs.sweeps import submitted_configuration
from fairlead.configuration.text.plain import MAX_CHARACTERS, NotPlain
from fairlead.configuration.text.source import SourceError
from fairlead.connections.order_keys import MAX_ORDER_KEY, ORDER_KEY
from fairlead.documents.runs import (
    MAX_BATCH,
    BatchAnswer,
    BatchItem,
    RunSummary,
    RunView,
    WatchLine,
)
from fairlead.model.starts import LEASE_SECONDS
from fairlead.model.statuses import FINAL_RUN_STATUSES, AttemptStatus
from fairlead.queries import RunQuery
from fairlead.wire.errors import ErrorDetail
from fairlead.wire.shim import PullProgress

CHEAP_LINE_SECONDS = 0.002
LINE_PAUSES = 20
MAX_PAUSE_SECONDS = 1.0
"""A watch's line that takes longer than a cheap one is followed by a pause of that number of its
own times: one watch of a sweep with 100 live jobs took a fourth of the controller's time."""
ClientKey = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class SubmitBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    starts_again: bool = False
    """When the job of a task with one job has ended, its container waits 10 min for
    `start-again`."""


class SubmitYamlBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`source`: the text of a YAML file. It is of a task that needs nothing of its author's
    machine: no `repos` and `files`, no variable of the environment. The rest is as of a
    submission."""

    source: Annotated[str, msgspec.Meta(max_length=MAX_CHARACTERS)]
    name: str | None = None
    client_key: ClientKey | None = None
    ssh_keys: tuple[str, ...] = ()
    if_exists: IfExists = IfExists.ERROR
    parent: str | None = None


class StartAgainBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`configuration`: as of a submission; only code, commands and environment may differ."""

    configuration: dict[str, Any]


class WatcherBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client that watches a run. `watcher`: a name that it makes up. `seconds`: for how long it
    counts as there; 0: it leaves."""

    watcher: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    seconds: Annotated[float, msgspec.Meta(ge=0, le=LEASE_SECONDS)]


class SubmitManyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    runs: Annotated[tuple[SubmitBody, ...], msgspec.Meta(min_length=1, max_length=MAX_BATCH)]


class SubmitTogetherBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several runs as one act: all are submitted, or none. In `after`, a name among them means that
    run. `if_exists` must be `error`."""

    runs: tuple[SubmitBody, ...]


class SubmittedTogether(msgspec.Struct, frozen=True, kw_only=True):
    """The runs, in the order of the request."""

    runs: tuple[RunView, ...]


class RunSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was submitted with, as far as it may be shown: values that may be secret are
    `***`. Uploads are named by their digests, so that the same run can be submitted again."""

    id: str
    name: str
    configuration: dict[str, Any]


class StopBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    abort: bool = False


class SuspendBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`abort_running`: also end running jobs, with a grace of 10 s."""

    abort_running: bool = False


class ScaleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`nodes`: the new number of jobs of the group."""

    group: str
    nodes: int


class RunsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[RunSummary, ...]
    next_cursor: str | None


async def submit_run(call: Call) -> Instead:
    body: SubmitBody = call.body
    return await _submitted(call, submission_of(body))


def submission_of(body: SubmitBody) -> Submission:
    return Submission(**asdict(body))


async def submit_yaml(call: Call) -> Instead:
    body: SubmitYamlBody = call.body
    return await _submitted(call, await submission_of_yaml(body, call.service.runs.texts))


async def submission_of_yaml(body: SubmitYamlBody, texts: Texts) -> Submission:
    """Raises Invalid, Unavailable."""
    given = asdict(body)
    try:
        configuration = await texts.read(given.pop("source"))
    except NotPlain as error:
        message = f"{error}: send its content as the `configuration` of POST /v1/runs"
        raise Invalid(message, code="not_plain", field="source") from None
    except SourceError as error:
        raise Invalid(str(error), code="invalid_yaml", field="source") from None
    return Submission(configuration=configuration, **given)


async def _submitted(call: Call, submission: Submission) -> Instead:
    submitted = await call.service.runs.submissions.submit(submission, user=call.caller)
    return Instead(answer=shown_run(call, submitted.state), status=status_of(submitted))


def status_of(submitted: Submitted) -> int:
    return 200 if submitted.kept else 202 if submitted.ending else 201


async def submit_runs(call: Call) -> BatchAnswer:
    body: SubmitManyBody = call.body
    submissions = [submission_of(one) for one in body.runs]
    results = await call.service.runs.submissions.submit_all(submissions, user=call.caller)
    return batch_answer(results)


def batch_answer(results: Sequence[Submitted | Exception]) -> BatchAnswer:
    return BatchAnswer(results=tuple(map(_batch_item, results)))


def _batch_item(result: Submitted | Exception) -> BatchItem:
    if isinstance(result, Exception):
        refused = as_refusal(result)
        detail = ErrorDetail(code=refused.code, message=refused.message, field=refused.field)
        return BatchItem(status=refused.status, error=detail)
    run = result.state.run
    return BatchItem(status=status_of(result), id=run.id, name=run.name)


async def submit_together(call: Call) -> SubmittedTogether:
    body: SubmitTogetherBody = call.body
    submissions = [submission_of(one) for one in body.runs]
    states = await call.service.runs.submissions.submit_together(submissions, user=call.caller)
    return SubmittedTogether(runs=tuple(shown_run(call, state) for state in states))


async def list_runs(call: Call) -> RunsAnswer:
    query: RunQuery = call.query
    states = await call.service.runs.lookup.page(one_more(query), user=call.caller)
    names, now = call.service.machines.nodes.names(), call.service.clock.now()
    states, cursor = cut(states, query.limit, lambda state: state.run.id)
    runs = tuple(run_summary(state, names, now) for state in states)
    return RunsAnswer(runs=runs, next_cursor=cursor)


async def get_run(call: Call) -> RunView:
    state = await call.service.runs.lookup.get(call.path("run"))
    service = call.service
    children, url = await service.runs.lookup.family(state), service.gateways.url(state.run)
    now = service.clock.now()
    view = run_view(state, service.machines.nodes.names(), children, url, with_ended=True, now=now)
    return with_collections(view, service.runs.progress)


async def get_submission(call: Call) -> RunSubmission:
    state = await call.service.runs.lookup.get(call.path("run"))
    configuration = submitted_configuration(state)
    return RunSubmission(id=state.run.id, name=state.run.name, configuration=configuration)


def shown_run(call: Call, state: RunState) -> RunView:
    return view_of(call.service, state)


def view_of(service: ControllerService, state: RunState) -> RunView:
    children, url = service.runs.lookup.children(state), service.gateways.url(state.run)
    view = run_view(state, service.machines.nodes.names(), children, url, now=service.clock.now())
    return with_collections(view, service.runs.progress)


def _order_key(call: Call) -> str:
    """Raises Invalid."""
    key = call.request.headers.get(ORDER_KEY, "")
    if len(key) > MAX_ORDER_KEY:
        raise Invalid(f"it has more than {MAX_ORDER_KEY} characters", field=ORDER_KEY)
    return key


async def stop_run(call: Call) -> RunView:
    body: StopBody = call.body
    state = await call.service.runs.actions.stop(
        call.path("run"), abort=body.abort, user=call.caller, order_key=_order_key(call)
    )
    return shown_run(call, state)


async def start_run_again(call: Call) -> RunView:
    body: StartAgainBody = call.body
    submission = Submission(configuration=body.configuration)
    state = await call.service.runs.starting_again.start_again(
        call.path("run"), submission, user=call.caller
    )
    return shown_run(call, state)


async def note_watcher(call: Call) -> WatcherBody:
    body: WatcherBody = call.body
    await call.service.runs.starting_again.watch(
        call.path("run"), body.watcher, body.seconds, user=call.caller
    )
    return body


async def complete_run(call: Call) -> RunView:
    state = await call.service.runs.actions.complete(
        call.path("run"), user=call.caller, order_key=_order_key(call)
    )
    return shown_run(call, state)


async def suspend_run(call: Call) -> RunView:
    body: SuspendBody = call.body
    state = await call.service.runs.actions.suspend(
        call.path("run"),
        abort_running=body.abort_running,
        user=call.caller,
        order_key=_order_key(call),
    )
    return shown_run(call, state)


async def resume_run(call: Call) -> RunView:
    state = await call.service.runs.actions.resume(
        call.path("run"), user=call.caller, order_key=_order_key(call)
    )
    return shown_run(call, state)


async def scale_run(call: Call) -> RunView:
    body: ScaleBody = call.body
    state = await call.service.runs.actions.scale(
        call.path("run"),
        group=body.group,
        nodes=body.nodes,
        user=call.caller,
        order_key=_order_key(call),
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
    state is the last line. Changes of a run with many live jobs share a line."""
    run_id = (await call.service.runs.lookup.get(call.path("run"))).run.id
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
    async with call.service.runs.lookup.watch(run_id) as watch:
        while True:
            state = await watch.next(HEARTBEAT_SECONDS)
            began = time.perf_counter()
            line = heartbeat if state is None else watch_line(call.service, state)
            took = time.perf_counter() - began
            if line != last or state is None:
                yield line
                last = last if state is None else line
            if state is not None and state.run.status in FINAL_RUN_STATUSES:
                return
            await asyncio.sleep(pause_after(took))


def pause_after(took: float) -> float:
    """Return the seconds to wait after a line that took so long."""
    return min(LINE_PAUSES * took, MAX_PAUSE_SECONDS) if took > CHEAP_LINE_SECONDS else 0.0


def watch_line(service: ControllerService, state: RunState) -> bytes:
    """Return the line of a watch, which is the same for all who may see the run."""
    line = WatchLine(
        run=view_of(service, state), progress=progress_view(state, service.runs.progress)
    )
    return msgspec.json.encode(line)


_ALSO_OF_A_SUBMISSION = {
    200: "The live run that has the name and keeps it (`if_exists: keep`)",
    202: "The live run that has the name, which is being stopped (`if_exists: replace`);"
    " the same request submits the new one once it has ended",
}
ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/runs",
        summary="Submit a run",
        handler=submit_run,
        body=SubmitBody,
        answer=RunView,
        status=201,
        also=_ALSO_OF_A_SUBMISSION,
    ),
    Route(
        method="POST",
        path="/v1/runs:yaml",
        summary="Submit the task of a YAML file by its text",
        handler=submit_yaml,
        body=SubmitYamlBody,
        answer=RunView,
        status=201,
        also=_ALSO_OF_A_SUBMISSION,
    ),
    Route(
        method="POST",
        path="/v1/runs:batch",
        summary="Submit up to 1000 runs in one commit; each has an answer of its own",
        handler=submit_runs,
        body=SubmitManyBody,
        answer=BatchAnswer,
    ),
    Route(
        method="POST",
        path="/v1/runs/together",
        summary="Submit several runs, which may wait for each other, as one act",
        handler=submit_together,
        body=SubmitTogetherBody,
        answer=SubmittedTogether,
        status=201,
    ),
    Route(
        method="GET",
        path="/v1/runs",
        summary="The live runs, or all, newest first",
        handler=list_runs,
        query=RunQuery,
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
        method="GET",
        path="/v1/runs/{run}/submission",
        summary="What a run was submitted with, to submit it again",
        handler=get_submission,
        answer=RunSubmission,
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
        path="/v1/runs/{run}/start-again",
        summary="Start the job of a run again in its container, with what changed; 409"
        " `not_in_place` says why it needs a new one",
        handler=start_run_again,
        body=StartAgainBody,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/watchers",
        summary="Tell that a client watches the run, and its container may wait for the next start",
        handler=note_watcher,
        body=WatcherBody,
        answer=WatcherBody,
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
