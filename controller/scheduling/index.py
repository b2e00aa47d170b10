"""What the scheduler knows between its rounds: who waits, what is taken on each node, who has used
how much. Each change of a run or node costs that run or node alone.

It says nothing that the states do not: `run_changed` with the states as they are gives the same
index as one made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from controller.lifecycle.model import Allocation, Attempt, Fleet, Node, NodeStatus, RunState, Use
from controller.lifecycle.statuses import AllocationState
from controller.lifecycle.using import use_of
from controller.scheduling.attributes import Domain, attributes_of, domain_of
from controller.scheduling.constraints import disliked, unmet
from controller.scheduling.fit import OCCUPYING, Room, room
from controller.scheduling.needs import Needs, Scope, Shape, Shapes
from controller.scheduling.shelves import Tiers
from controller.scheduling.units import Unit, is_starting, waiting_units
from controller.scheduling.use import UseMeter

_MOST_SCOPES = 64
"""That are kept sorted; a further one begins anew."""

Where: TypeAlias = Domain | None
"""None: everywhere."""


def is_usable(node: Node) -> bool:
    """Whether something new may be placed there now."""
    return not node.cordoned and keeps_its_places(node)


def keeps_its_places(node: Node) -> bool:
    """Whether a gang may begin again in the place it held there: a cordon is for what is new."""
    return not node.draining and node.unfit is None and node.status is NodeStatus.CONNECTED


def why_given_up(node: Node | None) -> str | None:
    """Why nothing waits for this node to take work again; None: one that is only silent is waited
    for."""
    if node is None or node.status is NodeStatus.LOST:
        return "a nominated node is lost"
    if node.draining or node.cordoned or node.unfit is not None:
        return f"node {node.name} takes no work any more"
    return None


class Index:
    def __init__(self, past_use: Iterable[Use] = ()) -> None:
        self.nodes: dict[str, Node] = {}
        self.fleets: dict[str, Fleet] = {}
        self.rooms: dict[str, Room] = {}
        """Of the usable nodes."""
        self.shapes: dict[str, Shape] = {}
        self.domains: dict[Domain, dict[str, None]] = {}
        """The usable nodes by placement value; those whose value is unknown are in none."""
        self.units: dict[str, tuple[Unit, ...]] = {}
        """What waits, by run."""
        self.nominations: dict[str, Allocation] = {}
        """All nominated places by their id."""
        self.claims: dict[str, str] = {}
        """The nomination that lies on an allocation."""
        self.use = UseMeter()
        self.needs = Needs()
        self.shape_of = Shapes().of
        self.growth = 0
        """Grows whenever a place may have come free that was not there before."""
        self.states: dict[str, RunState] = {}
        self.taken: dict[str, dict[str, Allocation]] = {}
        """What occupies each node, by allocation."""
        self._starts: dict[str, int] = {}
        self._domain_of: dict[str, Domain] = {}
        self._dirty: dict[str, None] = {}
        self._sorted: dict[Where, dict[Scope, Tiers]] = {}
        for use in past_use:
            self.use.add(use)

    # -- changes ----------------------------------------------------------------------------

    def run_changed(self, run_id: str, state: RunState | None) -> None:
        """`state` None: as if it had never been."""
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
        if state is None:
            self.states.pop(run_id, None)
        else:
            self.states[run_id] = state

    def run_trimmed(self, state: RunState) -> None:
        """The same without some of its history: what that used stays counted."""
        self.states[state.run.id] = state

    def run_over(self, run_id: str) -> None:
        """Nothing of this run will ever change again: what it used stays counted."""
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
            self.claims.update(dict.fromkeys(allocation.victims, allocation.id))
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
                self.claims.pop(victim, None)
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
        """How much the node is disliked; None: it may not be taken."""
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
        """The usable nodes of a scope, everywhere or in one domain. Belongs to the index."""
        known = self._sorted.setdefault(where, {})
        if scope not in known:
            if len(known) >= _MOST_SCOPES:
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
        """The attempt that has this place now."""
        state = self.states.get(allocation.run_id)
        for job in () if state is None else state.jobs:
            if job.attempts and job.attempts[-1].allocation_id == allocation.id:
                return job.attempts[-1]
        return None


def index_of(
    states: Iterable[RunState],
    nodes: Iterable[Node],
    fleets: Mapping[str, Fleet] | None = None,
    past_use: Iterable[Use] = (),
) -> Index:
    """Made anew, and up to date."""
    made = Index(past_use)
    for name, fleet in (fleets or {}).items():
        made.fleet_changed(name, fleet)
    for node in nodes:
        made.node_changed(node.id, node)
    for state in states:
        made.run_changed(state.run.id, state)
    made.refresh()
    return made


def _as_seen(node: Node) -> tuple[object, ...]:
    held = tuple((task.id, task.cpu, task.memory, task.disk, task.gpus) for task in node.quarantine)
    works = (is_usable(node), why_given_up(node) is None)
    return (works, node.name, node.fleet, node.attributes, node.capacity, held)
