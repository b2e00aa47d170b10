"""`apply`: read the file, complete it from its user's machine, submit its run and follow it.

The command is in `apply`; here is what it does, without the library that parses arguments: `quick`
gets here where nothing needs that library, and `as_written` where the controller cannot read the
file alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.runs.attaching import go_on
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.configuration.text.dstack import translated
from fairlead.configuration.text.plain import is_plain_task
from fairlead.configuration.text.source import Document
from fairlead.errors import ApiError, ConnectionLost
from fairlead.files.ssh_keys import public_keys
from fairlead.rest import ControllerClient
from fairlead.submission import (
    checked_if_it_fails,
    completed,
    filled,
    given_variables,
    new_client_key,
    read_document,
    require_valid,
    submit,
    with_code,
    with_code_there,
    with_overrides,
)


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
    client_key: str | None = None,
    lost: ConnectionLost | None = None,
    refused: ApiError | None = None,
) -> int:
    """Submit the file's run (or fleet, or gateway) and follow it. Return the exit status.

    `client_key`, and `lost` or `refused`: of a try that was made already, and what it ended with.
    """
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
    # Of a plain task, the controller's check comes soon enough.
    if not (isinstance(configuration, dict) and is_plain_task(configuration)):
        require_valid(document, configuration)
        tell_translation(configuration)
    with checked_if_it_fails(document, configuration):
        if refused is not None:
            raise refused
        client = settings.client()
        here = file.resolve().parent
        wish = {
            "name": name,
            "ssh_keys": public_keys(os.environ, Path.home()),
            "if_exists": if_exists,
            "parent": parent,
            "client_key": client_key or new_client_key(),
        }

        def send() -> dict[str, Any]:
            sent = with_code(
                client, configuration, here, str(file), os.environ, output.note, document
            )
            if failed_of is not None:
                from fairlead.cli.commands.runs.sweeps import with_failed_sets

                sent = with_failed_sets(client, sent, failed_of)
            return {**wish, "configuration": sent}

        follow = with_code_there(
            send, lambda body: submitted(client, body, yes, lost, send), output.note
        )
    return follow(detach, json)


def submit_and_follow(
    client: ControllerClient, wish: dict[str, Any], yes: bool, *, detach: bool, json: bool
) -> int:
    """Submit what was read and follow it; a live service is changed in place instead."""
    return submitted(client, wish, yes)(detach, json)


def submitted(
    client: ControllerClient,
    wish: dict[str, Any],
    yes: bool,
    lost: ConnectionLost | None = None,
    send: Callable[[], dict[str, Any]] | None = None,
) -> Callable[[bool, bool], int]:
    """Submit, and return what goes on with the run: it takes `detach` and `json`. `lost`: as of
    `submit`; `send`: as of `change_in_place`."""
    live = None
    if wish["if_exists"] == "error":
        live = _live_service(client, wish["configuration"], wish["name"])
    if live is None:
        data, kept = submit(client, wish, output.note, lost)
        return lambda detach, json: go_on(client, data, kept=kept, detach=detach, json=json)
    from fairlead.cli.commands.services.deployments import change_in_place

    service = live
    return lambda detach, json: change_in_place(
        client, service, wish, yes=yes, detach=detach, json=json, send=send
    )


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
