"""What the outside should be made to do for an attempt, given its *committed* state.

Effects are level-triggered: `wanted` is asked after every commit and after every reconnect, and the
shell starts what is wanted and not under way, stops what is no longer wanted. So each one can be
repeated, and a crash between commit and effect loses nothing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from controller.lifecycle import limits
from controller.lifecycle.allocations import OCCUPIED, holders
from controller.lifecycle.model import Attempt, Run, RunState
from controller.lifecycle.statuses import AttemptStatus


class EffectKind(StrEnum):
    SUBMIT_TASK = "submit_task"
    """PUT the task until the shim has it, and again when it asks for credentials → TaskAccepted or
    TaskRefused."""
    START_JOB = "start_job"
    """Give the runner spec and code and run it → RunnerStarted."""
    FOLLOW_RUNNER = "follow_runner"
    """Follow the runner's status until it ends → RunnerExited."""
    COLLECT_LOGS = "collect_logs"
    """Store and acknowledge the log → LogsComplete."""
    INTERRUPT_JOB = "interrupt_job"
    """Ask the runner to let the job end by itself, so that it can come back."""
    SUSPEND_LIMIT = "suspend_limit"
    """Tell the runner that its run is suspended: its own `max_duration` stands still."""
    RESUME_LIMIT = "resume_limit"
    """Tell the runner that its run goes on."""
    STOP_JOB = "stop_job"
    """Ask the runner to stop the commands, with the grace left until `remove_at`."""
    TERMINATE_TASK = "terminate_task"
    """Make the shim end the container; its stream then says `terminated`."""
    REMOVE_TASK = "remove_task"
    """Delete the task on the shim, and its allocation unless that is kept → TaskRemoved."""
    RELEASE_PLACE = "release_place"
    """Release an allocation whose task is gone already → PlaceReleased."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    kind: EffectKind
    run_id: str
    attempt_id: str
    node_id: str


def wanted(state: RunState, attempt: Attempt, now: float) -> tuple[Effect, ...]:
    """The effects that this attempt needs now; empty while it has no node or is final and clean."""
    if attempt.node_id is None:
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
            return (*following, *_suspending(state.run, attempt))
        case AttemptStatus.TERMINATING if not attempt.container_gone:
            return _stopping_kinds(attempt, now)
        case AttemptStatus.TERMINATING:
            return _cleaning_kinds(attempt)
        case _:
            return _cleaning_kinds(attempt) if attempt.cleanup_unknown else ()


def _starting_kinds(state: RunState, attempt: Attempt) -> tuple[EffectKind, ...]:
    if not attempt.container_started:
        return () if attempt.credentials_asked is None else (EffectKind.SUBMIT_TASK,)
    ready = limits.may_start(state.run, state.jobs, attempt)
    return (EffectKind.START_JOB,) if ready else ()


def _interrupting(attempt: Attempt) -> tuple[EffectKind, ...]:
    return () if attempt.interrupt_requested_at is None else (EffectKind.INTERRUPT_JOB,)


def _suspending(run: Run, attempt: Attempt) -> tuple[EffectKind, ...]:
    """Its runner is the backstop of `max_duration`, and cannot know that no limit counts now. What
    began after the last suspension has never heard of one."""
    if run.policy.max_duration is None:
        return ()
    if run.suspended:
        return (EffectKind.SUSPEND_LIMIT,)
    heard = run.resumed_at is not None and (attempt.running_at or 0.0) <= run.resumed_at
    return (EffectKind.RESUME_LIMIT,) if heard else ()


def _collecting(attempt: Attempt) -> tuple[EffectKind, ...]:
    started = attempt.running_at is not None or attempt.runner_exited
    return (EffectKind.COLLECT_LOGS,) if started and not attempt.logs_complete else ()


def _stopping_kinds(attempt: Attempt, now: float) -> tuple[EffectKind, ...]:
    """After the runner's exit the container ends by itself, so that followers may read to the end;
    `remove_at` bounds that too."""
    if attempt.remove_at is None or now >= attempt.remove_at:
        return (*_collecting(attempt), EffectKind.TERMINATE_TASK)
    if attempt.runner_exited:
        return _collecting(attempt)
    return (*_collecting(attempt), EffectKind.FOLLOW_RUNNER, EffectKind.STOP_JOB)


def _cleaning_kinds(attempt: Attempt) -> tuple[EffectKind, ...]:
    """Also for a final attempt whose node came back after it was given up for lost."""
    if not attempt.container_gone:
        return (EffectKind.TERMINATE_TASK,)
    if not attempt.logs_complete:
        return (EffectKind.COLLECT_LOGS,)
    return () if attempt.task_removed else (EffectKind.REMOVE_TASK,)


def releases(state: RunState) -> dict[str, Effect]:
    """What must be released on a shim though its task is gone already, by the id of the attempt
    that had it last."""
    idle = [place for place in state.allocations if place.releasing and place.state in OCCUPIED]
    if not idle:
        return {}
    last = holders(state.jobs)
    return {
        last[place.id].id: Effect(
            kind=EffectKind.RELEASE_PLACE,
            run_id=state.run.id,
            attempt_id=last[place.id].id,
            node_id=place.node_id,
        )
        for place in idle
    }
