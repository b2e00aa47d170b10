"""Diagnosis finds why a job waits: what does not fit, and which node is closest to fitting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from controller.lifecycle.model import Constraint, Node, NodeStatus, Resources
from controller.lifecycle.pending_reasons import (
    Alike,
    AllDraining,
    BoundToGang,
    ConstraintUnmet,
    GangDoesNotFit,
    NodeOfGangGone,
    NoFleetWithPlacement,
    NoNodeConnected,
    NoNodeInDomain,
    NoNodeInFleets,
    NoNodeUsable,
    NoPlacementValue,
    NoSuchFleet,
    NotTogether,
    Obstacle,
    OtherFleetsOnly,
    PendingReason,
    Unusable,
    is_described_alike,
)
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import (
    Domain,
    all_unmet,
    attributes_of,
    domain_of,
    unmet,
)
from controller.scheduling.fitting.fit import as_new, closest, room, shortfalls
from controller.scheduling.gang_placement import domains_for, placement_name
from controller.scheduling.index import CapacityIndex, Where, is_usable
from controller.scheduling.packing import (
    MAX_EFFORT,
    Outcome,
    Together,
    by_kind,
    by_need,
    how_many_fit,
    how_many_fit_of,
    most_together,
)
from controller.scheduling.queue import Unit
from controller.scheduling.trial_capacity import TrialCapacity

MAX_DOMAINS = 8
"""The number of domains in which jobs of several kinds are counted, those with most room first."""
MAX_AWAY = 500
"""The number of nodes to look at. If this many are away, naming one helps no user."""


def why_one_waits(trial: TrialCapacity, need: Need, where: Where = None) -> PendingReason:
    why = _why_one_waits(trial, need, where)
    if where is None or where.value is None:
        return why
    placement = placement_name(trial.index.fleets, where)
    return BoundToGang(placement=placement, value=where.value, why=why)


def _why_one_waits(trial: TrialCapacity, need: Need, where: Where) -> PendingReason:
    rooms = [free for _, free, _ in trial.sorted(need.scope, where).bins(trial.rooms)]
    if not rooms:
        return _why_no_room(trial.index, need, where)
    why = closest(need.resources, rooms)
    if any(_could_hold(need, free.node) for free in rooms):
        return why
    return replace(why, away=_away(trial.index, need, where))


def _away(index: CapacityIndex, need: Need, where: Where) -> Unusable | None:
    """Return a node that could hold the job, without the node's message.

    The message changes with each attempt to reach the node, and each change would change the reason
    of all waiting jobs.
    """
    node = _able_but_away(index, need, where)
    return None if node is None else replace(_obstacle(node), detail=None)


def _able_but_away(index: CapacityIndex, need: Need, where: Where) -> Node | None:
    """Return a node that could hold the job and takes no work now."""
    fleets, constraints = need.scope
    away = (node for node in index.nodes.values() if node.id not in index.rooms)
    for node in islice(away, MAX_AWAY):
        if (fleets and node.fleet not in fleets) or not _could_hold(need, node):
            continue
        if where is not None and domain_of(node, index.fleets) != where:
            continue
        if unmet(constraints, attributes_of(node, index.fleets.get(node.fleet))) is None:
            return node
    return None


def _could_hold(need: Need, node: Node) -> bool:
    return not shortfalls(need.resources, room(as_new(node), ()))


def why_all_wait(trial: TrialCapacity, unit: Unit) -> PendingReason:
    """Return the reason of a gang."""
    domains = domains_for(trial.index, unit)
    counted = by_kind(by_need(unit.members))
    need = max(counted, key=lambda one: counted[one])
    if not domains:
        return _why_no_domain(trial.index, unit, need)
    best, together = _best_domain(trial, counted, domains)
    fitting = {one: how_many_fit(trial, one, best, count) for one, count in counted.items()}
    short = next((one for one in counted if fitting[one] == 0), None)
    short = short or next((one for one in counted if fitting[one] < counted[one]), None)
    if short is not None:
        why = _lacks(trial, short, best)
    elif together.all_of_them is Outcome.FITS:
        why = _lacks(trial, need, best)
    else:
        why = NotTogether(all_tried=together.all_of_them is Outcome.NEVER)
    each, others = _alike(unit, need)
    return GangDoesNotFit(
        count=len(unit.members),
        each=each,
        placement=placement_name(trial.index.fleets, best),
        best=best.fleet if best.value is None else best.value,
        found=together.count,
        why=why,
        others=others,
    )


def _best_domain(
    trial: TrialCapacity, counted: Mapping[Need, int], domains: Sequence[Domain]
) -> tuple[Domain, Together]:
    """Return the domain with room for the most of these jobs at once, the first of several."""
    most = {domain: how_many_fit_of(trial, counted, domain) for domain in domains}
    in_order = sorted(domains, key=lambda domain: most[domain], reverse=True)[:MAX_DOMAINS]
    effort = MAX_EFFORT // MAX_DOMAINS
    found = (in_order[0], most_together(trial, counted, in_order[0], effort))
    for domain in in_order[1:]:
        if most[domain] <= found[1].count:
            break
        together = most_together(trial, counted, domain, effort)
        if together.count > found[1].count:
            found = domain, together
    return found


def _alike(unit: Unit, need: Need) -> tuple[Resources, tuple[Alike, ...]]:
    """Return what most jobs need, and what the others need, where that is something else."""
    others: dict[Resources, int] = {}
    for member in unit.members:
        each = member.need.resources
        if not is_described_alike(each, need.resources):
            same = next((one for one in others if is_described_alike(one, each)), each)
            others[same] = others.get(same, 0) + 1
    alike = (Alike(count=count, each=each) for each, count in others.items())
    return need.resources, tuple(alike)


def _lacks(trial: TrialCapacity, need: Need, domain: Domain) -> PendingReason | None:
    """Return what the domain's nodes lack; None when only their number is too small."""
    tiers = trial.sorted(need.scope, domain)
    if not tiers:
        return _why_no_room(trial.index, need, domain)
    lacking = [free for shape, free, _ in tiers.bins(trial.rooms) if not need.fits(shape, free)]
    return closest(need.resources, lacking) if lacking else None


def _why_no_domain(index: CapacityIndex, unit: Unit, need: Need) -> PendingReason:
    if unit.anchors:
        return NodeOfGangGone()
    if not index.rooms:
        return _why_no_room(index, need, None)
    if unit.run.policy.same_placement:
        return NoFleetWithPlacement()
    return NoPlacementValue()


def _why_no_room(index: CapacityIndex, need: Need, where: Where) -> PendingReason:
    fleets, constraints = need.scope
    nodes = [node for node in index.nodes.values() if not fleets or node.fleet in fleets]
    if fleets and not nodes:
        known = tuple(name for name in fleets if is_known(index, name))
        return NoNodeInFleets(fleets=known) if known else NoSuchFleet(fleets=fleets)
    usable = [node for node in nodes if node.id in index.rooms]
    if where is not None and fleets and where.fleet not in fleets:
        return OtherFleetsOnly(fleets=fleets)
    if where is not None:
        usable = [node for node in usable if index.domain(node.id) == where]
        if not usable:
            return NoNodeInDomain(fleet=where.fleet, value=where.value)
    best = _least_refused(index, constraints, usable)
    if best is None:
        return _why_none_works(nodes, _able_but_away(index, need, where))
    node, missing = best
    has = attributes_of(node, index.fleets.get(node.fleet)).get(missing.attribute)
    away = _away(index, need, where)
    return ConstraintUnmet(constraint=missing, node=node.name, has=has, away=away)


def _least_refused(
    index: CapacityIndex, constraints: Sequence[Constraint], nodes: Iterable[Node]
) -> tuple[Node, Constraint] | None:
    """Return the node that misses the fewest constraints, and the first of those."""
    found = [
        (node, missing)
        for node in islice(sorted(nodes, key=lambda one: one.name), MAX_AWAY)
        if (missing := all_unmet(constraints, attributes_of(node, index.fleets.get(node.fleet))))
    ]
    if not found:
        return None
    node, missing = min(found, key=lambda one: len(one[1]))
    return node, missing[0]


def is_known(index: CapacityIndex, fleet: str) -> bool:
    return fleet in index.fleets or any(node.fleet == fleet for node in index.nodes.values())


def _why_none_works(nodes: Iterable[Node], able: Node | None) -> PendingReason:
    connected = [node for node in nodes if node.status is NodeStatus.CONNECTED]
    if not connected:
        return NoNodeConnected()
    if all(node.draining for node in connected):
        return AllDraining()
    return NoNodeUsable(example=_obstacle(able or min(connected, key=lambda node: node.name)))


def unusable(node: Node) -> Unusable | None:
    """Return why the node takes no new work; None: it does."""
    return None if is_usable(node) else _obstacle(node)


def _obstacle(node: Node) -> Unusable:
    """Return what is in the way on a node that takes no new work."""
    if node.status is not NodeStatus.CONNECTED:
        obstacle, detail = Obstacle(node.status.value), node.message
    elif node.draining:
        obstacle, detail = Obstacle.DRAINING, node.drain_reason
    elif node.cordoned:
        obstacle, detail = Obstacle.CORDONED, node.cordon_reason
    else:
        obstacle, detail = Obstacle.UNFIT, node.unfit
    return Unusable(node=node.name, obstacle=obstacle, detail=detail or None)
