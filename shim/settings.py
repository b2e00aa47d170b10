"""The shim's settings: checked once at its start, then only read."""

from __future__ import annotations

import re
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from fairlead.wire.node import HostNetwork
from shim.errors import StartError, invalid

try:
    VERSION = version("fairlead")
except PackageNotFoundError:
    VERSION = "0"
"""The version that the shim reports."""
RUNTIME = Path("/opt/fairlead/current/runtime")
_LAUNCHER = "bin/fairlead-entrypoint"
# sun_path has 108 bytes, the last of which is zero (unix(7)).
_MAX_SOCKET_PATH = 107
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_UUID_LENGTH = 36
_FOR_EVERYBODY = 0o005


class GatewayAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How gateways reach this node. `keys`: the authorized_keys file of their user; `gid`: their
    group. None: no file is written, or no group is set: it is a node of one user."""

    folder: Path
    keys: Path | None = None
    gid: int | None = None

    def socket(self, name: str) -> Path:
        """A connection begins with one line: `ok`, or why the port cannot be reached."""
        return self.folder / f"{name}.sock"

    def raw_socket(self, name: str) -> Path:
        """A connection is the port's own from its first byte; without a listener it is closed."""
        return self.folder / f"{name}.raw"

    def direct_socket(self, name: str) -> Path:
        """An agent asks there for the direct way to the port (`shim.access.direct_way`)."""
        return self.folder / f"{name}.direct"


class DirectAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Where the node's HAProxy lets gateways in by TLS. `folder`: what it reads, and its admin
    socket; `port`: where it listens, at `addresses`; `user`: who it becomes once it has read its
    files; None: it stays who it is."""

    folder: Path
    port: int
    user: str | None = None
    addresses: tuple[str, ...] = ("*", "[::]")

    @property
    def configuration(self) -> Path:
        return self.folder / "haproxy.cfg"

    @property
    def admin(self) -> Path:
        return self.folder / "admin.sock"

    @property
    def gateways(self) -> Path:
        """The certificates that are let in, one after the other."""
        return self.folder / "gateways.pem"

    @property
    def own(self) -> Path:
        """The node's certificate with its key."""
        return self.folder / "node.pem"

    @property
    def removal(self) -> Path:
        """It is there while a gateway is removed, and nobody is let in anew."""
        return self.folder / "removal"

    @property
    def ways(self) -> Path:
        """The map of names to addresses with ports."""
        return self.folder / "ways.map"


MAX_NETWORKS = 4096
"""The networks of one range; each is a bridge and some firewall rules of the node."""
_MAX_PREFIX = 29
"""Five addresses for containers."""
_USUAL_BITS = 6
_MIN_USUAL_PREFIX, _MAX_USUAL_PREFIX = 22, 28


class SubnetRange(msgspec.Struct, frozen=True):
    """A range of addresses that is cut into subnets of one size, for the networks of runs."""

    network: IPv4Network
    prefix: int

    @classmethod
    def parse(cls, text: str) -> SubnetRange:
        """Return the range of `10.80.0.0/16`, or of `10.80.0.0/16:24` with the size of its subnets.

        Without a size it is cut into 64 subnets or more, of at most 1021 containers each. Raises
        StartError.
        """
        base, colon, size = text.partition(":")
        try:
            network = IPv4Network(base)
            prefix = int(size) if colon else _usual_prefix(network.prefixlen)
        except ValueError:
            raise StartError(
                f"--job-networks {text!r}: expected an IPv4 network such as 10.80.0.0/16, or "
                "10.80.0.0/16:24 with the size of each run's network"
            ) from None
        if not network.prefixlen <= prefix <= _MAX_PREFIX:
            raise StartError(
                f"--job-networks {text!r}: the size of a run's network must be from "
                f"{network.prefixlen}, the whole range, to {_MAX_PREFIX}"
            )
        made = cls(network, prefix)
        if made.count > MAX_NETWORKS:
            raise StartError(
                f"--job-networks {text!r}: would be {made.count} networks, at most {MAX_NETWORKS} "
                "are possible"
            )
        return made

    @property
    def count(self) -> int:
        return 1 << (self.prefix - self.network.prefixlen)

    @property
    def size(self) -> int:
        """The addresses of one subnet."""
        return 1 << (32 - self.prefix)

    def subnet(self, number: int) -> IPv4Network:
        """Return one of the `count` subnets."""
        return IPv4Network((int(self.network.network_address) + number * self.size, self.prefix))


def _usual_prefix(whole: int) -> int:
    usual = min(max(whole + _USUAL_BITS, _MIN_USUAL_PREFIX), _MAX_USUAL_PREFIX)
    return max(usual, whole)


AUTO_RUNTIME = "auto"
"""The shim chooses the OCI runtime; no engine has one of this name."""


class NetworkKind(StrEnum):
    """What makes the networks of containers."""

    DOCKER = "docker"
    AGENT = "agent"
    """The shim connects each container itself (`shim.wires`)."""
    AUTO = "auto"
    """The shim where the node can, else the engine. An engine that is open has one of the others.
    """


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds. `gid` owns the folders that job and controller can reach."""

    data: Path
    socket: Path
    gid: int
    runtime: Path = RUNTIME
    pull_stall: float = 300.0
    image_gc: tuple[float, float] | None = None
    """Above the first share (0 to 1) of the images' disk, unused images are removed until the
    second share is reached."""
    private_images_open: bool = False
    """Every run may use images that were pulled with credentials once they are here."""
    volume_prefixes: tuple[Path, ...] = ()
    """Tasks may have what lies below these paths as volumes: folders, files, block devices."""
    allow_privileged: bool = False
    host_network: HostNetwork = HostNetwork.WHOLE_NODE
    job_networks: tuple[SubnetRange, ...] = ()
    """The addresses of runs' networks, the preferred range first; none: the engine's own."""
    networks: NetworkKind = NetworkKind.AUTO
    oci_runtime: str | None = None
    """The engine's name of the OCI runtime that starts containers; `auto`: crun where it works;
    None: the engine's default."""
    allow_raw_sockets: bool = False
    """Tasks in the node's network keep CAP_NET_RAW, with which they read all of its traffic."""
    proxy_variables: dict[str, str] = {}
    """The proxy variables that containers get."""
    python_mirror: str | None = None
    """The URL below which uv finds the interpreters' archives; None: where uv looks by itself."""
    python_downloads: str | None = None
    """The path or URL of the JSON that lists them; None: uv's own list."""
    leash: float | None = None
    """Seconds without a task and without a controller after which the machine powers itself off;
    None: never."""
    host_key: Path | None = None
    """sshd's file of the host key that came with the user-data of a rented machine, and that the
    shim replaces; None: it leaves sshd's keys alone."""
    engine_patience: float = 60.0
    jump_keys: Path | None = None
    """The authorized_keys file of the jump user, through whom people reach the tasks' SSH ports."""
    controller_keys: Path | None = None
    """The authorized_keys file of the user as whom controllers log in."""
    gateways: GatewayAccess | None = None
    """How gateways reach the ports that are exposed; None: they do not."""
    direct: DirectAccess | None = None
    """How gateways reach exposed ports without SSH; None: they do not."""

    @property
    def run_folder(self) -> Path:
        return self.socket.parent / "tasks"

    def task_folder(self, task_id: str) -> Path:
        return self.data / "tasks" / task_id

    def network_folder(self, task_id: str) -> Path:
        """Return the folder of the files that describe a container's network to it."""
        return self.task_folder(task_id) / "network"

    @property
    def launcher(self) -> Path:
        """The first program of each container."""
        return self.runtime / _LAUNCHER

    def job_folder(self, task_id: str) -> Path:
        return self.task_folder(task_id) / "job"

    def socket_folder(self, task_id: str) -> Path:
        return self.run_folder / task_id

    @property
    def mounts_folder(self) -> Path:
        return self.data / "mounts"

    @property
    def leaves_folder(self) -> Path:
        """Return the folder of the notes in which cgroups tasks have leaves."""
        return self.data / "leaves"

    def task_mounts(self, task_id: str) -> Path:
        return self.mounts_folder / task_id

    @property
    def sockets_folder(self) -> Path:
        """Return a folder of this shim alone: several shims may have their sockets in one
        folder."""
        return self.socket.with_suffix(".d")

    def runner_socket(self, task_id: str) -> str:
        """Return the path that callers use; see `shim.access.runner_socket`."""
        return str(self.sockets_folder / f"{task_id}.sock")

    def check_paths(self) -> None:
        """Raise StartError when the sockets' paths are too long for the kernel, or their folder is
        also that of the records."""
        if self.data == self.sockets_folder:
            raise StartError(
                f"--data {self.data}: is for the sockets of {self.socket}; choose another folder"
            )
        longest = max(
            len(self.runner_socket("x" * _UUID_LENGTH).encode()), len(f"{self.socket}.new".encode())
        )
        if longest > _MAX_SOCKET_PATH:
            raise StartError(
                f"--socket {self.socket}: the sockets of tasks would need {longest} bytes, "
                f"{_MAX_SOCKET_PATH} is the kernel's limit; choose a shorter folder"
            )

    def check_task_id(self, task_id: str) -> None:
        """Raise Refused (400) for an id that cannot name files and containers."""
        check_name(task_id, "id")
        if len(self.runner_socket(task_id).encode()) > _MAX_SOCKET_PATH:
            raise invalid("the id is too long for the path of its socket on this node", "id")


def check_runtime(runtime: Path) -> None:
    """Raises StartError when containers could not start with it, under any user."""
    launcher = runtime / _LAUNCHER
    if not launcher.is_file():
        raise StartError(
            f"--runtime {runtime}: there is no {_LAUNCHER} in it, so no job could start; a node's "
            f"bundle brings one ({RUNTIME}), and ./dev runtime builds one"
        )
    paths = (runtime.resolve(), launcher.parent, launcher)
    if not all(path.stat().st_mode & _FOR_EVERYBODY == _FOR_EVERYBODY for path in paths):
        raise StartError(
            f"--runtime {runtime}: jobs run as any user, and others may not read and run what "
            f"is in it: chmod -R o+rX {runtime}"
        )


def check_name(text: str, field: str) -> None:
    """Raise Refused (400) unless `text` can be a part of file, container and label names."""
    if not _NAME.fullmatch(text):
        raise invalid(
            f"{field} must be 1 to 128 letters, digits, '.', '_' or '-', and start with a letter "
            "or a digit",
            field,
        )
