"""This module names what each attempt waits for, and until when.

docs/rules.md 2.7 promises that every attempt that is not final has a deadline, or waits for
something that can still come. `explain` shows these sentences. The simulation checks the promise
after every commit.
"""

from __future__ import annotations

import msgspec

from controller.lifecycle import outputs
from controller.lifecycle.attempts import limits, startup
from controller.lifecycle.membership.ranks import is_gang_run, ranked_hold_allocations
from controller.lifecycle.model import Attempt, RunState
from fairlead.model.reasons import Reason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus

NOT_LOOKED_AT = "waits for the scheduler to look at it"


class Awaited(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an attempt waits for.

    `until` (Unix seconds) is the latest end of the wait; None: there is no limit. `ends_as` is the
    reason with which the attempt then ends; None: it goes on.
    """

    what: str
    until: float | None = None
    ends_as: Reason | None = None


def awaited(state: RunState, attempt: Attempt) -> Awaited | None:
    """Return what the attempt waits for; None for a final attempt, which waits for nothing."""
    if attempt.status in FINAL_ATTEMPT_STATUSES:
        return None
    if attempt.status is AttemptStatus.TERMINATING:
        end, why = _end(attempt), attempt.waits_for
        return end if why is None else msgspec.structs.replace(end, what=f"{end.what}; {why}")
    if attempt.disconnected:
        return Awaited(what=f"waits for node {_node(attempt)}, which is silent")
    what, limit = _next_step(state, attempt), limits.deadline(state.run, attempt)
    if limit is None:
        return Awaited(what=what)
    return Awaited(what=what, until=limit.at, ends_as=limit.reason)


def _next_step(state: RunState, attempt: Attempt) -> str:
    match attempt.status:
        case AttemptStatus.SUBMITTED:
            return attempt.waits_for or NOT_LOOKED_AT
        case AttemptStatus.PROVISIONING:
            return f"waits for node {_node(attempt)} to accept it"
        case AttemptStatus.PULLING if not attempt.seen.container_started:
            return _container(attempt)
        case AttemptStatus.PULLING:
            return _start(state, attempt)
        case _ if attempt.interruption is not None:
            return "was interrupted, and runs until it ends by itself"
        case _:
            return f"runs on node {_node(attempt)}"


def _container(attempt: Attempt) -> str:
    node = _node(attempt)
    if attempt.pull.credentials_asked is not None:
        return f"node {node} was restarted and is sent the registry's credentials again"
    if attempt.pull.creating_seen:
        return f"waits for node {node} to create its container"
    return f"waits for node {node} to pull its image"


def _start(state: RunState, attempt: Attempt) -> str:
    if not startup.waits_for_its_turn(state.run, state.jobs, attempt):
        return f"waits for its runner on node {_node(attempt)} to start the job"
    if is_gang_run(state.run) and not ranked_hold_allocations(state.run, state.jobs):
        return "waits until every rank has an allocation"
    return startup.its_turn(state.run).sentence()


def _end(attempt: Attempt) -> Awaited:
    node = _node(attempt)
    if attempt.disconnected:
        return Awaited(what=f"ends; waits for node {node}, which is silent")
    if attempt.drains_until is not None and not attempt.seen.container_gone:
        what = "ends; waits for its last requests to be answered"
        return Awaited(what=what, until=attempt.remove_at)
    if not attempt.seen.container_gone and attempt.remove_at is not None:
        what = f"ends; waits for its container on node {node} to stop or be removed"
        return Awaited(what=what, until=attempt.remove_at)
    if not attempt.seen.logs_complete:
        return Awaited(what=f"ends; waits for the rest of its log from node {node}")
    if outputs.wanted(attempt):
        return Awaited(what=f"ends; waits for its outputs from node {node}")
    return Awaited(what=f"ends; waits for node {node} to clean up")


def _node(attempt: Attempt) -> str:
    return attempt.node_name or attempt.node_id or "(none)"
