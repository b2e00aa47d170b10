"""What no node of any fleet could ever hold: refused at submit, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from controller.lifecycle.model import Attempt, Fleet, Node, NodeStatus, RunState
from controller.lifecycle.statuses import AttemptStatus
from controller.scheduling.board import Board
from controller.scheduling.fit import closest, could_ever_hold
from controller.scheduling.index import Index
from controller.scheduling.needs import Need, Needs
from controller.scheduling.sentences import why_all_wait, why_one_waits
from controller.scheduling.together import empty_index, fits_when_empty
from controller.scheduling.units import Kind, waiting_units


def why_never(
    state: RunState, nodes: Sequence[Node], fleets: Mapping[str, Fleet]
) -> tuple[str, str] | None:
    """The field of the configuration that asks too much and the sentence about it; None when the
    nodes that are there could hold all jobs of this new run, were they free.

    A node whose capacity is not known yet, since it is not connected, counts as able. Fleets
    without nodes are no reason to refuse: the run waits for the first one (`why_queued`).
    """
    units = waiting_units(as_begun(state), Needs())
    is_certain = True
    for need in dict.fromkeys(member.need for unit in units for member in unit.members):
        asked = _asked(need, nodes)
        if not asked or any(_is_unknown(node) for node in asked):
            is_certain = False
            continue
        refusal = _why_none_could(need, asked, fleets)
        if refusal is not None:
            return refusal
    for unit in units if is_certain else ():
        if unit.kind is Kind.TOGETHER and not fits_when_empty(nodes, fleets, unit):
            board = Board(empty_index(nodes, fleets, lambda _: True))
            return "nodes", f"no fleet could ever hold it: {why_all_wait(board, unit)}"
    return None


def as_begun(state: RunState) -> RunState:
    """A run that waits for its first trigger, as if that had come."""
    if any(job.attempts for job in state.jobs):
        return state
    run = state.run
    jobs = (
        replace(
            job,
            attempts=(
                Attempt(
                    id=job.id,
                    job_id=job.id,
                    number=0,
                    status=AttemptStatus.SUBMITTED,
                    occurrence=run.occurrence,
                    incarnation=run.incarnation,
                    rank=job.rank,
                    submitted_at=run.submitted_at,
                ),
            ),
        )
        for job in state.jobs
    )
    return replace(state, jobs=tuple(jobs))


def why_queued(state: RunState, nodes: Sequence[Node]) -> str | None:
    """A warning for a run of which a job can go nowhere until a node is added."""
    for job in state.jobs:
        fleets = job.spec.fleets
        if not any(not fleets or node.fleet in fleets for node in nodes):
            where = f"fleet {' or '.join(fleets)}" if fleets else "this controller"
            return f"{where} has no node yet: the run waits for the first one"
    return None


def _asked(need: Need, nodes: Iterable[Node]) -> list[Node]:
    fleets, _ = need.scope
    return [node for node in nodes if not fleets or node.fleet in fleets]


def _is_unknown(node: Node) -> bool:
    return node.status is not NodeStatus.CONNECTED


def _why_none_could(
    need: Need, nodes: Sequence[Node], fleets: Mapping[str, Fleet]
) -> tuple[str, str] | None:
    index: Index = empty_index(nodes, fleets, lambda _: True)
    board = Board(index)
    if board.best(need) is not None:
        return None
    allowed = [
        index.nodes[n] for n in index.rooms if index.tier(index.nodes[n], need.scope) is not None
    ]
    if not allowed:
        return "constraints", f"no node could ever hold it: {why_one_waits(board, need)}"
    rooms = [index.rooms[node.id] for node in allowed if could_ever_hold(need.resources, node)]
    return "resources", f"no node could ever hold it: {closest(need.resources, rooms)}"
