"""Make the documents of the API from the controller's values, with pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from controller.clock import iso
from controller.lifecycle import outputs
from controller.lifecycle.gangs import incarnation
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Incarnation,
    Job,
    Resources,
    Run,
    RunState,
)
from controller.lifecycle.pending_reasons import RunSuspended
from controller.lifecycle.runs import beginning
from controller.lifecycle.runs.schedules import next_trigger_at
from controller.lifecycle.runs.status import state_of_job
from controller.lifecycle.services.readiness import why_not_ready
from controller.lifecycle.services.replicas import SLEEPS, sleeps
from controller.lifecycle.sweeps.sets import SetCounts, counts
from controller.scheduling.fitting.grant import asked_by
from controller.service.runs.sweeps import ListedSet
from fairlead.configuration.runs.masking import without_uploads
from fairlead.documents.jobs import (
    AllocationView,
    AttemptOutputsView,
    AttemptView,
    IncarnationView,
    JobView,
    PastAttemptView,
    StartEndView,
    StartsView,
)
from fairlead.documents.runs import (
    AfterView,
    ChildView,
    DevEnvironmentView,
    GroupView,
    OccurrenceView,
    RunSummary,
    RunView,
    SwitchView,
)
from fairlead.documents.services import DeploymentView, ProbeView, ScaleView
from fairlead.documents.sweeps import SetView, SweepView
from fairlead.model.dev_environment import BROWSER_PORTS
from fairlead.model.job_links import MAX_LINKS
from fairlead.model.reasons import Reason, state_of
from fairlead.model.starts import Starts
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
    AttemptStatus,
    OutputsState,
    RunStatus,
)
from fairlead.wire.shim import PullProgress

V = TypeVar("V", bound=msgspec.Struct)


def iso_or_none(time: float | None) -> str | None:
    return None if time is None else iso(time)


def derived(view: type[V], source: object, **given: Any) -> V:
    """Return the view with the source's fields of the same names; `given` are the other ones.

    A number in a field that is named for a moment (`at`, `…_at`) becomes ISO 8601. Raises
    AttributeError when neither has a field of the view.
    """
    names, moments, read = _of_the_source(view, tuple(given))
    given.update(zip(names, read(source), strict=True))
    for name in moments:
        moment = given[name]
        if moment is not None and moment.__class__ is not str:
            given[name] = iso(moment)
    return view(**given)


@cache
def _of_the_source(
    view: type[msgspec.Struct], given: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    """Kept for each use: without it the document of a thousand jobs takes 28 ms."""
    names = tuple(name for name in view.__struct_fields__ if name not in given)
    moments = tuple(name for name in names if name == "at" or name.endswith("_at"))
    return names, moments, attrgetter(*names)


def run_view(
    state: RunState,
    node_names: Mapping[str, str],
    children: Iterable[RunState] = (),
    url: str | None = None,
    *,
    with_ended: bool = False,
    now: float | None = None,
) -> RunView:
    """Return the run's document; `node_names`: by node id, `url`: at its gateway. `with_ended`:
    also with the jobs of a live sweep's ended sets, too many to be sent at each change. `now`: for
    the estimate of a sweep."""
    run = state.run
    gathers = incarnation.gathering(run, state.jobs)
    allocations = (one for one in state.allocations if one.state is not AllocationState.RELEASED)
    jobs = state.all_jobs if with_ended else state.jobs
    needs = {job.id: job.spec.resources for job in state.jobs}
    return derived(
        RunView,
        run,
        url=url,
        termination_reason=run.reason,
        incarnation=_incarnation(run.incarnation),
        gathering=None if gathers is None else str(gathers),
        gives_up_at=None if gathers is None else iso_or_none(gathers.gives_up_at),
        next_triggered_at=iso_or_none(next_trigger_at(run)),
        switches=tuple(derived(SwitchView, switch) for switch in run.switches),
        jobs=tuple(job_view(state, job, node_names) for job in jobs),
        groups=tuple(derived(GroupView, group) for group in run.groups),
        allocations=tuple(
            _allocation(one, node_names, needs.get(one.job_id)) for one in allocations
        ),
        occurrences=tuple(
            derived(OccurrenceView, one, termination_reason=one.reason) for one in run.occurrences
        ),
        schedule=run.policy.schedule,
        after=tuple(derived(AfterView, one) for one in run.after),
        begins_at=iso_or_none(beginning.begins_at(run)),
        start_before=iso_or_none(beginning.must_start_at(run)),
        children=tuple(derived(ChildView, child.run) for child in children),
        priority=run.policy.priority,
        band=run.policy.band,
        configuration=without_uploads(run.configuration),
        scales=tuple(derived(ScaleView, scale) for scale in run.scales),
        deployments=tuple(derived(DeploymentView, one) for one in run.deployments),
        dev_environment=_dev_environment(state),
        sweep=sweep_view(state, now),
    )


def sweep_view(state: RunState, now: float | None = None) -> SweepView | None:
    """Return how far a sweep is; None: the run is none."""
    sweep, content = state.run.sweep, state.sweep
    if sweep is None or content is None:
        return None
    counted = counts(state)
    return SweepView(
        names=content.sets.names,
        total=sweep.total,
        nodes=sweep.nodes,
        waiting=counted.waiting,
        active=counted.active,
        done=counted.done,
        failed=counted.failed,
        stopped=counted.stopped,
        max_parallel=sweep.max_parallel,
        stop_after_failures=sweep.stop_after_failures,
        seconds_left=_seconds_left(state, counted, now),
        waits_for=beginning.why_waits(state.run),
    )


def _held(run: Run) -> str | None:
    """Return what a sweep none of whose sets is active waits for."""
    waits = run.sweep is not None and run.status is RunStatus.PENDING
    return beginning.why_waits(run) if waits else None


_BY_ITSELF = (Reason.DONE_BY_RUNNER, Reason.CONTAINER_EXITED_WITH_ERROR)
"""A stop or a lost node says nothing of how long a job takes."""
_ESTIMATED_FROM = 50
"""The number of the jobs that ended last: the sets of a matrix' end may take longer than the
first."""


def _seconds_left(state: RunState, counted: SetCounts, now: float | None) -> float | None:
    lasts = (job.attempts[-1] for job in state.ended.jobs[-_ESTIMATED_FROM:] if job.attempts)
    took = [
        (last.running_at, last.terminating_at)
        for last in lasts
        if last.reason in _BY_ITSELF
        and last.running_at is not None
        and last.terminating_at is not None
    ]
    # An active set may stand in the queue, or in the batch of a container.
    began = {job.replica: job.attempts[-1].running_at for job in state.jobs if _runs(job)}
    if not took or not counted.active:
        return None
    each = sum(end - start for start, end in took) / len(took)
    rest = [_rest(each, None if now is None or at is None else now - at) for at in began.values()]
    left = (counted.waiting + counted.active - len(began)) * each + sum(rest)
    paced = left / max(len(began), 1)
    if state.run.sweep is not None and state.run.sweep.reuse_container:
        # Starts and ends of a batch are heard of together, so each alone looks longer than it was.
        span = max(end for _, end in took) - min(start for start, _ in took)
        paced = (counted.waiting + counted.active) * span / len(took)
    # Between two jobs none runs. The longest one bounds all.
    return max(paced, *rest, 0.0)


def _rest(usual: float, ran: float | None) -> float:
    """Return the seconds that are left of a job, which may have taken longer than the others do;
    half of the usual time if it is not known for how long it runs."""
    if ran is None:
        return usual / 2
    return usual - ran if ran < usual else ran


def _runs(job: Job) -> bool:
    return bool(job.attempts) and job.attempts[-1].status is AttemptStatus.RUNNING


def set_view(one: ListedSet, node_names: Mapping[str, str]) -> SetView:
    """Return the document of one parameter set; `node_names`: by node id."""
    last = one.last
    ended_at = None if last is None else last.terminating_at or last.finished_at
    return SetView(
        number=one.number,
        parameters=one.parameters,
        status=one.status,
        jobs=tuple(job.id for job in one.jobs),
        attempt_id=None if last is None else last.id,
        attempt=None if last is None else last.number,
        node=None if last is None or last.node_id is None else node_name(last, node_names),
        exit_code=None if last is None else last.exit_code,
        termination_reason=None if last is None else last.reason,
        message=None if last is None else last.message,
        running_at=None if last is None else iso_or_none(last.running_at),
        ended_at=iso_or_none(ended_at),
        finished_at=iso_or_none(one.finished_at),
        outputs=None if last is None else _outputs(last),
    )


def _dev_environment(state: RunState) -> DevEnvironmentView | None:
    wanted = state.run.policy.dev_environment
    if wanted is None:
        return None
    last = state.jobs[0].attempts[-1] if state.jobs[0].attempts else None
    unused = None if last is None else last.inactivity
    return derived(
        DevEnvironmentView,
        wanted,
        path=f"/services/{state.run.name}/" if wanted.ide in BROWSER_PORTS else None,
        inactive_since=None if unused is None else iso(unused.since),
    )


def _allocation(
    allocation: Allocation, node_names: Mapping[str, str], need: Resources | None
) -> AllocationView:
    resources = allocation.resources
    return derived(
        AllocationView,
        allocation,
        node=node_name(allocation, node_names),
        cpu=resources.cpu,
        memory=resources.memory,
        whole_node=resources.whole_node,
        shm_size=resources.shm_size,
        asked=None if need is None else asked_by(need),
    )


def _incarnation(incarnation: Incarnation | None) -> IncarnationView | None:
    return None if incarnation is None else derived(IncarnationView, incarnation)


def job_view(state: RunState, job: Job, node_names: Mapping[str, str]) -> JobView:
    """Return the document of one of the run's jobs; `node_names`: by node id."""
    run = state.run
    return derived(
        JobView,
        job,
        status=_job_status(job),
        pending_reason=_pending_reason(run, job),
        attempts=tuple(_attempt(attempt, node_names) for attempt in job.attempts),
        state=state_of_job(run, job, state.jobs),
        not_ready=_not_ready(job, state.jobs),
    )


def _not_ready(job: Job, jobs: Sequence[Job]) -> str | None:
    if job.spec.serves is None or job.scaled_down:
        return None
    return why_not_ready(job, job.attempts[-1] if job.attempts else None, jobs)


def _job_status(job: Job) -> str:
    if job.retry_at is not None or not job.attempts:
        return RunStatus.PENDING.value
    return job.attempts[-1].status.value


def _pending_reason(run: Run, job: Job) -> str | None:
    if job.retry_at is not None and run.suspended:
        return RunSuspended().sentence()
    if job.retry_at is not None:
        return f"waiting until {iso(job.retry_at)} before the next attempt"
    if held := beginning.why_waits(run, job):
        return held
    return job.attempts[-1].waits_for if job.attempts else None


def _attempt(attempt: Attempt, node_names: Mapping[str, str]) -> AttemptView:
    """Written out: with `derived` the document of a thousand jobs takes 9 ms instead of 7."""
    asked = attempt.interruption
    return AttemptView(
        id=attempt.id,
        status=attempt.status,
        termination_reason=attempt.reason,
        message=attempt.message,
        exit_code=attempt.exit_code,
        node=None if attempt.node_id is None else node_name(attempt, node_names),
        allocation_id=attempt.allocation_id,
        incarnation=_incarnation(attempt.incarnation),
        gpus=attempt.task.gpus,
        ports=attempt.task.ports,
        ssh_host_key=attempt.task.ssh_host_key,
        ready=attempt.serving.ready,
        registered_at=iso_or_none(attempt.serving.registered_at),
        submitted_at=iso(attempt.submitted_at),
        provisioned_at=iso_or_none(attempt.provisioned_at),
        pulling_at=iso_or_none(attempt.pulling_at),
        running_at=iso_or_none(attempt.running_at),
        finished_at=iso_or_none(attempt.finished_at),
        number=attempt.number,
        occurrence=attempt.occurrence,
        rank=attempt.rank,
        later_reasons=attempt.later_reasons,
        disconnected=attempt.disconnected,
        cleanup_unknown=attempt.cleanup_unknown,
        image_digest=attempt.task.image_digest,
        container_started_at=iso_or_none(attempt.seen.container_started_at),
        interrupt_requested_at=None if asked is None else iso(asked.requested_at),
        terminating_at=iso_or_none(attempt.terminating_at),
        state=state_of(attempt.status, attempt.reason),
        outputs=_outputs(attempt),
        deployment=attempt.deployment,
        probes=tuple(
            derived(ProbeView, one, since=iso(one.since)) for one in attempt.serving.probes
        ),
        drains_until=iso_or_none(attempt.drains_until),
        links=attempt.links,
        starts=None if attempt.starts is None else _starts(attempt.starts),
    )


def _starts(starts: Starts) -> StartsView:
    """Without the watchers' ids, which only tell one client from another."""
    ended = starts.ended
    return StartsView(
        asked=starts.asked,
        begun=starts.begun,
        refused=starts.refused,
        ended=None if ended is None else derived(StartEndView, ended),
        watched_until=iso_or_none(starts.watched_until) if starts.watchers else None,
    )


_NO_OUTPUTS = AttemptOutputsView(
    state=OutputsState.NONE, count=0, size=0, left_out=0, left_out_size=0
)


def _outputs(attempt: Attempt) -> AttemptOutputsView:
    state, stored = outputs.state_of(attempt), attempt.seen.outputs
    if state is OutputsState.NONE:
        return _NO_OUTPUTS
    return AttemptOutputsView(
        state=state,
        count=0 if stored is None else stored.files,
        size=0 if stored is None else stored.size,
        left_out=0 if stored is None else stored.left_out,
        left_out_size=0 if stored is None else stored.left_out_size,
    )


def with_collections(view: RunView, progress: Mapping[str, PullProgress]) -> RunView:
    """Return the view with the bytes of the outputs that are being collected now."""
    coming = {
        attempt.id
        for job in view.jobs
        for attempt in job.attempts[-1:]
        if attempt.outputs.state is OutputsState.COLLECTING and attempt.id in progress
    }
    if not coming:
        return view
    jobs = tuple(
        replace(job, attempts=(*job.attempts[:-1], _coming(job.attempts[-1], progress)))
        if job.attempts and job.attempts[-1].id in coming
        else job
        for job in view.jobs
    )
    return replace(view, jobs=jobs)


def _coming(attempt: AttemptView, progress: Mapping[str, PullProgress]) -> AttemptView:
    now = progress[attempt.id]
    coming = replace(attempt.outputs, received=now.downloaded, total=now.total)
    return replace(attempt, outputs=coming)


def past_attempt_view(attempt: Attempt, node_names: Mapping[str, str]) -> PastAttemptView:
    return derived(PastAttemptView, _attempt(attempt, node_names), job_id=attempt.job_id)


def node_name(placed: Attempt | Allocation, node_names: Mapping[str, str]) -> str:
    """Return the node's name; a node that was removed keeps the name that it had."""
    node_id = placed.node_id or ""
    return node_names.get(node_id) or placed.node_name or node_id


def _sleep(run: Run) -> str | None:
    lives = run.status not in FINAL_RUN_STATUSES and not run.suspended
    return SLEEPS if lives and sleeps(run) else None


def _is_on_a_node(job: Job) -> bool:
    """Return whether the job is on a node, or was when it ended: one that was scaled down has left
    its node."""
    if not job.attempts or job.attempts[-1].node_id is None:
        return False
    return not (job.scaled_down and job.attempts[-1].status in FINAL_ATTEMPT_STATUSES)


def run_summary(
    state: RunState, node_names: Mapping[str, str], now: float | None = None
) -> RunSummary:
    run = state.run
    current = [job.attempts[-1] for job in state.jobs if job.attempts]
    placed = [job.attempts[-1] for job in state.jobs if _is_on_a_node(job)]
    pending = (_pending_reason(run, job) for job in state.jobs)
    exit_codes = (attempt.exit_code for attempt in current if attempt.exit_code is not None)
    return derived(
        RunSummary,
        run,
        termination_reason=run.reason,
        pending_reason=next((one for one in pending if one), _held(run) or _sleep(run)),
        nodes=tuple(dict.fromkeys(node_name(attempt, node_names) for attempt in placed)),
        exit_code=max(exit_codes, default=None),
        jobs=sum(not job.scaled_down for job in state.jobs)
        if run.sweep is None
        else run.sweep.total * run.sweep.nodes,
        jobs_running=sum(attempt.status is AttemptStatus.RUNNING for attempt in current),
        next_triggered_at=iso_or_none(next_trigger_at(run)),
        sweep=sweep_view(state, now),
        links=tuple(itertools.islice((one for last in current for one in last.links), MAX_LINKS)),
    )
