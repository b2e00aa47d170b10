"""`apply`: submit a run, show its progress and output here, and exit with its status."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from controller.cli import output
from controller.cli.commands.options import ConfigurationFile, Json
from controller.cli.errors import EXIT_INTERRUPTED
from controller.cli.log_start import tail_of
from controller.configuration.dstack import translated
from controller.configuration.source import Document
from fairlead import settings
from fairlead.errors import ApiError
from fairlead.follow import Outages, patiently
from fairlead.rest import ControllerClient, decode, run_path
from fairlead.ssh_keys import public_keys
from fairlead.submission import completed, given_variables, read_document, submit, with_code

if TYPE_CHECKING:
    from controller.api.documents import RunView


def apply(
    file: ConfigurationFile,
    *,
    detach: Annotated[bool, Parameter(name=["-d", "--detach"], negative=())] = False,
    name: Annotated[str | None, Parameter(name=["-n", "--name"])] = None,
    env: Annotated[tuple[str, ...], Parameter(name=["-e", "--env"], negative=())] = (),
    if_exists: Literal["error", "keep", "replace"] = "error",
    parent: str | None = None,
    bundle: Annotated[
        Path | None, Parameter(help="For a fleet: the file that ./dev bundle made.")
    ] = None,
    yes: Annotated[
        bool, Parameter(negative=(), help="For a fleet or a changed service: ask no questions.")
    ] = False,
    upgrade: Annotated[
        bool, Parameter(negative=(), help="For a fleet: replace other versions.")
    ] = False,
    json: Json = False,
) -> int:
    """Submit a run and follow it; the exit status is the job's exit code.

    Parameters
    ----------
    file
        The configuration, a YAML file; - for standard input.
    detach
        Return once the run is submitted.
    name
        The run's name, instead of the configuration's.
    env
        NAME=VALUE, or NAME for the value in your environment; it overrides the configuration.
    if_exists
        When a live run has the name: refuse, follow that run instead, or stop it, wait for its end
        and replace it.
    parent
        A live run (id or name). When it ends other than done, this run is stopped.
    """
    document = read_document(file)
    if is_fleet(document):
        from controller.cli.commands.fleet_hosts import apply_fleet  # few files are fleets

        return apply_fleet(document, file, bundle=bundle, yes=yes, upgrade=upgrade, json=json)
    if is_gateway(document):
        from controller.cli.commands.gateways import apply_gateway  # few files are gateways

        return apply_gateway(document, json)
    configuration = completed(document, os.environ, given_variables(env, os.environ))
    tell_translation(configuration)
    client = settings.client()
    configuration = with_code(
        client, configuration, file.resolve().parent, str(file), os.environ, output.note, document
    )
    keys = public_keys(os.environ, Path.home())
    wish = {
        "configuration": configuration,
        "name": name,
        "ssh_keys": keys,
        "if_exists": if_exists,
        "parent": parent,
    }
    live = _live_service(client, configuration, name) if if_exists == "error" else None
    if live is not None:
        from controller.cli.commands.services import change_in_place

        return change_in_place(client, live, wish, yes=yes, detach=detach, json=json)
    data, kept = submit(client, wish, output.note)
    return _go_on(client, data, kept=kept, detach=detach, json=json)


def _live_service(client: ControllerClient, configuration: object, name: str | None) -> str | None:
    """Return the name when the file is of a service and a live service has its name."""
    if not isinstance(configuration, dict) or configuration.get("type") != "service":
        return None
    wanted = name or configuration.get("name")
    if not isinstance(wanted, str):
        return None
    try:
        found = client.run(wanted)
    except ApiError:
        return None
    lives = found.type == "service" and found.finished_at is None
    return wanted if lives and found.termination_reason is None else None


def _go_on(client: ControllerClient, data: bytes, *, kept: bool, detach: bool, json: bool) -> int:
    """Continue with the run that was submitted, or that was `kept` instead."""
    from controller.api.documents import RunView  # from here on the job is on its way

    run = decode(data, RunView)
    if kept:
        output.note(f"kept {run.name}, which is already live ({run.status}); nothing was submitted")
    if detach:
        if json:
            output.emit_json(data)
        else:
            output.emit(run.name)
        return 0
    if not kept:
        output.note(f"submitted {run.name}")
    if run.schedule:
        output.note(f"{run.name} runs next at {run.next_triggered_at}; it goes on until stopped")
        if json:
            output.emit_json(data)
        return 0
    return _follow(client, run, json)


def read_configuration(
    file: Path, env: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[Document, object]:
    """Return the file, and its complete configuration, checked by `parse`.

    Raises InvalidConfiguration, UsageError.
    """
    document = read_document(file)
    return document, completed(document, environ, given_variables(env, environ))


def tell_translation(configuration: object) -> None:
    """Tell in one line what a file of dstack's means here."""
    notes = translated(configuration).notes if isinstance(configuration, dict) else ()
    if notes:
        output.note(f"read as a file of dstack: {'; '.join(notes)}")


def is_fleet(document: Document) -> bool:
    """Return whether it describes hosts, and no run."""
    return isinstance(document.data, dict) and document.data.get("type") == "fleet"


def is_gateway(document: Document) -> bool:
    """Return whether it describes a gateway, and no run."""
    return isinstance(document.data, dict) and document.data.get("type") == "gateway"


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
    client, lines = settings.client(), tail_of(tail)
    found = patiently(Outages(output.note), partial(client.run, run))
    return _follow(client, found, json, job, may_stop=False, tail=lines)


def _follow(
    client: ControllerClient,
    run: RunView,
    json: bool,
    job: str | None = None,
    *,
    may_stop: bool = True,
    tail: int | None = None,
) -> int:
    from controller.cli import follow
    from fairlead.progress import exit_status, why

    try:
        final = follow.attach(client, run, job, beside_json=json, tail=tail)
    except KeyboardInterrupt:
        return _interrupted(client, run, may_stop)
    if json:
        output.emit_json(client.get(run_path(run.id)))
    output.note(f"{final.name}: {final.status}: {why(final)}")
    return exit_status(final)


def _interrupted(client: ControllerClient, run: RunView, may_stop: bool) -> int:
    with output.alone_on_terminals():
        output.write_all(output.STDERR_FD, b"\n")
        if may_stop and _wants_stop(run.name):
            client.post(run_path(run.id, "stop"), {"abort": False})
            output.note(f"{run.name} is being stopped")
        else:
            output.note(
                f"detached; {run.name} goes on (`fairlead attach {run.name}`, "
                f"`fairlead logs -f {run.name}`, `fairlead stop {run.name}`)"
            )
    return EXIT_INTERRUPTED


def _wants_stop(name: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    output.write_all(output.STDERR_FD, f"Stop {name}? [y/N] ".encode())
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False
