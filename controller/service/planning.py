"""Where a run would go now, without submitting it."""

from __future__ import annotations

import msgspec

from controller.clock import Clock
from controller.lifecycle.model import RunState
from controller.pipelines.turns import Turns
from controller.scheduling.explain import PlannedPlace
from controller.scheduling.possible import as_begun, why_queued
from controller.service.access import names_for
from controller.service.submitting import Submission, SubmissionService
from controller.store.users import User


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: why a submit would be, and `field` whose fault it is; nothing is planned then."""

    state: RunState
    places: tuple[PlannedPlace, ...] = ()
    refused: str | None = None
    field: str | None = None
    warning: str | None = None


class PlanService:
    def __init__(self, turns: Turns, submissions: SubmissionService, clock: Clock) -> None:
        self._turns = turns
        self._submissions = submissions
        self._clock = clock

    def plan(self, submission: Submission, *, user: User) -> Preview:
        """Raises ConfigurationError, Invalid, Refused (a band that was not granted)."""
        state = as_begun(self._submissions.draft(submission, user=user))
        nodes = tuple(self._turns.nodes.values())
        never = self._turns.scheduler.why_never(state)
        if never is not None:
            field, sentence = never
            return Preview(state=state, refused=sentence, field=field)
        scheduler, now = self._turns.scheduler, self._clock.now()
        places = scheduler.preview(state, now, names_for(user))
        return Preview(state=state, places=tuple(places), warning=why_queued(state, nodes))
