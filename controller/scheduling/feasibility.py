"""Feasibility finds jobs that no node of any fleet could ever hold: they are refused at submit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from controller.lifecycle.lacks import LacksAbilities, LacksPermission
from controller.lifecycle.model import Attempt, Fleet, Node, NodeStatus, RunState, StartupOrder
from controller.lifecycle.pending_reasons import DoesNotFit, NoSuchFleet
from controller.scheduling.diagnosis import is_known, why_all_wait, why_one_waits
from controller.scheduling.fitting.capacity import Need, Needs
from controller.scheduling.fitting.fit import as_new, closest
from controller.scheduling.gang_placement import fits_when_empty
from controller.scheduling.index import CapacityIndex
from controller.scheduling.packing import Outcome
from controller.scheduling.queue import Kind, Unit, waiting_units
from controller.scheduling.trial_capacity import TrialCapacity
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.engine_abilities import EngineAbility


class Feasibility:
    """The capacity of the nodes if they were free.

    It is updated with every change of a node or fleet, so that a submission does not look at
    thousands of nodes.
    """

    def __init__(self) -> None:
        self._empty = CapacityIndex()
        self._changed: dict[str, Node | None] = {}
        self._silent: dict[str, Node] = {}
        self._needs = Needs()

    def node_changed(self, node_id: str, node: Node | None) -> None:
        self._changed[node_id] = node
        if node is None or node.status is NodeStatus.CONNECTED:
            self._silent.pop(node_id, None)
        else:
            self._silent[node_id] = node

    def fleet_changed(self, name: str, fleet: Fleet | None) -> None:
        self._empty.fleet_changed(name, fleet)

    def why_never(self, state: RunState) -> tuple[str, str] | None:
        """Return the field that asks for too much and a sentence; None if the nodes could hold all
        jobs of this new run.

        A node whose capacity is unknown, because it is not connected, counts as able. A fleet
        without nodes is no reason to refuse: the run waits for the first one (`why_queued`). A job
        whose fleet is unknown is refused: the name is probably misspelt.
        """
        self._refresh()
        for job in state.jobs:
            for fleet in job.spec.fleets:
                if not is_known(self._empty, fleet):
                    why = NoSuchFleet(fleets=(fleet,)).sentence()
                    return "fleets", f"{why}; `fairlead fleet list` shows the existing ones"
        units = waiting_units(_without_turns(as_begun(state)), self._needs)
        for need in dict.fromkeys(member.need for unit in units for member in unit.members):
            refusal = None if self._is_open(need) else self._why_none_could(need)
            if refusal is not None:
                return refusal
        for unit in units:
            if unit.kind is not Kind.TOGETHER:
                continue
            if fits_when_empty(self._empty, unit) is Outcome.NEVER:
                if any(self._is_open(member.need) for every in units for member in every.members):
                    return None
                why = why_all_wait(TrialCapacity(self._empty), unit).sentence()
                return "nodes", f"no fleet could ever hold it: {why}"
        return None

    def could_hold(self, unit: Unit) -> bool:
        """Return whether the nodes that are known could hold the waiting jobs if they were free."""
        self._refresh()
        members = tuple(
            replace(member, need=self._needs.like(member.need)) for member in unit.members
        )
        for need in dict.fromkeys(member.need for member in members):
            if self._empty.sorted(need.scope).best(need, self._empty.rooms) is None:
                return False
        if unit.kind is not Kind.TOGETHER:
            return True
        whole = replace(unit, members=members, later=(), reserved=(), starting=(), freed=())
        return fits_when_empty(self._empty, whole) is not Outcome.NEVER

    def _refresh(self) -> None:
        changed, self._changed = self._changed, {}
        for node_id, node in changed.items():
            if node is not None or node_id in self._empty.nodes:
                self._empty.node_changed(node_id, None if node is None else as_new(node))
        self._empty.refresh()

    def _is_open(self, need: Need) -> bool:
        """Return whether the answer is unknown: there is no node to ask, or one that is silent, or
        a fleet that rents machines."""
        fleets, _ = need.scope
        # Its provider's offers change, and `explain` tells when none of them would do.
        rents = (fleet for fleet in self._empty.fleets.values() if fleet.machines is not None)
        if any(not fleets or fleet.name in fleets for fleet in rents):
            return True
        if any(_is_asked(node, fleets) for node in self._silent.values()):
            return True
        return not any(_is_asked(node, fleets) for node in self._empty.nodes.values())

    def _why_none_could(self, need: Need) -> tuple[str, str] | None:
        index = self._empty
        allowed = index.sorted(need.scope)
        if allowed.best(need, index.rooms) is not None:
            return None
        if not allowed:
            why = why_one_waits(TrialCapacity(index), need).sentence()
            return "constraints", f"no node could ever hold it: {why}"
        rooms = [free for _, free, _ in allowed.bins(index.rooms)]
        best = closest(need.resources, rooms)
        return _field_of(best), f"no node could ever hold it: {best.sentence()}"


def _field_of(why: DoesNotFit) -> str:
    """Return the field of the configuration that asks for what is lacking."""
    match why.lacks:
        case (LacksAbilities(abilities=(EngineAbility.IMAGES, *_)),):
            return "image"
        case (LacksAbilities(abilities=(EngineAbility.VOLUMES, *_)),):
            return "volumes"
        case (LacksAbilities(abilities=(EngineAbility.SIGNAL,)),):
            return "signal"
        case (LacksPermission(option=option),):
            return "volumes" if option.startswith("--volume") else "privileged"
    return "resources"


def why_never(
    state: RunState, nodes: Iterable[Node], fleets: Mapping[str, Fleet]
) -> tuple[str, str] | None:
    """Return `Feasibility.why_never` for these nodes and fleets."""
    made = Feasibility()
    for name, fleet in fleets.items():
        made.fleet_changed(name, fleet)
    for node in nodes:
        made.node_changed(node.id, node)
    return made.why_never(state)


def _without_turns(state: RunState) -> RunState:
    """Return the run as if all jobs could start at once: jobs whose turn comes later must fit
    too."""
    policy = replace(state.run.policy, startup_order=StartupOrder.ANY)
    return replace(state, run=replace(state.run, policy=policy))


def as_begun(state: RunState) -> RunState:
    """Return a run that waits for its first trigger as if that had come."""
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
    """Return a warning if a job of the run has no node until one is added; None: every job has
    one."""
    for job in state.jobs:
        fleets = job.spec.fleets
        if not any(not fleets or node.fleet in fleets for node in nodes):
            where = f"fleet {' or '.join(fleets)}" if fleets else "this controller"
            return f"{where} has no node yet: the run waits for the first one"
    return None


def _is_asked(node: Node, fleets: tuple[str, ...]) -> bool:
    return not fleets or node.fleet in fleets
