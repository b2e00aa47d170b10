"""Makes a host a node: read its facts, install the bundle, pin its key, wait until it is ready.

Each step looks first and changes only what differs, so a repetition changes nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from common.links.host_keys import fingerprint
from controller.commands.hosts.bundle import Bundle
from controller.commands.hosts.connection import Host, HostError, Target, connect
from controller.commands.hosts.preflight import (
    FACTS_SCRIPT,
    BadFacts,
    DockerChoice,
    Facts,
    HostFinding,
    Level,
    Wish,
    errors,
    is_installed,
    preflight,
    read_facts,
)
from fairlead.documents.nodes import FleetView, NodeView
from fairlead.errors import ApiError
from fairlead.rest import ControllerClient, decode, node_path
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


class HostPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for one host. `address`: at which the controller reaches its sshd; `host_key`: the
    trusted key line; `options`: further arguments of the bundle's `install`. What is None stays as
    it is on a host that is a node."""

    target: Target
    name: str
    address: tuple[str, int]
    keeps_address: bool = False
    """The address was not named: a node with this host key keeps its own."""
    host_key: str
    bundle: Bundle
    fleet: str | None = None
    attributes: dict[str, str] = {}
    docker: DockerChoice | None = None
    blocks: str | None = None
    """The shim's `--blocks`."""
    options: tuple[str, ...] = ()
    upgrade: bool = False
    takeover: bool = False
    """Join a host also when it is another controller's node."""


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


class _Fleets(msgspec.Struct):
    fleets: list[FleetView]


class _Nodes(msgspec.Struct):
    nodes: list[NodeView]
    next_cursor: str | None


class NodesApi:
    """The requests to the controller's API. The methods block and raise CliError."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    def tunnel_key(self) -> str:
        return str(decode(self._client.get("/v1/node-key"), dict[str, str])["public_key"])

    def find(self, name: str) -> NodeView | None:
        try:
            return decode(self._client.get(node_path(name)), NodeView)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def require_joinable(self, plan: HostPlan) -> NodeView | None:
        """Return the node that the host is already, if any. Raises HostError when it cannot be
        one: install asks before it changes the host."""
        if plan.fleet is not None and self.find_fleet(plan.fleet) is None:
            raise HostError(no_fleet(plan.fleet))
        node = self.find(plan.name)
        if node is None:
            return None
        if node.status == "expected":
            raise HostError(
                f"node {plan.name} is expected with the host key of its user-data: boot its "
                f"machine with that, or remove it (`fairlead node remove {plan.name}`)"
            )
        if not is_node_of(node, plan.host_key, None if plan.keeps_address else plan.address):
            raise HostError(
                f"there is already a node {plan.name}, at {node.address}: give another --name"
            )
        return node

    def join(self, plan: HostPlan) -> list[str]:
        """Make the host a node of the controller; return the changes."""
        node = self.require_joinable(plan)
        if node is None:
            self._add(plan)
            return [f"added node {plan.name} with host key {fingerprint(plan.host_key)}"]
        return self._change(node, plan)

    def named_at(self, address: tuple[str, int]) -> str | None:
        """Return the name of the node that has this address."""
        shown = shown_address(*address)
        return next((node.name for node in self.nodes() if node.address == shown), None)

    def find_fleet(self, name: str) -> FleetView | None:
        fleets = decode(self._client.get("/v1/fleets", limit=1000), _Fleets).fleets
        return next((fleet for fleet in fleets if fleet.name == name), None)

    def make_fleet(
        self,
        name: str,
        placement: str | None,
        attributes: dict[str, str],
        machines: dict[str, Any] | None = None,
        budget: dict[str, Any] | None = None,
    ) -> list[str]:
        """Make or change the fleet and return the changes; attributes that are not named stay, and
        so does what it may rent without `machines`; an empty mapping: nothing any more.

        What it may rent is refused before anything of a fleet is stored.
        """
        changes: list[str] = []
        before = self.find_fleet(name)
        # The API reads no machines as `off`.
        sections = {} if machines is None else {"machines": machines or None, "budget": budget}
        what = f"machines of {machines['provider']}" if machines else "no machines"
        rents = "" if machines is None else f"fleet {name} rents {what}"
        if before is None:
            body = {"name": name, "placement": placement, "attributes": attributes, **sections}
            made = decode(self._client.post("/v1/fleets", body), FleetView)
            return [f"added fleet {name}", *([rents] if rents else []), *_never_rents(made)]
        path = f"/v1/fleets/{quote(name, safe='')}"
        changed = before
        if machines is not None:
            changed = decode(self._client.put(f"{path}/machines", sections), FleetView)
        new = {
            key: value for key, value in attributes.items() if before.attributes.get(key) != value
        }
        if new or placement not in (None, before.placement):
            self._client.patch(path, {"placement": placement, "attributes": new})
            changes.append(f"changed fleet {name}")
        return [*changes, *([rents] if rents else []), *_never_rents(changed)]

    def set_images(self, name: str, images: list[object], registry_auth: object) -> bool:
        """Say what the fleet's nodes pull ahead; return whether that changed their list."""
        before = self.find_fleet(name)
        body = {"images": images, "registry_auth": registry_auth}
        self._client.put(f"/v1/fleets/{quote(name, safe='')}/images", body)
        return before is None or list(before.images) != images

    def nodes(self, fleet: str | None = None) -> list[NodeView]:
        """Return the nodes of one fleet, or all."""
        found: list[NodeView] = []
        cursor: str | None = None
        while True:
            page = decode(self._client.get("/v1/nodes", limit=1000, cursor=cursor), _Nodes)
            found += [node for node in page.nodes if fleet in (None, node.fleet)]
            if (cursor := page.next_cursor) is None:
                return found

    def remove(self, name: str) -> None:
        self._client.delete(node_path(name))

    def _add(self, plan: HostPlan) -> None:
        host, port = plan.address
        self._client.post(
            "/v1/nodes",
            {
                "name": plan.name,
                "host": host,
                "port": port,
                "host_key": plan.host_key,
                "attributes": plan.attributes,
                **({} if plan.fleet is None else {"fleet": plan.fleet}),
            },
        )

    def _change(self, node: NodeView, plan: HostPlan) -> list[str]:
        body: dict[str, object] = {}
        if fingerprint(plan.host_key) != node.host_key_fingerprint:
            body["host_key"] = plan.host_key
        if plan.fleet is not None and plan.fleet != node.fleet:
            body["fleet"] = plan.fleet
        new = {
            name: value
            for name, value in plan.attributes.items()
            if node.attributes.get(name) != value
        }
        if new:
            body["attributes"] = new
        if not body:
            return []
        self._client.patch(node_path(plan.name), body)
        return [f"changed node {plan.name}: {', '.join(sorted(body))}"]


def _never_rents(fleet: FleetView) -> list[str]:
    why = None if fleet.machines is None else fleet.machines.why_never
    return [] if why is None else [f"note: fleet {fleet.name}: {why}"]


def no_fleet(name: str) -> str:
    return (
        f"there is no fleet {name!r}; `fairlead fleet list` shows them, `fairlead fleet add "
        f"{name}` makes it"
    )


def shown_address(host: str, port: int) -> str:
    """Return the address as the API shows it for a node with Fairlead's own tunnel user."""
    return f"fairlead@{host}" + ("" if port == 22 else f":{port}")


def is_node_of(node: NodeView, host_key: str, address: tuple[str, int] | None) -> bool:
    """Return whether the node is the host with this key. `address`: at which the controller was
    said to reach it; None: nothing was said."""
    if address is not None:
        return node.address == shown_address(*address)
    return node.host_key_fingerprint == fingerprint(host_key)


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


def options_of(plan: HostPlan, facts: Facts, key: str) -> tuple[str, ...]:
    """Return the arguments of the bundle's `install`, which keeps what is not among them."""
    docker = plan.docker or (None if facts.chosen else "install")
    words = () if docker is None else ("--docker", docker)
    takeover = ("--takeover",) if plan.takeover else ()
    return (*words, "--tunnel-key", key, *takeover, *plan.options)


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


def wish_of(
    plan: HostPlan, now: float = 0.0, has_root: bool = True, controller: str | None = None
) -> Wish:
    return Wish(
        version=plan.bundle.version,
        arch=plan.bundle.arch,
        docker=plan.docker,
        now=now,
        has_root=has_root,
        upgrade=plan.upgrade,
        controller=controller,
        takeover=plan.takeover,
    )


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


def is_ready(node: NodeView) -> bool:
    """Return whether the node is connected and fit for work."""
    return node.status == "connected" and node.unfit is None


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
