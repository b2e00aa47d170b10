"""Make the documents of the API from the controller's values, with pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from controller.api.documents import (
    AllocationView,
    AttemptView,
    ChildView,
    GroupView,
    IncarnationView,
    JobView,
    OccurrenceView,
    PastAttemptView,
    RunSummary,
    RunView,
    SwitchView,
)
from controller.lifecycle.gangs import incarnation
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Group,
    Incarnation,
    Job,
    Occurrence,
    Run,
    RunState,
    Switch,
)
from controller.lifecycle.pending_reasons import RunSuspended
from controller.lifecycle.reasons import state_of
from controller.lifecycle.run_status import state_of_job
from controller.lifecycle.schedules import next_trigger_at
from controller.lifecycle.statuses import AllocationState, AttemptStatus, RunStatus


def iso(time: float) -> str:
    """Return the time (Unix seconds) as ISO 8601."""
    moment = datetime.fromtimestamp(round(time, 3), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_or_none(time: float | None) -> str | None:
    return None if time is None else iso(time)


def run_view(
    state: RunState, node_names: Mapping[str, str], children: Iterable[RunState] = ()
) -> RunView:
    """Return the run's document; `node_names`: by node id."""
    run = state.run
    gathers = incarnation.gathering(run, state.jobs)
    return RunView(
        id=run.id,
        name=run.name,
        type=run.type,
        user=run.user,
        status=run.status,
        termination_reason=run.reason,
        message=run.message,
        incarnation=_incarnation(run.incarnation),
        gathering=None if gathers is None else str(gathers),
        gives_up_at=None if gathers is None else iso(gathers.gives_up_at),
        occurrence=run.occurrence,
        next_triggered_at=iso_or_none(next_trigger_at(run)),
        suspended=run.suspended,
        parent_id=run.parent_id,
        deployment=run.deployment,
        switches=tuple(_switch(switch) for switch in run.switches),
        jobs=tuple(_job(state, job, node_names) for job in state.jobs),
        groups=tuple(_group(group) for group in run.groups),
        allocations=tuple(
            _allocation(one, node_names)
            for one in state.allocations
            if one.state is not AllocationState.RELEASED
        ),
        occurrences=tuple(_occurrence(one) for one in run.occurrences),
        triggered_at=iso_or_none(run.triggered_at),
        schedule=run.policy.schedule,
        children=tuple(
            ChildView(id=child.run.id, name=child.run.name, status=child.run.status)
            for child in children
        ),
        priority=run.policy.priority,
        band=run.policy.band,
        submitted_at=iso(run.submitted_at),
        finished_at=iso_or_none(run.finished_at),
    )


def _group(group: Group) -> GroupView:
    return GroupView(
        name=group.name,
        nodes=group.nodes,
        gang_size=group.gang_size,
        share_nodes=group.share_nodes,
    )


def _allocation(allocation: Allocation, node_names: Mapping[str, str]) -> AllocationView:
    return AllocationView(
        id=allocation.id,
        job_id=allocation.job_id,
        node=node_name(allocation, node_names),
        state=allocation.state,
        gpus=allocation.gpus,
        cpu=allocation.resources.cpu,
        memory=allocation.resources.memory,
        whole_node=allocation.resources.whole_node,
        placement=allocation.placement,
        monitoring_descriptor=allocation.monitoring_descriptor,
        created_at=iso(allocation.created_at),
        released_at=iso_or_none(allocation.released_at),
    )


def _occurrence(occurrence: Occurrence) -> OccurrenceView:
    return OccurrenceView(
        number=occurrence.number,
        status=occurrence.status,
        termination_reason=occurrence.reason,
        message=occurrence.message,
        started_at=iso(occurrence.started_at),
        finished_at=iso(occurrence.finished_at),
    )


def _incarnation(incarnation: Incarnation | None) -> IncarnationView | None:
    if incarnation is None:
        return None
    return IncarnationView(number=incarnation.number, id=incarnation.id)


def _switch(switch: Switch) -> SwitchView:
    return SwitchView(
        reason=switch.reason,
        attempt_id=switch.attempt_id,
        attempt_reason=switch.attempt_reason,
        message=switch.message,
        at=iso(switch.at),
        incarnation=switch.incarnation,
        whole=switch.whole,
    )


def _job(state: RunState, job: Job, node_names: Mapping[str, str]) -> JobView:
    run = state.run
    return JobView(
        id=job.id,
        group=job.group,
        replica=job.replica,
        cookie=job.cookie,
        index=job.index,
        rank=job.rank,
        status=_job_status(job),
        pending_reason=_pending_reason(run, job),
        attempts=tuple(_attempt(attempt, node_names) for attempt in job.attempts),
        abandoned=job.abandoned,
        scaled_down=job.scaled_down,
        retry_at=iso_or_none(job.retry_at),
        state=state_of_job(run, job, state.jobs),
    )


def _job_status(job: Job) -> str:
    if job.retry_at is not None or not job.attempts:
        return RunStatus.PENDING.value
    return job.attempts[-1].status.value


def _pending_reason(run: Run, job: Job) -> str | None:
    if job.retry_at is not None and run.suspended:
        return RunSuspended().sentence()
    if job.retry_at is not None:
        return f"waiting until {iso(job.retry_at)} before the next attempt"
    why = job.attempts[-1].pending_reason if job.attempts else None
    return None if why is None else why.sentence()


def _attempt(attempt: Attempt, node_names: Mapping[str, str]) -> AttemptView:
    return AttemptView(
        id=attempt.id,
        status=attempt.status,
        termination_reason=attempt.reason,
        message=attempt.message,
        exit_code=attempt.exit_code,
        node=None if attempt.node_id is None else node_name(attempt, node_names),
        allocation_id=attempt.allocation_id,
        incarnation=_incarnation(attempt.incarnation),
        gpus=attempt.gpus,
        ports=attempt.ports,
        ssh_host_key=attempt.ssh_host_key,
        ready=attempt.ready,
        registered_at=iso_or_none(attempt.registered_at),
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
        image_digest=attempt.image_digest,
        container_started_at=iso_or_none(attempt.container_started_at),
        interrupt_requested_at=iso_or_none(attempt.interrupt_requested_at),
        terminating_at=iso_or_none(attempt.terminating_at),
        state=state_of(attempt.status, attempt.reason),
    )


def past_attempt_view(attempt: Attempt, node_names: Mapping[str, str]) -> PastAttemptView:
    shown = msgspec.structs.asdict(_attempt(attempt, node_names))
    return PastAttemptView(**shown, job_id=attempt.job_id)


def node_name(placed: Attempt | Allocation, node_names: Mapping[str, str]) -> str:
    """Return the node's name; a node that was removed keeps the name that it had."""
    node_id = placed.node_id or ""
    return node_names.get(node_id) or placed.node_name or node_id


def run_summary(state: RunState, node_names: Mapping[str, str]) -> RunSummary:
    run = state.run
    current = [job.attempts[-1] for job in state.jobs if job.attempts]
    placed = [attempt for attempt in current if attempt.node_id is not None]
    pending = (_pending_reason(run, job) for job in state.jobs)
    exit_codes = (attempt.exit_code for attempt in current if attempt.exit_code is not None)
    return RunSummary(
        id=run.id,
        name=run.name,
        type=run.type,
        user=run.user,
        status=run.status,
        termination_reason=run.reason,
        message=run.message,
        pending_reason=next((reason for reason in pending if reason), None),
        nodes=tuple(dict.fromkeys(node_name(attempt, node_names) for attempt in placed)),
        exit_code=max(exit_codes, default=None),
        submitted_at=iso(run.submitted_at),
        finished_at=iso_or_none(run.finished_at),
        jobs=sum(not job.scaled_down for job in state.jobs),
        jobs_running=sum(attempt.status is AttemptStatus.RUNNING for attempt in current),
        suspended=run.suspended,
        next_triggered_at=iso_or_none(next_trigger_at(run)),
        parent_id=run.parent_id,
    )
