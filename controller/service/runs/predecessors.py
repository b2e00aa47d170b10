"""The runs that must come first: their names become ids when a run is submitted.

A run can wait only for runs that exist, so no two wait for each other, and a later run with the
same name changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from common.refusals import Conflict, Invalid, NotFound
from controller.lifecycle.counterparts import Pieces, counterpart_of, counterparts, in_pieces
from controller.lifecycle.membership.ranks import is_gang_run
from controller.lifecycle.model import Run, RunState
from controller.lifecycle.predecessors import Predecessor, PredecessorFacts, SetFacts
from controller.lifecycle.ranges import contains, in_ranges
from controller.lifecycle.runs.dependencies import facts, own_sets_for, sets_for
from controller.lifecycle.runs.schedules import is_scheduled
from controller.service.jobs.access import Runs
from controller.service.runs.submission import SetsAgain
from controller.store.accounts import User
from fairlead.configuration.runs.plan import Plan
from fairlead.model.beginning import After, SameJob, When
from fairlead.model.reasons import Reason
from fairlead.model.sweep import Value, as_text

RETRY_FIRST = "predecessor_first"


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
            found.append(await _looked_up_again(plan, runs, user, again, earlier[number]))
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
    plan: Plan, runs: RunLookup, user: User, again: SetsAgain, before: Predecessor
) -> Predecessor:
    """Raises Conflict, StoreUnavailable."""
    old = before.ended or await _facts_of(runs, before.run_id, user)
    try:
        state = await runs.seen(before.name, user)
    except NotFound:
        state = None
    return _again(plan, state, again, before, old)


async def _facts_of(runs: RunLookup, run_id: str, user: User) -> PredecessorFacts | None:
    """Return what is known of a run; None: its history is gone. Raises StoreUnavailable."""
    try:
        return facts(await runs.seen(run_id, user))
    except NotFound:
        return None


def _again(
    plan: Plan,
    state: RunState | None,
    again: SetsAgain,
    before: Predecessor,
    old: PredecessorFacts | None,
) -> Predecessor:
    """Return what sets wait for that are repeated. `state`: the run that has the name now;
    `before`, `old`: the one for which they have waited, and what became of it.

    A set that has begun once, or whose predecessor came in the earlier run only, waits for nothing.
    Raises Conflict when a predecessor must be retried first.
    """
    assert plan.sweep is not None, "sets are repeated in a sweep"
    there: dict[int, int] = {}
    if state is not None and state.sweep is not None:
        there = counterparts(plan.sweep.sets, state.sweep.sets)
    seen = old if state is None else facts(state)
    now, then = _sets_of(seen), _sets_of(old)
    came, _ = own_sets_for(before, then)
    _, never = sets_for(before.when, now)
    run_id, name = (before.run_id, before.name) if state is None else (state.run.id, state.run.name)
    begun, free, waits = begun_sets(again.state), [], {}
    for number, earlier in enumerate(again.numbers):
        other = there.get(number)
        if earlier in begun or (other is None and contains(came, earlier)):
            free.append(number)
        elif other is None:
            other = counterpart_of(earlier, before.counterparts)
            raise _retry_first(plan, number, other, (before.run_id, before.name), then)
        elif contains(never, other):
            raise _retry_first(plan, number, other, (run_id, name), now)
        else:
            waits[number] = other
    return Predecessor(
        run_id=run_id,
        name=name,
        when=before.when,
        job=SameJob.SAME,
        ended=seen if seen is not None and seen.is_final else None,
        met_for=in_ranges(free),
        counterparts=in_pieces(waits),
    )


def _sets_of(seen: PredecessorFacts | None) -> SetFacts:
    return (seen and seen.sets) or SetFacts()


def _retry_first(
    plan: Plan, number: int, other: int, run: tuple[str, str], seen: SetFacts
) -> Conflict:
    assert plan.sweep is not None, "sets are repeated in a sweep"
    became = "failed" if contains(seen.failed, other) else "was stopped"
    became = "is done" if contains(seen.done, other) else became
    run_id, name = run
    return Conflict(
        f"parameter set {_written(plan.sweep.sets.at(number))} waits for set {other} of run {name} "
        f"({run_id}), which {became}: retry that run first, `fairlead retry {run_id} --jobs "
        f"{other}`, or choose other sets with --jobs",
        code=RETRY_FIRST,
        field="run",
    )
