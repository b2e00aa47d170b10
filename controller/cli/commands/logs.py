"""`logs`: print the bytes of a job's output as the job wrote them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Annotated

from cyclopts import Parameter

from controller.api.documents import JobView, RunView
from controller.cli import output
from controller.cli.errors import CliError
from controller.cli.follow import next_of, of_what_is_kept
from fairlead import settings
from fairlead.follow import News, follow_log, unread
from fairlead.progress import job_name
from fairlead.rest import ControllerClient


def logs(
    run: str,
    job_: Annotated[str | None, Parameter(name="JOB")] = None,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["-f", "--follow"], negative=())] = False,
    offset: int = 0,
    job: str | None = None,
    attempt: str | None = None,
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
    """
    if offset < 0:
        raise CliError(f"--offset: {offset} is less than 0", exit_status=2)
    client = settings.client()
    key = job_ or job
    state = client.run(run) if follow or (key is None and attempt is None) else None
    if state is not None and key is None and attempt is None and len(state.jobs) > 1:
        if offset:
            raise CliError("--offset: which job's? Give JOB (`fairlead inspect` names them)", 2)
        _of_all(client, state, follow=follow)
        return 0
    if follow and state is not None and not _is_past(state, key, attempt):
        attempt_id = chosen_attempt(state, key, attempt)
        frames = follow_log(client, state.id, attempt_id, offset, News(output.note))
    else:
        stored = client.stored_frames(run, job=key, attempt=attempt, offset=offset)
        frames = unread(stored, offset)
    for frame in frames:
        output.write_frame(frame)
    return 0


def _of_all(client: ControllerClient, run: RunView, *, follow: bool) -> None:
    """Print each job's latest attempt: stored logs job by job, followed logs as they come."""
    news = News(output.note)
    works = [
        partial(_carry, client, run.id, job, job.attempts[-1].id, news if follow else None)
        for job in run.jobs
        if job.attempts
    ]
    if not follow:
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
    client: ControllerClient, run_id: str, job: JobView, attempt_id: str, news: News | None
) -> None:
    """Print one log; `news` None: only what is stored now."""
    if news is None:
        frames = unread(client.stored_frames(run_id, attempt=attempt_id), 0)
    else:
        frames = follow_log(client, run_id, attempt_id, 0, news)
    writer = output.log_writer(job_name(job), alone=False)
    for frame in of_what_is_kept(frames, output.note):
        writer.write(frame)
    writer.close()


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
