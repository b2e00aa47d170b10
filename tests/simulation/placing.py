"""Where jobs may get places, judged by what was committed (docs/rules.md 5 and 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from controller.lifecycle.events import Event
from controller.lifecycle.model import Allocation, Attempt, Constraint, Node, NodeStatus, RunState
from controller.lifecycle.model import Operator as Op
from controller.scheduling.nominations import NO_LONGER_FITS
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
    AttemptStatus,
)

Nodes = Mapping[str, Node]

_AWAY = frozenset({NodeStatus.UNREACHABLE, NodeStatus.LOST})


def breaches(
    before: RunState | None, after: RunState, nodes: Nodes, nodes_now: Nodes
) -> Iterator[str]:
    """A sentence for each rule that this commit broke. `nodes`: as they were before it, `nodes_now`
    after it; the decision saw one of the two."""
    known = {} if before is None else {a.id: a for job in before.jobs for a in job.attempts}
    kept = set() if before is None else {place.id for place in before.allocations}
    for job in after.jobs:
        for attempt in job.attempts:
            old = known.get(attempt.id)
            if attempt.node_id is None or (old is not None and old.node_id is not None):
                continue
            if attempt.status is not AttemptStatus.PROVISIONING:
                continue
            seen = [one[attempt.node_id] for one in (nodes, nodes_now) if attempt.node_id in one]
            is_new = attempt.allocation_id not in kept
            for wrong in _wrong_about(seen, is_new=is_new):
                yield f"{attempt.id} got a place on {seen[-1].name}, which {wrong}"
            needs = set(job.spec.resources.engine)
            if seen and all(needs & set(one.capacity.engine_lacks) for one in seen):
                yield f"{attempt.id} got a place on {seen[-1].name}, whose engine is another"
            for wrong in _unfit_for(seen, job.spec.fleets, job.spec.constraints):
                yield f"{attempt.id} got a place on {seen[-1].name}: {wrong}"
    yield from _scattered(after, nodes_now)
    yield from _misnamed(after)


def evicted_in_vain(
    events: Iterable[Event], runs: Mapping[str, RunState], has_changed: Callable[[Allocation], bool]
) -> Iterator[str]:
    """A nomination was planned to fit once its victims have left, so it does, unless its node has
    changed. `runs`: as they were before these events."""
    for event in events:
        if event.cause == NO_LONGER_FITS:
            places = [one for one in runs[event.run_id].allocations if one.job_id == event.job_id]
            if not any(has_changed(place) for place in places):
                yield f"{event.attempt_id} evicted others in vain: its nomination does not fit"


def _wrong_about(seen: list[Node], *, is_new: bool) -> Iterator[str]:
    if not seen:
        return
    if all(node.draining for node in seen):
        yield "drains"
    if all(node.status in _AWAY for node in seen):
        yield f"is {seen[-1].status}"
    if is_new and all(node.cordoned for node in seen):
        yield "is cordoned"


def _unfit_for(
    seen: list[Node], fleets: tuple[str, ...], constraints: tuple[Constraint, ...]
) -> Iterator[str]:
    for node in seen[-1:]:
        if fleets and node.fleet not in fleets:
            yield f"it belongs to fleet {node.fleet}, asked was for {', '.join(fleets)}"
        for one in constraints:
            if one.required and not _holds(one, node.attributes):
                yield f"it has not {one.attribute} {one.operator} {' '.join(one.values)}"


def _holds(one: Constraint, attributes: Mapping[str, str]) -> bool:
    """Of the operators and attributes that the workload asks for."""
    value = attributes.get(one.attribute)
    match one.operator:
        case Op.EXISTS:
            return value is not None
        case Op.NOT_EXISTS:
            return value is None
        case Op.EQ | Op.IN:
            return value in one.values
        case Op.NE:
            return value != one.values[0]
        case Op.LT:
            return value is not None and float(value) < float(one.values[0])
        case Op.LE:
            return value is not None and float(value) <= float(one.values[0])
        case Op.GT:
            return value is not None and float(value) > float(one.values[0])
        case Op.GE:
            return value is not None and float(value) >= float(one.values[0])


def _scattered(state: RunState, nodes: Nodes) -> Iterator[str]:
    """`placement: cluster`: all that its jobs hold lies in one fleet, under one value."""
    if not state.run.policy.same_placement:
        return
    domains = {
        (node.fleet if node is not None else None, place.placement)
        for _, place in _in_use(state)
        for node in (nodes.get(place.node_id),)
    }
    if len(domains) > 1:
        yield f"run {state.run.name} of one cluster lies in {sorted(map(str, domains))}"
        return
    named = any(value for _, value in domains)
    is_alone = len(state.jobs) < 2 or _grew(state)
    if domains and not named and state.run.incarnation is None and not is_alone:
        yield f"run {state.run.name} of one cluster lies under no placement value"


def _grew(state: RunState) -> bool:
    """Return whether jobs came later, by `scale`: a single job may lie anywhere, and the later ones
    go where it is."""
    firsts = [job.attempts[0] for job in state.jobs if job.attempts]
    return len({one.submitted_at for one in firsts if one.number == 0}) > 1


def _misnamed(state: RunState) -> Iterator[str]:
    """`monitoring_descriptor`: by rank where the group asks for it, else a name of its own."""
    run = state.run
    asks = {group.name: at for at, group in enumerate(run.groups) if group.monitoring_by_rank}
    bits = (len(run.groups) - 1).bit_length()
    names = []
    group_of = {job.id: job.group for job in state.jobs}
    for attempt, place in _in_use(state):
        name, at = place.monitoring_descriptor, asks.get(group_of[attempt.job_id])
        names.append(name)
        if at is not None and attempt.rank is not None:
            wanted = f"{run.id}/{attempt.rank << bits | at}"
            if name != wanted:
                yield f"the place of {attempt.id} is monitored as {name}, not as {wanted}"
        elif not name or name.startswith(f"{run.id}/"):
            yield f"the place of {attempt.id}, which has no rank, is monitored as {name}"
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{count} places of run {run.name} are monitored as {name}"


def _in_use(state: RunState) -> Iterator[tuple[Attempt, Allocation]]:
    """The live attempts that have their places, with these."""
    places = {place.id: place for place in state.allocations}
    for job in state.jobs:
        for attempt in job.attempts:
            place = places.get(attempt.allocation_id or "")
            if place is None or attempt.status in FINAL_ATTEMPT_STATUSES:
                continue
            if place.state is AllocationState.HELD:
                yield attempt, place


def names_taken_twice(runs: Mapping[str, RunState]) -> Iterator[str]:
    """A name belongs to one live run."""
    names = Counter(
        state.run.name for state in runs.values() if state.run.status not in FINAL_RUN_STATUSES
    )
    for name, count in names.items():
        if count > 1:
            yield f"{count} live runs have the name {name}"
