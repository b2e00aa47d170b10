"""Deployments: a live service is shown, changed in place and brought back.

A change is planned as a submission is, compared with the present deployment field by field, and
handed to the core, which rolls it out. What cannot change in place is refused with the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from common.refusals import Conflict, NotFound
from controller.clock import Clock
from controller.lifecycle.model import Deployment, JobSpec, Run, RunState
from controller.lifecycle.reports import DeployRequested, RollbackRequested
from controller.lifecycle.services import rollout
from controller.lifecycle.services.scaling import ScaleDecision
from controller.pipelines.autoscaling import Autoscaler
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_control
from controller.service.jobs.access import Runs
from controller.service.runs.submission_stages import Submission
from controller.service.runs.submissions import SubmissionService, why_not_in_place
from controller.store.accounts import User
from controller.traffic.statistics import Traffic, WindowStatistics
from fairlead.configuration.runs.masking import without_uploads
from fairlead.configuration.runs.plan import Plan
from fairlead.configuration.secrecy import HIDDEN as MASK
from fairlead.model.service import GroupScale, ReplicaGroup
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus

SHOWN_SECONDS = 60.0
HIDDEN = "(not shown)"
HIDDEN_CHANGED = "(another value)"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One field that a new deployment changes; None: it was not, or is no longer, written."""

    field: str
    before: object
    after: object


class GroupNow(msgspec.Struct, frozen=True, kw_only=True):
    """One replica group: what it shall have, its requests of the last minute, and what the
    autoscaler would do next."""

    group: ReplicaGroup
    scale: GroupScale
    statistics: WindowStatistics
    in_flight: int
    next: ScaleDecision


class DeploymentService:
    """Every method raises NotFound, Forbidden, StoreUnavailable."""

    def __init__(
        self,
        *,
        pipeline: RunPipeline,
        runs: Runs,
        submissions: SubmissionService,
        clock: Clock,
        traffic: Traffic,
        autoscaler: Autoscaler,
    ) -> None:
        self._pipeline = pipeline
        self._runs = runs
        self._submissions = submissions
        self._clock = clock
        self._traffic = traffic
        self._autoscaler = autoscaler

    async def get(self, key: str) -> RunState:
        """Return the service. Also raises Conflict for another type of run."""
        state = await self._runs.get(key)
        if state.run.service is None:
            raise Conflict(f"{state.run.name} is a {state.run.type}, no service", code="no_service")
        return state

    def groups(self, run: Run) -> Iterator[GroupNow]:
        """Yield the groups of a live service in the order of its configuration."""
        now = self._clock.now()
        for group in run.service.groups if run.service is not None else ():
            scale = next((one for one in run.scales if one.group == group.name), None)
            if scale is None:
                continue
            counts = self._traffic.group(run.id, group.name)
            yield GroupNow(
                group=group,
                scale=scale,
                statistics=counts.window(SHOWN_SECONDS, now),
                in_flight=counts.in_flight,
                next=self._autoscaler.decision(run, group, scale),
            )

    def ejected_until(self, attempt_id: str) -> float | None:
        """Return until when the replica gets no requests since it only failed (rule 8.15)."""
        return self._traffic.ejected_until(attempt_id)

    async def changes(
        self, key: str, submission: Submission, *, user: User
    ) -> tuple[RunState, tuple[Change, ...]]:
        """Return what this configuration would change. Also raises what a submission raises, and
        Conflict (`not_in_place`) for a field that cannot change in place."""
        state, plan = await self._planned(key, submission, user)
        return state, tuple(_changes(state.run, plan))

    async def deploy(
        self, key: str, submission: Submission, *, user: User
    ) -> tuple[RunState, tuple[Change, ...]]:
        """Roll this configuration out, unless it changes nothing. Raises as `changes` does."""
        state, plan = await self._planned(key, submission, user)
        changes = tuple(_changes(state.run, plan))
        if changes:
            await self._submissions.require_uploads(plan, user)
            made = _deployment(plan, user, self._clock.now())
            await self._pipeline.report(DeployRequested(run_id=state.run.id, deployment=made))
            state = self._pipeline.runs.get(state.run.id, state)
        return state, changes

    async def roll_back(self, key: str, *, to: int | None, user: User) -> RunState:
        """Bring a deployment back; `to` None: the latest other one that was rolled out."""
        state = await self._own(key, user)
        target = rollout.rollback_target(state.run, to)
        if target is None:
            known = ", ".join(str(one.number) for one in state.run.deployments[:-1])
            raise NotFound(
                f"service {state.run.name} has no "
                f"{'earlier deployment that was rolled out' if to is None else f'deployment {to}'}"
                f" to go back to (kept: {known or 'none'})",
                field="to",
            )
        report = RollbackRequested(run_id=state.run.id, to=target.number, by=user.name)
        await self._pipeline.report(report)
        return self._pipeline.runs.get(state.run.id, state)

    async def _own(self, key: str, user: User) -> RunState:
        state = await self.get(key)
        require_control(user, state.run)
        if state.run.status in FINAL_RUN_STATUSES or state.run.status is RunStatus.TERMINATING:
            raise Conflict(f"service {state.run.name} has ended or is ending", code="ended")
        return state

    async def _planned(self, key: str, submission: Submission, user: User) -> tuple[RunState, Plan]:
        state = await self._own(key, user)
        plan = self._submissions.planned(submission, user=user, present=state.run)
        refused = why_not_in_place(state.run, plan.type, plan.policy, plan.service)
        if refused is not None:
            field, sentence = refused
            raise Conflict(sentence, code="not_in_place", field=field)
        return state, plan


def _deployment(plan: Plan, user: User, now: float) -> Deployment:
    assert plan.service is not None, "a plan of a service"
    return Deployment(
        number=0,
        service=plan.service,
        specs={planned.group.name: planned.spec for planned in plan.groups},
        policy=plan.policy,
        configuration=plan.configuration,
        by=user.name,
        at=now,
        progress_at=now,
    )


def _changes(run: Run, plan: Plan) -> Iterator[Change]:
    """Yield the fields that differ, and the values that no answer shows by their names."""
    before = dict(_flat("", without_uploads(run.configuration)))
    after = dict(_flat("", without_uploads(plan.configuration)))
    before.pop("name", None)
    after.pop("name", None)
    shown = [
        one
        for one in dict.fromkeys((*before, *after))
        if before.get(one) != after.get(one) and not _shows_less(before.get(one), after.get(one))
    ]
    for field in shown:
        yield Change(field=field, before=before.get(field), after=after.get(field))
    now = run.deployments[-1]
    for planned in plan.groups:
        own = now.specs.get(planned.group.name)
        if own is not None and not rollout.same_replica(own, planned.spec):
            yield from _hidden_changes(planned.group.name, own, planned.spec, shown)
    if not shown and now.service != plan.service:
        yield Change(field="service", before=None, after="other values of headers or defaults")


def _shows_less(before: object, after: object) -> bool:
    """Return whether one of the two is shown hidden and the other is not, as when a later version
    shows more: whether they differ is known from the job's own values."""
    return before is not None and after is not None and MASK in (before, after)


def _hidden_changes(
    group: str, before: JobSpec, after: JobSpec, shown: Sequence[str]
) -> Iterator[Change]:
    """Yield what differs in values that no answer shows, by their names where they have one.
    `shown`: the fields of which the difference is shown already."""
    places = (("env", before.env, after.env), ("secrets", before.secrets, after.secrets))
    named = [
        f"{place}.{name}"
        for place, old, new in places
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
        and not any(field.endswith(f"{place}.{name}") for field in shown)
    ]
    for field in named or ([] if shown else ["files, probes or defaults"]):
        yield Change(field=f"group {group}: {field}", before=HIDDEN, after=HIDDEN_CHANGED)


def _flat(prefix: str, written: object) -> Iterator[tuple[str, object]]:
    if not isinstance(written, Mapping):
        yield prefix, written
        return
    for name, content in written.items():
        yield from _flat(f"{prefix}.{name}" if prefix else str(name), content)
