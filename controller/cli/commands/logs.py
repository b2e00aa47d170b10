"""`logs`: print the bytes of a job's output as the job wrote them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from controller.api.documents import JobView, RunView
from controller.cli import output
from controller.cli.commands.options import seconds_of
from controller.cli.errors import EXIT_USAGE, CliError
from controller.cli.follow import next_of, of_what_is_kept
from controller.cli.log_start import Start, tail_of
from fairlead import settings
from fairlead.follow import Outages, follow_log, patiently, unread
from fairlead.progress import job_name
from fairlead.rest import ControllerClient

if TYPE_CHECKING:
    from runner.schemas.frames import Frame


def logs(
    run: str,
    job_: Annotated[str | None, Parameter(name="JOB")] = None,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["-f", "--follow"], negative=())] = False,
    offset: int = 0,
    job: str | None = None,
    attempt: str | None = None,
    tail: int | None = None,
    since: str | None = None,
    timestamps: Annotated[bool, Parameter(name=["-t", "--timestamps"], negative=())] = False,
    all_jobs: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Show a run's log: stdout on stdout, stderr on stderr. With several jobs, each line begins
    with its job's name.

    Parameters
    ----------
    job_
        Id, index or GROUP/COOKIE; default: all.
    follow
        Continue until the attempts have ended.
    offset
        Skip so many bytes of the job's output.
    job
        The same as JOB.
    attempt
        Id, or number from 0; default: the job's latest.
    tail
        Begin with the last so many lines of each log.
    since
        Begin with what came in so long a time, such as 10m, or from a moment on, such as
        2026-01-31T08:00:00Z.
    timestamps
        Begin each line with its time.
    all_jobs
        The output of all jobs; the default without JOB.
    """
    if all_jobs and (job_ or job or attempt):
        raise CliError("give either --all-jobs or one job", EXIT_USAGE)
    start = Start(tail=tail_of(tail), since=moment_of(since, time.time()))
    if start.is_given and offset:
        raise CliError("give either --offset, or --tail or --since", EXIT_USAGE)
    if offset < 0:
        raise CliError(f"--offset: {offset} is less than 0", exit_status=2)
    client = settings.client()
    key = job_ or job
    outages = Outages(output.note)
    state: RunView | None = None
    if follow:
        state = patiently(outages, partial(client.run, run))
    elif key is None and attempt is None:
        state = client.run(run)
    if state is not None and key is None and attempt is None and len(state.jobs) > 1:
        if offset:
            raise CliError("--offset: which job's? Give JOB (`fairlead inspect` names them)", 2)
        _of_all(client, state, outages if follow else None, start, timestamps=timestamps)
        return 0
    if start.is_given:
        stored = partial(client.stored_frames, run, job=key, attempt=attempt)
        offset = _place(start, stored, outages if follow else None)
    if follow and state is not None and not _is_past(state, key, attempt):
        attempt_id = chosen_attempt(state, key, attempt)
        frames = follow_log(client, state.id, attempt_id, offset, outages)
    else:
        rest = client.stored_frames(run, job=key, attempt=attempt, offset=offset)
        frames = unread(rest, offset)
    writer = output.log_writer("", alone=True, timestamps=timestamps)
    for frame in frames:
        writer.write(frame)
    writer.close()
    return 0


def moment_of(text: str | None, now: float) -> float | None:
    """Return the moment of `--since` in Unix seconds. Raises CliError."""
    if text is None:
        return None
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    seconds = seconds_of(text, "--since")
    assert seconds is not None
    return now - seconds


def _of_all(
    client: ControllerClient,
    run: RunView,
    outages: Outages | None,
    start: Start,
    *,
    timestamps: bool,
) -> None:
    """Print each job's latest attempt: stored logs job by job (`outages` None), followed logs as
    they come."""
    works = [
        partial(_carry, client, run.id, job, outages, start, timestamps)
        for job in run.jobs
        if job.attempts
    ]
    if outages is None:
        for work in works:
            work()
        return
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    for work in works:
        threading.Thread(target=_guarded, args=(work, ended), daemon=True).start()
    for _ in works:
        error = next_of(ended)
        if error is not None:
            raise error


def _guarded(work: Callable[[], None], ended: SimpleQueue[BaseException | None]) -> None:
    try:
        work()
    except BaseException as error:
        ended.put(error)
    else:
        ended.put(None)


def _carry(
    client: ControllerClient,
    run_id: str,
    job: JobView,
    outages: Outages | None,
    start: Start,
    timestamps: bool,
) -> None:
    """Print one log; `outages` None: only what is stored now."""
    attempt_id = job.attempts[-1].id
    writer = output.log_writer(job_name(job), alone=False, timestamps=timestamps)
    for frame in of_what_is_kept(_frames(client, run_id, attempt_id, outages, start), output.note):
        writer.write(frame)
    writer.close()


def _frames(
    client: ControllerClient, run_id: str, attempt_id: str, outages: Outages | None, start: Start
) -> Iterator[Frame]:
    """Yield the frames of one log from its start on."""
    at = 0
    if start.is_given:
        at = _place(start, partial(client.stored_frames, run_id, attempt=attempt_id), outages)
    if outages is None:
        yield from unread(client.stored_frames(run_id, attempt=attempt_id, offset=at), at)
    else:
        yield from follow_log(client, run_id, attempt_id, at, outages)


def _place(start: Start, stored: Callable[[], Iterable[Frame]], outages: Outages | None) -> int:
    """Return the offset of the start; with `outages`, a controller that is away is waited for."""
    if outages is None:
        return start.offset(stored())
    return patiently(outages, lambda: start.offset(stored()))


def chosen_attempt(run: RunView, job: str | None, attempt: str | None) -> str:
    """Return the attempt's id, so that a follower that reconnects stays with that attempt. Raises
    CliError."""
    attempts = _chosen_job(run, job).attempts
    if attempt is None and attempts:
        return attempts[-1].id
    for one in attempts:
        if attempt in (one.id, str(one.number)):
            return one.id
    raise CliError(f"--attempt: {run.name} has no attempt {attempt or 'yet'}")


def _is_past(run: RunView, job: str | None, attempt: str | None) -> bool:
    """Return whether the attempt is older than the recent ones, so that its log is complete."""
    attempts = _chosen_job(run, job).attempts
    if attempt is None or not attempt.isdecimal() or not attempts:
        return False
    return int(attempt) < attempts[0].number


def _chosen_job(run: RunView, key: str | None) -> JobView:
    for job in run.jobs:
        if key is None or key in (job.id, str(job.index), job_name(job)):
            return job
    raise CliError(f"--job: {run.name} has no job {key!r}")
