"""No attempt stays where it is for nothing (docs/rules.md 2): each that is not final has a
deadline, or waits for something that is named and can still come."""

from __future__ import annotations

from collections.abc import Iterator

from controller.lifecycle.attempts import limits, startup
from controller.lifecycle.attempts.awaited import awaited
from controller.lifecycle.model import Attempt, RunState
from fairlead.model.starts import LEASE_SECONDS
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus
from tests.simulation.container import Container
from tests.simulation.node import SimulatedNode

PATIENCE_SECONDS = 120.0
"""How long something may be as it should not be beside a node and a controller that are well."""

NEARLY = 1.0
"""Seconds; a decision is a little older than its commit."""
TOLD_WITHIN_SECONDS = 10.0
"""The time of an interrupted job's runner beyond `stop_duration`."""

_ON_ITS_WAY = frozenset({AttemptStatus.PROVISIONING, AttemptStatus.PULLING})


def unlimited(state: RunState) -> Iterator[str]:
    """Attempts that this commit leaves without a limit on their way to RUNNING, with one that
    stands still although nothing is in their way, or without words for what they wait for."""
    for attempt in _live(state):
        if awaited(state, attempt) is None:
            yield f"{attempt.id} is {attempt.status}, and nothing says what it waits for"
        if attempt.status not in _ON_ITS_WAY:
            continue
        its_turn = not startup.waits_for_its_turn(state.run, state.jobs, attempt)
        stands_still = attempt.limit_pause.since is not None
        if stands_still and its_turn and not (attempt.disconnected or state.run.suspended):
            yield f"the limit of {attempt.id} stands still, and nothing is in its way"
        if not stands_still and limits.deadline(state.run, attempt) is None:
            yield f"{attempt.id} is {attempt.status} and has no deadline"


def too_far_away(state: RunState, now: float) -> Iterator[str]:
    """A deadline that is further away than its whole limit has been moved by what does not count.
    `now` in Unix seconds."""
    policy = state.run.policy
    service = state.run.deployments[-1].service if state.run.deployments else None
    lengths = {
        "scheduling_timeout": policy.scheduling_timeout or 0.0,
        "no_capacity": max(policy.limits.no_capacity, policy.retry.duration or 0.0),
        "waiting_instance": policy.limits.waiting_instance,
        "waiting_container": policy.limits.waiting_container,
        "gateway": policy.limits.gateway,
        "waiting_runner": policy.limits.waiting_runner,
        "interruption": policy.stop_duration + TOLD_WITHIN_SECONDS,
        "watcher": LEASE_SECONDS,
        "unhealthy_after": (service.unhealthy_after or 0.0) if service is not None else 0.0,
    }
    for attempt in _live(state):
        limit = limits.deadline(state.run, attempt)
        if limit is not None and limit.at - now > lengths[limit.name] + NEARLY:
            yield f"{attempt.id} ends {limit.at - now:.0f} s from now by {limit.name}"


def stuck(
    state: RunState,
    attempt: Attempt,
    node: SimulatedNode | None,
    container: Container | None,
    now: float,
) -> str | None:
    """The truth by which nothing can move this attempt on, or should have done so; None when
    something can. `now` in Unix seconds."""
    limit = limits.deadline(state.run, attempt)
    if limit is not None and now >= limit.at:
        return f"has missed its deadline ({limit.name})"
    if node is None:
        queued = attempt.status is AttemptStatus.SUBMITTED and not attempt.disconnected
        nameless = queued and attempt.pending_reason is None
        return "waits, and nobody says for what" if nameless else None
    if attempt.disconnected:
        return f"waits to hear of {node.name}, which is there"
    task = node.tasks.get(attempt.id)
    match attempt.status:
        case AttemptStatus.PROVISIONING if task is not None:
            return f"waits for {node.name} to accept it, which has done so"
        case AttemptStatus.PULLING if task is None:
            return f"waits for {node.name}, which knows nothing of it"
        case AttemptStatus.PULLING if task is not None and task.info.needs_credentials:
            return f"waits for {node.name}, which waits for credentials"
        case AttemptStatus.RUNNING if container is not None and container.ended.is_set():
            return f"runs on {node.name}, where its container has ended"
        case AttemptStatus.TERMINATING if attempt.carries_until and _carries(container):
            return None  # what runs in its container may take its time (11.14)
        case AttemptStatus.TERMINATING if attempt.remove_at is None or now >= attempt.remove_at:
            return f"does not end on {node.name}"
        case _:
            return None


def _carries(container: Container | None) -> bool:
    return container is not None and container.rides.running is not None


def _live(state: RunState) -> Iterator[Attempt]:
    for job in state.jobs:
        if job.attempts and job.attempts[-1].status not in FINAL_ATTEMPT_STATUSES:
            yield job.attempts[-1]
