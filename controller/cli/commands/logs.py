"""`logs`: the bytes of a job's output, as the job wrote them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from controller.api.documents import JobView, RunView
from controller.cli import output, settings
from controller.cli.errors import CliError
from controller.cli.follow import News, follow_log, unread
from controller.cli.progress import job_name


def logs(
    run: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["-f", "--follow"], negative=())] = False,
    offset: int = 0,
    job: str | None = None,
    attempt: str | None = None,
) -> int:
    """Show a run's log: stdout on stdout, stderr on stderr.

    Parameters
    ----------
    follow
        Go on until the attempt has ended.
    offset
        Leave out so many bytes of the output.
    job
        Id, index or GROUP/COOKIE; else the first.
    attempt
        Id, or number from 0; else the job's latest.
    """
    if offset < 0:
        raise CliError(f"--offset: {offset} is less than 0", exit_status=2)
    client = settings.client()
    if follow:
        state = client.run(run)
        attempt_id = chosen_attempt(state, job, attempt)
        frames = follow_log(client, state.id, attempt_id, offset, News(output.note))
    else:
        stored = client.stored_frames(run, job=job, attempt=attempt, offset=offset)
        frames = unread(stored, offset)
    for frame in frames:
        output.write_frame(frame)
    return 0


def chosen_attempt(run: RunView, job: str | None, attempt: str | None) -> str:
    """Its id: a follower that comes back must not find itself at a later attempt.

    Raises CliError."""
    attempts = _chosen_job(run, job).attempts
    if attempt is None and attempts:
        return attempts[-1].id
    for number, one in enumerate(attempts):
        if attempt in (one.id, str(number)):
            return one.id
    raise CliError(f"--attempt: {run.name} has no attempt {attempt or 'yet'}")


def _chosen_job(run: RunView, key: str | None) -> JobView:
    for job in run.jobs:
        if key is None or key in (job.id, str(job.index), job_name(job)):
            return job
    raise CliError(f"--job: {run.name} has no job {key!r}")
