"""The words for a run: what it does now, why it ended, and the exit status that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest

import msgspec

from fairlead.documents.jobs import AttemptView, JobView
from fairlead.documents.runs import RunView
from fairlead.errors import UsageError
from fairlead.model.answers import Amounts
from fairlead.model.reasons import (
    ROWS,
    RUN_SENTENCES,
    ReasonClass,
    RetryEvent,
    RunReason,
)
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    AllocationState,
    AttemptStatus,
    IrisState,
    RunStatus,
)
from fairlead.summaries.job_names import job_name
from fairlead.sweeps import progress_of
from fairlead.wire.shim import PullProgress
from fairlead.wire.sizes import human_size

_BY_ITS_JOBS = (
    RunReason.JOB_FAILED,
    RunReason.RETRY_LIMIT_EXCEEDED,
    RunReason.UNSCHEDULABLE,
    RunReason.DEPENDENCY_FAILED,
    RunReason.WORKER_FAILED,
)
_SWEEPING = (
    RunStatus.PENDING,
    RunStatus.SUBMITTED,
    RunStatus.PROVISIONING,
    RunStatus.RUNNING,
)
_MAX_ROWS = 20
_MAX_NODES_NAMED = 8


class Step(msgspec.Struct, frozen=True):
    """One step. `detail` and `rows` (job, status, node, about) change often and are only for
    terminals; a `lasting` step stays on the screen."""

    text: str
    detail: str = ""
    lasting: bool = False
    rows: tuple[tuple[str, str, str, str], ...] = ()


def step_of(run: RunView, progress: Mapping[str, PullProgress]) -> Step:
    """Return what a run that is not final does now; the first job that waits gives the reason."""
    if run.suspended and run.status in (RunStatus.PENDING, RunStatus.SUBMITTED):
        return Step("suspended")
    if run.status is RunStatus.PENDING and run.schedule and run.triggered_at is None:
        return Step(f"scheduled: runs next at {run.next_triggered_at}")
    if run.sweep is not None and run.status in _SWEEPING and run.sweep.done + run.sweep.failed:
        return Step("running the sweep", progress_of(run.sweep))
    if run.status in (RunStatus.PENDING, RunStatus.SUBMITTED):
        reason = next((job.pending_reason for job in run.jobs if job.pending_reason), None)
        if reason is None and run.sweep is not None:
            reason = run.sweep.waits_for
        return Step(f"queued: {reason}" if reason else "queued")
    if run.status is RunStatus.PROVISIONING:
        return (
            _preparing(run, progress) if len(run.jobs) == 1 else _preparing_several(run, progress)
        )
    if run.status is RunStatus.RUNNING:
        return Step(_running(run), lasting=True)
    return Step(f"ending: {why(run)}", _collecting(run))


def _preparing(run: RunView, progress: Mapping[str, PullProgress]) -> Step:
    for attempt in (job.attempts[-1] for job in run.jobs if job.attempts):
        if attempt.status is AttemptStatus.PROVISIONING:
            return Step(f"placed on {attempt.node}")
        if attempt.status is AttemptStatus.PULLING:
            pull = progress.get(attempt.id)
            if pull is None:
                return Step(f"starting on {attempt.node}")
            return Step(
                f"pulling the image on {attempt.node}",
                f"{human_size(pull.downloaded)} of {human_size(pull.total)}",
            )
    return Step("starting")


def _preparing_several(run: RunView, progress: Mapping[str, PullProgress]) -> Step:
    jobs = [job for job in run.jobs if not job.scaled_down]
    states = Counter(job.status for job in jobs)
    counts = ", ".join(f"{number} {status}" for status, number in states.items())
    rows = tuple(_row(job, progress) for job in jobs[:_MAX_ROWS])
    return Step(f"starting {len(jobs)} jobs", counts, rows=rows)


def _row(job: JobView, progress: Mapping[str, PullProgress]) -> tuple[str, str, str, str]:
    attempt = job.attempts[-1] if job.attempts else None
    pull = progress.get(attempt.id) if attempt else None
    about = job.pending_reason or ""
    if pull is not None:
        about = f"{human_size(pull.downloaded)} of {human_size(pull.total)}"
    return job_name(job), job.status, (attempt.node if attempt else None) or "-", about


def _collecting(run: RunView) -> str:
    coming = [job.attempts[-1].outputs for job in run.jobs if job.attempts]
    total = sum(one.total or 0 for one in coming)
    received = sum(one.received or 0 for one in coming)
    return f"{human_size(received)} of {human_size(total)} of outputs are here" if total else ""


def _running(run: RunView) -> str:
    nodes = _nodes(run)
    if len(nodes) > _MAX_NODES_NAMED:
        return f"running on {len(nodes)} nodes"
    return f"running on {', '.join(nodes) or 'a node'}"


def _nodes(run: RunView) -> list[str]:
    nodes = (job.attempts[-1].node for job in run.jobs if job.attempts)
    return list(dict.fromkeys(node for node in nodes if node))


def why(run: RunView) -> str:
    """Return the run's own message, else that of the attempt that decided, else the sentence of its
    reason."""
    if run.message:
        return run.message
    found = failed_attempt(run)
    if found is not None:
        job, failed = found
        sentence = failed.message or (
            ROWS[failed.termination_reason].sentence if failed.termination_reason else ""
        )
        if sentence:
            return sentence if len(run.jobs) == 1 else f"{job_name(job)}: {sentence}"
    return RUN_SENTENCES[run.termination_reason] if run.termination_reason else str(run.status)


def failed_attempt(run: RunView) -> tuple[JobView, AttemptView] | None:
    """Return the attempt that ended the run: the last one that ended badly and not because of the
    run's end."""
    if run.termination_reason not in _BY_ITS_JOBS:
        return None
    failed = [
        (job, job.attempts[-1])
        for job in run.jobs
        if job.attempts and _ended_badly(job.attempts[-1])
    ]
    return max(failed, key=lambda found: found[1].terminating_at or "", default=None)


def _ended_badly(attempt: AttemptView) -> bool:
    """Return whether the attempt ended badly; its cleanup may still go on."""
    if attempt.termination_reason is None:
        return False
    row = ROWS[attempt.termination_reason]
    return row.reason_class is ReasonClass.FAILURE or row.event is RetryEvent.INTERRUPTION


def exit_status(run: RunView) -> int:
    """Return 0 for a DONE run, else the exit code of the job that ended it, else 1."""
    if run.status is RunStatus.DONE:
        return 0
    found = failed_attempt(run)
    attempt = found[1] if found else None
    if attempt is None and len(run.jobs) == 1 and run.jobs[0].attempts:
        attempt = run.jobs[0].attempts[-1]
    return (attempt.exit_code if attempt else None) or 1


def find_job(run: RunView, key: str | int | None) -> JobView:
    """Return the job with this id, index or GROUP/COOKIE; None: the first. Raises UsageError."""
    for job in run.jobs:
        if key is None or str(key) in (job.id, str(job.index), job_name(job)):
            return job
    names = ", ".join(job_name(job) for job in run.jobs[:_MAX_ROWS]) or "none yet"
    raise UsageError(f"{run.name} has no job {key!r}: give one of {names}")


def never_ran(attempt: AttemptView) -> bool:
    """Return whether the attempt has ended without a start of its commands."""
    return attempt.status in FINAL_ATTEMPT_STATUSES and attempt.running_at is None


def comebacks(run: RunView) -> Iterator[tuple[JobView, AttemptView, str]]:
    """Yield each attempt that has ended and after which its job comes back, with the sentence that
    says so without the job's name. Those of a gang are told by its switches."""
    for job in run.jobs:
        for attempt, later in zip_longest(job.attempts, job.attempts[1:]):
            if attempt.termination_reason is None or attempt.incarnation is not None:
                continue
            if later is None and job.state is IrisState.PENDING:
                at = "" if job.retry_at is None else f" at {job.retry_at}"
                yield job, attempt, f"{_ended(attempt)}; it will be tried again{at}"
            elif later is not None and later.occurrence == attempt.occurrence:
                yield job, attempt, f"{_ended(attempt)}; it is tried again"


def _ended(attempt: AttemptView) -> str:
    assert attempt.termination_reason is not None
    row = ROWS[attempt.termination_reason]
    verb = "failed" if row.reason_class is ReasonClass.FAILURE else "ended"
    sentence = (attempt.message or row.sentence).rstrip(".")
    return f"attempt {attempt.number} {verb}: {sentence}"


def grants(run: RunView) -> dict[tuple[str, str], str]:
    """Return a sentence for each different grant of the run's jobs: what they hold. The keys are
    what was granted and asked."""
    names = {job.id: job_name(job) for job in run.jobs}
    return grant_sentences(
        (
            names.get(one.job_id, one.job_id),
            one.asked,
            Amounts(cpu=one.cpu, memory=one.memory, shm_size=one.shm_size),
        )
        for one in run.allocations
        if one.state is AllocationState.HELD and one.asked is not None
    )


def grant_sentences(
    grants: Iterable[tuple[str, Amounts, Amounts]],
) -> dict[tuple[str, str], str]:
    """Return a sentence for each different pair of what was granted and asked; a grant names its
    job."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, asked, granted in grants:
        alike.setdefault((_amounts(granted), _amounts(asked)), []).append(name)
    return {
        (granted, asked): (
            f"{names[0]}{f' and {len(names) - 1} more get' if names[1:] else ' gets'} {granted}"
            f"; asked: {asked or 'nothing'}"
        )
        for (granted, asked), names in alike.items()
    }


def _amounts(amounts: Amounts) -> str:
    parts = []
    if amounts.cpu is not None:
        parts.append(f"{amounts.cpu:g} CPU")
    if amounts.memory is not None:
        parts.append(f"{human_size(amounts.memory)} memory")
    if amounts.shm_size is not None:
        parts.append(f"{human_size(amounts.shm_size)} /dev/shm")
    return ", ".join(parts)
