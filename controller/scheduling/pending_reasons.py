"""Pending reasons say why a job waits: what does not fit, and which node comes closest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from controller.lifecycle.model import Constraint, Node, NodeStatus, Resources
from controller.scheduling.capacity import Need
from controller.scheduling.constraints import (
    Domain,
    all_unmet,
    attributes_of,
    domain_of,
    unmet,
    words,
)
from controller.scheduling.fit import (
    as_new,
    closest,
    gpu_words,
    number,
    room,
    shortfalls,
    size_words,
)
from controller.scheduling.gang_placement import by_need, domains_for, most, placement_name
from controller.scheduling.index import CapacityIndex, TrialCapacity, Where
from controller.scheduling.queue import Unit

MOST_AWAY = 500
"""How many nodes are looked at. If this many are away, naming one helps no user."""
RANKS_FIRST = "it is reserved: the gang's ranked jobs are placed first"


def why_one_waits(board: TrialCapacity, need: Need, where: Where = None) -> str:
    why = _why_one_waits(board, need, where)
    if where is None or where.value is None:
        return why
    kind = placement_name(board.index.fleets, where)
    return f"must be in {kind} {where.value}, where its gang is: {why}"


def _why_one_waits(board: TrialCapacity, need: Need, where: Where) -> str:
    rooms = [free for _, free, _ in board.sorted(need.scope, where).bins(board.rooms)]
    if not rooms:
        return _why_no_room(board.index, need, where)
    why = closest(need.resources, rooms)
    if any(_could_hold(need, free.node) for free in rooms):
        return why
    away = _who_could(board.index, need, where)
    return why if away is None else f"{why}; {away}"


def _who_could(index: CapacityIndex, need: Need, where: Where) -> str | None:
    node = _able_but_away(index, need, where)
    return None if node is None else f"node {node.name} could hold it, but is {_in_a_word(node)}"


def _able_but_away(index: CapacityIndex, need: Need, where: Where) -> Node | None:
    """Return a node that could hold the job and takes no work now."""
    fleets, constraints = need.scope
    away = (node for node in index.nodes.values() if node.id not in index.rooms)
    for node in islice(away, MOST_AWAY):
        if (fleets and node.fleet not in fleets) or not _could_hold(need, node):
            continue
        if where is not None and domain_of(node, index.fleets) != where:
            continue
        if unmet(constraints, attributes_of(node, index.fleets.get(node.fleet))) is None:
            return node
    return None


def _could_hold(need: Need, node: Node) -> bool:
    return not shortfalls(need.resources, room(as_new(node), ()))


def _in_a_word(node: Node) -> str:
    if node.status is not NodeStatus.CONNECTED:
        return str(node.status)
    if node.draining:
        return "draining"
    return "cordoned" if node.cordoned else "unfit"


def why_all_wait(board: TrialCapacity, unit: Unit) -> str:
    """Return the reason of a gang, such as: needs 4 nodes with 8 GPU in one rack; best rack r2 has
    3."""
    domains = domains_for(board.index, unit)
    counted = by_need(unit.members)
    need = max(counted, key=lambda one: counted[one])
    if not domains:
        return _why_no_domain(board.index, unit, need)
    found = {domain: _held(board, counted, domain) for domain in domains}
    best = max(domains, key=lambda domain: found[domain])
    kind = placement_name(board.index.fleets, best)
    name = best.fleet if best.value is None else best.value
    asked = f"{_places(len(unit.members), need.resources)} in one {kind}"
    short = next((one for one in counted if most(board, one, best, 1) == 0), need)
    return f"needs {asked}; best {kind} {name} has {found[best]}{_lacks(board, short, best)}"


def _lacks(board: TrialCapacity, need: Need, domain: Domain) -> str:
    """Return, in brackets, what the domain's nodes lack; empty when only their number is too
    small."""
    tiers = board.sorted(need.scope, domain)
    if not tiers:
        return f" ({_why_no_room(board.index, need, domain)})"
    lacking = [free for shape, free, _ in tiers.bins(board.rooms) if not need.fits(shape, free)]
    return f" ({closest(need.resources, lacking)})" if lacking else ""


def _held(board: TrialCapacity, counted: dict[Need, int], domain: Domain) -> int:
    return sum(most(board, need, domain, count) for need, count in counted.items())


def _places(count: int, need: Resources) -> str:
    """Return the request in words; it is one job when a gang lacks one in the allocations that
    survived."""
    several = "" if count == 1 else "s"
    what = [gpu_words(need.gpu)] if need.gpu.count else []
    if need.whole_node:
        return " ".join([f"{count} whole node{several}", *(f"with {one}" for one in what)])
    what = what or [f"{number(need.cpu)} CPU", f"{size_words(need.memory)} memory"]
    return f"{count} place{several} with {', '.join(what)}"


def _why_no_domain(index: CapacityIndex, unit: Unit, need: Need) -> str:
    if unit.anchors:
        return "the node that its other jobs are on is gone"
    if not index.rooms:
        return _why_no_room(index, need, None)
    if unit.run.policy.same_placement:
        return "needs a fleet that names a placement attribute; no fleet with a usable node does"
    return "no node has the placement attribute that its fleet names"


def _why_no_room(index: CapacityIndex, need: Need, where: Where) -> str:
    fleets, constraints = need.scope
    nodes = [node for node in index.nodes.values() if not fleets or node.fleet in fleets]
    if fleets and not nodes:
        known = [name for name in fleets if is_known(index, name)]
        return f"no node is in {_fleets(known)}" if known else no_such(*fleets)
    usable = [node for node in nodes if node.id in index.rooms]
    if where is not None and fleets and where.fleet not in fleets:
        return f"it may go to {_fleets(fleets)} only"
    if where is not None:
        usable = [node for node in usable if index.domain(node.id) == where]
        if not usable:
            return f"no node of {where} takes work"
    best = _least_refused(index, constraints, usable)
    if best is None:
        return _why_none_works(nodes, _able_but_away(index, need, where))
    node, missing = best
    away = _who_could(index, need, where)
    if away is not None:
        return f"needs {words(missing)}; {away}"
    has = attributes_of(node, index.fleets.get(node.fleet)).get(missing.attribute)
    text = f"has no {missing.attribute}" if has is None else f"has {has}"
    return f"needs {words(missing)}; node {node.name} {text}, and none is better"


def _least_refused(
    index: CapacityIndex, constraints: Sequence[Constraint], nodes: Iterable[Node]
) -> tuple[Node, Constraint] | None:
    """Return the node that misses the fewest constraints, and the first of those."""
    found = [
        (node, missing)
        for node in islice(sorted(nodes, key=lambda one: one.name), MOST_AWAY)
        if (missing := all_unmet(constraints, attributes_of(node, index.fleets.get(node.fleet))))
    ]
    if not found:
        return None
    node, missing = min(found, key=lambda one: len(one[1]))
    return node, missing[0]


def is_known(index: CapacityIndex, fleet: str) -> bool:
    return fleet in index.fleets or any(node.fleet == fleet for node in index.nodes.values())


def no_such(*fleets: str) -> str:
    return f"there is no {_fleets(fleets)}"


def _fleets(names: Sequence[str]) -> str:
    return f"fleet {' or '.join(names)}"


def _why_none_works(nodes: Iterable[Node], able: Node | None) -> str:
    connected = [node for node in nodes if node.status is NodeStatus.CONNECTED]
    if not connected:
        return "no node is connected"
    if all(node.draining for node in connected):
        return "every connected node is draining"
    first = able or min(connected, key=lambda node: node.name)
    return f"no connected node takes work; {first.name} is {why_unusable(first)}"


def why_unusable(node: Node) -> str | None:
    """Return why the node takes no new work; None: it does."""
    if node.status is not NodeStatus.CONNECTED:
        return f"{node.status}: {node.message}" if node.message else str(node.status)
    if node.draining:
        return f"draining: {node.drain_reason}" if node.drain_reason else "draining"
    if node.cordoned:
        return f"cordoned: {node.cordon_reason}" if node.cordon_reason else "cordoned"
    return None if node.unfit is None else f"unfit: {node.unfit}"
