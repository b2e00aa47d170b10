"""Commands about rented machines."""

from __future__ import annotations

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.documents import MachineView, OrphanView
from fairlead.rest import decode


class _Machines(msgspec.Struct):
    machines: list[MachineView]


class _Orphans(msgspec.Struct):
    orphans: list[OrphanView]


def list_(*, all: bool = False, json: Json = False) -> int:
    """List rented machines.

    Parameters
    ----------
    all
        List machines that have ended, too.
    """
    data = settings.client().get("/v1/machines", limit=1000, all=str(all).lower())
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("NAME", "FLEET", "STATUS", "TYPE", "WHERE", "PRICE/H", "COST", "MESSAGE"),
        [_row(one) for one in decode(data, _Machines).machines],
    )
    return 0


def _row(one: MachineView) -> tuple[str, ...]:
    spot = " (spot)" if one.spot else ""
    return (
        one.name,
        one.fleet,
        one.status,
        one.instance_type + spot,
        one.zone or one.region,
        f"{one.price:.2f}",
        f"{one.cost:.2f}",
        one.trouble or one.message or "",
    )


def orphans(*, json: Json = False) -> int:
    """List machines at providers that no record knows."""
    data = settings.client().get("/v1/machine-orphans")
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("PROVIDER", "ID", "MACHINE", "MADE", "ENDS"),
        [
            (
                one.provider,
                one.instance_id,
                one.machine_id or "-",
                one.created_at,
                one.ends_at or "never: it is older than a restore",
            )
            for one in decode(data, _Orphans).orphans
        ],
    )
    return 0
