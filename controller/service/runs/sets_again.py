"""Sets of a sweep that has ended, as a new run (docs/rules.md 11.9).

Nothing of the ended run changes. The new one is made from the configuration that is stored with it,
by a submission as any user could make it: the uploads must still be there, and no value hidden.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from common.refusals import Conflict, Gone, Invalid, NotFound, Unprocessable
from controller.lifecycle.model import Run, RunState, SweepContent
from controller.lifecycle.ranges import Ranges, numbers_in
from controller.service.runs.submission import Submission
from controller.service.runs.submissions import SubmissionService
from controller.store.accounts import User
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.secrecy import hidden_fields
from fairlead.configuration.values.sweep import with_sets
from fairlead.model.beginning import SameJob
from fairlead.model.reasons import Reason

_OF_THE_RUN = (Conflict, Gone, Invalid, NotFound, Unprocessable)


def submitted_configuration(state: RunState) -> dict[str, Any]:
    """Return what the run was submitted with, as far as it may be shown. The sets of a file are
    stored apart from it, and are in their place again."""
    configuration, content = dict(state.run.configuration), state.sweep
    sweep = configuration.get("sweep")
    if content is not None and isinstance(sweep, Mapping) and "sets" in sweep:
        configuration["sweep"] = _sweep_of(sweep, content, range(len(content.sets)))
    return configuration


async def submit_again(
    submissions: SubmissionService, state: RunState, sets: Ranges, *, user: User
) -> RunState:
    """Return the run that has these sets of the ended one. Two calls at once, and one while that
    run lives, give the same run. Raises Conflict, and what a submission raises."""
    run = state.run
    configuration = _configuration(state, frozenset(numbers_in(sets)))
    if hidden := list(hidden_fields(configuration)):
        raise Conflict(
            f"run {run.name} has ended, and the value of {', '.join(hidden)} may be secret, so it"
            f" was not kept: {_instead(run)}",
            code="not_kept",
            field="run",
        )
    try:
        return await _submitted(submissions, state, configuration, sets, user)
    except ConfigurationError as error:
        raise Conflict(_why_not(run, str(error)), code="not_kept", field="run") from None
    except _OF_THE_RUN as error:
        if error.code == "name_taken":
            raise _name_taken(run) from None
        where = f"{error.field}: " if error.field else ""
        raise type(error)(
            _why_not(run, f"{where}{error.message}"), code=error.code, field="run"
        ) from None


async def _submitted(
    submissions: SubmissionService,
    state: RunState,
    configuration: dict[str, Any],
    sets: Ranges,
    user: User,
) -> RunState:
    assert state.sweep is not None, "a sweep has its content"
    key = _key(state.run.id, repr(sets))
    while True:
        submission = Submission(
            configuration=configuration,
            name=state.run.name,
            client_key=key,
            ssh_keys=state.sweep.spec.ssh_keys,
        )
        made = (await submissions.submit(submission, user=user)).state
        if made.run.finished_at is None:
            return made
        # It was made before and has ended too: whoever asks again means another one.
        key = _key(made.run.id, key)


def _key(*parts: str) -> str:
    return "sets-again-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _configuration(state: RunState, numbers: frozenset[int]) -> dict[str, Any]:
    run, content = state.run, state.sweep
    assert run.sweep is not None, "the run is a sweep"
    assert content is not None, "a sweep has its content"
    configuration = dict(run.configuration)
    sweep = _sweep_of(configuration.get("sweep"), content, sorted(numbers))
    # As a user has changed it since.
    sweep.pop("max_parallel", None)
    if run.sweep.max_parallel is not None:
        sweep["max_parallel"] = run.sweep.max_parallel
    configuration["sweep"] = sweep
    for field in ("begin", "start_before"):
        configuration.pop(field, None)
    if not _waits(state, numbers):
        configuration.pop("after", None)
        if run.outputs_from:
            # A later run of that name has other outputs.
            configuration["outputs_from"] = [one.run_id for one in run.outputs_from]
    return configuration


def _sweep_of(written: object, content: SweepContent, numbers: Iterable[int]) -> dict[str, Any]:
    rows = [list(content.sets.at(number).values()) for number in numbers]
    return with_sets(written if isinstance(written, Mapping) else {}, content.sets.names, rows)


def _waits(state: RunState, numbers: frozenset[int]) -> bool:
    """Return whether one of the sets still waits for what the run waited for: it never began."""
    begun = {
        job.replica
        for job in state.all_jobs
        if job.attempts and job.attempts[-1].reason is not Reason.DEPENDENCY_FAILED
    }
    if any(one.job is SameJob.SAME for one in state.run.after):
        return not numbers <= begun
    return not begun


def _name_taken(run: Run) -> Conflict:
    return Conflict(
        f"run {run.name} ({run.id}) has ended, and a live run has its name: retry that one, or "
        f"give a new run of these sets another name with `fairlead apply -f FILE --name NAME "
        f"--failed-of {run.id}`",
        code="name_taken",
        field="run",
    )


def _why_not(run: Run, why: str) -> str:
    return (
        f"run {run.name} has ended, and its sets cannot be submitted again from what is stored:"
        f" {why}; {_instead(run)}"
    )


def _instead(run: Run) -> str:
    return f"`fairlead apply -f FILE --failed-of {run.id}` submits the failed sets from your files"
