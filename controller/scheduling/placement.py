"""One round of the scheduler: gives each waiting job a place or the sentence that says why not.

No job blocks another behind it. Every job is placed on its own here; all-or-nothing placement and
nominations will choose among the same rooms, in which what is nominated counts as taken already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.lifecycle.model import Allocation, Node, NodeStatus, Resources, RunState
from controller.lifecycle.reports import NotPlaced, Placed
from controller.lifecycle.statuses import AllocationState, AttemptStatus
from controller.scheduling.fit import Room, closest, fitting_gpus, in_blocks, room, shortfalls
from controller.scheduling.gpus import choose as choose_gpus
from controller.scheduling.queue import Pending, pending

_STARTING = frozenset({AttemptStatus.PROVISIONING, AttemptStatus.PULLING})


class FirstFit:
    """The scheduler as the turns of the runs call it."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id

    def place(
        self, runs: Iterable[RunState], nodes: Iterable[Node], now: float
    ) -> Sequence[Placed | NotPlaced]:
        """Nothing for a job that still waits for the reason it was told already."""
        states = list(runs)
        waiting = pending(states)
        if not waiting:
            return ()
        held = [a for state in states for a in state.allocations]
        return place(waiting, list(nodes), held, _starts(states), now, self._new_id)


def _starts(states: Iterable[RunState]) -> dict[str, int]:
    starts: dict[str, int] = {}
    for state in states:
        for job in state.jobs:
            last = job.attempts[-1] if job.attempts else None
            if last is not None and last.status in _STARTING and last.node_id is not None:
                starts[last.node_id] = starts.get(last.node_id, 0) + 1
    return starts


def place(
    waiting: Sequence[Pending],
    nodes: Sequence[Node],
    held: Sequence[Allocation],
    starts: Mapping[str, int],
    now: float,
    new_id: Callable[[], str],
) -> list[Placed | NotPlaced]:
    """`waiting` in the order of the queue; `starts`: jobs that are starting, by node id."""
    usable = [n for n in nodes if n.status is NodeStatus.CONNECTED and not n.draining]
    by_node: dict[str, list[Allocation]] = {node.id: [] for node in usable}
    for allocation in held:
        if allocation.node_id in by_node:
            by_node[allocation.node_id].append(allocation)
    rooms = {n.id: room(n, by_node[n.id], starts.get(n.id, 0)) for n in usable}
    results: list[Placed | NotPlaced] = []
    for one in waiting:
        chosen = _choose(one.job.spec.resources, rooms.values())
        if chosen is None:
            results.extend(_not_placed(one, nodes, list(rooms.values())))
            continue
        allocation = _allocate(one, chosen, now, new_id)
        by_node[chosen.node.id].append(allocation)
        rooms[chosen.node.id] = room(chosen.node, by_node[chosen.node.id], chosen.starts + 1)
        results.append(Placed(run_id=one.run.id, attempt_id=one.attempt.id, allocation=allocation))
    return results


def _choose(need: Resources, rooms: Iterable[Room]) -> Room | None:
    """Where the fewest GPUs stay unused, then where the least is starting, then the emptiest."""
    fitting = [free for free in rooms if not shortfalls(need, free)]
    return min(
        fitting,
        key=lambda free: (len(free.gpus), free.starts, -free.cpu, free.node.name),
        default=None,
    )


def _allocate(one: Pending, chosen: Room, now: float, new_id: Callable[[], str]) -> Allocation:
    resources = in_blocks(one.job.spec.resources, chosen.node.capacity)
    fitting = fitting_gpus(resources.gpu, chosen.gpus)
    gpus = (
        chosen.gpus
        if resources.whole_node
        else choose_gpus(fitting, chosen.gpus, resources.gpu.count)
    )
    return Allocation(
        id=new_id(),
        run_id=one.run.id,
        job_id=one.job.id,
        node_id=chosen.node.id,
        state=AllocationState.HELD,
        resources=resources,
        gpus=tuple(gpu.uuid for gpu in gpus),
        created_at=now,
    )


def _not_placed(
    one: Pending, nodes: Sequence[Node], rooms: Sequence[Room]
) -> tuple[NotPlaced, ...]:
    if rooms:
        reason = closest(one.job.spec.resources, rooms)
    elif any(node.status is NodeStatus.CONNECTED for node in nodes):
        reason = "every connected node is draining"
    else:
        reason = "no node is connected"
    if reason == one.attempt.pending_reason:
        return ()
    return (NotPlaced(run_id=one.run.id, attempt_id=one.attempt.id, pending_reason=reason),)
