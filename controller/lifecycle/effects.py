"""Effects are what the outside must do for an attempt, given its *committed* state.

Effects are level-triggered. `wanted` is called after every commit and every reconnect. The caller
starts the effects that are wanted and not under way, and stops those that are no longer wanted. So
each effect can be repeated, and a crash between commit and effect loses nothing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from controller.lifecycle import outputs
from controller.lifecycle.attempts import inactivity, startup
from controller.lifecycle.attempts.allocations import OCCUPIED, holders
from controller.lifecycle.model import Attempt, Run, RunState
from controller.lifecycle.services.readiness import is_over, probes_of
from fairlead.model.statuses import AttemptStatus


class EffectKind(StrEnum):
    """The kinds of effects. After the arrow: the report that completes the effect."""

    SUBMIT_TASK = "submit_task"
    """PUT the task until the shim has it, and again when it asks for credentials → TaskAccepted or
    TaskRefused."""
    START_JOB = "start_job"
    """Give spec and code to the runner and run them → RunnerStarted."""
    FOLLOW_RUNNER = "follow_runner"
    """Follow the runner's status until it ends → RunnerExited."""
    COLLECT_LOGS = "collect_logs"
    """Store and acknowledge the log → LogsComplete."""
    COLLECT_OUTPUTS = "collect_outputs"
    """Store what the job left in its output folder → OutputsCollected."""
    INTERRUPT_JOB = "interrupt_job"
    """Ask the runner to interrupt the job, so that it ends by itself and can come back."""
    SIGNAL_JOB = "signal_job"
    """Send the job its signal, because an end is foreseen → JobSignalled."""
    START_AGAIN = "start_again"
    """Send what has changed, and have the runner start the job again → StartedAgain,
    StartAgainRefused."""
    SUSPEND_LIMIT = "suspend_limit"
    """Tell the runner that its run is suspended, so that its own `max_duration` stands still."""
    RESUME_LIMIT = "resume_limit"
    """Tell the runner that its run is resumed."""
    STOP_JOB = "stop_job"
    """Send the signal of an end that was not foreseen → JobSignalled. Ask the runner to stop the
    commands, with the grace left until `remove_at`."""
    RUN_BATCH = "run_batch"
    """Give the runner of a carrier the jobs of its batch, and store their logs and ends → Carried,
    RunnerExited, NotReusable."""
    TERMINATE_TASK = "terminate_task"
    """Make the shim end the container; its event stream then reports `terminated`."""
    REMOVE_TASK = "remove_task"
    """Delete the task on the shim, and its allocation unless that is kept → TaskRemoved."""
    PROBE_REPLICA = "probe_replica"
    """Try the probes of a service's replica, or of an IDE in the browser, each at its interval →
    ProbeSeen."""
    WATCH_USE = "watch_use"
    """Look again and again whether a dev environment is in use → InactivitySeen."""
    REGISTER_REPLICA = "register_replica"
    """Expose the replica's port on its node, and have its gateway confirm it → ReplicaRegistered
    or RegistrationFailed."""
    DRAIN_REPLICA = "drain_replica"
    """Wait until no request is in flight at a replica that gets no new ones → ReplicaDrained."""
    RELEASE_ALLOCATION = "release_allocation"
    """Release an allocation whose task is already gone → AllocationReleased."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    kind: EffectKind
    run_id: str
    attempt_id: str
    node_id: str


def wanted(state: RunState, attempt: Attempt, now: float) -> tuple[Effect, ...]:
    """Return the effects that this attempt needs now. There are none while it has no node, or once
    it is final and clean."""
    # All that a carried attempt needs is done with its carrier's.
    if attempt.node_id is None or attempt.carrier:
        return ()
    return tuple(
        Effect(kind=kind, run_id=state.run.id, attempt_id=attempt.id, node_id=attempt.node_id)
        for kind in _kinds(state, attempt, now)
    )


def _kinds(state: RunState, attempt: Attempt, now: float) -> tuple[EffectKind, ...]:
    match attempt.status:
        case AttemptStatus.SUBMITTED:
            return ()
        case AttemptStatus.PROVISIONING:
            return (EffectKind.SUBMIT_TASK,)
        case AttemptStatus.PULLING:
            return _starting_kinds(state, attempt)
        case AttemptStatus.RUNNING:
            following = (EffectKind.FOLLOW_RUNNER, *_collecting(attempt), *_interrupting(attempt))
            following = (*following, *_signalling(attempt), *_starting_again(attempt))
            following = (*following, *_suspending(state.run, attempt))
            following = (*following, *_watching(state, attempt))
            return (*following, *_probing(state, attempt), *_registering(attempt))
        case AttemptStatus.TERMINATING if not attempt.seen.container_gone:
            return _stopping_kinds(state, attempt, now)
        case AttemptStatus.TERMINATING:
            return _cleaning_kinds(attempt)
        case _:
            return _cleaning_kinds(attempt) if attempt.cleanup_unknown else ()


def _starting_kinds(state: RunState, attempt: Attempt) -> tuple[EffectKind, ...]:
    if not attempt.seen.container_started:
        return () if attempt.pull.credentials_asked is None else (EffectKind.SUBMIT_TASK,)
    ready = startup.may_start(state.run, state.jobs, attempt)
    # The log is followed from the start on: a round trip and a commit less to its first line.
    return (EffectKind.START_JOB, *_collecting(attempt, starting=True)) if ready else ()


def _interrupting(attempt: Attempt) -> tuple[EffectKind, ...]:
    return () if attempt.interruption is None else (EffectKind.INTERRUPT_JOB,)


def _signalling(attempt: Attempt) -> tuple[EffectKind, ...]:
    owed = any(not one.sent for one in attempt.signalled)
    return (EffectKind.SIGNAL_JOB,) if owed and not attempt.seen.runner_exited else ()


def _starting_again(attempt: Attempt) -> tuple[EffectKind, ...]:
    owed = attempt.starts is not None and attempt.starts.is_owed
    return (EffectKind.START_AGAIN,) if owed and not attempt.seen.runner_exited else ()


def _suspending(run: Run, attempt: Attempt) -> tuple[EffectKind, ...]:
    """Tell the runner when its run is suspended or resumed: it enforces `max_duration` as a
    backstop.

    An attempt that began after the last suspension was never told of one, so it is not told of the
    end of it.
    """
    if run.policy.max_duration is None:
        return ()
    if run.suspended:
        return (EffectKind.SUSPEND_LIMIT,)
    # Written with the run, not noted here: the controller may have restarted in between.
    heard = run.resumed_at is not None and (attempt.running_at or 0.0) <= run.resumed_at
    return (EffectKind.RESUME_LIMIT,) if heard else ()


def _watching(state: RunState, attempt: Attempt) -> tuple[EffectKind, ...]:
    run = state.run
    watched = inactivity.limit_of(run) is not None and not run.suspended
    return (EffectKind.WATCH_USE,) if watched and not attempt.seen.runner_exited else ()


def _probing(state: RunState, attempt: Attempt) -> tuple[EffectKind, ...]:
    """A replica is probed as long as it runs, unless each of its probes is over."""
    is_reached = state.run.deployments or state.run.policy.dev_environment is not None
    if not is_reached or attempt.seen.runner_exited:
        return ()
    probes = probes_of(next(job for job in state.jobs if job.id == attempt.job_id))
    if not probes:
        return ()
    results = zip(probes, attempt.serving.probes, strict=False)
    over = [is_over(probe, result) for probe, result in results]
    return () if over and all(over) else (EffectKind.PROBE_REPLICA,)


def _registering(attempt: Attempt) -> tuple[EffectKind, ...]:
    waits = attempt.serving.registering_since is not None and attempt.serving.exposed_socket is None
    return (EffectKind.REGISTER_REPLICA,) if waits else ()


def _collecting(attempt: Attempt, *, starting: bool = False) -> tuple[EffectKind, ...]:
    started = starting or attempt.running_at is not None or attempt.seen.runner_exited
    return (EffectKind.COLLECT_LOGS,) if started and not attempt.seen.logs_complete else ()


def _stopping_kinds(state: RunState, attempt: Attempt, now: float) -> tuple[EffectKind, ...]:
    """After the runner's exit the container ends by itself, so that followers can read to the end.
    `remove_at` bounds that too. A member that serves nothing waits for its primary's requests."""
    if attempt.carries_until is not None:
        carries = EffectKind.RUN_BATCH if attempt.carries_until else EffectKind.TERMINATE_TASK
        return (*_collecting(attempt), carries)
    if attempt.remove_at is None or now >= attempt.remove_at:
        return (*_collecting(attempt), EffectKind.TERMINATE_TASK)
    if attempt.seen.runner_exited:
        return _collecting(attempt)
    if attempt.drains_until is not None and now < attempt.drains_until:
        following = (*_collecting(attempt), EffectKind.FOLLOW_RUNNER)
        served = attempt.serving.was_registered
        return (*following, EffectKind.DRAIN_REPLICA) if served else following
    return (*_collecting(attempt), EffectKind.FOLLOW_RUNNER, EffectKind.STOP_JOB)


def _cleaning_kinds(attempt: Attempt) -> tuple[EffectKind, ...]:
    """Return what is left to clean up, also for a final attempt whose lost node came back."""
    if not attempt.seen.container_gone:
        return (EffectKind.TERMINATE_TASK,)
    # The shim deletes log and outputs together with the task, so it goes last.
    kinds = () if attempt.seen.logs_complete else (EffectKind.COLLECT_LOGS,)
    if outputs.wanted(attempt):
        kinds = (*kinds, EffectKind.COLLECT_OUTPUTS)
    if kinds:
        return kinds
    return () if attempt.seen.task_removed else (EffectKind.REMOVE_TASK,)


def releases(state: RunState) -> dict[str, Effect]:
    """Return the allocations to release on a shim although their tasks are gone, by the id of the
    last attempt that had them."""
    idle = [
        allocation
        for allocation in state.allocations
        if allocation.releasing and allocation.state in OCCUPIED
    ]
    if not idle:
        return {}
    last = holders(state.jobs)
    return {
        last[allocation.id].id: Effect(
            kind=EffectKind.RELEASE_ALLOCATION,
            run_id=state.run.id,
            attempt_id=last[allocation.id].id,
            node_id=allocation.node_id,
        )
        for allocation in idle
    }
