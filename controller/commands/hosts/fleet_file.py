"""`type: fleet`: the hosts that are to be a fleet's nodes, and how their operator reaches them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from controller.commands.hosts.bundle import Bundle
from controller.commands.hosts.connection import Target
from controller.commands.hosts.host_plan import HostPlan
from controller.commands.hosts.preflight import DockerChoice
from controller.commands.hosts.ssh_config import target_of
from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.values.fleet_images import fleet_images
from fairlead.configuration.values.machines import (
    BudgetFields,
    MachinesFields,
    check_machines,
)
from fairlead.configuration.values.names import NODE_NAMES, is_node_name

TYPE = "fleet"
_DOCKER = "install, use, podman or none"
_BLOCKS = "a number of equal shares, or auto"
_UNSAFE = re.compile(r"[\s\"'\\$]")
_HOST = {
    "user": "a user who is root there or may use sudo without a password",
    "port": "a port (1 to 65535)",
    "identity_file": "the path of a private key",
    "jump": "USER@HOST[:PORT]",
    "docker": _DOCKER,
    "blocks": _BLOCKS,
    "attributes": "a mapping of names to strings",
    "volume_prefixes": "a list of absolute paths",
    "registry_mirror": "a URL",
    "job_metadata": "open or closed",
    "gateway_port": "a number from 0 to 65535",
}
ALLOWED = {
    "type": "fleet",
    "name": "a fleet's name",
    "placement": "the attribute whose value the nodes of one gang share",
    "hosts": "a list of host names, or of mappings with `host`",
    "machines": "a mapping: what the fleet may rent; or off: nothing any more",
    "budget": "a mapping: per_hour, per_month",
    "images": "a list of images that its nodes pull ahead",
    "registry_auth": "a mapping of username and password",
    "hosts.host": "a host name or address",
    "hosts.name": "the node's name",
    "hosts.host_key": "a public host key, as in /etc/ssh/ssh_host_ed25519_key.pub",
    "hosts.address": "where the controller reaches the host",
    **_HOST,
    **{f"hosts.{name}": hint for name, hint in _HOST.items()},
}
_OF_DSTACK = {
    "ssh_config": "write its user, identity_file, port and hosts as fields of the file itself",
    "nodes": "a fleet that rents has `machines: {nodes: …}`, and the hosts of another are listed",
    "backends": "`machines: {provider: NAME}` names who rents",
    "reservation": "it is a field of runs: their fleet rents its machines for those that name it",
    **dict.fromkeys(
        (
            "resources",
            "idle_duration",
            "max_price",
            "regions",
            "availability_zones",
            "instance_types",
        ),
        "write it within `machines`",
    ),
    "spot_policy": "write `machines: {spot: …}`",
}
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
JobMetadata = Literal["open", "closed"]
"""Whether jobs reach the metadata service of a cloud."""
Blocks = Annotated[int, msgspec.Meta(ge=1, le=1024)] | Literal["auto"]


class _Shared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that the whole fleet, or one host, may have."""

    user: str | None = None
    port: Port | None = None
    identity_file: str | None = None
    jump: str | None = None
    docker: DockerChoice | None = None
    blocks: Blocks | None = None
    attributes: dict[str, str] = {}
    volume_prefixes: tuple[str, ...] | None = None
    registry_mirror: str | None = None
    job_metadata: JobMetadata | None = None
    gateway_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None


class HostFields(_Shared, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str
    name: str | None = None
    host_key: str | None = None
    address: str | None = None


class FleetFields(_Shared, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["fleet"]
    name: str
    hosts: tuple[str | HostFields, ...] = ()
    placement: str | None = None
    machines: dict[str, Any] | bool | str | None = None
    budget: dict[str, Any] | None = None
    images: list[Any] | None = None
    registry_auth: dict[str, Any] | None = None


class FleetHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host, with its own fields and those of its fleet."""

    target: Target
    name: str
    host_key: str | None
    address: tuple[str, int]
    keeps_address: bool
    docker: DockerChoice | None
    blocks: str | None
    attributes: dict[str, str]
    options: tuple[str, ...]

    def plan(self, *, fleet: str, host_key: str, bundle: Bundle, upgrade: bool) -> HostPlan:
        return HostPlan(
            target=self.target,
            name=self.name,
            address=self.address,
            keeps_address=self.keeps_address,
            host_key=host_key,
            bundle=bundle,
            fleet=fleet,
            attributes=self.attributes,
            docker=self.docker,
            blocks=self.blocks,
            options=self.options,
            upgrade=upgrade,
        )


class FleetWish(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted fleet. `attributes` are its own; they hold for each node that does not set
    them."""

    name: str
    placement: str | None
    attributes: dict[str, str]
    hosts: tuple[FleetHost, ...]
    machines: dict[str, Any] | None = None
    """What it may rent, as written; empty: nothing any more; None: its file says nothing of it."""
    budget: dict[str, Any] | None = None
    images: list[Any] | None = None
    """What its nodes pull ahead; None: its file says nothing of it."""
    registry_auth: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"FleetWish(name={self.name!r})"


def read_fleet(data: object, folder: Path) -> FleetWish:
    """Read the file. `folder`: the start of relative paths in it. Raises ConfigurationError,
    HostError."""
    fields = convert(data, FleetFields, allowed=ALLOWED, hints=_OF_DSTACK)
    rented = _machines_of(fields)
    _check_images(fields)
    hosts: list[FleetHost] = []
    for number, entry in enumerate(fields.hosts):
        given = HostFields(host=entry) if isinstance(entry, str) else entry
        host = _host(given, fields, folder, f"hosts[{number}]")
        if not is_node_name(host.name):
            named = "" if given.name is None else ".name"
            raise ConfigurationError(
                f"hosts[{number}]{named}", f"{host.name!r} is not a node name", NODE_NAMES
            )
        if any(host.name == earlier.name for earlier in hosts):
            raise ConfigurationError(
                f"hosts[{number}]", f"is the second one named {host.name}", "a `name` of its own"
            )
        hosts.append(host)
    return FleetWish(
        name=fields.name,
        placement=fields.placement,
        attributes=fields.attributes,
        hosts=tuple(hosts),
        machines=rented,
        budget=fields.budget,
        images=fields.images,
        registry_auth=fields.registry_auth,
    )


def _check_images(fields: FleetFields) -> None:
    """Raises ConfigurationError."""
    if fields.images is not None:
        fleet_images(fields.images, fields.registry_auth)
    elif fields.registry_auth is not None:
        raise ConfigurationError(
            "registry_auth", "is of a fleet without images", "only with `images`"
        )


def _machines_of(fields: FleetFields) -> dict[str, Any] | None:
    """Return what the fleet may rent; empty: `off`. Raises ConfigurationError."""
    # YAML 1.1 reads `off` as false.
    is_off = fields.machines is False or fields.machines == "off"
    if fields.machines is None or is_off:
        if fields.budget is not None:
            raise ConfigurationError(
                "budget", "is of a fleet that rents nothing", "only with `machines`"
            )
        if not fields.hosts and fields.images is None and not is_off:
            raise ConfigurationError(
                "hosts", "is missing", "a list of hosts, or `machines`, or `images`"
            )
        return {} if is_off else None
    if not isinstance(fields.machines, dict):
        raise ConfigurationError(
            "machines", f"{fields.machines!r} is not a mapping", ALLOWED["machines"]
        )
    machines = convert(fields.machines, MachinesFields, within="machines")
    check_machines(machines, convert(fields.budget or {}, BudgetFields, within="budget"))
    return fields.machines


def _host(given: HostFields, fleet: FleetFields, folder: Path, location: str) -> FleetHost:
    """Return the host, with the fleet's values for fields that it leaves out. `location`: of the
    host in the file. Raises ConfigurationError, HostError."""
    identity = given.identity_file or fleet.identity_file
    prefixes = fleet.volume_prefixes if given.volume_prefixes is None else given.volume_prefixes
    mirror = given.registry_mirror or fleet.registry_mirror
    check_prefixes(prefixes or (), _field_path(given.volume_prefixes, location, "volume_prefixes"))
    check_mirror(mirror, _field_path(given.registry_mirror, location, "registry_mirror"))
    blocks = given.blocks or fleet.blocks
    target = target_of(
        given.host,
        port=given.port or fleet.port,
        user=given.user or fleet.user,
        identity=None if identity is None else folder / Path(identity).expanduser(),
        jump=given.jump or fleet.jump,
    )
    # 0 is a wish, too: it takes the port away.
    gateway_port = fleet.gateway_port if given.gateway_port is None else given.gateway_port
    return FleetHost(
        target=target,
        name=given.name or given.host.lower(),
        host_key=given.host_key,
        address=(given.address or target.host, target.port),
        keeps_address=given.address is None,
        docker=given.docker or fleet.docker,
        blocks=None if blocks is None else str(blocks),
        attributes=given.attributes,
        options=install_options(
            prefixes or (), mirror, given.job_metadata or fleet.job_metadata, gateway_port
        ),
    )


def _field_path(own: object, location: str, field: str) -> str:
    """Return where the field is: at the host, or else at its fleet."""
    return field if own is None else f"{location}.{field}"


def check_prefixes(prefixes: Sequence[str], field: str) -> None:
    """Raise ConfigurationError for a prefix that the bundle's `install` would refuse."""
    for prefix in prefixes:
        path = PurePosixPath(prefix)
        if not path.is_absolute() or ".." in path.parts or _UNSAFE.search(prefix):
            raise ConfigurationError(
                field,
                f"{prefix!r} is no folder that jobs can mount from",
                "an absolute path without '..', blanks or quotes",
            )


def check_mirror(mirror: str | None, field: str) -> None:
    """Raise ConfigurationError for a mirror that the bundle's `install` would refuse."""
    if mirror is not None and (
        urlsplit(mirror).scheme not in ("http", "https") or _UNSAFE.search(mirror)
    ):
        raise ConfigurationError(
            field, f"{mirror!r} is no mirror", "a URL such as https://mirror.example"
        )


def install_options(
    prefixes: tuple[str, ...],
    mirror: str | None,
    metadata: JobMetadata | None = None,
    gateway_port: int | None = None,
) -> tuple[str, ...]:
    """Return arguments for the bundle's `install`. What is None stays there as it is."""
    words = [word for prefix in prefixes for word in ("--volume-prefix", prefix)]
    words += () if metadata is None else ("--job-metadata", metadata)
    words += () if gateway_port is None else ("--gateway-port", str(gateway_port))
    return (*words, *(() if mirror is None else ("--registry-mirror", mirror)))
