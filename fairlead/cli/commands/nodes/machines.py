"""Commands about rented machines."""

from __future__ import annotations

import io
import sys
from csv import writer as csv_writer
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.commands.pages import whole_list
from fairlead.cli.durations import seconds_of
from fairlead.cli.errors import EXIT_FAILED, EXIT_USAGE, CliError
from fairlead.documents.machines import CostsView, MachineView, OrphanCosts, OrphanView
from fairlead.model.costs import CostPeriod, CostRow, money, price_words
from fairlead.queries import CostsQuery
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
        List ended machines, too.
    """
    data = whole_list(settings.client(), "/v1/machines", "machines", all=str(all).lower())
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
        price_words(one.price),
        money(one.cost),
        one.trouble or one.message or "",
    )


def orphans(*, json: Json = False) -> int:
    """List machines at providers for which there is no record."""
    data = settings.client().get("/v1/machine-orphans")
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, _Orphans).orphans
    output.emit_table(_ORPHAN_HEAD, [_orphan_row(one) for one in found])
    for one in found:
        if one.unlisted is not None:
            output.note(f"{one.provider}/{one.instance_id}: {one.unlisted}")
    if any(one.ends_at is None and one.unlisted is None for one in found):
        output.note(
            "a machine that is older than a restore from backup is kept, since jobs may run on it: "
            "`fairlead machine end-orphans PROVIDER ID` ends it once nobody needs it, with "
            "all that its jobs wrote to /var/lib/fairlead/tasks there"
        )
    if without := sum(one.price is None for one in found):
        output.note(f"no budget counts {_machines_without_price(without)}")
    return 0


def _machines_without_price(count: int) -> str:
    return (
        "1 machine whose price is not known"
        if count == 1
        else (f"{count} machines whose prices are not known")
    )


_ORPHAN_HEAD = ("PROVIDER", "ID", "FLEET", "TYPE", "WHERE", "PRICE/H", "MADE", "FOUND", "ENDS")
MAX_ENDED_AT_ONCE = 1000
"""The controller takes no more ids in one request."""


def _orphan_row(one: OrphanView) -> tuple[str, ...]:
    spot = " (spot)" if one.spot else ""
    return (
        one.provider,
        one.instance_id,
        one.fleet or "-",
        "-" if one.instance_type is None else one.instance_type + spot,
        one.zone or one.region or "-",
        "-" if one.price is None else price_words(one.price),
        one.created_at,
        one.seen_at,
        _end_of(one),
    )


def _end_of(one: OrphanView) -> str:
    if one.unlisted is not None:
        return "not known"
    return "now: an admin had it ended" if one.is_to_end else one.ends_at or "never: it is kept"


def end_orphans(
    provider: str,
    /,
    *ids: str,
    all: Annotated[bool, Parameter(negative=())] = False,
    yes: Annotated[bool, Parameter(negative=(), help="Ask no question.")] = False,
    json: Json = False,
) -> int:
    """End machines at a provider for which there is no record.

    Each controller that leads asks for their end until the provider lists them no longer.

    Parameters
    ----------
    provider
        The provider's name in the controller's file.
    ids
        The ids of the machines, as `fairlead machine orphans` lists them.
    all
        End all of this provider that are listed now.
    """
    if bool(ids) == all:
        raise CliError("give the IDs of orphans, or --all", EXIT_USAGE)
    client = settings.client()
    listed = decode(client.get("/v1/machine-orphans"), _Orphans).orphans
    chosen = [
        one
        for one in listed
        if one.provider == provider and (one.unlisted is None if all else one.instance_id in ids)
    ]
    # The controller says what is wrong with a name that no orphan has.
    wanted = list(dict.fromkeys(ids)) or [one.instance_id for one in chosen]
    is_known = bool(wanted) and len(chosen) == len(wanted)
    if is_known and not yes and not _agreed_to_end(chosen):
        output.note("nothing was ended")
        return EXIT_FAILED
    # In the first request, so that it is refused before anything ends.
    there = {one.instance_id for one in chosen}
    wanted.sort(key=lambda one: one in there)
    ended: list[OrphanView] = []
    for first in range(0, len(wanted) or 1, MAX_ENDED_AT_ONCE):
        some = wanted[first : first + MAX_ENDED_AT_ONCE]
        body = {"provider": provider, "instance_ids": some}
        found = decode(client.post("/v1/machine-orphans/end", body), _Orphans).orphans
        ended += found
        if not json:
            for one in found:
                output.emit(f"{one.instance_id} at {provider} is being ended")
    if not wanted:
        output.note(f"provider {provider} has no orphans")
    if json:
        output.emit_json(msgspec.json.encode(_Orphans(orphans=ended)))
    return 0


def _agreed_to_end(orphans: list[OrphanView]) -> bool:
    """Show on a terminal what would end, and ask; a script that names machines means them."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    for one in orphans:
        output.note("  " + "  ".join(_orphan_row(one)[:-1]))
    if any(one.quarantined for one in orphans):
        output.note(
            "they are older than a restore from backup: no controller can read any more what their "
            "jobs left there. Copy what you need of /var/lib/fairlead/tasks first, by the "
            "provider's own way to its machines"
        )
    what = "this machine" if len(orphans) == 1 else f"these {len(orphans)} machines"
    output.write_all(output.STDERR_FD, f"End {what}, with all that runs there? [y/N] ".encode())
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def forget(name: str, /, *, json: Json = False) -> int:
    """End the record of a machine in an account that nobody uses any more.

    Its provider rents again. Nobody ends the machine itself: make sure in its account that it has
    ended.

    Parameters
    ----------
    name
        The machine's name; PROVIDER/ID for one without a record.
    """
    provider, is_orphan, instance_id = name.partition("/")
    if is_orphan:
        return _forget_orphan(provider, instance_id, json=json)
    data = settings.client().delete(f"/v1/machines/{quote(name, safe='')}")
    if json:
        output.emit_json(data)
        return 0
    gone = decode(data, MachineView)
    output.emit(f"{gone.name}: {gone.message}")
    return 0


def _forget_orphan(provider: str, instance_id: str, *, json: bool) -> int:
    body = {"provider": provider, "instance_id": instance_id}
    data = settings.client().post("/v1/machine-orphans/forget", body)
    if json:
        output.emit_json(data)
        return 0
    output.emit(f"{provider}/{instance_id} is forgotten; {decode(data, OrphanView).unlisted}")
    return 0


def cost(
    *,
    by: str = "user,fleet",
    since: str = "30d",
    per: Literal["day", "month"] | None = None,
    csv: bool = False,
    json: Json = False,
) -> int:
    """Show what rented machines have cost.

    Jobs that are on a machine share its price. While there are none, the run for which the machine
    was rented pays.

    Parameters
    ----------
    by
        How to group the sums: by user, fleet and run, separated by commas.
    since
        How far back to begin, such as 12h, 30d or 365d; at most 400d.
    per
        Show each day or month of UTC by itself.
    csv
        Write comma-separated values.
    """
    seconds = seconds_of(since, "--since")
    if not seconds:
        raise CliError(f"--since: {since!r} is no time, give more than 0, such as 30d", EXIT_USAGE)
    if csv and json:
        raise CliError("--csv and --json: give one of them", EXIT_USAGE)
    query = CostsQuery(by=by, seconds=seconds, per=None if per is None else CostPeriod(per))
    data = settings.client().get("/v1/costs", **query.parameters())
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, CostsView)
    keys = list(dict.fromkeys(one.strip() for one in by.split(",")))
    periods = () if per is None else (per.upper(),)
    head = (*periods, *(key.upper() for key in keys), "HOURS", "COST")
    # A program sums up what it reads: a thousand short jobs cost more than 0.00 together.
    rows = [
        (
            *(one.period or "-" for _ in periods),
            *(_key_of(one, key) for key in keys),
            f"{one.hours:.6f}" if csv else f"{one.hours:.2f}",
            f"{one.cost:.6f}" if csv else money(one.cost),
        )
        for one in found.rows
    ]
    if csv:
        text = io.StringIO()
        writer = csv_writer(text, lineterminator="\n")
        writer.writerows([[one.lower() for one in head], *(map(_no_formula, one) for one in rows)])
        output.emit(text.getvalue().rstrip("\n"))
        return 0
    output.emit_table(head, rows)
    output.emit(f"together {money(found.total)}")
    if found.orphans.count:
        output.note(_of_orphans(found.orphans))
    return 0


def _no_formula(cell: str) -> str:
    """Return the cell as no spreadsheet runs it: a fleet's name may be the tag of a machine without
    a record, which others wrote."""
    return f"'{cell}" if cell != "-" and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _of_orphans(found: OrphanCosts) -> str:
    """Return what machines without a record cost, as an operator reads it."""
    count = found.count
    what = (
        "1 machine without a record costs"
        if count == 1
        else (f"{count} machines without a record cost")
    )
    without = found.without_price
    more = f", and no budget counts {_machines_without_price(without)}" if without else ""
    return f"{what} {price_words(found.per_hour)} an hour{more}: `fairlead machine orphans`"


def _key_of(one: CostRow, key: str) -> str:
    found = {"user": one.user, "fleet": one.fleet, "run": one.run_name or one.run}
    return found[key] or "-"
