"""`apply -f fleet.yaml`: make the hosts of a fleet its nodes; a repetition changes only what
differs.

It stands apart from `fleets` because it loads SSH, which the commands of users do without.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from controller.commands.hosts.bundle import Bundle
from controller.commands.hosts.connection import HostError
from controller.commands.hosts.fleet import (
    HostTable,
    Outcome,
    accept_keys,
    host_keys_of,
    make_nodes,
)
from controller.commands.hosts.fleet_file import FleetWish, read_fleet
from controller.commands.hosts.nodes_api import NodesApi
from controller.commands.install import TerminalProgress, find_bundle
from fairlead import settings
from fairlead.cli import output
from fairlead.cli.errors import EXIT_FAILED, EXIT_USAGE, CliError
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.text.source import Document
from fairlead.errors import ApiError


def apply_fleet(
    document: Document, file: Path, *, bundle: Path | None, yes: bool, upgrade: bool, json: bool
) -> int:
    """Return 1 when a host could not be made a node; the others are nodes. Raises CliError."""
    try:
        wish = read_fleet(document.data, file.resolve().parent)
    except ConfigurationError as error:
        raise CliError(document.explain(error), EXIT_USAGE) from None
    except HostError as error:
        raise CliError(str(error)) from None
    api = NodesApi(settings.client())
    # Hosts need what is packed for them: without it nothing is to be changed.
    packed = find_bundle(bundle) if wish.hosts else None
    try:
        changed = _make_fleet(wish, api)
    except ApiError as error:
        raise _in_its_file(error, document) from None
    terminal = TerminalProgress(asks=not yes)
    outcomes = [] if packed is None else _make_nodes(wish, packed, api, terminal, upgrade=upgrade)
    if json:
        shown = {"name": wish.name, "changed": changed, "hosts": outcomes}
        output.emit_json(msgspec.json.encode(shown))
    else:
        _show(wish, changed, outcomes, api)
    return EXIT_FAILED if any(outcome.error for outcome in outcomes) else 0


def _make_fleet(wish: FleetWish, api: NodesApi) -> list[str]:
    """Return the changes. Raises ApiError."""
    changed = api.make_fleet(wish.name, wish.placement, wish.attributes, wish.machines, wish.budget)
    if wish.images is not None and api.set_images(wish.name, wish.images, wish.registry_auth):
        many = f"pull {len(wish.images)} images ahead" if wish.images else "pull no images ahead"
        changed.append(f"the nodes of fleet {wish.name} {many}")
    return changed


def _in_its_file(error: ApiError, document: Document) -> Exception:
    """Return the refusal of a field with the file and its line."""
    if error.code != "invalid" or not error.field:
        return error
    message = str(error).removeprefix(f"{error.field}: ")
    wrong = ConfigurationError(error.field, message)
    return CliError(document.explain(wrong), EXIT_USAGE)


def _make_nodes(
    wish: FleetWish, bundle: Bundle, api: NodesApi, terminal: TerminalProgress, *, upgrade: bool
) -> list[Outcome]:
    pinned = {
        node.name: node.host_key_fingerprint
        for node in api.nodes()
        if node.host_key_fingerprint is not None
    }
    keys = asyncio.run(host_keys_of(wish.hosts, pinned))
    trusted = accept_keys(keys, terminal.confirms, can_ask=terminal.can_ask)
    plans = [
        host.plan(fleet=wish.name, host_key=key, bundle=bundle, upgrade=upgrade)
        for host in wish.hosts
        if isinstance(key := trusted[host.name], str)
    ]
    refused = [
        Outcome(name=name, error=str(error))
        for name, error in trusted.items()
        if isinstance(error, HostError)
    ]
    table = HostTable([plan.name for plan in plans], terminal.confirms)
    return [*refused, *asyncio.run(make_nodes(plans, api, table))]


def _show(wish: FleetWish, changed: list[str], outcomes: list[Outcome], api: NodesApi) -> None:
    for change in changed:
        output.emit(change)
    if not wish.hosts:
        return
    rows = [
        (outcome.name, outcome.error or "; ".join(outcome.changed) or "nothing had to be changed")
        for outcome in outcomes
    ]
    output.emit_table(("NODE", "CHANGED"), rows)
    names = {outcome.name for outcome in outcomes}
    others = [node.name for node in api.nodes(wish.name) if node.name not in names]
    if others:
        output.note(
            f"also in fleet {wish.name}, and not in the file: {', '.join(others)}; `fairlead node "
            f"install HOST --uninstall` takes one out"
        )
