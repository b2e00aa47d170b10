"""The pages of nodes: a square for each GPU, bars of what is held, and what an operator does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import quote

import msgspec

from common.refusals import Invalid
from controller.api.http.paging import PageQuery
from controller.api.machines import nodes as api
from controller.api.machines.fleets import list_fleets
from controller.api.machines.rented import MachinesQuery, list_machines
from controller.api.views import iso_or_none
from controller.clock import iso
from controller.lifecycle.machines.orphans import KnownOrphan, OrphanStatus
from controller.lifecycle.model import Node, RunState
from controller.service.machines.faults import Hit
from controller.service.machines.use import Holder
from controller.web.page import Done, Page, PageRoute, Visit
from controller.web.pages.events import AFTER_ALL, EventRow, event_rows, with_own_events
from fairlead.documents.machines import MachineView
from fairlead.documents.nodes import FleetView, GpuView, NodeView
from fairlead.model.costs import money, price_words
from fairlead.queries import EventQuery

PAGE_OF_NODES = 1000
_MAX_EVENTS = 50
_BAR = 1000
GIB = 1 << 30


class GpuSquare(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `state`: free, used or cordoned; `sign` tells it without colours; `said` is the
    whole sentence."""

    uuid: str
    state: str
    sign: str
    label: str
    run_id: str | None
    clearable: bool


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """How much of something is held, in thousandths and in words."""

    name: str
    width: int
    label: str


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node as its fleet's table shows it. `trouble`: what is wrong with it, or why it gets no
    work. `silent_since`: when a node was heard last that is not connected; `heard`: the word for
    it without a time. `is_broken`: it needs a person."""

    id: str
    name: str
    status: str
    sign: str
    trouble: str
    squares: tuple[GpuSquare, ...]
    bars: tuple[Bar, ...]
    attributes: tuple[tuple[str, str], ...]
    heard: str
    silent_since: str | None
    runs: int
    is_broken: bool


class FleetRows(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    placement: str | None
    nodes: tuple[NodeRow, ...]
    summary: str


class MachineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rented machine. `node_id` None: it is no node yet, or no more. `note`: why it ends, or what
    its provider said last."""

    name: str
    node_id: str | None
    fleet: str
    status: str
    what: str
    where: str
    price: str
    cost: str
    idle_since: str | None
    note: str


class OrphanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A machine at a provider that no record knows. `becomes`: what is to become of it."""

    name: str
    fleet: str
    what: str
    where: str
    price: str
    found_at: str
    becomes: str


class JobHere(msgspec.Struct, frozen=True, kw_only=True):
    """A job with an attempt on the node."""

    run_id: str
    run: str
    user: str
    job: str
    status: str


class HitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job that had a broken GPU. `ended_at` None: its attempt has not ended."""

    run_id: str | None
    run: str
    job: str
    attempt_id: str
    gpu: str
    outcome: str
    ended_at: str | None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A button. `question` is asked before; `asks_reason`: a field for why stands beside it."""

    name: str
    label: str
    question: str
    asks_reason: bool = False
    is_dangerous: bool = False


def gpu_square(gpu: GpuView, holder: Holder | None) -> GpuSquare:
    name = f"{gpu.name} {gpu.uuid}"
    if not gpu.healthy:
        state, sign = "cordoned", "✕"
        label = f"{name}: cordoned: {_why_broken(gpu)}"
    elif holder is not None or gpu.in_use:
        state, sign = "used", "■"
        label = f"{name}: used by {holder.name if holder else 'a run'}"
    else:
        state, sign, label = "free", "□", f"{name}: free"
    return GpuSquare(
        uuid=gpu.uuid,
        state=state,
        sign=sign,
        label=label,
        run_id=holder.run_id if holder else None,
        clearable=not gpu.healthy,
    )


def bar(name: str, held: float, of: float, unit: str = "", scale: float = 1) -> Bar:
    share = min(1.0, held / of) if of > 0 else 0.0
    ends = f" {unit}" if unit else ""
    label = f"{_short(held / scale)} of {_short(of / scale)}{ends}"
    return Bar(name=name, width=round(share * _BAR), label=label)


def _short(amount: float) -> str:
    return f"{amount:.2f}".rstrip("0").rstrip(".")


def node_row(node: NodeView, holders: Mapping[str, Holder], *, is_broken: bool = False) -> NodeRow:
    trouble = _trouble(node)
    is_connected = node.status.lower() == "connected"
    silent_since = None if is_connected else node.last_seen_at
    return NodeRow(
        id=node.id,
        name=node.name,
        status=node.status.lower(),
        sign="●" if is_connected and not trouble else "▲",
        trouble=trouble,
        squares=tuple(gpu_square(gpu, holders.get(gpu.uuid)) for gpu in node.gpus),
        bars=(
            bar("CPU", node.cpu_allocated, node.cpu, "cores"),
            bar("Memory", node.memory_allocated, node.memory, "GiB", GIB),
            bar("Disk", node.disk_allocated, node.disk, "GiB", GIB),
        ),
        attributes=tuple(sorted(node.attributes.items())),
        heard="now" if is_connected else "never" if silent_since is None else "",
        silent_since=silent_since,
        runs=len(node.runs),
        is_broken=is_broken,
    )


def _trouble(node: NodeView) -> str:
    troubles = []
    if node.cordoned:
        troubles.append(f"cordoned{_because(node.cordon_reason)}")
    if node.draining:
        troubles.append(f"draining{_because(node.drain_reason)}")
    if node.unfit:
        troubles.append(f"unfit: {node.unfit}")
    if node.message:
        troubles.append(node.message)
    if len(node.controllers) > 1:
        troubles.append(f"{len(node.controllers)} controllers may log in")
    if broken := [gpu for gpu in node.gpus if not gpu.healthy]:
        troubles.append(_broken(broken, len(node.gpus)))
    return "; ".join(troubles)


def _broken(gpus: Sequence[GpuView], of: int) -> str:
    verb = "is" if len(gpus) == 1 else "are"
    whys = dict.fromkeys(_why_broken(gpu) for gpu in gpus)
    return f"{len(gpus)} of {of} GPU{'' if of == 1 else 's'} {verb} broken ({'; '.join(whys)})"


def _why_broken(gpu: GpuView) -> str:
    return (gpu.message or "the node reports a fault").removeprefix("cordoned: ")


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def fleets_of(
    fleets: Sequence[FleetView],
    nodes: Sequence[NodeView],
    everything: Sequence[Node],
    holders: Mapping[str, Mapping[str, Holder]],
    broken: Collection[str] = (),
) -> tuple[FleetRows, ...]:
    """Return the fleets with their nodes, in the order of their names; empty ones come last.

    `nodes`: those that the page shows, of `everything` that the summaries count.
    """
    placements = {fleet.name: fleet.placement for fleet in fleets}
    of_fleets: dict[str, list[Node]] = {}
    for one in everything:
        of_fleets.setdefault(one.fleet, []).append(one)
    used = of_fleets.keys()
    names = sorted({*placements, *used}, key=lambda name: (name not in used, name))
    found = []
    for name in names:
        rows = tuple(
            node_row(node, holders.get(node.id, {}), is_broken=node.id in broken)
            for node in nodes
            if node.fleet == name
        )
        summary = _summary(of_fleets.get(name, ()), holders)
        found.append(
            FleetRows(name=name, placement=placements.get(name), nodes=rows, summary=summary)
        )
    return tuple(found)


def _summary(nodes: Sequence[Node], holders: Mapping[str, Mapping[str, Holder]]) -> str:
    states = Counter[str]()
    for node in nodes:
        used = holders.get(node.id, {})
        for gpu in node.capacity.gpus:
            states["cordoned" if not gpu.healthy else "used" if gpu.uuid in used else "free"] += 1
    gpus = ", ".join(
        f"{states[state]} {state}" for state in ("free", "used", "cordoned") if states[state]
    )
    count = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"
    return f"{count}, {states.total()} GPUs ({gpus})" if states else count


def machine_row(machine: MachineView) -> MachineRow:
    return MachineRow(
        name=machine.name,
        node_id=machine.id if machine.status in ("idle", "busy") else None,
        fleet=machine.fleet,
        status=machine.status,
        what=machine.instance_type + (" (spot)" if machine.spot else ""),
        where=machine.zone or machine.region,
        price=price_words(machine.price),
        cost=money(machine.cost),
        idle_since=machine.idle_since,
        note=machine.trouble or machine.message or "",
    )


_BECOMES = {
    OrphanStatus.FOUND: "it is ended 10 minutes after it was found",
    OrphanStatus.KEPT: "older than the restore: it is kept until an admin ends it",
    OrphanStatus.ENDING: "an admin had it ended",
}


def orphan_row(orphan: KnownOrphan, out_of_reach: str | None = None) -> OrphanRow:
    """`out_of_reach`: why no list can have it as things are."""
    traits = orphan.traits
    return OrphanRow(
        name=orphan.name,
        fleet="no fleet" if orphan.fleet is None else f"fleet {orphan.fleet}",
        what=(traits.instance_type or "not known") + (" (spot)" if traits.spot else ""),
        where=traits.zone or traits.region or "not known",
        price="not known, no budget counts it"
        if orphan.price is None
        else price_words(orphan.price),
        found_at=iso(orphan.found_at),
        becomes=out_of_reach or _BECOMES.get(orphan.status, orphan.status.value),
    )


def actions_of(node: NodeView) -> tuple[Action, ...]:
    """Return what an admin can do with the node now."""
    name = node.name
    cordon = (
        Action(name="uncordon", label="Uncordon", question=f"Give {name} new work again?")
        if node.cordoned
        else Action(
            name="cordon",
            label="Cordon",
            question=f"Keep new work away from {name}? Running jobs stay.",
            asks_reason=True,
        )
    )
    drain = (
        Action(name="resume", label="Resume", question=f"End the drain of {name}?")
        if node.draining
        else Action(
            name="drain",
            label="Drain",
            question=f"Empty {name}? It gets no new work, and its jobs are asked to end.",
            asks_reason=True,
            is_dangerous=True,
        )
    )
    return (cordon, drain)


def jobs_on(node_id: str, states: Sequence[RunState]) -> tuple[JobHere, ...]:
    return tuple(
        JobHere(
            run_id=state.run.id,
            run=state.run.name,
            user=state.run.user,
            job=f"{job.group}/{job.cookie}",
            status=job.attempts[-1].status.lower(),
        )
        for state in states
        for job in state.jobs
        if job.attempts and job.attempts[-1].node_id == node_id
    )


def hit_row(hit: Hit) -> HitRow:
    return HitRow(
        run_id=hit.run_id,
        run=hit.run,
        job=hit.job,
        attempt_id=hit.attempt_id,
        gpu=hit.gpu,
        outcome=": ".join(one for one in (hit.status, hit.reason) if one),
        ended_at=iso_or_none(hit.ended_at),
    )


async def list_nodes(visit: Visit) -> Page:
    answer = await api.list_nodes(visit.as_call(query=PageQuery(limit=PAGE_OF_NODES)))
    fleets = await list_fleets(visit.as_call(query=PageQuery(limit=PAGE_OF_NODES)))
    broken = visit.service.machines.faults.broken_nodes()
    holders = visit.service.machines.nodes.holders(visit.user)
    # What is counted and summed is of all: the lists are of one page.
    everything = visit.service.machines.nodes.all()
    rows = fleets_of(fleets.fleets, answer.nodes, everything, holders, broken)
    query = MachinesQuery(limit=PAGE_OF_NODES)
    rented = await list_machines(visit.as_call(query=query))
    rentals = visit.service.machines.rented
    all_rented = rentals.all()
    # What all spend together is for admins, as in `fairlead cost`, and so are orphans.
    orphans = rentals.known_orphans(visit.user) if visit.is_admin else []
    of_orphans = money(sum(one.offer.price for one in rentals.paid_orphans()))
    per_hour = money(sum(one.offer.price for one in all_rented)) if visit.is_admin else None
    return Page(
        template="nodes.html",
        title="Nodes",
        section="Nodes",
        context={
            "fleets": rows,
            "has_nodes": bool(answer.nodes),
            "broken_nodes": [one for one in everything if one.id in broken],
            "are_more": answer.next_cursor is not None,
            "machines": [machine_row(one) for one in rented.machines],
            "are_more_machines": rented.next_cursor is not None,
            "rented": len(all_rented),
            "per_hour": per_hour,
            "orphans": [
                orphan_row(one, rentals.out_of_reach(one)) for one in orphans[:PAGE_OF_NODES]
            ],
            "all_orphans": len(orphans),
            "of_orphans": of_orphans,
        },
    )


async def show_node(visit: Visit) -> Page:
    node = await api.get_node(visit.as_call(node=visit.path("node")))
    stored = visit.service.machines.nodes.get(node.id)
    states = visit.service.machines.nodes.runs_on(stored, visit.user)
    holders = visit.service.machines.nodes.holders(visit.user)
    return Page(
        template="node.html",
        title=f"Node {node.name}",
        section="Nodes",
        context={
            "node": node,
            "address": f"/dashboard/nodes/{node.id}",
            "row": node_row(node, holders.get(node.id, {})),
            "jobs": jobs_on(node.id, states),
            "hits": [
                hit_row(one) for one in await visit.service.machines.faults.hits(stored, visit.user)
            ],
            "events": with_own_events(await _events_on(visit, node.id), node),
            "all_events": f"/dashboard/events?node={quote(node.name)}",
            "actions": actions_of(node) if visit.is_admin else (),
            "may_clear": visit.is_admin,
        },
    )


async def _events_on(visit: Visit, node_id: str) -> list[EventRow]:
    """Return the latest events of attempts on the node, the newest first."""
    query = EventQuery(before=AFTER_ALL, limit=_MAX_EVENTS, node_id=node_id)
    stored = await visit.service.runs.lookup.events(query, user=visit.user)
    return await event_rows(visit, stored)


async def act(visit: Visit) -> Done:
    """Cordon, uncordon, drain or resume. Raises Invalid, Forbidden, NotFound."""
    name, form = visit.path("action"), await visit.request.post()
    given = form.get("reason", "")
    reason = given.strip() if isinstance(given, str) else ""
    handlers = {
        "cordon": (api.cordon_node, api.CordonBody(reason=reason or None)),
        "uncordon": (api.uncordon_node, None),
        "drain": (api.drain_node, api.DrainBody(reason=reason or None)),
        "resume": (api.resume_node, None),
    }
    if name not in handlers:
        raise Invalid(f"there is no action {name!r} of a node", field="action")
    handler, body = handlers[name]
    node = await handler(visit.as_call(body=body, node=visit.path("node")))
    return Done(message=f"{node.name}: {name} is done")


async def clear_gpu(visit: Visit) -> Done:
    paths = {"node": visit.path("node"), "gpu": visit.path("gpu")}
    node = await api.clear_gpu(visit.as_call(**paths))
    return Done(message=f"{node.name} offers {paths['gpu']} again")


PAGES: tuple[PageRoute, ...] = (
    PageRoute(path="/nodes", handler=list_nodes),
    PageRoute(path="/nodes/{node}", handler=show_node),
    PageRoute(path="/nodes/{node}/{action:[a-z]+}", handler=act, method="POST"),
    PageRoute(path="/nodes/{node}/gpus/{gpu}/clear", handler=clear_gpu, method="POST"),
)
