"""The sets of a sweep, as users list, choose, stop and retry them (docs/rules.md 11)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from common.refusals import Conflict, Gone, Invalid, NotFound, Unprocessable
from controller.lifecycle.model import Attempt, Job, Run, RunState, Sweep, SweepContent
from controller.lifecycle.ranges import Ranges, in_ranges, numbers_in
from controller.lifecycle.reports import Report, SetsRetried, SetsStopped, SweepResized
from controller.lifecycle.sweeps.sets import by_set, is_ending, status_of
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_control
from controller.service.runs.actions import require_life
from controller.service.runs.predecessors import (
    RETRY_FIRST,
    RunLookup,
    begun_sets,
    repeatable,
    still_waited_for,
)
from controller.service.runs.submission_stages import SetsAgain, Submission
from controller.service.runs.submissions import SubmissionService
from controller.store.accounts import User
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.secrecy import hidden_fields
from fairlead.configuration.values.sweep import MAX_SETS, with_sets
from fairlead.model.beginning import SameJob
from fairlead.model.reasons import Reason
from fairlead.model.sweep import SetStatus, Value, is_meant
from fairlead.queries import SetQuery

_NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_PART = re.compile(r'(?:[^",]|"[^"]*")*')
"""Up to a comma that is outside of double quotes."""


_NOT_BY_ITSELF = frozenset({None, Reason.DONE_BY_RUNNER, Reason.SIBLING_FAILED})


class ListedSet(msgspec.Struct, frozen=True, kw_only=True):
    """One set. `jobs`: in the order of their ranks; empty while it has never begun."""

    number: int
    parameters: dict[str, Value]
    status: SetStatus
    jobs: tuple[Job, ...]

    @property
    def last(self) -> Attempt | None:
        """The attempt that tells what became of the set: the first that failed by itself, else
        that of rank 0."""
        lasts = [job.attempts[-1] for job in self.jobs if job.attempts]
        ended = (one for one in lasts if one.reason not in _NOT_BY_ITSELF)
        return next(ended, lasts[0] if lasts else None)

    @property
    def finished_at(self) -> float | None:
        """When the last of its attempts became final; None: not yet, or it has none."""
        ends = [job.attempts[-1].finished_at for job in self.jobs if job.attempts]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """The run that has the retried sets: a new one if theirs has ended. `left_out`: why other
    chosen sets stay as they are, as sentences."""

    state: RunState
    left_out: tuple[str, ...]


class SweepService:
    def __init__(
        self, pipeline: RunPipeline, runs: RunLookup, submissions: SubmissionService
    ) -> None:
        self._pipeline = pipeline
        self._runs = runs
        self._submissions = submissions

    def page(self, state: RunState, query: SetQuery) -> list[ListedSet]:
        """Return the chosen sets in the order of their numbers, one more than the limit. Raises
        Conflict (no sweep), Invalid."""
        found = chosen(state, query.which, query.statuses)
        after = -1 if query.cursor is None else _number(query.cursor)
        left = (one for one in found if one.number > after)
        return [one for one, _ in zip(left, range(query.limit + 1), strict=False)]

    async def stop(self, key: str, *, which: str | None, user: User) -> RunState:
        """Stop sets of a live run; None: all that wait or are active."""
        state = await self._own(key, user, "stopped")
        wanted = {SetStatus.WAITING, SetStatus.ACTIVE}
        sets = in_ranges(one.number for one in chosen(state, which) if one.status in wanted)
        _require_some(sets, which, "waits or is active")
        return await self._report(SetsStopped(run_id=state.run.id, sets=sets, by=user.name), state)

    async def retry(self, key: str, *, which: str | None, user: User) -> Retried:
        """Retry sets that failed or were stopped; None: all that failed. Those whose predecessor
        can no longer come are left out. Raises Conflict, what a submission raises, and NotFound."""
        state = await self._controlled(key, user)
        run = state.run
        if run.finished_at is None and is_ending(run):
            raise Conflict(
                f"run {run.name} is ending ({run.reason}): retry its sets once it has ended, then "
                f"they become a new run",
                code="ending",
                field="run",
            )
        wanted = {SetStatus.FAILED} | ({SetStatus.STOPPED} if which is not None else set())
        sets = in_ranges(one.number for one in chosen(state, which) if one.status in wanted)
        _require_some(sets, which, "failed" if which is None else "failed or was stopped")
        may = await repeatable(state, sets, self._runs, user, self._pipeline.runs.get)
        if run.finished_at is not None:
            made = await submit_again(self._submissions, state, may.sets, user=user)
            return Retried(state=made, left_out=may.left_out)
        report = SetsRetried(run_id=run.id, sets=may.sets, by=user.name, instead=may.instead)
        found = await self._report(report, state)
        ended = is_ending(found.run) and _attempts(found, sets) == _attempts(state, sets)
        waits_for = {one.run_id for one in found.run.after}
        if ended or any(now.run_id not in waits_for for _, now in may.instead):
            # It, or what it is to wait for, ended in this moment, so nothing begins again there.
            return await self.retry(run.id, which=which, user=user)
        return Retried(state=found, left_out=may.left_out)

    async def resize(self, key: str, *, max_parallel: int | None, user: User) -> RunState:
        """Change how many sets may be active at once."""
        state = await self._own(key, user, "scaled")
        if max_parallel is not None and not 1 <= max_parallel <= MAX_SETS:
            raise Invalid(
                f"{max_parallel} is not a number of sets (allowed: 1 to {MAX_SETS})",
                field="max_parallel",
            )
        report = SweepResized(run_id=state.run.id, max_parallel=max_parallel, by=user.name)
        return await self._report(report, state)

    async def _own(self, key: str, user: User, done: str) -> RunState:
        state = await self._controlled(key, user)
        require_life(state, done)
        return state

    async def _controlled(self, key: str, user: User) -> RunState:
        state = await self._runs.get(key)
        require_control(user, state.run)
        sweep_of(state.run)
        return state

    async def _report(self, report: Report, state: RunState) -> RunState:
        if state.run.id in self._pipeline.runs:
            await self._pipeline.report(report)
        return await self._runs.get(state.run.id)


def _attempts(state: RunState, sets: Ranges) -> int:
    """Return how many attempts these sets have had."""
    numbers = frozenset(numbers_in(sets))
    return sum(len(job.attempts) for job in state.all_jobs if job.replica in numbers)


def sweep_of(run: Run) -> Sweep:
    """Return the run's sweep. Raises Conflict (`no_sweep`)."""
    if run.sweep is None:
        raise Conflict(
            f"{run.name} is no sweep: it has no parameter sets", code="no_sweep", field="run"
        )
    return run.sweep


def chosen(
    state: RunState, which: str | None = None, statuses: Iterable[SetStatus] = ()
) -> Iterator[ListedSet]:
    """Yield the chosen sets in the order of their numbers. Raises Conflict (no sweep), NotFound (a
    number or name that the sweep has not), Invalid."""
    sweep, content = sweep_of(state.run), state.sweep
    assert content is not None, "a sweep has its content"
    numbers, conditions = _read(which, content.sets.names, sweep.total)
    wanted = frozenset(statuses)
    begun = by_set(state.all_jobs)
    again = frozenset(sweep.again)
    stopped = frozenset(numbers_in(sweep.stopped))
    for number in range(sweep.total) if numbers is None else numbers:
        jobs = tuple(begun.get(number, ()))
        status = _status(state.run, number, jobs, again, stopped)
        if wanted and status not in wanted:
            continue
        parameters = content.sets.at(number)
        if all(_holds(parameters[name], value) for name, value in conditions):
            yield ListedSet(number=number, parameters=parameters, status=status, jobs=jobs)


def _status(
    run: Run, number: int, jobs: Sequence[Job], again: frozenset[int], stopped: frozenset[int]
) -> SetStatus:
    if number in stopped:
        return SetStatus.STOPPED
    if not jobs or number in again:
        return SetStatus.STOPPED if is_ending(run) else SetStatus.WAITING
    return status_of(run, jobs)


def _holds(value: Value, written: str) -> bool:
    """Return whether this value is meant; one with a comma or a space at its end is written in
    double quotes, and these may be a part of a value, too."""
    quoted = len(written) > 1 and written[0] == written[-1] == '"'
    return is_meant(value, written) or (quoted and is_meant(value, written[1:-1]))


def _parts(which: str) -> Iterator[str]:
    at = 0
    while at <= len(which):
        match = _PART.match(which, at)
        end = at if match is None else match.end()
        if which[end : end + 1] not in ("", ","):  # a double quote without its end
            end = (which.find(",", end) + 1 or len(which) + 1) - 1
        yield which[at:end].strip()
        at = end + 1


def _read(
    which: str | None, names: Sequence[str], total: int
) -> tuple[list[int] | None, list[tuple[str, str]]]:
    """Return the numbers (None: all) and the values that a choice like `3,7-9` or
    `seed=3,lr=0.1` names."""
    numbers: set[int] | None = None
    conditions = []
    for part in _parts(which or ""):
        match = _NUMBERS.fullmatch(part)
        name, equals, value = part.partition("=")
        if match is not None:
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or last >= total:
                raise NotFound(
                    f"{part!r} is no set of this sweep: give numbers from 0 to {total - 1}",
                    field="which",
                )
            numbers = (numbers or set()) | set(range(first, last + 1))
        elif equals:
            if name.strip() not in names:
                raise NotFound(
                    f"{name.strip()!r} is no parameter of this sweep: it has {', '.join(names)}",
                    field="which",
                )
            conditions.append((name.strip(), value.strip()))
        elif which is not None:
            raise Invalid(
                f"{part!r} chooses no set: give numbers such as 3,7-9, or values such as seed=3 "
                f'(with a comma: name="a,b")',
                field="which",
            )
    return None if numbers is None else sorted(numbers), conditions


def _require_some(sets: Ranges, which: str | None, what: str) -> None:
    if not sets:
        among = "" if which is None else f" among {which}"
        raise Conflict(f"no parameter set{among} {what}", code="no_such_set", field="which")


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
        raise Invalid(
            f"{cursor!r} is not a cursor of this list: give the next_cursor of the previous page",
            field="cursor",
        )
    return int(cursor)


# -- the sets of a sweep that has ended, as a new run (docs/rules.md 11.9) -------------------------
# Nothing of the ended run changes. The new one is made from the configuration that is stored with
# it, by a submission as any user could make it: the uploads must be there, and no value hidden.

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
    configuration = _configuration(state, tuple(numbers_in(sets)))
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
        if error.code == RETRY_FIRST:
            raise
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
            # Those of another user, who may have been removed, open no job of this one.
            ssh_keys=state.sweep.spec.ssh_keys if state.run.user == user.name else (),
            again=SetsAgain(state=state, numbers=tuple(numbers_in(sets))),
        )
        made = (await submissions.submit(submission, user=user)).state
        if made.run.finished_at is None:
            return made
        # It was made before and has ended too: whoever asks again means another one.
        key = _key(made.run.id, key)


def _key(*parts: str) -> str:
    return "sets-again-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _configuration(state: RunState, numbers: tuple[int, ...]) -> dict[str, Any]:
    run, content = state.run, state.sweep
    assert run.sweep is not None, "the run is a sweep"
    assert content is not None, "a sweep has its content"
    configuration = dict(run.configuration)
    sweep = _sweep_of(configuration.get("sweep"), content, numbers)
    # As a user has changed it since.
    sweep.pop("max_parallel", None)
    if run.sweep.max_parallel is not None:
        sweep["max_parallel"] = run.sweep.max_parallel
    configuration["sweep"] = sweep
    for field in ("begin", "start_before"):
        configuration.pop(field, None)
    kept = still_waited_for(run) if _waits(state, numbers) else ()
    after = _as_list(configuration.pop("after", None))
    if kept:
        pairs = zip(after, run.after, strict=True)
        configuration["after"] = [entry for entry, one in pairs if one in kept]
    if run.outputs_from:
        looked_up = {one.run_id for one in kept}
        written = _as_list(configuration["outputs_from"])
        configuration["outputs_from"] = [
            # A later run of that name has other outputs.
            entry if one.run_id in looked_up else one.run_id
            for entry, one in zip(written, run.outputs_from, strict=True)
        ]
    return configuration


def _as_list(written: object) -> list[object]:
    if written is None:
        return []
    return list(written) if isinstance(written, list | tuple) else [written]


def _sweep_of(written: object, content: SweepContent, numbers: Iterable[int]) -> dict[str, Any]:
    rows = [list(content.sets.at(number).values()) for number in numbers]
    return with_sets(written if isinstance(written, Mapping) else {}, content.sets.names, rows)


def _waits(state: RunState, numbers: Iterable[int]) -> bool:
    """Return whether one of the sets still waits for what the run waited for: it never began."""
    begun = begun_sets(state)
    if any(one.job is SameJob.SAME for one in state.run.after):
        return not begun.issuperset(numbers)
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
