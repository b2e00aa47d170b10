"""The parameter sets of a sweep as REST: list, stop and retry them, change how many run."""

from __future__ import annotations

import msgspec

from controller.api.http.routes import Call, Route
from controller.api.runs.runs import shown_run
from controller.api.views import set_view
from fairlead.documents.runs import RetriedView, RunView
from fairlead.documents.sweeps import SetView
from fairlead.queries import SetQuery


class SetsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`which`: numbers such as `3,7-9`, or values such as `seed=3,lr=0.1`, all of which must hold;
    null: to stop, all that have not ended; to retry, all that failed."""

    which: str | None = None


class ParallelBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`max_parallel`: how many sets may be active at once; null: as many as there is room for."""

    max_parallel: int | None


class SetsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    sets: tuple[SetView, ...]
    next_cursor: str | None


async def list_sets(call: Call) -> SetsAnswer:
    query: SetQuery = call.query
    state = await call.service.runs.lookup.get(call.path("run"))
    found = call.service.runs.sweeps.page(state, query)
    names = call.service.machines.nodes.names()
    kept = found[: query.limit]
    return SetsAnswer(
        sets=tuple(set_view(one, names) for one in kept),
        next_cursor=str(kept[-1].number) if len(found) > query.limit else None,
    )


async def stop_sets(call: Call) -> RunView:
    body: SetsBody = call.body
    sweeps = call.service.runs.sweeps
    return shown_run(call, await sweeps.stop(call.path("run"), which=body.which, user=call.caller))


async def retry_sets(call: Call) -> RetriedView:
    body: SetsBody = call.body
    sweeps = call.service.runs.sweeps
    found = await sweeps.retry(call.path("run"), which=body.which, user=call.caller)
    shown = shown_run(call, found.state)
    return RetriedView(**msgspec.structs.asdict(shown), left_out=found.left_out)


async def resize(call: Call) -> RunView:
    body: ParallelBody = call.body
    sweeps = call.service.runs.sweeps
    return shown_run(
        call,
        await sweeps.resize(call.path("run"), max_parallel=body.max_parallel, user=call.caller),
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/runs/{run}/sets",
        summary="The parameter sets of a sweep, with what became of each",
        handler=list_sets,
        query=SetQuery,
        answer=SetsAnswer,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/sets/stop",
        summary="Stop parameter sets of a live sweep",
        handler=stop_sets,
        body=SetsBody,
        answer=RunView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/sets/retry",
        summary="Retry parameter sets that failed or were stopped; of an ended sweep, as a new run",
        handler=retry_sets,
        body=SetsBody,
        answer=RetriedView,
    ),
    Route(
        method="POST",
        path="/v1/runs/{run}/sets/parallel",
        summary="Change how many parameter sets of a live sweep may run at once",
        handler=resize,
        body=ParallelBody,
        answer=RunView,
    ),
)
