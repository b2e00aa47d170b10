"""Actions on a live run and its jobs; each command returns when the request is recorded."""

from __future__ import annotations

from typing import Annotated

from fairlead import settings
from fairlead.cli.commands.options import Flag, Json
from fairlead.cli.commands.runs import stopping
from fairlead.cli.commands.runs.attaching import tell
from fairlead.cli.commands.runs.sweeps import resize
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.rest import job_path, run_path


def stop(
    run: str,
    /,
    *more: str,
    abort: Annotated[bool, Flag] = False,
    jobs: str | None = None,
    json: Json = False,
) -> int:
    """Stop runs; returns when the controller has recorded it.

    Parameters
    ----------
    more
        More runs. If one cannot be stopped, the others still are.
    abort
        End the jobs at once, without their grace.
    jobs
        Stop only these parameter sets of a sweep: numbers (3,7-9) or values (seed=3).
    """
    return stopping.stop(run, more, abort=abort, jobs=jobs, json=json)


def complete(run: str, /, *, json: Json = False) -> int:
    """End a run as done now."""
    return _do(run_path(run, "complete"), {}, json)


def suspend(
    run: str, /, *, abort_running: Annotated[bool, Flag] = False, json: Json = False
) -> int:
    """Suspend a run: no placements, retries, triggers or timeouts; running jobs stay.

    Parameters
    ----------
    abort_running
        Also end running jobs; `resume` starts them again.
    """
    return _do(run_path(run, "suspend"), {"abort_running": abort_running}, json)


def resume(run: str, /, *, json: Json = False) -> int:
    """Resume a suspended run; jobs that ended meanwhile are decided now."""
    return _do(run_path(run, "resume"), {}, json)


def scale(
    run: str,
    /,
    *,
    nodes: int | None = None,
    group: str = "main",
    parallel: int | None = None,
    json: Json = False,
) -> int:
    """Change the number of jobs in a group without a gang, or how many jobs of a sweep run at once.

    Parameters
    ----------
    nodes
        The new number of jobs; those with the highest cookies end first.
    group
        A group of the configuration.
    parallel
        For a sweep: how many parameter sets run at once. A smaller number ends nothing.
    """
    if (nodes is None) is (parallel is None):
        raise CliError("give --nodes for a group, or --parallel for a sweep", EXIT_USAGE)
    if parallel is not None:
        return resize(run, parallel, json)
    return _do(run_path(run, "scale"), {"group": group, "nodes": nodes}, json)


def abort_job(run: str, job: str, /, *, json: Json = False) -> int:
    """End a job's attempt at once; under the default retry it comes back, uncharged.

    Parameters
    ----------
    job
        Id, GROUP/COOKIE or index.
    """
    return _do(job_path(run, job, "abort"), {}, json)


def abandon_job(run: str, job: str, /, *, json: Json = False) -> int:
    """Let the run go on without a job: it ends and gets no new attempts.

    Parameters
    ----------
    job
        Id, GROUP/COOKIE or index.
    """
    return _do(job_path(run, job, "abandon"), {}, json)


def interrupt_job(run: str, job: str, /, *, json: Json = False) -> int:
    """Ask a job to end by itself; it comes back if it exits with its restart_exit_code.

    Parameters
    ----------
    job
        Id, GROUP/COOKIE or index.
    """
    return _do(job_path(run, job, "interrupt"), {}, json)


def _do(path: str, body: object, json: bool) -> int:
    return tell(settings.client().post(path, body), json)
