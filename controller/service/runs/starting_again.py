"""A live run starts again in its container, with a configuration that differs little
(docs/rules.md 2.15)."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from common.refusals import Conflict, Forbidden
from controller.clock import Clock
from controller.lifecycle.attempts.again import may_start_again
from controller.lifecycle.model import JobSpec, RunState
from controller.lifecycle.reports import StartAgainRequested, WatcherSeen
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_control
from controller.service.jobs.access import Runs
from controller.service.runs.actions import require_life
from controller.service.runs.submission_stages import Submission
from controller.service.runs.submissions import SubmissionService
from controller.store.accounts import User
from fairlead.configuration.runs.plan import Plan, kept_for_next
from fairlead.wire.job import why_not_in_place

_CHANGEABLE = frozenset({"commands", "setup", "env", "secrets", "repos", "files", "outputs"})


class StartAgainService:
    def __init__(
        self, pipeline: RunPipeline, runs: Runs, submissions: SubmissionService, clock: Clock
    ) -> None:
        self._pipeline = pipeline
        self._runs = runs
        self._submissions = submissions
        self._clock = clock

    async def start_again(self, key: str, submission: Submission, *, user: User) -> RunState:
        """Start the run's job again in its container, and return once that is stored. Raises
        Conflict (`not_in_place`) with the reason for which it needs a new container, NotFound,
        Forbidden, StoreUnavailable, and what a submission raises."""
        state = await self._runs.get(key)
        _require_owner(user, state)
        require_life(state, "started again")
        plan = kept_for_next(self._submissions.planned(submission, user=user))
        _require_in_place(state, plan)
        await self._submissions.require_uploads(plan, user)
        job = state.jobs[0]
        spec = replace(plan.groups[0].spec, ssh_keys=job.spec.ssh_keys)
        report = StartAgainRequested(
            run_id=state.run.id,
            attempt_id=job.attempts[-1].id,
            spec=spec,
            configuration=plan.configuration,
            by=user.name,
            at=self._clock.now(),
        )
        await self._pipeline.report(report)
        # The container may have ended before this came.
        after = await self._runs.get(state.run.id)
        if not after.jobs or after.jobs[0].spec != spec:
            if _asked(after, job.attempts[-1].id) > _asked(state, job.attempts[-1].id):
                raise Conflict(
                    "another client has started it again at the same time, and its changes count",
                    code="overtaken",
                    field="run",
                )
            raise _refusal("its container has ended")
        return after

    async def watch(self, key: str, watcher: str, seconds: float, *, user: User) -> None:
        """Note that a client watches the run for so long; 0: it leaves. Raises NotFound, Forbidden,
        StoreUnavailable."""
        state = await self._runs.get(key)
        _require_owner(user, state)
        if state.run.finished_at is not None or state.run.policy.keeps_for is None:
            return
        now = self._clock.now()
        await self._pipeline.report(
            WatcherSeen(run_id=state.run.id, watcher=watcher, until=now + seconds, at=now)
        )


def _require_owner(user: User, state: RunState) -> None:
    """Raise Forbidden for an admin too: the commands of the next start read the owner's secrets."""
    require_control(user, state.run)
    if user.name != state.run.user:
        raise Forbidden(
            f"run {state.run.name} belongs to {state.run.user}, and only its owner may start it"
            f" again, because its commands get the owner's secrets; `fairlead rerun"
            f" {state.run.name}` makes a run of your own",
            code="not_owner",
            field="run",
        )


def _asked(state: RunState, attempt_id: str) -> int:
    """Return how often this attempt was asked to start again."""
    attempts = state.jobs[0].attempts if state.jobs else ()
    starts = next((one.starts for one in attempts if one.id == attempt_id), None)
    return 0 if starts is None else starts.asked


def _require_in_place(state: RunState, plan: Plan) -> None:
    """Raise Conflict unless the job can become this one in its container."""
    run = state.run
    if run.policy.keeps_for is None or plan.policy.keeps_for is None:
        raise _refusal("only the container of a task with one job waits for the next start")
    if not state.jobs[0].attempts or not may_start_again(run, state.jobs[0].attempts[-1]):
        raise _refusal("its job is not running")
    if run.policy != plan.policy:
        raise _refusal("it has another policy")
    before, after = state.jobs[0].spec, plan.groups[0].spec
    if (field := _changed(before, after)) is not None:
        raise _refusal(f"its {field} has changed")
    why = why_not_in_place(
        ([one.plain for one in before.repos], before.files),
        ([one.plain for one in after.repos], after.files),
    )
    if why is not None:
        raise _refusal(why)


def _changed(before: JobSpec, after: JobSpec) -> str | None:
    """Return the first field that differs and cannot in one container."""
    old, new = asdict(before), asdict(after)
    stays = (name for name in old if name not in _CHANGEABLE and name != "ssh_keys")
    return next((name for name in stays if old[name] != new[name]), None)


def _refusal(why: str) -> Conflict:
    return Conflict(
        f"it cannot start again in the same container: {why}", code="not_in_place", field="run"
    )
