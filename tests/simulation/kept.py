"""A place that a switch frees goes to no other run until the gang is whole or gives up
(docs/rules.md 5), judged by its commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from controller.lifecycle.model import Allocation, Attempt, Job, Node, NodeStatus, RunState
from fairlead.model.reasons import Reason
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
    AttemptStatus,
)
from fairlead.model.statuses import RunStatus as Status

Runs = Mapping[str, RunState]

_TAKING = frozenset({AllocationState.HELD, AllocationState.ORPHANED})


class FreedPlaces:
    """Which gangs have a right to which former places of theirs."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Allocation]] = {}

    def forget(self) -> None:
        """The database was restored."""
        self._of.clear()

    def breaches(self, before: Runs, after: Runs, nodes: Mapping[str, Node]) -> Iterator[str]:
        """`before` and `after` this commit, all runs."""
        changed = [run_id for run_id in after if before.get(run_id) is not after[run_id]]
        claimed = _claimed(before.values()) | _claimed(after.values())
        for run_id in changed:
            self._follow(before.get(run_id), after[run_id], claimed)
        for freed in self._of.values():
            for place in [one for one in freed.values() if not _is_usable(one, nodes)]:
                del freed[place.id]
        fresh = {place.id for run_id in changed for place in _fresh(before, after[run_id])}
        for run_id, freed in self._of.items():
            for place in freed.values():
                yield from _taken_away(after[run_id], place, fresh, after, nodes[place.node_id])

    def _follow(self, before: RunState | None, after: RunState, claimed: set[str]) -> None:
        run_id = after.run.id
        if before is None or not _goes_on(after) or _began_anew_elsewhere(before, after):
            self._of.pop(run_id, None)
            return
        freed = self._of.setdefault(run_id, {})
        for place in _freed_now(before, after):
            if place.id not in claimed:
                freed[place.id] = place
        for place in _fresh({run_id: before}, after):
            here = [one for one in freed.values() if one.node_id == place.node_id]
            for one in sorted(here, key=lambda one: one.resources != place.resources)[:1]:
                del freed[one.id]


def _goes_on(state: RunState) -> bool:
    """It is not whole, and has places in which it may go on."""
    run = state.run
    over = {*FINAL_RUN_STATUSES, Status.TERMINATING}
    if run.incarnation is None or run.status in over or run.suspended:
        return False
    if not run.switches or run.switches[-1].whole:
        return False
    lasts = [(job, job.attempts[-1]) for job in state.jobs if job.attempts]
    current = [(job, last) for job, last in lasts if _is_current(state, last)]
    if not current:
        return any(_may_survive(state, job, last) for job, last in lasts)
    if all(last.status in FINAL_ATTEMPT_STATUSES for _, last in current):
        return any(_is_held(place) for place in state.allocations)
    ranked = [(job, last) for job, last in current if last.rank is not None]
    if all(job.abandoned or _was_there(state, job) for job, _ in ranked):
        return False
    return any(last.provisioned_at is not None for _, last in ranked)


def _began_anew_elsewhere(before: RunState, after: RunState) -> bool:
    """No place of the old incarnation survived: it queued whole, perhaps for a moment only."""
    old, new = before.run.incarnation, [last for last in _lasts(after) if _is_current(after, last)]
    if not new or any(last.incarnation == new[0].incarnation for last in _lasts(before)):
        return False
    held = {one.id for one in before.allocations if one.state is AllocationState.HELD}
    return old is not None and not any(last.allocation_id in held for last in new)


def _lasts(state: RunState) -> list[Attempt]:
    return [job.attempts[-1] for job in state.jobs if job.attempts]


def _is_current(state: RunState, attempt: Attempt) -> bool:
    run = state.run
    return (attempt.occurrence, attempt.incarnation) == (run.occurrence, run.incarnation)


def _may_survive(state: RunState, job: Job, last: Attempt) -> bool:
    if job.abandoned or last.occurrence != state.run.occurrence:
        return False
    done = last.reason is Reason.DONE_BY_RUNNER and last.rank is not None
    if not (done or last.reason is Reason.INCARNATION_CHANGED):
        return False
    return any(place.id == last.allocation_id and _is_held(place) for place in state.allocations)


def _is_held(place: Allocation) -> bool:
    return place.state is AllocationState.HELD and not place.releasing


def _was_there(state: RunState, job: Job) -> bool:
    return any(
        one.pull.creating_seen
        or one.seen.container_started
        or one.running_at is not None
        or one.status is AttemptStatus.DONE
        for one in job.attempts
        if _is_current(state, one)
    )


def _freed_now(before: RunState, after: RunState) -> Iterator[Allocation]:
    """The places of the last incarnation that were held, and are not since this commit."""
    held = {one.id for one in before.allocations if one.state is AllocationState.HELD}
    gone = {one.id: one for one in after.allocations if one.state is AllocationState.RELEASED}
    number = 0 if after.run.incarnation is None else after.run.incarnation.number
    for job in after.jobs:
        for attempt in () if job.abandoned else job.attempts:
            place = gone.get(attempt.allocation_id or "")
            if place is None or place.id not in held or attempt.incarnation is None:
                continue
            if attempt.incarnation.number == number - 1:
                yield place


def _fresh(before: Runs, after: RunState) -> Iterator[Allocation]:
    old = before.get(after.run.id)
    held = set() if old is None else {one.id for one in old.allocations if one.state in _TAKING}
    for place in after.allocations:
        if place.state is AllocationState.HELD and place.id not in held:
            yield place


def _claimed(runs: Iterable[RunState]) -> set[str]:
    """The places on which nominations lie, those of switches apart."""
    return {
        victim
        for state in runs
        for place in state.allocations
        if place.state is AllocationState.NOMINATED and not place.freed
        for victim in place.victims
    }


def _is_usable(place: Allocation, nodes: Mapping[str, Node]) -> bool:
    node = nodes.get(place.node_id)
    if node is None or node.status is NodeStatus.LOST:
        return False
    return not (node.draining or node.cordoned or node.unfit)


def _taken_away(
    owner: RunState, place: Allocation, fresh: set[str], runs: Runs, node: Node
) -> Iterator[str]:
    there = [
        (state, one)
        for state in runs.values()
        for one in state.allocations
        if one.node_id == place.node_id and one.state in _TAKING
    ]
    others = [state for state, one in there if one.id in fresh and state is not owner]
    if others and not _has_room(node, place, [one for _, one in there]):
        yield (
            f"a place of gang {owner.run.name} on {node.name} went to {others[0].run.name} before "
            f"the gang was whole"
        )


def _has_room(node: Node, place: Allocation, taken: list[Allocation]) -> bool:
    if any(one.resources.whole_node for one in (place, *taken)):
        return not taken
    used = {uuid for one in taken for uuid in one.gpus}
    cpu = sum(one.resources.cpu for one in (place, *taken))
    memory = sum(one.resources.memory for one in (place, *taken))
    fits = cpu <= node.capacity.cpu + 1e-6 and memory <= node.capacity.memory
    networks = node.capacity.networks
    if networks is not None and len({one.run_id for one in (place, *taken)}) > networks:
        return False
    return fits and used.isdisjoint(place.gpus)
