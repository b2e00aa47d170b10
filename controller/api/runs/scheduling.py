"""Why a run waits and where one would go, as REST."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.api.http.routes import Call, Route
from controller.api.views import derived, iso_or_none
from controller.lifecycle.model import RunState
from controller.service.runs.explanations import UnderWay
from controller.service.runs.plans import Preview
from controller.service.runs.submission_stages import Submission
from fairlead.documents.plans import ExplainView, GroupPlanView, OffersView, PlanView, UnderWayView
from fairlead.documents.sweeps import SweepPlanView


class PlanBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`configuration`: the YAML's content."""

    configuration: dict[str, Any]
    name: str | None = None


async def explain_run(call: Call) -> ExplainView:
    found = await call.service.runs.explanations.explain(call.path("run"), call.caller)
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
    found = await call.service.runs.plans.plan(submission, user=call.caller)
    return PlanView(
        jobs=found.allocations,
        refused=found.refused,
        field=found.field,
        warning=found.warning,
        groups=_groups(found),
        rent=found.rent,
        sweep=_sweep(found.state),
    )


def _sweep(state: RunState) -> SweepPlanView | None:
    sweep = state.run.sweep
    if sweep is None:
        return None
    return SweepPlanView(
        sets=sweep.total, parallel=sweep.max_parallel, reuse_container=sweep.reuse_container
    )


async def offers_for_run(call: Call) -> OffersView:
    body: PlanBody = call.body
    submission = Submission(configuration=body.configuration, name=body.name)
    return OffersView(places=call.service.runs.plans.offers(submission, user=call.caller))


def _groups(found: Preview) -> tuple[GroupPlanView, ...]:
    specs = {job.group: job.spec for job in found.state.jobs}
    return tuple(
        GroupPlanView(
            group=name,
            image=None if name in found.without_images else spec.image,
            python=spec.python,
            setup=len(spec.setup),
        )
        for name, spec in specs.items()
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
    Route(
        method="POST",
        path="/v1/offers",
        summary="The free nodes and the machines to rent for a configuration, in order",
        handler=offers_for_run,
        body=PlanBody,
        answer=OffersView,
    ),
)
