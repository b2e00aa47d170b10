"""Explain why each job of a run waits, node by node, and preview what a run would get.

All functions are pure: they read the index and leave it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from msgspec.structs import replace

from controller.lifecycle.attempts import startup
from controller.lifecycle.model import Job, Node, Run, RunState
from controller.lifecycle.pending_reasons import RanksFirst, VictimsLeave, constraint_words
from controller.lifecycle.reports import Nominated, NotPlaced, Placed, Preempted
from controller.scheduling.diagnosis import unusable, why_all_wait, why_one_waits
from controller.scheduling.fitting.capacity import Need
from controller.scheduling.fitting.constraints import attributes_of, unmet
from controller.scheduling.fitting.fit import room, shortfalls
from controller.scheduling.fitting.grant import asked_by, granted_by
from controller.scheduling.gang_placement import domains_for, has_room, whole_of
from controller.scheduling.index import CapacityIndex, Where
from controller.scheduling.nominations import victims_of
from controller.scheduling.placement import SchedulingPass
from controller.scheduling.queue import Kind, Member, Unit, in_order
from controller.scheduling.trial_capacity import TrialCapacity
from fairlead.model.answers import NodeAnswer, PlannedPlace, Waiting

NameOf = Callable[[Run], str]
"""Returns the name of a run as the asking user may see it."""
MAX_AHEAD = 10
NO_REASON = "a node has room: the next turn places it"


def explain(index: CapacityIndex, run_id: str, now: float, name_of: NameOf) -> tuple[Waiting, ...]:
    """Return what the jobs of the run wait for; empty when none waits for an allocation."""
    index.refresh()
    if run_id not in index.units:
        return ()
    every = in_order((unit for units in index.units.values() for unit in units), index.use, now)
    trial = TrialCapacity(index)
    same: dict[Hashable, list[Waiting]] = {}
    ahead: dict[str, str] = {}
    answers = _Answers(trial, run_id, name_of)
    for position, unit in enumerate(every, 1):
        if unit.run.id == run_id:
            before = tuple(ahead.values())[-MAX_AHEAD:]
            with trial.seen_by(unit):
                for key, waiting in _of_unit(trial, unit, position, before, answers):
                    same.setdefault(key, []).append(waiting)
        else:
            ahead[unit.run.id] = name_of(unit.run)
    return tuple(_as_one(alike) for alike in same.values())


class _Answers:
    """The answers of all nodes to a need of one run, computed once for all jobs with that need."""

    def __init__(self, trial: TrialCapacity, run_id: str, name_of: NameOf) -> None:
        self._trial = trial
        self._nodes = sorted(trial.index.nodes.values(), key=lambda node: node.name)
        self._kept: dict[str, list[str]] = {}
        for allocation in trial.index.nominations.values():
            if allocation.freed and allocation.run_id != run_id:
                name = name_of(trial.index.states[allocation.run_id].run)
                self._kept.setdefault(allocation.node_id, []).append(
                    f"an allocation there is kept for {name}, whose gang starts again"
                )
        self._known: dict[tuple[Need, Where, Kind], tuple[NodeAnswer, ...]] = {}

    def to(self, need: Need, where: Where, kind: Kind) -> tuple[NodeAnswer, ...]:
        key = (need, where, kind)
        if key not in self._known:
            self._known[key] = tuple(self._answer(node, need, where) for node in self._nodes)
        return self._known[key]

    def _answer(self, node: Node, need: Need, where: Where) -> NodeAnswer:
        why = _in_the_way(self._trial, node, need, where)
        if why:
            why += dict.fromkeys(self._kept.get(node.id, ()))
        return NodeAnswer(node=node.name, why=tuple(why))


def _of_unit(
    trial: TrialCapacity, unit: Unit, position: int, ahead: tuple[str, ...], answers: _Answers
) -> Iterator[tuple[Hashable, Waiting]]:
    """Yield what the unit's jobs wait for, each with a key that equal answers share."""
    by_need: dict[Need, list[Member]] = {}
    for member in unit.members:
        by_need.setdefault(member.need, []).append(member)
    index = trial.index
    where = _bound_to(index, unit)
    victims = len(victims_of(index, unit))
    nominated = tuple(index.nodes[allocation.node_id].name for allocation in unit.nominated)
    for need, members in by_need.items():
        waiting = Waiting(
            jobs=tuple(job_label(member) for member in members),
            together=unit.kind is Kind.TOGETHER,
            why=(
                VictimsLeave(count=victims).sentence()
                if unit.nominated
                else _why(trial, unit, need, where)
            ),
            position=position,
            ahead=ahead,
            nominated=nominated,
            victims=victims,
            nodes=answers.to(need, where, unit.kind),
        )
        alone = position if waiting.together else 0
        yield (alone, need, where, waiting.why, nominated), waiting


def _as_one(alike: list[Waiting]) -> Waiting:
    """Return the first, with the jobs of all."""
    jobs = tuple(job for waiting in alike for job in waiting.jobs)
    return replace(alike[0], jobs=jobs)


def job_label(member: Member) -> str:
    return f"{member.job.group}/{member.job.cookie}"


def _bound_to(index: CapacityIndex, unit: Unit) -> Where:
    return next(iter(domains_for(index, unit)), None) if unit.anchors else None


def _why(trial: TrialCapacity, unit: Unit, need: Need, where: Where) -> str:
    if unit.kind is Kind.TOGETHER:
        return (
            NO_REASON if has_room(trial, unit) else why_all_wait(trial, whole_of(unit)).sentence()
        )
    if unit.kind is Kind.RESERVED and _ranks_wait(trial.index, unit):
        return RanksFirst().sentence()
    if trial.best(need, where) is not None:
        return NO_REASON
    return why_one_waits(trial, need, where).sentence()


def _ranks_wait(index: CapacityIndex, unit: Unit) -> bool:
    return any(one.kind is Kind.TOGETHER for one in index.units[unit.run.id])


def _in_the_way(trial: TrialCapacity, node: Node, need: Need, where: Where) -> list[str]:
    index, found = trial.index, []
    closed = unusable(node)
    if closed is not None:
        found.append(f"it is {closed.words()}")
    fleets, constraints = need.scope
    if fleets and node.fleet not in fleets:
        found.append(f"it belongs to fleet {node.fleet}, not to {' or '.join(fleets)}")
    attributes = attributes_of(node, index.fleets.get(node.fleet))
    missing = unmet(constraints, attributes)
    if missing is not None:
        has = attributes.get(missing.attribute)
        tail = f"it has no {missing.attribute}" if has is None else f"it has {has}"
        found.append(f"needs {constraint_words(missing)}, {tail}")
    if where is not None and closed is None and index.domain(node.id) != where:
        found.append(f"it is not in {where}, where the run's other jobs are")
    if closed is not None and not node.capacity.cpu:
        return found  # Its shim has never told what it has.
    taken = index.taken.get(node.id, {}).values()
    free = trial.rooms.get(node.id) or room(node, taken, index.starts(node.id))
    lacks = (one.lack.words() for one in shortfalls(need.resources, free))
    found += [f"needs {needed}, it has {has}" for needed, has in lacks]
    return found


def preview(
    index: CapacityIndex, state: RunState, now: float, new_id: Callable[[], str], name_of: NameOf
) -> tuple[PlannedPlace, ...]:
    """Return where each job of this run would go if it were submitted now, in the order of its
    jobs."""
    with index.with_run(state):
        by_run = SchedulingPass(index, now, new_id).decide()
    names = {
        run_id: name_of(index.states[run_id].run)
        for run_id, reports in by_run.items()
        if run_id in index.states and any(isinstance(one, Preempted) for one in reports)
    }
    reports = {
        report.attempt_id: report
        for report in by_run.get(state.run.id, ())
        if isinstance(report, Placed | Nominated | NotPlaced)
    }
    return tuple(
        _planned(index, state.run, job, reports.get(job.attempts[-1].id), names)
        for job in state.jobs
        if job.attempts
    )


def _planned(
    index: CapacityIndex,
    run: Run,
    job: Job,
    report: Placed | Nominated | NotPlaced | None,
    victims: dict[str, str],
) -> PlannedPlace:
    """Return the planned result of one job. Without a report, the job waits until other jobs have
    started."""
    label = f"{job.group}/{job.cookie}"
    asked = asked_by(job.spec.resources)
    match report:
        case Placed():
            allocation = report.allocation
            return PlannedPlace(
                job=label,
                node=index.nodes[allocation.node_id].name,
                gpus=allocation.gpus,
                asked=asked,
                granted=granted_by(allocation.resources),
            )
        case Nominated():
            allocation = report.allocation
            return PlannedPlace(
                job=label,
                node=index.nodes[allocation.node_id].name,
                gpus=allocation.gpus,
                why=report.pending_reason.sentence(),
                victims=tuple(sorted(victims.values())),
                asked=asked,
                granted=granted_by(allocation.resources),
            )
        case NotPlaced():
            why = report.pending_reason
        case None:
            why = startup.its_turn(run)
    return PlannedPlace(job=label, node=None, why=why.sentence(), asked=asked)
