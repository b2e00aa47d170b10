"""Why a run waits and where one would go, as REST."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.api.routes import Call, Route
from controller.api.views import derived, iso_or_none
from controller.lifecycle.reasons import Reason
from controller.lifecycle.statuses import AttemptStatus, RunStatus
from controller.scheduling.explain import PlannedPlace, Waiting
from controller.service.runs import UnderWay
from controller.service.submissions import Submission


class PlanBody(msgspec.Struct, frozen=True, kw_only=True):
    """`configuration`: the YAML's content."""

    configuration: dict[str, Any]
    name: str | None = None


class UnderWayView(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for something other than an allocation.

    `until`: when the first of them ends as `ends_as`, unless what it waits for comes before;
    without `ends_as`: when it goes on.
    """

    jobs: tuple[str, ...]
    status: AttemptStatus
    what: str
    until: str | None
    ends_as: Reason | None


class ExplainView(msgspec.Struct, frozen=True, kw_only=True):
    """`about`: what the run waits for besides allocations; always set when `waiting` is empty."""

    run: str
    name: str
    status: RunStatus
    about: str | None
    waiting: tuple[Waiting, ...]
    under_way: tuple[UnderWayView, ...] = ()


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: why a submit would be refused, and `field` the field; then `jobs` is empty."""

    jobs: tuple[PlannedPlace, ...]
    refused: str | None
    field: str | None
    warning: str | None


async def explain_run(call: Call) -> ExplainView:
    found = await call.service.explanations.explain(call.path("run"), call.caller)
    run = found.state.run
    return ExplainView(
        run=run.id,
        name=run.name,
        status=run.status,
        about=found.about,
        waiting=found.waiting,
        under_way=tuple(_under_way(one) for one in found.under_way),
    )


def _under_way(found: UnderWay) -> UnderWayView:
    return derived(UnderWayView, found, until=iso_or_none(found.until))


async def plan_run(call: Call) -> PlanView:
    body: PlanBody = call.body
    submission = Submission(configuration=body.configuration, name=body.name)
    found = call.service.plans.plan(submission, user=call.caller)
    return PlanView(
        jobs=found.places, refused=found.refused, field=found.field, warning=found.warning
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/runs/{run}/explain",
        summary="Why each job of a run waits, node by node, and which runs are before it",
        handler=explain_run,
        answer=ExplainView,
    ),
    Route(
        method="POST",
        path="/v1/plan",
        summary="Where each job of a configuration would go now; nothing is submitted",
        handler=plan_run,
        body=PlanBody,
        answer=PlanView,
    ),
)
