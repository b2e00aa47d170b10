"""Makes a host a node: read its facts, install the bundle, pin its key, wait until it is ready.

Each step looks first and changes only what differs, so a repetition changes nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from common.links.host_keys import fingerprint
from controller.commands.hosts.bundle import Bundle
from controller.commands.hosts.connection import Host, HostError, Target, connect
from controller.commands.hosts.host_plan import HostPlan, options_of, wish_of
from controller.commands.hosts.nodes_api import NodesApi, is_node_of, is_ready
from controller.commands.hosts.preflight import (
    FACTS_SCRIPT,
    BadFacts,
    Facts,
    HostFinding,
    Level,
    errors,
    is_installed,
    preflight,
    read_facts,
)
from fairlead.documents.nodes import NodeView
from fairlead.wire.decoders import decoder_of

INSTALLED = "/opt/fairlead/current/install"
SHIM_OPTIONS = "/etc/fairlead/shim.env"
_SET_OPTIONS = (
    f"trap '' HUP; cat > {SHIM_OPTIONS}.new && [ $(wc -c < {SHIM_OPTIONS}.new) = $1 ] "
    f"&& mv {SHIM_OPTIONS}.new {SHIM_OPTIONS} && systemctl restart fairlead-shim"
)
"""A shell's script; its argument is the length of its input in bytes."""
_OPTIONS_VARIABLE = "FAIRLEAD_SHIM_OPTIONS"
_BLOCKS = re.compile(r"--blocks(=|\s+)\S+")
READY_SECONDS = 180.0
_LOOK_SECONDS = 0.5
_FOLDER = "/var/tmp/fairlead.XXXXXXXX"
_WOULD_CHANGE = 3
"""The exit status of `install --check`."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `changed`: one sentence for each change."""

    name: str
    changed: list[str]
    findings: list[HostFinding]
    node: NodeView | None


class Progress(Protocol):
    def stage(self, text: str) -> None:
        """Show the stage that begins now."""

    def found(self, findings: Sequence[HostFinding]) -> None: ...

    def agrees(self, findings: Sequence[HostFinding]) -> bool:
        """Return whether the operator agrees; may block."""

    def uploaded(self, size: int, whole: int) -> None:
        """Show that `size` of `whole` bytes are uploaded."""


class _Change(msgspec.Struct):
    """A change, as the bundle's `install --json` lists it."""

    name: str
    change: str


class Declined(HostError):
    """The operator declined; nothing was changed."""


async def make_node(plan: HostPlan, api: NodesApi, progress: Progress) -> Result:
    """Make the host a node. Raises HostError, CliError."""
    await asyncio.to_thread(api.require_joinable, plan)
    key = await asyncio.to_thread(api.tunnel_key)
    progress.stage("connecting")
    async with connect(plan.target, plan.host_key) as host:
        facts, findings = await examine(host, plan, fingerprint(key))
        progress.found(findings)
        if bad := errors(findings):
            raise HostError(
                f"{plan.target.shown} cannot be a node yet: "
                + "; ".join(f"{finding.message} ({finding.fix})" for finding in bad)
            )
        options = options_of(plan, facts, key)
        if is_installed(facts, wish_of(plan)):
            differences = await announced(host, INSTALLED, options)
            progress.found(differences)
            findings = [*findings, *differences]
        if not await asyncio.to_thread(progress.agrees, findings):
            raise Declined(f"{plan.target.shown}: nothing was changed")
        changed = await install(host, plan, facts, options, progress)
        changed += await set_blocks(host, plan.blocks)
    progress.stage("joining")
    changed += await asyncio.to_thread(api.join, plan)
    progress.stage("waiting until it is ready")
    node = await wait_ready(api, plan.name)
    progress.stage("ready")
    return Result(name=plan.name, changed=changed, findings=findings, node=node)


async def examine(
    host: Host, plan: HostPlan, controller: str | None = None
) -> tuple[Facts, list[HostFinding]]:
    """Read the host's facts and judge them. `controller`: the fingerprint of its key, if it is to
    log in. Raises HostError."""
    before = time.time()
    facts = await facts_of(host, plan.target)
    # The host read its clock somewhere between the two: SSH's own time is not an error of it.
    now = min(max(facts.clock, before), time.time())
    return facts, preflight(facts, wish_of(plan, now, host.is_root, controller))


async def facts_of(host: Host, target: Target) -> Facts:
    """Read the host's facts. Raises HostError."""
    try:
        return read_facts(await host.must("sh", root=True, stdin=FACTS_SCRIPT))
    except BadFacts as error:
        raise HostError(f"{target.shown}: {error}") from None


async def install(
    host: Host, plan: HostPlan, facts: Facts, options: Sequence[str], progress: Progress
) -> list[str]:
    """Install the bundle and return the changes. Nothing is uploaded to a host that already has it.
    A new bundle first tells its changes and whether it can make them, and changes nothing until
    then. Raises HostError."""
    if is_installed(facts, wish_of(plan)):
        progress.stage("comparing")
        return await run_install(host, INSTALLED, options)
    async with unpacked(host, plan.bundle, progress) as program:
        progress.found(await announced(host, program, options))
        progress.stage("installing")
        return await run_install(host, program, options)


async def run_install(host: Host, program: str, options: Sequence[str]) -> list[str]:
    """Run the bundle's `install` and return the changes. Raises HostError."""
    printed = await host.must(program, "--json", *options, root=True)
    return [f"{change.name}: {change.change}" for change in _changes(printed, program)]


async def announced(host: Host, program: str, options: Sequence[str]) -> list[HostFinding]:
    """Return what the bundle's `install` would change, as it says itself. Raises HostError, also
    when it could not."""
    words = (program, "--check", "--json", *options)
    printed = await host.must(*words, root=True, fine=(0, _WOULD_CHANGE))
    return [
        HostFinding(subject=change.name, level=Level.CHANGE, message=change.change)
        for change in _changes(printed, program)
    ]


def _changes(printed: str, program: str) -> list[_Change]:
    try:
        return decoder_of(list[_Change]).decode(printed)
    except msgspec.MsgspecError:
        raise HostError(f"{program} gave an unexpected answer: {printed[:200]!r}") from None


async def set_blocks(host: Host, blocks: str | None) -> list[str]:
    """Set the shim's `--blocks`; the operator's other options stay. Raises HostError."""
    if blocks is None:
        return []
    before = await host.must("sh", "-c", f"cat {SHIM_OPTIONS} 2>/dev/null || true", root=True)
    wanted = with_blocks(before, blocks)
    if wanted == before:
        return []
    # systemd reads the file of options when it starts the shim. Both are one command: after a cut
    # between them, the next try would find the file as it should be and restart nothing.
    size = str(len(wanted.encode()))
    await host.must("sh", "-c", _SET_OPTIONS, "sh", size, root=True, stdin=wanted)
    return [f"{SHIM_OPTIONS}: --blocks {blocks}"]


def with_blocks(text: str, blocks: str) -> str:
    """Return the file of the shim's options with this option, and all else unchanged."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        name, equals, value = line.partition("=")
        if name.strip() == _OPTIONS_VARIABLE and equals:
            rest = _BLOCKS.sub("", value.strip().strip("\"'")).split()
            lines[number] = f'{_OPTIONS_VARIABLE}="{" ".join([*rest, "--blocks", blocks])}"'
            break
    else:
        lines.append(f'{_OPTIONS_VARIABLE}="--blocks {blocks}"')
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def unpacked(host: Host, bundle: Bundle, progress: Progress) -> AsyncIterator[str]:
    """Yield the path of the bundle's `install` on the host, for the length of the block."""
    progress.stage("uploading")
    folder = (await host.must("mktemp", "-d", _FOLDER)).strip()
    whole, there = bundle.file.stat().st_size, 0

    def moved(size: int) -> None:
        nonlocal there
        there += size
        progress.uploaded(there, whole)

    try:
        await host.upload(bundle.file, f"{folder}/bundle.tar", moved)
        await host.must("tar", "-xf", f"{folder}/bundle.tar", "-C", folder, root=True)
        yield f"{folder}/{bundle.folder}/install"
    finally:
        await host.run("rm", "-rf", folder, root=True)


async def wait_ready(api: NodesApi, name: str) -> NodeView:
    """Wait until the node is connected and fit for work. Raises HostError with its last state."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        node = await asyncio.to_thread(api.find, name)
        if node is None:
            raise HostError(f"node {name} was removed meanwhile")
        if is_ready(node):
            return node
        if time.monotonic() > deadline:
            why = node.unfit or node.message or node.status
            raise HostError(f"node {name} is not ready after {READY_SECONDS:.0f} s: {why}")
        await asyncio.sleep(_LOOK_SECONDS)


async def remove_node(
    target: Target,
    host_key: str,
    name: str,
    address: tuple[str, int] | None,
    api: NodesApi,
    progress: Progress,
    *,
    takeover: bool = False,
) -> list[str]:
    """Remove the node from the controller, then everything that `install` brought from the host;
    return the changes.

    The controller refuses while jobs are there. `address` None: it was not said; the host key tells
    whether the host is the node. Raises HostError, CliError.
    """
    progress.stage("connecting")
    async with connect(target, host_key) as host:
        if not host.is_root:
            raise HostError(f"{target.shown}: the user is not root and sudo asks for a password")
        facts = await facts_of(host, target)
        ours = fingerprint(await asyncio.to_thread(api.tunnel_key))
        others = [each for each in facts.controllers.split() if each != ours]
        if others and not takeover:
            raise HostError(
                f"another controller has {target.shown} as its node, too ({', '.join(others)} may "
                f"log in): `fairlead node remove {name}` leaves it that one, --takeover takes it "
                "from both"
            )
        changed = []
        # The controller first, which refuses while jobs are there. A repetition after a cut
        # connection finds no node, and uninstalls.
        node = await asyncio.to_thread(api.find, name)
        if node is not None and is_node_of(node, host_key, address):
            await asyncio.to_thread(api.remove, name)
            changed.append(f"removed node {name} from the controller")
        progress.stage("uninstalling")
        if (await host.run("test", "-x", INSTALLED, root=True)).status == 0:
            changed += await run_install(host, INSTALLED, ("--uninstall", "--purge"))
    return changed
