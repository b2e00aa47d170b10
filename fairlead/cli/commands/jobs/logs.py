"""`logs`: its arguments and its help."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from fairlead.cli.commands.jobs import log_reading


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
    failed: Annotated[bool, Parameter(negative=())] = False,
    jobs: str | None = None,
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
        Skip the first N bytes of the job's output.
    job
        The same as JOB.
    attempt
        Id, or number from 0; default: the job's latest.
    tail
        Begin with the last N lines of each log.
    since
        Begin with the output of the last 10m (or any other duration), or with the output after a
        moment such as 2026-01-31T08:00:00Z.
    timestamps
        Begin each line with its time.
    all_jobs
        Show the output of all jobs; the default without JOB.
    failed
        Show the output of the parameter sets of a sweep that failed, each after its parameters.
    jobs
        Show the output of these parameter sets of a sweep, by numbers (3,7-9) or values (seed=3);
        with --failed, only of the failed ones among them.
    """
    return log_reading.logs(
        run,
        job_,
        follow=follow,
        offset=offset,
        job=job,
        attempt=attempt,
        tail=tail,
        since=since,
        timestamps=timestamps,
        all_jobs=all_jobs,
        failed=failed,
        jobs=jobs,
    )
