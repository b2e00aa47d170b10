"""The capacity index: what each node has free, updated by every change of runs and nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from controller.lifecycle.attempts.allocations import use_of
from controller.lifecycle.machines.model import Machine, MachineStatus, capacity_of
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Fleet,
    Node,
    NodeCapacity,
    NodeStatus,
    RunState,
    Use,
)
from controller.scheduling.fair_share import UseMeter
from controller.scheduling.fitting.capacity import Needs, Scope, Shape, Shapes, Tiers
from controller.scheduling.fitting.constraints import (
    Domain,
    attributes_of,
    disliked,
    domain_of,
    unmet,
)
from controller.scheduling.fitting.fit import OCCUPYING, Room, room
from controller.scheduling.queue import (
    Unit,
    is_gang_between,
    is_starting,
    recalled_attempts,
    returning_units,
    waiting_units,
)
from fairlead.model.spec import Band
from fairlead.model.statuses import AllocationState
from fairlead.wire.amounts import amounts_of

_MAX_SCOPES = 64
"""The number of scopes that are kept sorted; one more clears them all."""
Where: TypeAlias = Domain | None
"""A domain; None: everywhere."""
COMES_BACK_SECONDS = 300.0
"""A node that was connected, or whose health check passed, longer ago is not waited for."""


def is_usable(node: Node) -> bool:
    """Return whether a new job may be placed there now."""
    return not node.cordoned and keeps_its_allocations(node)


def keeps_its_allocations(node: Node) -> bool:
    """Return whether a gang may start again in the allocation it held there. A cordon concerns only
    new jobs."""
    return not node.draining and node.unfit is None and node.status is NodeStatus.CONNECTED


def comes_back(node: Node, now: float) -> bool:
    """Return whether new jobs may be placed there once it is connected, which is tried, or passes
    its health check, and whether neither has failed for long."""
    if node.cordoned or node.draining:
        return False
    if node.unfit is not None:
        # An engine is restarted, a clock is set. A missing GPU is no room, however long this waits.
        if node.unfit_since is None or now - node.unfit_since >= COMES_BACK_SECONDS:
            return False
        if node.status is NodeStatus.CONNECTED:
            return True
    # A shim that answers and then fails each time is never silent, so never unreachable.
    tried_for = 0.0 if node.last_seen_at is None else now - node.last_seen_at
    return node.status is NodeStatus.CONNECTING and tried_for < COMES_BACK_SECONDS


def why_given_up(node: Node | None) -> str | None:
    """Return why nothing waits for this node to take work again; None: a node that is only silent
    is waited for."""
    if node is None or node.status is NodeStatus.LOST:
        return "a nominated node is lost"
    if node.draining or node.cordoned or node.unfit is not None:
        return f"node {node.name} takes no more work"
    return None


class CapacityIndex:
    """The free capacity of all nodes and the waiting units, kept up to date by changes."""

    def __init__(self, past_use: Iterable[Use] = ()) -> None:
        self.nodes: dict[str, Node] = {}
        self.fleets: dict[str, Fleet] = {}
        self.rooms: dict[str, Room] = {}
        self.full: dict[str, None] = {}
        """The nodes where no further run can have a network: mostly none."""
        """The free capacity of the usable nodes."""
        self.shapes: dict[str, Shape] = {}
        self.domains: dict[Domain, dict[str, None]] = {}
        """The usable nodes by domain; a node whose placement value is unknown is in none."""
        self.units: dict[str, tuple[Unit, ...]] = {}
        """The waiting units by run."""
        self.returning: dict[str, tuple[Unit, ...]] = {}
        """The units by run that will wait once their attempts have stopped."""
        self.recalled: dict[str, tuple[Attempt, ...]] = {}
        """The attempts by run that stop because their provider takes their machine back."""
        self.gangs_between: dict[str, RunState] = {}
        """The runs whose gang will wait once all its attempts have stopped."""
        self.promised: dict[str, NodeCapacity] = {}
        """What rented machines that are no nodes yet will have, by the ids of their nodes."""
        self.nominations: dict[str, Allocation] = {}
        """All nominated allocations by their id."""
        self.nomination_on: dict[str, str] = {}
        """The id of the nomination that waits for an allocation, by the id of that allocation."""
        self.use = UseMeter()
        self.needs = Needs()
        self.shape_of = Shapes().of
        self.growth = 0
        """Grows whenever room may have come free that was not there before."""
        self.states: dict[str, RunState] = {}
        self.bands: Counter[Band] = Counter()
        """How many of `states` are of each band: each pass asks, and counting takes as long as
        there are runs."""
        self.taken: dict[str, dict[str, Allocation]] = {}
        """The allocations that occupy each node, by id."""
        self._starts: dict[str, int] = {}
        self._domain_of: dict[str, Domain] = {}
        self._dirty: dict[str, None] = {}
        self._sorted: dict[Where, dict[Scope, Tiers]] = {}
        for use in past_use:
            self.use.add(use)

    # -- changes ----------------------------------------------------------------------------

    def run_changed(self, run_id: str, state: RunState | None) -> None:
        """Update the index with a run's new state; None: as if the run had never existed."""
        before = self.states.get(run_id)
        if before is state:
            return
        self._change_allocations(before, state)
        self._change_starts(before, -1)
        self._change_starts(state, 1)
        units = () if state is None else waiting_units(state, self.needs)
        if units:
            self.units[run_id] = units
        else:
            self.units.pop(run_id, None)
        self.returning.pop(run_id, None)
        if state is not None and (back := returning_units(state, self.needs)):
            self.returning[run_id] = back
        self.recalled.pop(run_id, None)
        if state is not None and (recalled := recalled_attempts(state)):
            self.recalled[run_id] = recalled
        self.gangs_between.pop(run_id, None)
        if state is not None and is_gang_between(state):
            self.gangs_between[run_id] = state
        self._put(run_id, state)

    @contextmanager
    def with_run(self, state: RunState) -> Iterator[None]:
        """Let the index have a run that is not submitted, for a preview."""
        self.run_changed(state.run.id, state)
        try:
            yield
        finally:
            self.run_changed(state.run.id, None)

    def run_trimmed(self, state: RunState) -> None:
        """Replace the state by one with less history; what the run used stays counted."""
        self._put(state.run.id, state)

    def run_over(self, run_id: str) -> None:
        """Forget a run that never changes again; what it used stays counted."""
        self._put(run_id, None)

    def _put(self, run_id: str, state: RunState | None) -> None:
        before = self.states.get(run_id)
        if before is not None:
            self.bands[before.run.policy.band] -= 1
        if state is not None:
            self.bands[state.run.policy.band] += 1
            self.states[run_id] = state
        else:
            self.states.pop(run_id, None)

    def node_changed(self, node_id: str, node: Node | None) -> None:
        before = self.nodes.get(node_id)
        if before is node:
            return
        if node is None:
            del self.nodes[node_id]
        else:
            self.nodes[node_id] = node
        if node is None or before is None or _as_seen(before) != _as_seen(node):
            # Its attributes may have changed, so it must be sorted into domains and tiers again.
            self._forget_room(node_id)
            self._dirty[node_id] = None
            self.growth += 1

    def fleet_changed(self, name: str, fleet: Fleet | None) -> None:
        if self.fleets.get(name) == fleet:
            return
        if fleet is None:
            self.fleets.pop(name, None)
        else:
            self.fleets[name] = fleet
        self.growth += 1
        for node in self.nodes.values():
            if node.fleet == name:
                self._forget_room(node.id)
                self._dirty[node.id] = None

    def machine_changed(self, machine: Machine) -> None:
        """Update what the machine promises. Its node changes with it, so this is no growth."""
        if machine.status is MachineStatus.PROVISIONING:
            self.promised[machine.id] = capacity_of(machine.offer)
        else:
            self.promised.pop(machine.id, None)

    def refresh(self) -> None:
        """Bring the rooms up to date with all changes."""
        for node_id in self._dirty:
            node = self.nodes.get(node_id)
            if node is None or not is_usable(node):
                self._forget_room(node_id)
                continue
            self._set_room(node)
        self._dirty.clear()

    def _set_room(self, node: Node) -> None:
        taken = self.taken.get(node.id, {})
        fresh = room(node, taken.values(), self._starts.get(node.id, 0))
        shape = self.shape_of(fresh)
        is_new = node.id not in self.rooms
        self.rooms[node.id], self.shapes[node.id] = fresh, shape
        note_networks(self.full, node.id, fresh)
        if is_new:
            domain = domain_of(node, self.fleets)
            if domain is not None:
                self._domain_of[node.id] = domain
                self.domains.setdefault(domain, {})[node.id] = None
        for scope, tiers in self._sorted_with(node.id):
            if node.id in tiers:
                tiers.put(fresh, shape)
            elif is_new and (tier := self.tier(node, scope)) is not None:
                tiers.put(fresh, shape, tier)

    def _forget_room(self, node_id: str) -> None:
        before = self.rooms.pop(node_id, None)
        if before is None:
            return
        del self.shapes[node_id]
        self.full.pop(node_id, None)
        for _, tiers in self._sorted_with(node_id):
            tiers.remove(node_id, before.node.name)
        domain = self._domain_of.pop(node_id, None)
        if domain is not None:
            del self.domains[domain][node_id]
            if not self.domains[domain]:
                del self.domains[domain]
                self._sorted.pop(domain, None)

    def _sorted_with(self, node_id: str) -> Iterator[tuple[Scope, Tiers]]:
        yield from self._sorted.get(None, {}).items()
        domain = self._domain_of.get(node_id)
        if domain is not None:
            yield from self._sorted.get(domain, {}).items()

    def _change_allocations(self, before: RunState | None, state: RunState | None) -> None:
        old = {} if before is None else {a.id: a for a in before.allocations}
        new = {} if state is None else {a.id: a for a in state.allocations}
        for key, allocation in old.items():
            if new.get(key) is not allocation and before is not None:
                self._give_back(allocation, before.run.user)
        for key, allocation in new.items():
            if old.get(key) is not allocation and state is not None:
                self._take(allocation, state.run.user)

    def _take(self, allocation: Allocation, user: str) -> None:
        if allocation.state in OCCUPYING:
            self.taken.setdefault(allocation.node_id, {})[allocation.id] = allocation
            self._dirty[allocation.node_id] = None
        if allocation.state is AllocationState.NOMINATED:
            self.nominations[allocation.id] = allocation
            self.nomination_on.update(dict.fromkeys(allocation.victims, allocation.id))
        elif not allocation.victims:
            self.use.add(use_of(allocation, user))

    def _give_back(self, allocation: Allocation, user: str) -> None:
        if allocation.state in OCCUPYING:
            here = self.taken[allocation.node_id]
            del here[allocation.id]
            if not here:
                del self.taken[allocation.node_id]
            self._dirty[allocation.node_id] = None
            self.growth += 1
        if allocation.state is AllocationState.NOMINATED:
            del self.nominations[allocation.id]
            for victim in allocation.victims:
                self.nomination_on.pop(victim, None)
        elif not allocation.victims:
            self.use.take_away(use_of(allocation, user))

    def _change_starts(self, state: RunState | None, by: int) -> None:
        for job in () if state is None else state.jobs:
            last = job.attempts[-1] if job.attempts else None
            if last is None or last.node_id is None or not is_starting(last):
                continue
            starts = self._starts.get(last.node_id, 0) + by
            if starts:
                self._starts[last.node_id] = starts
            else:
                del self._starts[last.node_id]
            self._dirty[last.node_id] = None
            if by < 0:
                self.growth += 1

    # -- questions --------------------------------------------------------------------------

    def tier(self, node: Node, scope: Scope) -> int | None:
        """Return how many preferences the node misses; None: the job may not use it."""
        fleets, constraints = scope
        if fleets and node.fleet not in fleets:
            return None
        if not constraints:
            return 0
        attributes = attributes_of(node, self.fleets.get(node.fleet))
        if unmet(constraints, attributes) is not None:
            return None
        return disliked(constraints, attributes)

    def sorted(self, scope: Scope, where: Where = None) -> Tiers:
        """Return the usable nodes of a scope, everywhere or in one domain. Do not change them: they
        belong to the index."""
        known = self._sorted.setdefault(where, {})
        if scope not in known:
            # Each job that avoids the nodes of its last attempts has a scope of its own.
            if len(known) >= _MAX_SCOPES:
                known.clear()
            known[scope] = self._sort(scope, where)
        return known[scope]

    def _sort(self, scope: Scope, where: Where) -> Tiers:
        made = Tiers()
        for node_id in self.rooms if where is None else self.domains.get(where, ()):
            tier = self.tier(self.nodes[node_id], scope)
            if tier is not None:
                made.put(self.rooms[node_id], self.shapes[node_id], tier)
        return made

    def domain(self, node_id: str) -> Where:
        return self._domain_of.get(node_id)

    def starts(self, node_id: str) -> int:
        return self._starts.get(node_id, 0)

    def attempt_with(self, allocation: Allocation) -> Attempt | None:
        """Return the attempt that has this allocation now."""
        state = self.states.get(allocation.run_id)
        for job in () if state is None else state.jobs:
            if job.attempts and job.attempts[-1].allocation_id == allocation.id:
                return job.attempts[-1]
        return None


def _as_seen(node: Node) -> tuple[object, ...]:
    held = tuple((task.id, amounts_of(task), task.gpus) for task in node.quarantine)
    works = (is_usable(node), why_given_up(node) is None)
    return (works, node.name, node.fleet, node.attributes, node.capacity, held)


def note_networks(full: dict[str, None], node_id: str, free: Room) -> None:
    """Note whether the node has a network left."""
    if free.networks is not None and free.networks < 1:
        full[node_id] = None
    elif full:  # the check is in the way of each change of a room
        full.pop(node_id, None)
