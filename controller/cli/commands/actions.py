"""Actions on a live run and its jobs; each command returns when the request is recorded."""

from __future__ import annotations

from typing import Annotated

from controller.api.documents import RunView
from controller.cli import output
from controller.cli.commands.options import Flag, Json
from controller.cli.errors import EXIT_FAILED
from fairlead import settings
from fairlead.errors import ApiError
from fairlead.rest import decode, job_path, run_path


def stop(run: str, /, *more: str, abort: Annotated[bool, Flag] = False, json: Json = False) -> int:
    """Stop runs; returns when the controller has recorded it.

    Parameters
    ----------
    more
        More runs; one that cannot be stopped holds up no other.
    abort
        End the jobs at once, without their grace.
    """
    if not more:
        return _do(run_path(run, "stop"), {"abort": abort}, json)
    failed = 0
    for one in (run, *more):
        try:
            _do(run_path(one, "stop"), {"abort": abort}, json)
        except ApiError as error:
            output.note(f"{one}: {error}")
            failed += 1
    return EXIT_FAILED if failed else 0


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


def scale(run: str, /, *, nodes: int, group: str = "main", json: Json = False) -> int:
    """Change the number of jobs of a group that is no gang.

    Parameters
    ----------
    nodes
        The new number of jobs; those with the highest cookies end first.
    group
        A group of the configuration.
    """
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
    data = settings.client().post(path, body)
    if json:
        output.emit_json(data)
        return 0
    run = decode(data, RunView)
    suspended = " (suspended)" if run.suspended else ""
    output.emit(f"{run.name}: {run.status}{suspended}")
    return 0
