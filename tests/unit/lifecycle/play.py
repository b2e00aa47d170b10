"""A run on a stage: tests say what is reported and ask what became of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Self

from msgspec.structs import replace

from controller.lifecycle.attempts import termination
from controller.lifecycle.attempts.allocations import is_kept
from controller.lifecycle.decide import decide
from controller.lifecycle.draft import EMPTY_CONTEXT, DecisionContext, Draft
from controller.lifecycle.effects import EffectKind, wanted
from controller.lifecycle.events import Event
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    CollectedOutputs,
    Group,
    Job,
    JobSpec,
    Resources,
    RetryPolicy,
    Run,
    RunPolicy,
    RunState,
)
from controller.lifecycle.reports import (
    AllocationReleased,
    LogsComplete,
    NodeDisconnected,
    NodeGone,
    OutputsCollected,
    Placed,
    Report,
    RunnerExited,
    RunnerStarted,
    StopRequested,
    TaskAccepted,
    TaskRemoved,
    TaskSeen,
    Tick,
)
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.reasons import Reason
from fairlead.model.spec import PlannedGroup
from fairlead.model.statuses import AllocationState, AttemptStatus
from fairlead.model.sweep import SweepPlan

START = 1_000_000.0
NO_RETRY = RetryPolicy(on_events=frozenset())


def planned(count: int, *, one_replica: bool = False, group: str = "main") -> list[PlannedJob]:
    return [
        PlannedJob(
            group=group, replica=0 if one_replica else n, cookie=n, spec=JobSpec(image="busybox")
        )
        for n in range(count)
    ]


class Play:
    """Time stands still unless `wait` moves it."""

    def __init__(
        self,
        *,
        jobs: int = 1,
        one_replica: bool = False,
        plan: list[PlannedJob] | None = None,
        groups: Sequence[Group] = (),
        retry: RetryPolicy | None = None,
        jitter: float = 0.0,
        sweep: SweepPlan | None = None,
        spec: JobSpec | None = None,
        **policy: Any,
    ) -> None:
        self._ids = itertools.count(1)
        self._jitter = jitter
        self.now = START
        self.events: list[Event] = []
        self.wake_at: float | None = None
        self.around: DecisionContext = EMPTY_CONTEXT
        self.state: RunState = new_run(
            name="play",
            user="ada",
            jobs=() if groups else plan or planned(jobs, one_replica=one_replica),
            groups=[
                PlannedGroup(group=one, spec=spec or JobSpec(image="busybox")) for one in groups
            ],
            sweep=sweep,
            now=self.now,
            new_id=self.new_id,
            policy=RunPolicy(retry=retry or RetryPolicy(), **policy),
        )
        self.send()

    def new_id(self) -> str:
        return f"id{next(self._ids)}"

    # -- asking -----------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        return self.state.run

    @property
    def run_id(self) -> str:
        return self.state.run.id

    def job(self, n: int = 0) -> Job:
        return self.state.jobs[n]

    def attempt(self, n: int = 0, number: int = -1) -> Attempt:
        return self.state.jobs[n].attempts[number]

    def allocation(self, n: int = 0, number: int = -1) -> Allocation:
        wanted_id = self.attempt(n, number).allocation_id
        return next(a for a in self.state.allocations if a.id == wanted_id)

    def wanted(self, n: int = 0) -> tuple[EffectKind, ...]:
        return tuple(e.kind for e in wanted(self.state, self.attempt(n), self.now))

    # -- reporting --------------------------------------------------------------------------

    def send(self, *reports: Report) -> Self:
        reports = reports or (Tick(run_id=self.run_id),)
        decision = decide(
            self.state, reports, self.now, self.new_id, lambda: self._jitter, self.around
        )
        has_come = decision.wake_at is not None and decision.wake_at <= self.now
        assert not has_come or decision.state is not self.state, "asks to be asked again at once"
        left = [
            attempt
            for job in decision.state.jobs
            for attempt in job.attempts
            if attempt.status is AttemptStatus.TERMINATING
            and termination.cleanup_confirmed(attempt)
        ]
        assert not left, (
            "an attempt that is confirmed clean is not final, and nothing wakes its run"
        )
        self.state = decision.state
        self.events.extend(decision.events)
        self.wake_at = decision.wake_at
        return self

    def wait(self, seconds: float) -> Self:
        self.now += seconds
        return self.send()

    def change_run(self, **changes: Any) -> Self:
        """For what no report can do yet."""
        self.state = replace(self.state, run=replace(self.state.run, **changes))
        return self

    def change_job(self, n: int, **changes: Any) -> Self:
        jobs = list(self.state.jobs)
        jobs[n] = replace(jobs[n], **changes)
        self.state = replace(self.state, jobs=tuple(jobs))
        return self

    def placed(self, n: int = 0, node: str = "n1", gpus: tuple[str, ...] = ()) -> Placed:
        allocation = Allocation(
            id=self.new_id(),
            run_id=self.run_id,
            job_id=self.job(n).id,
            node_id=node,
            state=AllocationState.HELD,
            resources=Resources(),
            gpus=gpus,
            created_at=self.now,
        )
        return Placed(run_id=self.run_id, attempt_id=self.attempt(n).id, allocation=allocation)

    def accepted(self, n: int = 0) -> TaskAccepted:
        return TaskAccepted(run_id=self.run_id, attempt_id=self.attempt(n).id)

    def seen(self, n: int = 0, *, started: bool = True, **more: Any) -> TaskSeen:
        return TaskSeen(
            run_id=self.run_id,
            attempt_id=self.attempt(n).id,
            container_started=started,
            terminated=more.pop("terminated", False),
            runner_socket="/run/fairlead/runner.sock",
            **more,
        )

    def started(self, n: int = 0) -> RunnerStarted:
        return RunnerStarted(run_id=self.run_id, attempt_id=self.attempt(n).id, at=self.now)

    def exited(
        self,
        n: int = 0,
        reason: Reason = Reason.DONE_BY_RUNNER,
        code: int | None = None,
        message: str | None = None,
    ) -> RunnerExited:
        if code is None:
            code = 0 if reason is Reason.DONE_BY_RUNNER else 1
        return RunnerExited(
            run_id=self.run_id,
            attempt_id=self.attempt(n).id,
            reason=reason,
            exit_code=code,
            message=message,
        )

    def logs_complete(self, n: int = 0) -> LogsComplete:
        return LogsComplete(run_id=self.run_id, attempt_id=self.attempt(n).id)

    def outputs_collected(self, n: int = 0) -> OutputsCollected:
        return OutputsCollected(
            run_id=self.run_id,
            attempt_id=self.attempt(n).id,
            outputs=CollectedOutputs(files=2, size=30, left_out=1, left_out_size=5),
        )

    def removed(self, n: int = 0) -> TaskRemoved:
        """As the performer does it: a place that is kept is not released with its task."""
        attempt = self.attempt(n)
        return TaskRemoved(
            run_id=self.run_id,
            attempt_id=attempt.id,
            allocation_released=not is_kept(self.run, attempt),
        )

    def release_places(self) -> Self:
        """The nodes let go of what has outlived its task and is needed no more."""
        going = [place for place in self.state.allocations if place.releasing]
        return self.send(
            *(AllocationReleased(run_id=self.run_id, allocation_id=place.id) for place in going)
        )

    def stop(self, *, abort: bool = False) -> StopRequested:
        return StopRequested(run_id=self.run_id, abort=abort, by="ada")

    def node_gone(
        self,
        node: str = "n1",
        reason: Reason = Reason.INSTANCE_UNREACHABLE,
        *,
        confirmed: bool = False,
    ) -> NodeGone:
        return NodeGone(
            run_id=self.run_id,
            node_id=node,
            reason=reason,
            message="gone",
            cleanup_confirmed=confirmed,
        )

    def link(self, *, down: bool, node: str = "n1") -> NodeDisconnected:
        return NodeDisconnected(run_id=self.run_id, node_id=node, disconnected=down)

    # -- whole stretches of a life ----------------------------------------------------------

    def to_provisioning(self, n: int = 0, node: str = "n1") -> Self:
        return self.send(self.placed(n, node))

    def to_pulling(self, n: int = 0, node: str = "n1") -> Self:
        return self.to_provisioning(n, node).send(self.accepted(n))

    def to_container(self, n: int = 0, node: str = "n1") -> Self:
        return self.to_pulling(n, node).send(self.seen(n))

    def to_running(self, n: int = 0, node: str = "n1") -> Self:
        return self.to_container(n, node).send(self.started(n))

    def clean(self, n: int = 0) -> Self:
        """The node's part of the end: container gone, logs read, task removed."""
        ended = self.seen(n, started=self.attempt(n).seen.container_started, terminated=True)
        return self.send(ended).send(self.logs_complete(n)).send(self.removed(n))

    def live_and_end(self, n: int = 0, reason: Reason = Reason.DONE_BY_RUNNER) -> Self:
        """Runs and is final with this reason."""
        return self.to_running(n).end(n, reason).clean(n)

    def end(self, n: int, reason: Reason) -> Self:
        """The job ends; nothing is cleaned up yet. A reason that is neither a runner's nor a shim's
        to give comes from the controller itself: what it goes by is not on this stage."""
        if reason in RUNNER_SAYS:
            return self.send(self.exited(n, reason))
        if reason in SHIM_SAYS:
            started = self.attempt(n).seen.container_started
            return self.send(self.seen(n, started=started, terminated=True, reason=reason))
        draft = Draft(self.state, self.now, self.new_id, lambda: self._jitter, self.around)
        termination.end(draft, self.attempt(n), reason, "the stage")
        self.state = draft.result()
        self.events.extend(draft.events)
        return self.send()


RUNNER_SAYS = frozenset(
    {
        Reason.DONE_BY_RUNNER,
        Reason.CONTAINER_EXITED_WITH_ERROR,
        Reason.OUT_OF_MEMORY,
        Reason.EXECUTOR_ERROR,
        Reason.MAX_DURATION_EXCEEDED,
        Reason.LOG_QUOTA_EXCEEDED,
    }
)
SHIM_SAYS = frozenset(
    {
        Reason.PORTS_BINDING_FAILED,
        Reason.CREATING_CONTAINER_ERROR,
        Reason.IMAGE_PULL_FAILED,
        Reason.VOLUME_ERROR,
        Reason.INSTANCE_UNREACHABLE,
        Reason.INTERRUPTED_BY_NO_CAPACITY,
        Reason.GPU_UNHEALTHY,
    }
)


class Scheduled(Play):
    """Its expression fires every full hour after START."""

    def __init__(self, **more: object) -> None:
        super().__init__(schedule=SCHEDULE, **more)  # type: ignore[arg-type]
        self.send()

    def send(self, *reports: object) -> Self:
        passed = (self.now - START) // HOUR
        self.around = DecisionContext(next_trigger=START + (passed + 1) * HOUR)
        return super().send(*reports)  # type: ignore[arg-type]

    def to_trigger(self) -> Self:
        assert self.run.next_triggered_at is not None
        return self.wait(self.run.next_triggered_at - self.now)


HOUR = 3600.0
SCHEDULE = ("0 * * * *",)
