"""`apply` and `attach`: submit a run, show its progress and output here, exit with its status.

The commands are in `apply`; here is what they do, without the library that parses
arguments: `quick` calls it where nothing needs that library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CliError
from fairlead.cli.log_start import tail_of
from fairlead.configuration.text.dstack import is_of_dstack, translated
from fairlead.configuration.text.source import Document
from fairlead.errors import ApiError
from fairlead.files.ssh_keys import public_keys
from fairlead.patience import Outages
from fairlead.rest import ControllerClient, decode, run_path
from fairlead.submission import (
    checked_if_it_fails,
    completed,
    filled,
    given_variables,
    read_document,
    require_valid,
    submit,
    with_code,
    with_overrides,
)

if TYPE_CHECKING:
    from fairlead.documents.runs import RunView


def apply(
    file: Path,
    *,
    detach: bool = False,
    name: str | None = None,
    env: tuple[str, ...] = (),
    override: tuple[str, ...] = (),
    if_exists: Literal["error", "keep", "replace"] = "error",
    parent: str | None = None,
    failed_of: str | None = None,
    bundle: Path | None = None,
    yes: bool = False,
    upgrade: bool = False,
    json: bool = False,
    watch: bool = False,
) -> int:
    """Submit the file's run (or fleet, or gateway) and follow it. Return the exit status."""
    if watch:
        from fairlead.cli.commands.runs.watching import apply_watched  # few are watched

        if detach or json or failed_of is not None:
            raise CliError("--watch goes without --detach, --json and --failed-of", EXIT_USAGE)
        return apply_watched(
            file, name=name, env=env, override=override, if_exists=if_exists, parent=parent
        )
    document = with_overrides(read_document(file), override)
    if is_fleet(document):
        from fairlead.daemons import load  # few files are fleets

        apply_fleet: Callable[..., int] = load("apply.fleet")
        return apply_fleet(document, file, bundle=bundle, yes=yes, upgrade=upgrade, json=json)
    if is_gateway(document):
        from fairlead.cli.commands.services.gateways import apply_gateway  # few files are gateways

        return apply_gateway(document, json)
    configuration = filled(document, os.environ, given_variables(env, os.environ))
    if not _is_plain_task(configuration):
        require_valid(document, configuration)
        tell_translation(configuration)
    with checked_if_it_fails(document, configuration):
        client = settings.client()
        here = file.resolve().parent
        configuration = with_code(
            client, configuration, here, str(file), os.environ, output.note, document
        )
        if failed_of is not None:
            from fairlead.cli.commands.runs.sweeps import with_failed_sets

            configuration = with_failed_sets(client, configuration, failed_of)
        wish = {
            "configuration": configuration,
            "name": name,
            "ssh_keys": public_keys(os.environ, Path.home()),
            "if_exists": if_exists,
            "parent": parent,
        }
        go_on = submitted(client, wish, yes)
    return go_on(detach, json)


def submit_and_follow(
    client: ControllerClient, wish: dict[str, Any], yes: bool, *, detach: bool, json: bool
) -> int:
    """Submit what was read and follow it; a live service is changed in place instead."""
    return submitted(client, wish, yes)(detach, json)


def submitted(
    client: ControllerClient, wish: dict[str, Any], yes: bool
) -> Callable[[bool, bool], int]:
    """Submit, and return what goes on with the run: it takes `detach` and `json`."""
    live = None
    if wish["if_exists"] == "error":
        live = _live_service(client, wish["configuration"], wish["name"])
    if live is None:
        data, kept = submit(client, wish, output.note)
        return lambda detach, json: _go_on(client, data, kept=kept, detach=detach, json=json)
    from fairlead.cli.commands.services.deployments import change_in_place

    service = live
    return lambda detach, json: change_in_place(
        client, service, wish, yes=yes, detach=detach, json=json
    )


def _is_plain_task(configuration: object) -> bool:
    """Return whether the controller's check comes soon enough: nothing is uploaded before it, and
    nothing is told of a translation."""
    if not isinstance(configuration, dict) or configuration.get("type") != "task":
        return False
    return not {"repos", "files"} & configuration.keys() and not is_of_dstack(configuration)


def _live_service(client: ControllerClient, configuration: object, name: str | None) -> str | None:
    """Return the name when the file is of a service and a live service has its name."""
    if not isinstance(configuration, dict) or configuration.get("type") != "service":
        return None
    wanted = name or configuration.get("name")
    if not isinstance(wanted, str):
        return None
    try:
        found = client.run(wanted)
    # The name is free, or another user's: then the controller says so at the submission.
    except ApiError:
        return None
    lives = found.type == "service" and found.finished_at is None
    return wanted if lives and found.termination_reason is None else None


class _Submitted(msgspec.Struct, frozen=True):
    """What is told of a run at once; all types of its document take longer to load."""

    id: str
    name: str
    status: str
    schedule: tuple[str, ...] = ()
    next_triggered_at: str | None = None


def _go_on(client: ControllerClient, data: bytes, *, kept: bool, detach: bool, json: bool) -> int:
    """Continue with the run that was submitted, or that was `kept` instead."""
    run = decode(data, _Submitted)
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
    from fairlead.documents.runs import RunView

    return follow_here(client, decode(data, RunView), json)


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


def attach(run: str, *, job: str | None = None, tail: int | None = None, json: bool = False) -> int:
    """Follow a live run. Return the exit status."""
    from fairlead.follow import until_answered

    client, lines = settings.client(), tail_of(tail)
    found = until_answered(Outages(output.note), partial(client.run, run))
    return follow_here(client, found, json, job, may_stop=False, tail=lines)


def wait(runs: tuple[str, ...], *, json: bool = False) -> int:
    """Wait for the end of runs. Return the exit status: that of the first one that failed."""
    from fairlead.follow import until_answered

    client, statuses = settings.client(), []
    for run in runs:
        found = until_answered(Outages(output.note), partial(client.run, run))
        statuses.append(follow_here(client, found, json, may_stop=False, quiet=True))
        if statuses[-1] == EXIT_INTERRUPTED:
            break
    return next((status for status in statuses if status), 0)


def follow_here(
    client: ControllerClient,
    run: RunView,
    json: bool,
    job: str | None = None,
    *,
    may_stop: bool = True,
    tail: int | None = None,
    quiet: bool = False,
) -> int:
    """`quiet`: without the output of its jobs."""
    from fairlead.cli import follow
    from fairlead.cli.log_start import Start
    from fairlead.summaries.progress import exit_status, why

    try:
        if run.sweep is not None and job is not None:
            raise CliError(f"--job: `fairlead logs -f {run.name} {job}` shows one job of a sweep")
        shown = follow.Shown.NONE if quiet else follow.Shown.USUAL
        start = Start(tail=tail)
        final = follow.attach(client, run, job, beside_json=json, start=start, shown=shown)
    except KeyboardInterrupt:
        return interrupted(client, run, may_stop)
    if json:
        output.emit_json(client.get(run_path(run.id)))
    if final.sweep is not None:
        from fairlead.cli.commands.runs.sweeps import tell_failed

        tell_failed(client, final)
    output.note(f"{final.name}: {final.status}: {why(final)}")
    return exit_status(final)


def interrupted(client: ControllerClient, run: RunView, may_stop: bool, also: str = "") -> int:
    """Leave the run after Ctrl-C, or stop it if its user wants that. Return the exit status."""
    with output.alone_on_terminals():
        output.write_all(output.STDERR_FD, b"\n")
        if may_stop and _wants_stop(run.name):
            client.post(run_path(run.id, "stop"), {"abort": False})
            output.note(f"{run.name} is being stopped")
        else:
            output.note(
                f"detached; {run.name} goes on (`fairlead attach {run.name}`, "
                f"`fairlead logs -f {run.name}`, `fairlead stop {run.name}`){also}"
            )
    return EXIT_INTERRUPTED


def _wants_stop(name: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    output.write_all(output.STDERR_FD, f"Stop {name}? [y/N] ".encode())
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    # Ctrl-C twice: the first one asked, the second one leaves without an answer.
    except KeyboardInterrupt:
        return False
