"""Commands about fleets."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Attributes, Json, attributes_of
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.documents.nodes import FleetView
from fairlead.rest import decode


class _Fleets(msgspec.Struct):
    fleets: list[FleetView]


def add(
    name: str,
    /,
    *,
    placement: str | None = None,
    attribute: Attributes = None,
    json: Json = False,
) -> int:
    """Add a fleet; nodes can then belong to it.

    Parameters
    ----------
    placement
        The attribute whose value the nodes of one gang must share, such as rack.
    """
    body = {"name": name, "placement": placement, "attributes": attributes_of(attribute)}
    return _show(settings.client().post("/v1/fleets", body), json, "added")


def list_(*, json: Json = False) -> int:
    """List fleets."""
    data = settings.client().get("/v1/fleets")
    if json:
        output.emit_json(data)
        return 0
    fleets = decode(data, _Fleets).fleets
    output.emit_table(
        ("NAME", "PLACEMENT", "NODES", "ATTRIBUTES"),
        [
            (
                fleet.name,
                fleet.placement or "-",
                str(len(fleet.nodes)),
                ", ".join(f"{name}={value}" for name, value in fleet.attributes.items()),
            )
            for fleet in fleets
        ],
    )
    for fleet in fleets:
        if fleet.machines is not None and fleet.machines.why_never is not None:
            output.emit(f"note  fleet {fleet.name}: {fleet.machines.why_never}")
    return 0


def set_(
    name: str,
    /,
    *,
    placement: str | None = None,
    attribute: Attributes = None,
    json: Json = False,
) -> int:
    """Change a fleet's attributes (NAME= removes one) or its placement.

    Parameters
    ----------
    placement
        The attribute whose value the nodes of one gang must share; empty: none.
    """
    if not attribute and placement is None:
        raise CliError(
            "say what to change: --attribute NAME=VALUE or --placement ATTRIBUTE", EXIT_USAGE
        )
    body = {"placement": placement, "attributes": attributes_of(attribute, takes_away=True)}
    return _show(settings.client().patch(_path(name), body), json, "changed")


def remove(name: str, /, *, json: Json = False) -> int:
    """Remove a fleet that has no nodes."""
    return _show(settings.client().delete(_path(name)), json, "removed")


def _path(name: str) -> str:
    return f"/v1/fleets/{quote(name, safe='')}"


def _show(data: bytes, json: bool, done: str) -> int:
    if json:
        output.emit_json(data)
        return 0
    output.emit(f"fleet {decode(data, FleetView).name} {done}")
    return 0
