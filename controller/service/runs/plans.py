"""Plans: where a run would go now, without submitting it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.refusals import Invalid, NotFound
from controller.clock import Clock
from controller.lifecycle.inventory import Node
from controller.lifecycle.model import RunState
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.feasibility import as_begun, why_queued
from controller.service.accounts.rights import names_for
from controller.service.runs.submission_stages import Submission
from controller.service.runs.submissions import SubmissionService
from controller.store.accounts import User
from fairlead.model.answers import OfferedPlace, PlannedPlace, PlannedRent
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.errors import Refused


class PlanService:
    def __init__(self, pipeline: RunPipeline, submissions: SubmissionService, clock: Clock) -> None:
        self._pipeline = pipeline
        self._submissions = submissions
        self._clock = clock

    async def plan(self, submission: Submission, *, user: User) -> Preview:
        """Preview a submission. Raises ConfigurationError, Invalid, Refused (a band that was not
        granted), StoreUnavailable."""
        state = as_begun(self._submissions.would_make(submission, user=user))
        nodes = tuple(self._pipeline.nodes.values())
        never = self._submissions.why_not_changed(state, user)
        never = never or self._pipeline.scheduler.why_never(state)
        missing = None
        try:
            await self._submissions.require_others(submission, user)
        except NotFound as error:
            # It may come in the same act: `apply -f A -f B`.
            missing = f"{error.field}: {error.message}"
        except Refused as error:
            never = never or (error.field or "after", error.message)
        if never is not None:
            field, sentence = never
            return Preview(state=state, refused=sentence, field=field)
        scheduler, now = self._pipeline.scheduler, self._clock.now()
        allocations = tuple(scheduler.preview(state, now, names_for(user)))
        rentals = self._pipeline.rentals
        rent = None if rentals is None else rentals.rent_of(state, now)
        # A fleet that rents needs no node yet.
        is_rented = rent is not None and (rent.machines or rent.why)
        warnings = (
            self._submissions.why_not_named_so(state, user),
            None if is_rented else why_queued(state, nodes),
            missing,
        )
        warning = "; ".join(one for one in warnings if one is not None)
        return Preview(
            state=state,
            allocations=allocations,
            warning=warning or None,
            rent=rent,
            without_images=frozenset() if is_rented else _without_images(state, allocations, nodes),
        )

    def offers(self, submission: Submission, *, user: User) -> tuple[OfferedPlace, ...]:
        """Return where the jobs of a submission could go, in the order in which it is tried. Raises
        ConfigurationError, Invalid, Refused."""
        state = as_begun(self._submissions.would_make(submission, user=user))
        never = self._pipeline.scheduler.why_never(state)
        if never is not None and never[0] == "fleets":
            raise Invalid(never[1], field="fleets")
        now, rentals = self._clock.now(), self._pipeline.rentals
        if rentals is None:
            return self._pipeline.scheduler.offering(state, now)
        return rentals.offering(state, now)


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The planned placement of a run. `refused`: why a submit would be refused, and `field` the
    field; then nothing is planned."""

    state: RunState
    allocations: tuple[PlannedPlace, ...] = ()
    refused: str | None = None
    field: str | None = None
    warning: str | None = None
    rent: PlannedRent | None = None
    """What would be rented for it; None: the controller has no providers."""
    without_images: frozenset[str] = frozenset()
    """The groups whose jobs can go only to nodes without images."""


def _without_images(
    state: RunState, allocations: Sequence[PlannedPlace], nodes: Sequence[Node]
) -> frozenset[str]:
    """Return the groups whose jobs go only to nodes without images. A job that waits may go to
    every node of its fleets."""
    planned = {job.job: job.node for job in allocations}
    may_have: dict[str, bool] = {}
    for job in state.jobs:
        name, fleets = planned.get(f"{job.group}/{job.cookie}"), job.spec.fleets
        lack = [
            EngineAbility.IMAGES in node.capacity.engine_lacks
            for node in nodes
            if (node.name == name if name else not fleets or node.fleet in fleets)
        ]
        may_have[job.group] = may_have.get(job.group, False) or not lack or not all(lack)
    return frozenset(group for group, may in may_have.items() if not may)
