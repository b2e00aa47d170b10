"""Recalls: what is ordered for jobs that still stop on machines that are taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.lifecycle.gangs import incarnation
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.membership.ranks import is_gang_run
from controller.lifecycle.model import Attempt, Node, RunState
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus


def early_orders(
    ordered: Iterable[Machine], runs: Mapping[str, RunState]
) -> dict[str, list[Machine]]:
    """Return the orders of one commit for runs that still stop because of a recall, by run."""
    found: dict[str, list[Machine]] = {}
    for machine in ordered:
        state = runs.get(machine.run_id or "")
        if state is not None and _stops(state):
            found.setdefault(state.run.id, []).append(machine)
    return found


def kind_of(state: RunState) -> str:
    return "gang" if is_gang_run(state.run) else "alone"


def too_many(state: RunState, ordered: list[Machine], nodes: Mapping[str, Node]) -> str | None:
    """Return what is wrong with an order for a gang whose jobs each take a whole machine: what
    survives needs no other one."""
    if not is_gang_run(state.run) or not incarnation.is_between(state.run, state.jobs):
        return None
    lasts = [job.attempts[-1] for job in state.jobs if job.attempts]
    survives = sum(_survives(one, nodes) for one in lasts)
    if len(ordered) <= len(state.jobs) - survives:
        return None
    return f"{len(ordered)} machines for {len(state.jobs)} ranks, of which {survives} survive"


def _stops(state: RunState) -> bool:
    lasts = (job.attempts[-1] for job in state.jobs if job.attempts)
    return any(
        one.reason is Reason.INTERRUPTED_BY_NO_CAPACITY and one.status is AttemptStatus.TERMINATING
        for one in lasts
    )


def _survives(last: Attempt, nodes: Mapping[str, Node]) -> bool:
    node = nodes.get(last.node_id or "")
    is_well = node is not None and not node.draining and node.unfit is None
    return is_well and last.reason is Reason.INCARNATION_CHANGED
