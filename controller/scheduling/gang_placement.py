"""All-or-nothing placement of several jobs within one domain (docs/rules.md 5.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from controller.lifecycle.model import Allocation, Fleet, Node, NodeGpu, NodeStatus, Resources
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import Domain, domain_of
from controller.scheduling.fitting.fit import (
    Room,
    as_new,
    choose,
    fitting_gpus,
    in_blocks,
    shortfalls,
)
from controller.scheduling.fitting.grant import granted
from controller.scheduling.freed_allocations import in_order_for
from controller.scheduling.index import CapacityIndex, Where
from controller.scheduling.packing import (
    MAX_EFFORT,
    Outcome,
    Packed,
    Spot,
    by_kind,
    by_need,
    how_many_fit_of,
    pack,
)
from controller.scheduling.queue import Member, Unit
from controller.scheduling.trial_capacity import TrialCapacity
from fairlead.model.statuses import AllocationState
from fairlead.wire.gpu_names import is_named, is_part

NewId = Callable[[], str]


class MemberAllocation(msgspec.Struct, frozen=True):
    member: Member
    allocation: Allocation


def allocate(
    unit: Unit,
    member: Member,
    free: Room,
    where: Where,
    now: float,
    new_id: NewId,
    *,
    least: bool = False,
    chosen: Sequence[NodeGpu] | None = None,
) -> Allocation:
    """Return the job's allocation in this room, which must be large enough.

    `least`: as for `granted`. `chosen`: its GPUs, if they are known.
    """
    resources = in_blocks(member.need.resources, free.node.capacity)
    gpus = _gpus_of(resources, free) if chosen is None else tuple(chosen)
    return Allocation(
        id=new_id(),
        run_id=unit.run.id,
        job_id=member.job.id,
        node_id=free.node.id,
        node_name=free.node.name,
        state=AllocationState.HELD,
        resources=granted(resources, free, gpus, least=least),
        gpus=tuple(gpu.uuid for gpu in gpus),
        created_at=now,
        placement=None if where is None else where.value,
    )


def _gpus_of(resources: Resources, free: Room) -> tuple[NodeGpu, ...]:
    """Return the GPUs that a job with these resources gets in the room."""
    need = resources.gpu
    if not resources.whole_node:
        fitting = fitting_gpus(need, free.gpus)
        return tuple(choose(fitting, free.gpus, need.count)) if fitting else ()
    return tuple(
        gpu
        for gpu in free.gpus
        if gpu.vendor is need.vendor
        and (not is_part(gpu.name, gpu.parent) or is_named(gpu.name, gpu.parent, need.names))
    )


def place_all(
    trial: TrialCapacity, unit: Unit, where: Where, now: float, new_id: NewId
) -> list[MemberAllocation] | None:
    """Give every member an allocation in this domain, or none of them one.

    Freed allocations of the run are used first; where the shares of the first jobs leave too little
    for the others, each gets the least. Each job gets the best node for itself; if members of
    several kinds do not fit so, the other ways are tried (`packing`).
    """
    for least in (False, True) if can_get_less(unit) else (False,):
        for kept_first in (True, False) if unit.freed else (False,):
            chosen = _place_all(trial, unit, where, now, new_id, kept_first=kept_first, least=least)
            if chosen is not None:
                return chosen
    packed = _packed(trial, unit, where)
    if packed is None or packed.outcome is not Outcome.FITS:
        return None
    for least in (False, True) if can_get_less(unit) else (False,):
        chosen = _place_on(trial, unit, packed.spots, where, now, new_id, least=least)
        if chosen is not None:
            return chosen
    return None


def _packed(trial: TrialCapacity, unit: Unit, where: Where) -> Packed | None:
    """Search for a way to place members of several kinds; None: they are of one kind, and there is
    no other way than the one that gives each the best node."""
    counted = by_need(hardest_first(unit.members))
    if len(by_kind(counted)) == 1:
        return None
    if trial.effort <= 0:
        return Packed(Outcome.UNKNOWN, effort=0)
    kept = (allocation.node_id for allocation in unit.freed)
    packed = pack(trial, counted, where, kept, min(MAX_EFFORT, trial.effort))
    trial.effort -= packed.effort
    return packed


def _place_on(
    trial: TrialCapacity,
    unit: Unit,
    spots: Iterable[Spot],
    where: Where,
    now: float,
    new_id: NewId,
    *,
    least: bool,
) -> list[MemberAllocation] | None:
    """Give every member an allocation on these nodes; None: their shares do not fit there."""
    mark = trial.mark
    chosen: list[MemberAllocation] = []
    members: dict[Need, deque[Member]] = {}
    for member in hardest_first(unit.members):
        members.setdefault(member.need, deque()).append(member)
    for spot in spots:
        free = trial.rooms[spot.node_id]
        if shortfalls(spot.need.resources, free):
            trial.undo(mark)
            return None
        member = members[spot.need].popleft()
        allocation = allocate(unit, member, free, where, now, new_id, least=least, chosen=spot.gpus)
        trial.give(allocation)
        chosen.append(MemberAllocation(member, allocation))
    return chosen


def can_get_less(unit: Unit) -> bool:
    """Return whether jobs of the unit may get more than they need, beside others of it."""
    needs = [member.need.resources for member in unit.members]
    return len(needs) > 1 and any(
        need.gpu.count and need.unset and not need.whole_node for need in needs
    )


def _place_all(
    trial: TrialCapacity,
    unit: Unit,
    where: Where,
    now: float,
    new_id: NewId,
    *,
    kept_first: bool,
    least: bool,
) -> list[MemberAllocation] | None:
    mark = trial.mark
    chosen: list[MemberAllocation] = []
    for member in hardest_first(unit.members):
        free = best_kept(trial, unit, member, where) if kept_first else None
        free = free or trial.best(member.need, where)
        if free is None:
            trial.undo(mark)
            return None
        allocation = allocate(unit, member, free, where, now, new_id, least=least)
        trial.give(allocation)
        chosen.append(MemberAllocation(member, allocation))
    return chosen


def best_kept(trial: TrialCapacity, unit: Unit, member: Member, where: Where) -> Room | None:
    """Return the room of an allocation that is kept for the job's run, unless a preferred node has
    room."""
    if not unit.freed:
        return None
    scope = member.need.scope
    best = trial.best(member.need, where)
    least = None if best is None else trial.index.tier(best.node, scope)
    allowed = trial.sorted(scope, where)
    for allocation in in_order_for(member, unit):
        free = trial.rooms.get(allocation.node_id) if allocation.node_id in allowed else None
        if free is None or shortfalls(member.need.resources, free):
            continue
        if trial.index.tier(free.node, scope) == least:
            return free
    return None


def whole_of(unit: Unit) -> Unit:
    """Return the unit with the jobs whose turn comes later, unless an allocation of the run binds
    them already.

    The first jobs must go where the others find room too; otherwise those would wait forever.
    """
    if unit.anchors or not unit.later:
        return unit
    return replace(unit, members=unit.members + unit.later)


def place_first(
    trial: TrialCapacity, unit: Unit, where: Where, now: float, new_id: NewId
) -> list[MemberAllocation] | None:
    """Place the unit as `place_all` does, where there is room for `whole_of` the unit."""
    whole = whole_of(unit)
    mark = trial.mark
    chosen = place_all(trial, whole, where, now, new_id)
    if chosen is None or whole is unit:
        return chosen
    trial.undo(mark)
    chosen = [choice for choice in chosen if choice.member in unit.members]
    for choice in chosen:
        trial.give(choice.allocation)
    return chosen


def has_room(trial: TrialCapacity, unit: Unit) -> bool:
    """Return whether the unit could be placed now, with the jobs whose turn comes later."""
    mark = trial.mark
    whole = whole_of(unit)
    found = any(
        place_all(trial, whole, domain, 0.0, str) is not None
        for domain in domains_for(trial.index, unit)
    )
    trial.undo(mark)
    return found


def hardest_first(members: Iterable[Member]) -> list[Member]:
    def size(member: Member) -> tuple[bool, int, float, int, int]:
        need = member.need.resources
        return (not need.whole_node, -need.gpu.count, -need.cpu, -need.memory, member.job.index)

    return sorted(members, key=size)


def domains_for(index: CapacityIndex, unit: Unit) -> list[Domain]:
    """Return the domains where the whole unit may go, the smallest first, so that large ones stay
    free for others."""
    if unit.anchors:
        anchor = unit.anchors[0]
        node = index.nodes.get(anchor.node_id)
        return [] if node is None else [Domain((node.fleet, anchor.placement))]
    only_named = unit.run.policy.same_placement and not unit.gang
    return sorted(
        (
            domain
            for domain in index.domains
            if not only_named or _names_attribute(index.fleets, domain.fleet)
        ),
        key=lambda domain: (len(index.domains[domain]), domain.fleet, domain.value or ""),
    )


def roomiest_first(trial: TrialCapacity, unit: Unit, domains: list[Domain]) -> list[Domain]:
    """Sort first the domains where most of the gang's reserved jobs fit beside its ranks.

    Reserved jobs must be where the ranks are; without room there they would wait forever.
    """
    if not unit.reserved or unit.anchors:
        return domains
    counted = by_need(unit.members + unit.reserved)
    return sorted(domains, key=lambda domain: how_many_fit_of(trial, counted, domain), reverse=True)


def _names_attribute(fleets: Mapping[str, Fleet], name: str) -> bool:
    fleet = fleets.get(name)
    return fleet is not None and fleet.placement is not None


def empty_index(
    nodes: Iterable[Node], fleets: Mapping[str, Fleet], counts: Callable[[Node], bool]
) -> CapacityIndex:
    """Return an index of these nodes as if nothing was on them and all were healthy."""
    made = CapacityIndex()
    for name, fleet in fleets.items():
        made.fleet_changed(name, fleet)
    for node in nodes:
        if counts(node):
            made.node_changed(node.id, as_new(node))
    made.refresh()
    return made


def could_ever_hold(
    index: CapacityIndex, unit: Unit, ranked: Sequence[Member], domain: Domain
) -> bool:
    """Return whether this domain could hold all these jobs of the unit's run if it were empty, or
    that is not known.

    A silent node counts as able, and a machine on order by its offer. A node that is lost, unfit,
    cordoned or draining does not: it is not expected back in time. A cordoned node that already has
    jobs of the run counts.
    """
    # A cordon leaves running jobs alone, so those of this gang may come back to their node.
    had = {allocation.node_id for allocation in unit.anchors}

    def counts(node: Node) -> bool:
        if node.fleet != domain.fleet or node.draining or node.unfit is not None:
            return False
        if node.cordoned and node.id not in had:
            return False
        return node.status is not NodeStatus.LOST and domain_of(node, index.fleets) == domain

    nodes = (_as_promised(index, node) for node in index.nodes.values())
    empty = TrialCapacity(empty_index(nodes, index.fleets, counts))
    return _fits_empty(empty, replace(unit, members=tuple(ranked)), domain) is not Outcome.NEVER


def _as_promised(index: CapacityIndex, node: Node) -> Node:
    """Return the node, that of a machine which still boots as it will be."""
    promised = index.promised.get(node.id)
    if promised is None:
        return node
    # An engine that just starts, or a clock that is not set yet, is no fault of a new machine.
    capacity = node.capacity if node.capacity.cpu else promised
    return replace(node, capacity=capacity, unfit=None)


def _fits_empty(trial: TrialCapacity, unit: Unit, where: Where) -> Outcome:
    """Return whether the unit fits, without the limit on starting jobs, which passes by itself."""
    mark = trial.mark
    is_placed = True
    for member in hardest_first(unit.members):
        free = trial.best(member.need, where)
        if free is None:
            is_placed = False
            break
        trial.give(allocate(unit, member, free, where, 0.0, str, least=True))
        trial.settle(free.node.id)
    trial.undo(mark)
    if is_placed:
        return Outcome.FITS
    packed = _packed(trial, unit, where)
    return Outcome.NEVER if packed is None else packed.outcome


def fits_when_empty(empty: CapacityIndex, unit: Unit) -> Outcome:
    """Return whether any domain could hold the unit; `empty` is an index of the nodes as new."""
    trial = TrialCapacity(empty)
    best = Outcome.NEVER
    for domain in domains_for(empty, unit):
        found = _fits_empty(trial, unit, domain)
        if found is Outcome.FITS:
            return found
        best = Outcome.UNKNOWN if found is Outcome.UNKNOWN else best
    return best


def placement_name(fleets: Mapping[str, Fleet], domain: Domain) -> str:
    """Return what a placement value of this fleet is called: `rack`, or `fleet`."""
    fleet = fleets.get(domain.fleet)
    return "fleet" if fleet is None or fleet.placement is None else fleet.placement
