"""The runs that must come first: their names become ids when a run is submitted.

A run can wait only for runs that exist, so no two wait for each other, and a later run with the
same name changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from common.refusals import Invalid, NotFound
from controller.lifecycle.membership.ranks import is_gang_run
from controller.lifecycle.model import RunState
from controller.lifecycle.predecessors import Predecessor
from controller.lifecycle.runs.dependencies import facts
from controller.lifecycle.runs.schedules import is_scheduled
from controller.service.jobs.access import Runs
from controller.store.accounts import User
from fairlead.configuration.runs.plan import Plan
from fairlead.model.beginning import After, SameJob, When
from fairlead.model.sweep import Value, as_text


class RunLookup(Runs, Protocol):
    """Finds runs by name or id, and those that a user may see."""

    async def seen(self, key: str, user: User) -> RunState: ...


async def resolved(
    plan: Plan,
    runs: RunLookup,
    user: User,
    known: Sequence[Predecessor] = (),
    together: Mapping[str, RunState] = {},
) -> tuple[Predecessor, ...]:
    """Return the runs that the plan's run waits for.

    `known`: what the names meant before, if they were looked up already. `together`: runs that are
    submitted in the same act, by their names, which come before all others. Raises NotFound
    (another user's run, too), Invalid, StoreUnavailable, each with the field.
    """
    found = []
    for number, asked in enumerate(plan.policy.after):
        field = f"after[{number}].run"
        key = known[number].run_id if known else asked.run
        state = together.get(key) or await _found(runs, key, user, field, plan.name)
        _check(plan, asked, state, field)
        found.append(_predecessor(asked, state))
    return tuple(found)


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
    """Raise Invalid unless both runs are sweeps of the same parameter sets."""
    name, theirs = state.run.name, state.sweep
    if plan.sweep is None or theirs is None:
        none = "this run" if plan.sweep is None else f"run {name}"
        raise Invalid(
            f"{none} is no sweep and the other is: with `job: same` both are sweeps of the same "
            f"parameter sets; leave it out to wait for the whole run",
            field=field,
        )
    own = plan.sweep.sets
    if len(own) != len(theirs.sets):
        raise Invalid(
            f"run {name} has {len(theirs.sets):,} parameter sets and this one {len(own):,}: with "
            f"`job: same` both need the same ones",
            field=field,
        )
    if own == theirs.sets:
        return
    for number in range(len(own)):
        if (mine := own.at(number)) != (other_set := theirs.sets.at(number)):
            raise Invalid(
                f"set {number} is {_written(mine)} here and {_written(other_set)} in run {name}: "
                f"with `job: same` both need the same sets in the same order",
                field=field,
            )


def _written(parameters: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={as_text(value)}" for name, value in parameters.items())


def _predecessor(asked: After, state: RunState) -> Predecessor:
    seen = facts(state)
    if asked.job is not SameJob.SAME:
        seen = replace(seen, sets=None)
    return Predecessor(
        run_id=state.run.id,
        name=state.run.name,
        when=asked.when,
        job=asked.job,
        ended=seen if seen.is_final else None,
    )
