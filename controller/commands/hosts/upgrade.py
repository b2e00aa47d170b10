"""Rolls a version through nodes, a few at a time, and stops at the first that does not come back.

A node counts as back when its shim runs the new version without restarting, and the controller has
it connected and fit for work, all during a settling time. A node that does not come back gets its
former version again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

import msgspec

from controller.commands.hosts.connection import Host, HostError, connect
from controller.commands.hosts.host_plan import HostPlan
from controller.commands.hosts.install import Progress, examine, install, run_install
from controller.commands.hosts.nodes_api import NodesApi, is_ready
from controller.commands.hosts.preflight import errors
from fairlead.documents.nodes import NodeView
from fairlead.errors import FairleadError

SETTLING_SECONDS = 10.0
BACK_SECONDS = 120.0
_LOOK_SECONDS = 0.5
_VERSION = "/opt/fairlead/{version}/install"


class End(StrEnum):
    UPGRADED = "upgraded"
    UNCHANGED = "unchanged"
    """It already had the version."""
    ROLLED_BACK = "rolled back"
    """It did not come back healthy, and has its former version again."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was left alone: an earlier one did not come back, or it is away."""


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    end: End
    message: str = ""


_GOOD = frozenset({End.UPGRADED, End.UNCHANGED})


async def roll(
    names: Sequence[str], batch: int, upgrade: Callable[[str], Awaitable[Upgrade]]
) -> list[Upgrade]:
    """Upgrade the nodes in their order and return the results. After a batch with a failure no
    further one begins."""
    ends: list[Upgrade] = []
    for start in range(0, len(names), batch):
        part = names[start : start + batch]
        if all(end.end in _GOOD for end in ends):
            ends += await asyncio.gather(*map(upgrade, part))
        else:
            ends += [
                Upgrade(name=name, end=End.SKIPPED, message="an earlier node did not come back")
                for name in part
            ]
    return ends


def is_upgradable(node: NodeView) -> str | None:
    """Return why the node cannot be upgraded; None: it can."""
    if node.address.startswith("/"):
        return "it is the controller's own machine: run the bundle's install there"
    if not is_ready(node):
        return f"it is {node.status}: {node.unfit or node.message or 'no reason was given'}"
    return None


async def upgrade_node(plan: HostPlan, api: NodesApi, progress: Progress) -> Upgrade:
    """Upgrade one node. A failure of the node is in the result; only other errors are raised."""
    try:
        progress.stage("connecting")
        async with connect(plan.target, plan.host_key) as host:
            return await _upgrade(host, plan, api, progress)
    except (HostError, FairleadError) as error:
        progress.stage(f"failed: {error}")
        return Upgrade(name=plan.name, end=End.FAILED, message=str(error))


async def _upgrade(host: Host, plan: HostPlan, api: NodesApi, progress: Progress) -> Upgrade:
    facts, findings = await examine(host, plan)
    before, wanted = facts.installed, plan.bundle.version
    if before == wanted:
        progress.stage(f"has {wanted} already")
        return Upgrade(name=plan.name, end=End.UNCHANGED)
    if not before:
        raise HostError(
            "it was not made by `node install` or an image, so a rollback is impossible"
        )
    if bad := errors(findings):
        raise HostError("; ".join(f"{finding.message} ({finding.fix})" for finding in bad))
    try:
        await install(host, plan, facts, (), progress)
        progress.stage("waiting until it is back")
        await _back(host, plan.name, wanted, api)
    except HostError as error:
        return await _roll_back(host, plan, before, str(error), api, progress)
    progress.stage(f"upgraded from {before} to {wanted}")
    return Upgrade(name=plan.name, end=End.UPGRADED, message=f"from {before} to {wanted}")


async def _roll_back(
    host: Host, plan: HostPlan, before: str, why: str, api: NodesApi, progress: Progress
) -> Upgrade:
    """Install the former version. Raises HostError when the node does not come back with that
    either."""
    progress.stage(f"rolling back: {why}")
    await run_install(host, _VERSION.format(version=before), ())
    await _back(host, plan.name, before, api)
    progress.stage(f"rolled back to {before}: {why}")
    return Upgrade(name=plan.name, end=End.ROLLED_BACK, message=f"to {before}: {why}")


async def _back(host: Host, name: str, version: str, api: NodesApi) -> None:
    """Wait until the node is back. Raises HostError with what is missing."""
    deadline = time.monotonic() + BACK_SECONDS
    since, restarts = time.monotonic(), ""
    while True:
        why, now = await _missing(host, name, version, api)
        # A shim that crashes after some seconds is active at each look: only systemd's count tells.
        if why is not None or now != restarts:
            since, restarts = time.monotonic(), now
        if why is None and time.monotonic() - since >= SETTLING_SECONDS:
            return
        if time.monotonic() > deadline:
            raise HostError(why or f"its shim restarts again and again ({now} times)")
        await asyncio.sleep(_LOOK_SECONDS)


async def _missing(host: Host, name: str, version: str, api: NodesApi) -> tuple[str | None, str]:
    """Return what is missing, and how often the shim was restarted. Raises HostError when waiting
    cannot help."""
    state = (await host.run("systemctl", "is-active", "fairlead-shim")).out.strip()
    shown = ("systemctl", "show", "--property=NRestarts", "--value", "fairlead-shim")
    restarts = (await host.run(*shown)).out.strip()
    if state == "failed":  # systemd has given it up: nothing comes by waiting
        raise HostError("its shim does not start: see `journalctl -u fairlead-shim` there")
    if state != "active":
        return f"its shim is {state or 'unknown to systemd'}", restarts
    current = (await host.run("readlink", "/opt/fairlead/current")).out.strip()
    if current.rpartition("/")[2] != version:
        return f"it has version {current}", restarts
    node = await asyncio.to_thread(api.find, name)
    if node is None:
        return "it was removed from the controller meanwhile", restarts
    if not is_ready(node):
        return node.unfit or node.message or f"it is {node.status}", restarts
    return None, restarts
