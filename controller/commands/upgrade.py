"""`node upgrade`: roll a version through nodes, and stop when a node does not come back healthy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from controller.commands.hosts.bundle import Bundle
from controller.commands.hosts.connection import HostError
from controller.commands.hosts.fleet import HostRow, HostTable
from controller.commands.hosts.host_plan import HostPlan
from controller.commands.hosts.nodes_api import NodesApi, no_fleet
from controller.commands.hosts.ssh_config import target_of
from controller.commands.hosts.trust import trusted_key
from controller.commands.hosts.upgrade import End, Upgrade, is_upgradable, roll, upgrade_node
from controller.commands.install import (
    BundleFile,
    Identity,
    Jump,
    TerminalProgress,
    find_bundle,
)
from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.nodes.user_data import parse_address
from fairlead.cli.commands.options import Flag, Json
from fairlead.cli.errors import EXIT_FAILED, EXIT_USAGE, CliError
from fairlead.documents.nodes import NodeView
from fairlead.errors import FairleadError


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's login to all of the nodes."""

    user: str | None
    identity: Path | None
    jump: str | None


def upgrade(
    *,
    fleet: str | None = None,
    batch: Annotated[int, Parameter(help="How many nodes at a time.")] = 1,
    bundle: BundleFile = None,
    user: Annotated[
        str | None, Parameter(help="The user on the hosts: root, or a user who may use sudo.")
    ] = None,
    identity: Identity = None,
    jump: Jump = None,
    yes: Annotated[bool, Flag] = False,
    json: Json = False,
) -> int:
    """Upgrade nodes, a batch at a time. It stops at the first that does not come back healthy, and
    gives that one its former version again; running jobs go on.

    Parameters
    ----------
    fleet
        The nodes of this fleet; default: all.
    yes
        Ask no questions.
    """
    if batch < 1:
        raise CliError("--batch: give a number from 1 on", EXIT_USAGE)
    packed, terminal = find_bundle(bundle), TerminalProgress(asks=not yes)
    api = NodesApi(settings.client())
    if fleet is not None and api.find_fleet(fleet) is None:
        raise CliError(no_fleet(fleet), EXIT_USAGE)
    nodes = api.nodes(fleet)
    away = {node.name: why for node in nodes if (why := is_upgradable(node)) is not None}
    ready = {node.name: node for node in nodes if node.name not in away}
    if not terminal.confirms(f"Upgrade {len(ready)} nodes to {packed.version}?"):
        raise CliError("nothing was changed")
    login = Login(user=user, identity=identity, jump=jump)
    ends = [Upgrade(name=name, end=End.SKIPPED, message=why) for name, why in away.items()]
    ends += asyncio.run(_roll(ready, batch, packed, login, api, terminal))
    if json:
        output.emit_json(msgspec.json.encode({"version": packed.version, "nodes": ends}))
    else:
        output.emit_table(("NODE", "END", "ABOUT"), [(e.name, e.end, e.message) for e in ends])
    return 0 if all(end.end in (End.UPGRADED, End.UNCHANGED) for end in ends) else EXIT_FAILED


async def _roll(
    nodes: dict[str, NodeView],
    batch: int,
    bundle: Bundle,
    login: Login,
    api: NodesApi,
    terminal: TerminalProgress,
) -> list[Upgrade]:
    table = HostTable(list(nodes), terminal.confirms)

    async def one(name: str) -> Upgrade:
        row = HostRow(name, table)
        try:
            plan = await _plan(nodes[name], bundle, login)
        except (HostError, FairleadError) as error:
            row.stage(f"failed: {error}")
            return Upgrade(name=name, end=End.FAILED, message=str(error))
        return await upgrade_node(plan, api, row)

    with table.shown():
        return await roll(list(nodes), batch, one)


async def _plan(node: NodeView, bundle: Bundle, login: Login) -> HostPlan:
    """Plan one node, with the address and host key that the controller has. Raises HostError."""
    host, port = parse_address(node.address.partition("@")[2])
    target = target_of(host, port=port, user=login.user, identity=login.identity, jump=login.jump)
    pinned = node.host_key_fingerprint
    key = await trusted_key(target, host_key=None, accepted=None, pinned=pinned)
    return HostPlan(
        target=target,
        name=node.name,
        address=(host, port),
        host_key=key,
        bundle=bundle,
        upgrade=True,
    )
