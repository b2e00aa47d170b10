"""The runs that must come first: their names become ids when a run is submitted.

A run can wait only for runs that exist, so no two wait for each other, and a later run with the
same name changes nothing. Runs that are submitted as one act may wait for each other by name: they
are made in an order in which each waits only for runs before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from common.refusals import Conflict, Invalid, NotFound
from controller.lifecycle.counterparts import Pieces, counterpart_of, counterparts, in_pieces
from controller.lifecycle.membership.ranks import is_gang_run
from controller.lifecycle.model import Run, RunState
from controller.lifecycle.predecessors import Predecessor, PredecessorFacts, SetFacts
from controller.lifecycle.ranges import (
    Ranges,
    common,
    contains,
    in_ranges,
    numbers_in,
    without,
    written,
)
from controller.lifecycle.runs.dependencies import facts, own_sets_for, sets_for
from controller.lifecycle.runs.schedules import is_scheduled
from controller.pipelines.dependents import FindRun, waits_for
from controller.service.jobs.access import Runs
from controller.service.runs.submission_stages import SetsAgain
from controller.store.accounts import User
from fairlead.configuration.runs.plan import Plan
from fairlead.model.beginning import After, SameJob, When
from fairlead.model.reasons import Reason
from fairlead.model.sweep import Value, as_text

RETRY_FIRST = "predecessor_first"
MAX_TOGETHER = 100
"""The most runs of one act."""


class RunLookup(Runs, Protocol):
    """Finds runs by name or id, and those that a user may see."""

    async def seen(self, key: str, user: User) -> RunState: ...


async def resolved(
    plan: Plan,
    runs: RunLookup,
    user: User,
    known: Sequence[Predecessor] = (),
    together: Mapping[str, RunState] = {},
    again: SetsAgain | None = None,
) -> tuple[Predecessor, ...]:
    """Return the runs that the plan's run waits for.

    `known`: what the names meant before, if they were looked up already. `together`: runs that are
    submitted in the same act, by their names, which come before all others. `again`: the sets that
    the run repeats. Raises NotFound (another user's run, too), Invalid, Conflict (a set that is
    repeated waits for one that must be retried first), StoreUnavailable, each with the field.
    """
    found = []
    earlier = () if again is None else still_waited_for(again.state.run)
    for number, asked in enumerate(plan.policy.after):
        field = f"after[{number}].run"
        key = known[number].run_id if known else asked.run
        if again is not None and asked.job is SameJob.SAME:
            found.append(await _looked_up_again(runs, user, again, earlier[number]))
            continue
        state = together.get(key) or await _found(runs, key, user, field, plan.name)
        _check(plan, asked, state, field)
        found.append(_predecessor(plan, asked, state))
    return tuple(found)


def still_waited_for(run: Run) -> tuple[Predecessor, ...]:
    """Return the runs that chosen sets of an ended sweep wait for when they are repeated: all but
    those whose end the whole sweep has waited for."""
    return tuple(one for one in run.after if one.job is SameJob.SAME or not one.met)


def begun_sets(state: RunState) -> frozenset[int]:
    """Return the sets that have begun once, and so wait for nothing when they are repeated."""
    return frozenset(
        job.replica
        for job in state.all_jobs
        if any(one.reason is not Reason.DEPENDENCY_FAILED for one in job.attempts)
    )


def without_predecessors(plan: Plan) -> Plan:
    """Return the plan of a run that waits for nothing, as a preview of its places needs it."""
    return replace(plan, policy=replace(plan.policy, after=(), begin=None))


async def _found(
    runs: RunLookup, key: str, user: User, field: str, own_name: str | None
) -> RunState:
    """Raises NotFound, Invalid, StoreUnavailable."""
    try:
        return await runs.seen(key, user)
    except NotFound:
        if key == own_name:
            raise Invalid(
                f"run {key!r} cannot wait for itself: name the run that is to come before it",
                field=field,
            ) from None
        raise NotFound(
            f"you have no run {key!r}: a run waits only for runs of its own user that were "
            f"submitted before it, or together with it (`fairlead apply -f A -f B`)",
            field=field,
        ) from None


def _check(plan: Plan, asked: After, state: RunState, field: str) -> None:
    """Raise Invalid for a condition that cannot be meant."""
    run = state.run
    if is_scheduled(run) and asked.when is not When.RUNNING:
        raise Invalid(
            f"run {run.name} is scheduled: it ends only when a user stops it; wait until it is "
            f"`running`, or put both into one run",
            field=field,
        )
    if asked.job is not SameJob.SAME:
        return
    if is_gang_run(run):
        raise Invalid(
            f"run {run.name} has a gang, whose jobs end together: leave `job: same` out",
            field=field,
        )
    if plan.sweep is not None or run.sweep is not None:
        _check_sets(plan, state, field)
        return
    own = sum(group.group.nodes for group in plan.groups)
    theirs = sum(not job.scaled_down for job in state.jobs)
    if own != theirs:
        raise Invalid(
            f"run {run.name} has {theirs} jobs and this one {own}: with `job: same` both need as "
            f"many",
            field=field,
        )


def _check_sets(plan: Plan, state: RunState, field: str) -> None:
    """Raise Invalid unless each of the sets is one of the other sweep, too."""
    name, theirs = state.run.name, state.sweep
    if plan.sweep is None or theirs is None:
        none = "this run" if plan.sweep is None else f"run {name}"
        raise Invalid(
            f"{none} is no sweep and the other is: with `job: same` both are sweeps of the same "
            f"parameter sets; leave it out to wait for the whole run",
            field=field,
        )
    own = plan.sweep.sets
    found = counterparts(own, theirs.sets)
    missing = next((number for number in range(len(own)) if number not in found), None)
    if missing is not None:
        raise Invalid(
            f"run {name} has no parameter set {_written(own.at(missing))}, as set {missing} of "
            f"this one is: with `job: same` each set needs one with its parameters there",
            field=field,
        )


def _written(parameters: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={as_text(value)}" for name, value in parameters.items())


def _predecessor(plan: Plan, asked: After, state: RunState) -> Predecessor:
    seen = facts(state)
    pieces: Pieces = ()
    if asked.job is not SameJob.SAME:
        seen = replace(seen, sets=None)
    elif plan.sweep is not None and state.sweep is not None:
        pieces = in_pieces(counterparts(plan.sweep.sets, state.sweep.sets))
    return Predecessor(
        run_id=state.run.id,
        name=state.run.name,
        when=asked.when,
        job=asked.job,
        ended=seen if seen.is_final else None,
        counterparts=pieces,
    )


# -- sets that are repeated ------------------------------------------------------------------------


async def _looked_up_again(
    runs: RunLookup, user: User, again: SetsAgain, before: Predecessor
) -> Predecessor:
    """Raises Conflict, StoreUnavailable."""
    old = before.ended or await _facts_of(runs, before.run_id, user)
    try:
        state = await runs.seen(before.name, user)
    except NotFound:
        state = None
    return _again(state, again, before, old)


async def _facts_of(runs: RunLookup, run_id: str, user: User) -> PredecessorFacts | None:
    """Return what is known of a run; None: its history is gone. Raises StoreUnavailable."""
    try:
        return facts(await runs.seen(run_id, user))
    except NotFound:
        return None


class _Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """What must come before a set can be retried. `other`: the predecessor's set; None: no run is
    known to have it."""

    other: int | None
    run_id: str
    name: str
    became: str


class _Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of sets when they are retried: those that wait for nothing, the sets for which
    others wait, and those whose predecessor can no longer come so far."""

    free: list[int] = msgspec.field(default_factory=list)
    waits: dict[int, int] = msgspec.field(default_factory=dict)
    never: dict[int, _Obstacle] = msgspec.field(default_factory=dict)


def _outlook(
    state: RunState,
    numbers: Iterable[int],
    before: Predecessor,
    old: PredecessorFacts | None,
    other_run: RunState | None,
) -> _Outlook:
    """`before`, `old`: the run for which the sets have waited, and what became of it; `other_run`:
    the one that has its name now. A set that has begun once, or whose predecessor came in the
    earlier run only, waits for nothing."""
    assert state.sweep is not None, "a sweep has its content"
    there: dict[int, int] = {}
    if other_run is not None and other_run.sweep is not None:
        there = counterparts(state.sweep.sets, other_run.sweep.sets)
    now, then = _sets_of(old if other_run is None else facts(other_run)), _sets_of(old)
    came = frozenset(numbers_in(own_sets_for(before, then)[0]))
    never = frozenset(numbers_in(sets_for(before.when, now)[1]))
    begun, found = begun_sets(state), _Outlook()
    for number in numbers:
        other = there.get(number)
        if number in begun or (other is None and number in came):
            found.free.append(number)
        elif other_run is not None and other is not None:
            if other in never:
                run = other_run.run
                found.never[number] = _obstacle(other, run.id, run.name, now)
            else:
                found.waits[number] = other
        elif contains(before.lost_for, number):
            found.never[number] = _Obstacle(
                other=None, run_id=before.run_id, name=before.name, became="is in no later one"
            )
        else:
            other = counterpart_of(number, before.counterparts)
            found.never[number] = _obstacle(other, before.run_id, before.name, then)
    return found


def _obstacle(other: int, run_id: str, name: str, seen: SetFacts) -> _Obstacle:
    became = "failed" if contains(seen.failed, other) else "was stopped"
    became = "is done" if contains(seen.done, other) else became
    return _Obstacle(other=other, run_id=run_id, name=name, became=became)


def _again(
    state: RunState | None,
    again: SetsAgain,
    before: Predecessor,
    old: PredecessorFacts | None,
) -> Predecessor:
    """Return what sets wait for that are repeated, as the sets of a new run. Raises Conflict when a
    predecessor must be retried first."""
    found = _outlook(again.state, again.numbers, before, old, state)
    for number, obstacle in found.never.items():
        raise _retry_first(again.state, number, obstacle)
    at = {earlier: number for number, earlier in enumerate(again.numbers)}
    run_id, name = (before.run_id, before.name) if state is None else (state.run.id, state.run.name)
    seen = old if state is None else facts(state)
    return Predecessor(
        run_id=run_id,
        name=name,
        when=before.when,
        job=SameJob.SAME,
        ended=seen if seen is not None and seen.is_final else None,
        met_for=in_ranges(at[number] for number in found.free),
        counterparts=in_pieces({at[number]: other for number, other in found.waits.items()}),
    )


def _sets_of(seen: PredecessorFacts | None) -> SetFacts:
    return (seen and seen.sets) or SetFacts()


def _retry_first(state: RunState, number: int, obstacle: _Obstacle) -> Conflict:
    assert state.sweep is not None, "a sweep has its content"
    about = f"parameter set {_written(state.sweep.sets.at(number))}"
    run = f"run {obstacle.name} ({obstacle.run_id})"
    if obstacle.other is None:
        message = (
            f"{about} failed with its predecessor in an earlier run {obstacle.name}, and {run} has "
            f"no such set: submit that set again first, or choose other sets with --jobs"
        )
    else:
        message = (
            f"{about} waits for set {obstacle.other} of {run}, which {obstacle.became}: retry that "
            f"run first, `fairlead retry {obstacle.run_id} --jobs {obstacle.other}`, or choose "
            f"other sets with --jobs"
        )
    return Conflict(message, code=RETRY_FIRST, field="run")


class Repeatable(msgspec.Struct, frozen=True, kw_only=True):
    """Which of chosen sets can be retried. `left_out`: why others stay as they are, as sentences;
    `instead`: as in `SetsRetried`."""

    sets: Ranges
    left_out: tuple[str, ...]
    instead: tuple[tuple[Predecessor, Predecessor], ...]


async def repeatable(
    state: RunState, sets: Ranges, runs: RunLookup, user: User, find: FindRun
) -> Repeatable:
    """Return which of these sets can come true once more, as far as they wait for other sweeps.
    `find`: the live runs. Raises Conflict when none can, StoreUnavailable."""
    run, obstacles, instead = state.run, dict[int, _Obstacle](), []
    for before in run.after:
        if before.job is not SameJob.SAME or state.sweep is None:
            continue
        old = before.ended or await _facts_of(runs, before.run_id, user)
        other_run = await _named(runs, before, run, user, find)
        _, lost = own_sets_for(before, _sets_of(old))
        # What came true stays so in a live run.
        asked = sets if run.finished_at is not None else common(sets, lost)
        found = _outlook(state, numbers_in(asked), before, old, other_run)
        obstacles |= found.never
        is_another = other_run is not None and other_run.run.id != before.run_id
        if run.finished_at is None and found.waits and other_run is not None and is_another:
            instead.append((before, _instead_of(before, old, other_run, state)))
    left = without(sets, in_ranges(obstacles))
    if obstacles and not left:
        number = min(obstacles)
        raise _retry_first(state, number, obstacles[number])
    return Repeatable(sets=left, left_out=tuple(_left_out(run, obstacles)), instead=tuple(instead))


async def _named(
    runs: RunLookup, before: Predecessor, run: Run, user: User, find: FindRun
) -> RunState | None:
    """Return the run that has the predecessor's name now; None: none that may come first. Raises
    StoreUnavailable."""
    live = run.finished_at is None
    key = before.run_id if live and before.ended is None else before.name
    try:
        found = await runs.seen(key, user)
    except NotFound:
        return None
    if live and (found.run.user != run.user or waits_for(found.run.id, run.id, find)):
        return None
    return found


def _instead_of(
    before: Predecessor, old: PredecessorFacts | None, other_run: RunState, state: RunState
) -> Predecessor:
    """Return the run for which sets of a live one wait from now on: those that the earlier run has
    lost and that this one has. About the others the earlier run has decided."""
    assert state.sweep is not None, "a sweep has its content"
    assert other_run.sweep is not None, "sets wait for a sweep"
    met, lost = own_sets_for(before, _sets_of(old))
    there = counterparts(state.sweep.sets, other_run.sweep.sets)
    waits = {number: there[number] for number in numbers_in(lost) if number in there}
    seen = facts(other_run)
    return Predecessor(
        run_id=other_run.run.id,
        name=other_run.run.name,
        when=before.when,
        job=SameJob.SAME,
        met=seen.is_final,
        ended=seen if seen.is_final else None,
        met_for=met,
        lost_for=without(lost, in_ranges(waits)),
        counterparts=in_pieces(waits),
    )


def _left_out(run: Run, obstacles: Mapping[int, _Obstacle]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[int]] = {}
    for number, one in sorted(obstacles.items()):
        groups.setdefault((one.run_id, one.became), []).append(number)
    for (run_id, became), numbers in groups.items():
        own = written(in_ranges(numbers))
        one = obstacles[numbers[0]]
        others = [found.other for n in numbers if (found := obstacles[n]).other is not None]
        if not others:
            yield (
                f"not retried: {own}; what they waited for failed in an earlier run {one.name}, and"
                f" {became}: submit these sets of it again first"
            )
            continue
        theirs = written(in_ranges(others))
        yield (
            f"not retried: {own}; of what they wait for, {theirs} of run {one.name} ({run_id}), "
            f"each {became}: `fairlead retry {run_id} --jobs {theirs}` first, then `fairlead retry "
            f"{run.name} --jobs {own}`"
        )


def in_order(names: Sequence[str], after: Sequence[Sequence[After]]) -> list[int]:
    """Return the numbers of the runs so that each comes after those that it waits for.

    `names` and `after` are those of the runs, in the order of the request. Runs that are not among
    them are left out. Raises Invalid for a name that comes twice, and for a circle.
    """
    numbers = {name: number for number, name in enumerate(names)}
    if len(numbers) != len(names):
        number = next(n for n, name in enumerate(names) if numbers[name] != n)
        raise Invalid(
            f"two runs are named {names[number]}: give each a name of its own",
            field=f"runs[{numbers[names[number]]}].name",
        )
    order: list[int] = []
    on_the_way: list[int] = []

    def visit(number: int) -> None:
        if number in order:
            return
        if number in on_the_way:
            raise _circle(names, [*on_the_way[on_the_way.index(number) :], number])
        on_the_way.append(number)
        for one in after[number]:
            if one.run in numbers:
                visit(numbers[one.run])
        on_the_way.pop()
        order.append(number)

    for number in range(len(names)):
        visit(number)
    return order


def _circle(names: Sequence[str], way: Sequence[int]) -> Invalid:
    shown = " waits for ".join(names[number] for number in way)
    return Invalid(
        f"{shown}: none of them could ever begin; take one of the conditions out",
        field=f"runs[{way[0]}].configuration.after",
        code="dependency_cycle",
    )
