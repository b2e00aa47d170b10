"""`logs`: asks for the run whose log it prints.

The command is in `logs`; see `runs.applying` for why this is apart. What reads the log is loaded
while the controller works.
"""

from __future__ import annotations

from fairlead import settings
from fairlead.cli import quick
from fairlead.rest import run_path

_READING = ("fairlead.cli.commands.jobs.log_reading", "fairlead.wire.frames")


def logs(
    run: str,
    job_: str | None = None,
    *,
    follow: bool = False,
    offset: int = 0,
    job: str | None = None,
    attempt: str | None = None,
    tail: int | None = None,
    since: str | None = None,
    timestamps: bool = False,
    all_jobs: bool = False,
) -> int:
    """Print the log of a run, or of one job. Return the exit status. Raises CliError."""
    client = found = None
    is_of_one = job_ is not None or job is not None or attempt is not None
    # Of these, `log_reading` must look first whether they go together, or must wait for an answer.
    if not (is_of_one or follow or offset or tail is not None or since is not None):
        client = settings.client()
        client.meanwhile(_load)
        found = client.get(run_path(run))
    _load()
    from fairlead.cli.commands.jobs import log_reading

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
        client=client,
        found=found,
    )


def _load() -> None:
    for module in _READING:
        quick.load(module)
