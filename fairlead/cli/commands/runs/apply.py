"""`apply` and `attach`: their arguments and their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fairlead.cli.commands.options import ConfigurationFiles, Json, Overrides, require_files
from fairlead.cli.commands.runs import applying, attaching
from fairlead.cli.errors import EXIT_USAGE, CliError


def apply(
    file: ConfigurationFiles,
    *,
    detach: Annotated[bool, Parameter(name=["-d", "--detach"], negative=())] = False,
    name: Annotated[str | None, Parameter(name=["-n", "--name"])] = None,
    env: Annotated[tuple[str, ...], Parameter(name=["-e", "--env"], negative=())] = (),
    override: Overrides = (),
    if_exists: Literal["error", "keep", "replace"] = "error",
    parent: str | None = None,
    failed_of: str | None = None,
    bundle: Annotated[
        Path | None, Parameter(help="For a fleet: the file that ./dev bundle made.")
    ] = None,
    yes: Annotated[
        bool, Parameter(negative=(), help="For a fleet or a changed service: ask no questions.")
    ] = False,
    upgrade: Annotated[
        bool, Parameter(negative=(), help="For a fleet: replace other versions of Fairlead.")
    ] = False,
    watch: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> int:
    """Submit a run and follow it; the exit status is the job's exit code.

    Parameters
    ----------
    file
        The configuration, a YAML file; - for standard input. Several files (`-f A -f B`) are
        submitted together, all or none, and their runs may wait for each other (`after`).
    detach
        Return once the run is submitted.
    name
        The run's name, instead of the configuration's.
    env
        NAME=VALUE, or NAME for the value in your environment; it overrides the configuration.
    if_exists
        What to do if a live run has the name: refuse, follow that run instead, or stop it, wait for
        its end and replace it.
    parent
        A live run (id or name). If that run ends in any way but done, this run is stopped.
    failed_of
        For a sweep: run only the parameter sets that failed in this run (id or name).
    watch
        For a task: start its job again whenever its file or its code changes, in the same container
        if that is possible, until Ctrl-C.
    """
    require_files(file)
    if len(file) > 1:
        from fairlead.cli.commands.runs.together import apply_together  # few are several

        if name is not None or if_exists != "error" or failed_of is not None or watch:
            raise CliError(
                "--name, --if-exists, --failed-of and --watch are for a single file", EXIT_USAGE
            )
        return apply_together(file, env, override, parent=parent, detach=detach, json=json)
    return applying.apply(
        file[0],
        detach=detach,
        name=name,
        env=env,
        override=override,
        if_exists=if_exists,
        parent=parent,
        failed_of=failed_of,
        bundle=bundle,
        yes=yes,
        upgrade=upgrade,
        json=json,
        watch=watch,
    )


def wait(*runs: str, json: Json = False) -> int:
    """Wait until runs have ended, without their output. The exit status is that of the first run
    that did not end as done.

    Parameters
    ----------
    runs
        Names or ids.
    """
    if not runs:
        raise CliError("give at least one run", EXIT_USAGE)
    return attaching.wait(runs, json=json)


def attach(
    run: str, /, *, job: str | None = None, tail: int | None = None, json: Json = False
) -> int:
    """Follow a run that is live: its progress, its output and its `ports`; Ctrl-C detaches.

    Parameters
    ----------
    run
        Id or name.
    job
        Id, GROUP/COOKIE or index: follow only this job, and forward its ports; default: all jobs,
        and the ports of the first.
    tail
        Begin with the last N lines of each job; default: with all of its output.
    """
    return attaching.attach(run, job=job, tail=tail, json=json)
