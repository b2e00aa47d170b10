"""`node install`: make an existing host a node, or remove it again, over SSH."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from controller.commands.hosts.bundle import Bundle, read_bundle
from controller.commands.hosts.connection import HostError, Target
from controller.commands.hosts.fleet_file import (
    JobMetadata,
    check_mirror,
    check_prefixes,
    install_options,
)
from controller.commands.hosts.host_plan import HostPlan
from controller.commands.hosts.install import make_node, remove_node
from controller.commands.hosts.nodes_api import NodesApi
from controller.commands.hosts.preflight import DockerChoice, HostFinding, Level
from controller.commands.hosts.ssh_config import target_of
from controller.commands.hosts.trust import UnknownHostKey, trusted_key
from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.nodes.inventory import AcceptedKey, HostKey
from fairlead.cli.commands.nodes.user_data import RegistryMirror, VolumePrefixes, parse_address
from fairlead.cli.commands.options import Attributes, Json, attributes_of
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.values.names import NODE_NAMES, is_node_name
from fairlead.documents.nodes import NodeView
from fairlead.wire.sizes import human_size

_TARGET = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<where>[^@\s]+)")
_MARKS = {Level.OK: " ok ", Level.CHANGE: "  + ", Level.WARNING: "  ! ", Level.ERROR: "  X "}

BundleFile = Annotated[
    Path | None, Parameter(help="The file that ./dev bundle made; default: FAIRLEAD_BUNDLE.")
]
Identity = Annotated[
    Path | None, Parameter(help="Your private key for the host; default: what ssh would try.")
]
Jump = Annotated[
    str | None, Parameter(help="USER@HOST[:PORT]: the machine through which to reach the host.")
]
Docker = Annotated[
    DockerChoice | None,
    Parameter(
        help="Install Docker where it is missing (the default for a new host), use the Docker "
        "that is there, or run jobs without it."
    ),
]
Engine = Annotated[
    Literal["docker", "podman", "process"] | None,
    Parameter(
        help="What runs jobs: Docker (the default), Podman, which must be installed, or plain "
        "processes."
    ),
]
Metadata = Annotated[
    JobMetadata | None,
    Parameter(
        help="Whether jobs reach the metadata service of a cloud, and with it the node's "
        "credentials."
    ),
]
GatewayPort = Annotated[
    int | None,
    Parameter(
        help="The port at which gateways reach the node by TLS, which is faster than by SSH; 0: "
        "none (the default). The host needs HAProxy."
    ),
]
Address = Annotated[
    str | None,
    Parameter(help="HOST[:PORT] at which the controller reaches it; default: that of TARGET."),
]
Yes = Annotated[
    bool,
    Parameter(negative=(), help="Ask no questions. An unknown host key is still refused."),
]
Upgrade = Annotated[
    bool, Parameter(negative=(), help="Replace another version; running jobs go on.")
]
Takeover = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Join a host that is another controller's node. The other controller keeps it, too, "
        "and both get a warning. With --uninstall: take the host from both.",
    ),
]
Uninstall = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Remove the node from the controller, and Fairlead with its data from the host.",
    ),
]


def install(
    target: str,
    /,
    *,
    name: str | None = None,
    fleet: str | None = None,
    attribute: Attributes = None,
    docker: Docker = None,
    engine: Engine = None,
    volume_prefix: VolumePrefixes = None,
    registry_mirror: RegistryMirror = None,
    job_metadata: Metadata = None,
    gateway_port: GatewayPort = None,
    address: Address = None,
    identity: Identity = None,
    jump: Jump = None,
    host_key: HostKey = None,
    accept_host_key: AcceptedKey = None,
    bundle: BundleFile = None,
    yes: Yes = False,
    upgrade: Upgrade = False,
    takeover: Takeover = False,
    uninstall: Uninstall = False,
    json: Json = False,
) -> int:
    """Make a host that you reach by SSH a node; a repetition changes only what differs, and what it
    does not name stays.

    Parameters
    ----------
    target
        USER@HOST[:PORT]: root, or a user who may use sudo without a password. HOST may be a name of
        your ~/.ssh/config.
    name
        The node's name; default: the name of the node at this address, or else HOST.
    fleet
        The node's fleet.
    """
    if upgrade and uninstall:
        raise CliError("give either --upgrade or --uninstall", EXIT_USAGE)
    alias, where = parse_target(target, identity, jump)
    _check(name or alias.lower(), volume_prefix, registry_mirror)
    reached = (where.host, where.port) if address is None else parse_address(address)
    api, progress = NodesApi(settings.client()), TerminalProgress(asks=not yes)
    node = name or api.named_at(reached) or alias.lower()
    key = _key_of(where, api.find(node), host_key, accept_host_key, progress)
    if uninstall:
        named = None if address is None else reached
        leaves = partial(remove_node, where, key, node, named, api, progress, takeover=takeover)
        return _uninstall(where, node, leaves, progress, json)
    plan = HostPlan(
        target=where,
        name=node,
        address=reached,
        keeps_address=address is None,
        host_key=key,
        bundle=find_bundle(bundle),
        fleet=fleet,
        attributes={name: value for name, value in attributes_of(attribute).items() if value},
        docker=_chosen(docker, engine),
        options=install_options(
            tuple(volume_prefix or ()), registry_mirror, job_metadata, gateway_port
        ),
        upgrade=upgrade,
        takeover=takeover,
    )
    return _install(plan, api, progress, json)


def _key_of(
    where: Target,
    known: NodeView | None,
    host_key: str | None,
    accepted: str | None,
    progress: TerminalProgress,
) -> str:
    """Return the host key to trust. Raises CliError unless it is pinned, given or confirmed."""
    pinned = known.host_key_fingerprint if known is not None else None
    try:
        return asyncio.run(trusted_key(where, host_key=host_key, accepted=accepted, pinned=pinned))
    except UnknownHostKey as error:
        return progress.asks_for_key(error)
    except HostError as error:
        raise CliError(str(error)) from None


def _check(node: str, prefixes: Sequence[str] | None, mirror: str | None) -> None:
    """Raise CliError for what the host or the controller would refuse later."""
    if not is_node_name(node):
        raise CliError(f"--name: {node!r} is not a node name: {NODE_NAMES}", EXIT_USAGE)
    try:
        check_prefixes(prefixes or (), "--volume-prefix")
        check_mirror(mirror, "--registry-mirror")
    except ConfigurationError as error:
        raise CliError(str(error), EXIT_USAGE) from None


_ENGINES: dict[str, DockerChoice] = {"docker": "install", "podman": "podman", "process": "none"}
"""What --engine means in the words of --docker."""


def _chosen(docker: DockerChoice | None, engine: str | None) -> DockerChoice | None:
    """Return the wish of --docker and --engine, as the host's `install` keeps it."""
    if engine is None:
        return docker
    wanted = _ENGINES[engine]
    if docker not in (None, wanted) and not (engine == "docker" and docker == "use"):
        raise CliError(f"--engine {engine} and --docker {docker}: give one of them", EXIT_USAGE)
    return docker or wanted


def _install(plan: HostPlan, api: NodesApi, progress: TerminalProgress, json: bool) -> int:
    try:
        result = asyncio.run(make_node(plan, api, progress))
    except HostError as error:
        raise CliError(str(error)) from None
    if json:
        output.emit_json(msgspec.json.encode(result))
        return 0
    for change in result.changed:
        output.emit(change)
    assert result.node is not None
    gpus = ", ".join(gpu.name for gpu in result.node.gpus) or "no GPU"
    done = "is ready" if result.changed else "is ready; nothing had to be changed"
    output.emit(f"node {plan.name} {done}: {result.node.cpu:g} CPUs, {gpus}")
    return 0


def _uninstall(
    where: Target,
    node: str,
    remove: Callable[[], Coroutine[Any, Any, list[str]]],
    progress: TerminalProgress,
    json: bool,
) -> int:
    if not progress.confirms(f"Remove node {node}, and Fairlead with its data from {where.shown}?"):
        raise CliError("nothing was changed")
    try:
        changed = asyncio.run(remove())
    except HostError as error:
        raise CliError(str(error)) from None
    if json:
        output.emit_json(msgspec.json.encode({"name": node, "changed": changed}))
        return 0
    for change in changed or ["nothing of Fairlead was there"]:
        output.emit(change)
    return 0


def parse_target(text: str, identity: Path | None, jump: str | None) -> tuple[str, Target]:
    """Return the host as it was named, and its login. Raises CliError."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise CliError(f"{text!r} is not USER@HOST or USER@HOST:PORT", EXIT_USAGE)
    host, port = parse_address(match["where"], "target")
    given = port if match["where"] != host else None
    try:
        return host, target_of(host, port=given, user=match["user"], identity=identity, jump=jump)
    except HostError as error:
        raise CliError(str(error)) from None


def find_bundle(file: Path | None) -> Bundle:
    """Return the bundle. Raises CliError."""
    named = file or (Path(path) if (path := os.environ.get("FAIRLEAD_BUNDLE")) else None)
    if named is None:
        raise CliError(
            "--bundle: give the file that ./dev bundle made (or set FAIRLEAD_BUNDLE)", EXIT_USAGE
        )
    return read_bundle(named)


class TerminalProgress:
    """Shows one host's progress on stderr, and asks the operator there."""

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks
        self._shown_tenth = 0

    @property
    def can_ask(self) -> bool:
        """Return whether questions are possible. Only the operator can trust a key: `--yes` does
        not trust one."""
        return self._asks and sys.stdin.isatty() and sys.stderr.isatty()

    def stage(self, text: str) -> None:
        output.note(text)

    def found(self, findings: Sequence[HostFinding]) -> None:
        for finding in findings:
            fix = f" -> {finding.fix}" if finding.fix else ""
            output.note(f"{_MARKS[finding.level]}{finding.subject}: {finding.message}{fix}")

    def agrees(self, findings: Sequence[HostFinding]) -> bool:
        if all(finding.level in (Level.OK, Level.WARNING) for finding in findings):
            return True
        return self.confirms("Go on?")

    def uploaded(self, size: int, whole: int) -> None:
        tenth = size * 10 // max(whole, 1)
        if tenth > self._shown_tenth:
            self._shown_tenth = tenth
            output.note(f"uploaded {tenth * 10} % of {human_size(whole)}")

    def confirms(self, question: str) -> bool:
        """Ask the question. Raises CliError if no user can answer."""
        if not self._asks:
            return True
        if not self.can_ask:
            raise CliError(f"{question} There is no terminal to ask at: give --yes")
        output.write_all(output.STDERR_FD, f"{question} [y/N] ".encode())
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def asks_for_key(self, error: UnknownHostKey) -> str:
        """Raise CliError unless the operator confirms the key."""
        if not self.can_ask:
            raise CliError(str(error))
        output.note(f"{error.host} has the host key {error.shown}")
        if not self.confirms("Is that what `ssh-keygen -lf` shows on the host?"):
            raise CliError("nothing was changed")
        return error.preferred
