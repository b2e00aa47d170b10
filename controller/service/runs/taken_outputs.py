"""The runs whose outputs a new run takes: `outputs_from` (docs/rules.md 4.21).

Each has ended by then, or the new run waits for its end. Names become ids at the submission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.refusals import Conflict, Gone, Invalid, NotFound
from controller.lifecycle.model import RunState, TakenOutputs
from controller.lifecycle.outputs import state_of
from controller.lifecycle.predecessors import Predecessor
from controller.outputs.bucket import BucketError
from controller.outputs.store import OutputStore
from controller.service.runs.predecessors import RunLookup
from controller.store.accounts import User
from fairlead.configuration.runs.plan import Plan
from fairlead.model.beginning import SameJob, When
from fairlead.model.statuses import FINAL_RUN_STATUSES, OutputsState

MAX_JOBS = 100
"""The most jobs of such a run: each is a folder and a transfer of its own."""


async def taken(
    plan: Plan,
    after: Sequence[Predecessor],
    runs: RunLookup,
    user: User,
    outputs: OutputStore,
    together: Mapping[str, RunState] = {},
) -> tuple[TakenOutputs, ...]:
    """Return the runs whose outputs the plan's run takes; `after`: those that it waits for.

    Raises NotFound (another user's run, too), Invalid, Conflict, Gone, StoreUnavailable, each with
    the field.
    """
    found: list[TakenOutputs] = []
    for number, key in enumerate(plan.policy.outputs_from):
        field = f"outputs_from[{number}]"
        state = together.get(key) or await _found(runs, key, user, field)
        run = state.run
        waits = next((one for one in after if one.run_id == run.id), None)
        _check(state, waits, field)
        if run.status in FINAL_RUN_STATUSES and not await _are_kept(state, outputs):
            raise Gone(
                f"the outputs of run {run.name} were removed: they are older than outputs are kept "
                f"here (--keep-outputs); run it again",
                code="outputs_removed",
                field=field,
            )
        if sum(not job.scaled_down for job in state.all_jobs) > MAX_JOBS:
            raise Invalid(
                f"run {run.name} has more than {MAX_JOBS} jobs: pull their outputs with `fairlead "
                f"outputs {run.name} --pull DIR`, and send what the job needs as `files`",
                field=field,
            )
        if any(one.name == run.name for one in found):
            raise Invalid(
                f"another run of the list is named {run.name} too, and both would be the folder "
                f"inputs/{run.name}: leave one of them out",
                field=field,
            )
        found.append(TakenOutputs(run_id=run.id, name=run.name))
    return tuple(found)


async def _are_kept(state: RunState, outputs: OutputStore) -> bool:
    """Return whether the outputs of one of its jobs are still there."""
    for attempt in (job.attempts[-1] for job in state.all_jobs if job.attempts):
        try:
            if attempt.seen.outputs is not None and await outputs.find(attempt.id) is not None:
                return True
        except BucketError:
            return True  # what is in a bucket that is away is looked for when the job starts
    return False


async def _found(runs: RunLookup, key: str, user: User, field: str) -> RunState:
    try:
        return await runs.seen(key, user)
    except NotFound:
        raise NotFound(
            f"you have no run {key!r}, or no more: outputs are taken from runs of the same user, "
            f"while they are kept; name one that `fairlead ps --all` lists",
            field=field,
        ) from None


def _check(state: RunState, waits: Predecessor | None, field: str) -> None:
    run = state.run
    if waits is not None and (waits.when is When.RUNNING or waits.job is SameJob.SAME):
        raise Invalid(
            f"`after` does not wait for the end of run {run.name}, which has outputs only then: "
            f"write `when: done` or `when: ended`, and no `job: same`",
            field=field,
        )
    if run.status not in FINAL_RUN_STATUSES:
        if waits is None:
            raise Conflict(
                f"run {run.name} has not ended, and has outputs only then: add `after: {run.name}`",
                code="outputs_not_ready",
                field=field,
            )
        return
    states = {state_of(job.attempts[-1]) for job in state.all_jobs if job.attempts}
    if OutputsState.COLLECTED in states:
        return
    if OutputsState.LOST in states:
        raise Gone(
            f"the outputs of run {run.name} were lost with their node: run it again",
            code="outputs_lost",
            field=field,
        )
    raise NotFound(
        f"run {run.name} left no outputs: a job keeps what it writes to $FAIRLEAD_OUTPUT_DIR, and "
        f"what its `outputs` name",
        field=field,
    )
