"""The options of `fairlead-shim`, and the settings that they become."""

from __future__ import annotations

import argparse
import grp
import logging
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fairlead.wire.node import EngineKind, HostNetwork
from shim import adapters
from shim.errors import StartError
from shim.files import safe_files
from shim.node import machine
from shim.node.ledger import Capacity
from shim.settings import (
    AUTO_RUNTIME,
    RUNTIME,
    DirectAccess,
    GatewayAccess,
    NetworkKind,
    Settings,
    SubnetRange,
    check_runtime,
)
from shim.tasks.steps.folders import make_shared

log = logging.getLogger("shim")
LOG_LEVELS = ("debug", "info", "warning", "error")
_MIN_LEASH_SECONDS = 60.0
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY")
_DEFAULT_GROUP = "fairlead"
_MAX_PORT = 65535
_IPV6 = Path("/proc/net/if_inet6")


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairlead-shim",
        description="Runs tasks on this machine for a Fairlead controller. `fairlead-shim doctor` "
        "looks at all that a job needs here.",
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="records and logs")
    add("--socket", type=Path, required=True, metavar="PATH", help="where to listen")
    add(
        "--engine",
        choices=[kind.value for kind in EngineKind],
        required=True,
        help="docker; podman; process (development only, no isolation)",
    )
    _add_offers(add)
    add(
        "--runtime",
        type=Path,
        default=RUNTIME,
        metavar="DIR",
        help="the hermetic runtime that containers get (default: %(default)s)",
    )
    add("--group", help=f"owns socket and shared folders (default: {_DEFAULT_GROUP})")
    _add_image_cache(add)
    _add_permissions(add)
    _add_networks(add)
    _add_access(add)
    add("--pull-stall", type=float, default=300.0, metavar="SECONDS", help=argparse.SUPPRESS)
    add(
        "--log-level",
        metavar="LEVEL",
        help=f"{', '.join(LOG_LEVELS)}: from which level on to log, to standard error "
        "(default: FAIRLEAD_LOG_LEVEL, else info)",
    )
    add("--verbose", action="store_true", help="the same as --log-level debug")
    add(
        "--leash",
        type=float,
        metavar="SECONDS",
        help="power the machine off when it has no task and no controller was heard for that long; "
        "for rented machines (default: never)",
    )
    return parser


def _add_image_cache(add: Callable[..., object]) -> None:
    """Add the options for the images that the node keeps."""
    add(
        "--image-gc",
        default="90:75",
        metavar="HIGH:LOW",
        help="at HIGH percent of the disk remove images that were pulled here and are not used, "
        "down to LOW; or 'off' (default: %(default)s)",
    )
    add(
        "--private-images",
        choices=["ask", "open"],
        default="ask",
        help="before a run uses an image that was pulled here with credentials, ask the image's "
        "registry with the run's own; or let every run use it (default: %(default)s)",
    )


def _add_offers(add: Callable[..., object]) -> None:
    """Add the options for what jobs may have of the node."""
    add("--cpus", type=float, metavar="N", help="cores to offer (default: all)")
    add("--memory", metavar="SIZE", help="memory to offer, e.g. 16GiB (default: nearly all)")
    add("--disk", metavar="SIZE", help="disk to offer (default: what is free)")
    add(
        "--exclude-gpu",
        action="append",
        default=[],
        metavar="GPU",
        help="do not offer this GPU: index, UUID or PCI address; may be repeated",
    )
    add(
        "--blocks",
        metavar="N",
        help="offer the node in N equal shares of GPU, CPU and memory; 'auto': one per GPU",
    )


def _add_permissions(add: Callable[..., object]) -> None:
    """Add the options for what jobs may do on the node, and what it brings for them."""
    add(
        "--volume-prefix",
        action="append",
        default=[],
        metavar="PATH",
        help="tasks may mount what lies below it: folders, files, block devices; may be repeated",
    )
    add(
        "--allow-privileged",
        action="store_true",
        help="tasks may ask for privileged containers and any capability (root of the node)",
    )
    add(
        "--python-mirror",
        metavar="URL",
        help="where uv finds the interpreters of jobs with `python` (http, https or file)",
    )
    add(
        "--python-downloads",
        metavar="FILE",
        help="the path or URL of a JSON list of them, as uv's --python-downloads-json-url",
    )


def _add_networks(add: Callable[..., object]) -> None:
    """Add the options for what networks jobs have."""
    add(
        "--host-network",
        choices=[each.value for each in HostNetwork],
        default=HostNetwork.WHOLE_NODE.value,
        help="which tasks share the node's network: those that hold the whole node, or none "
        "(default: %(default)s)",
    )
    add(
        "--networks",
        type=NetworkKind,
        choices=list(NetworkKind),
        default=NetworkKind.AUTO,
        help="who connects containers: the engine (docker), or the shim itself (agent), which makes"
        " a start shorter; auto: the shim where this node can (default: %(default)s)",
    )
    add(
        "--oci-runtime",
        metavar="NAME",
        default=AUTO_RUNTIME,
        help="the OCI runtime that starts containers, by the engine's name for it, such as runc; "
        "auto: crun where the Docker engine knows it and a tried start works, else the engine's "
        "default (default: %(default)s)",
    )
    add(
        "--job-networks",
        action="append",
        default=[],
        metavar="RANGE[:SIZE]",
        help="addresses for the networks of runs, such as 10.80.0.0/16:24; may be repeated "
        "(default: the engine's pools)",
    )
    add(
        "--allow-raw-sockets",
        action="store_true",
        help="tasks in the node's network keep CAP_NET_RAW: they can read all of its traffic",
    )
    add(
        "--container-proxy",
        action="store_true",
        help="hand the shim's own HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY to containers",
    )


def _add_access(add: Callable[..., object]) -> None:
    """Add the options for how controllers, people and gateways come in."""
    add(
        "--jump-keys",
        type=Path,
        metavar="FILE",
        help="authorized_keys of the user through whom people reach the tasks' SSH ports",
    )
    add(
        "--controller-keys",
        type=Path,
        metavar="FILE",
        help="authorized_keys of the user as whom controllers log in: each is told of the others",
    )
    add(
        "--gateway-folder",
        type=Path,
        metavar="DIR",
        help="where the sockets are through which gateways reach replicas of services",
    )
    add(
        "--gateway-keys",
        type=Path,
        metavar="FILE",
        help="authorized_keys of the user as whom gateways log in",
    )
    add("--gateway-group", metavar="GROUP", help="the group of that user")
    add(
        "--gateway-port",
        type=int,
        metavar="PORT",
        help="where HAProxy lets gateways in by TLS, without SSH (default: nowhere)",
    )
    add(
        "--direct-folder",
        type=Path,
        metavar="DIR",
        help="with --gateway-port: where the shim writes the files of that HAProxy",
    )
    add("--direct-user", metavar="USER", help="who that HAProxy becomes once it has read them")


def settings_of(arguments: argparse.Namespace) -> Settings:
    settings = Settings(
        data=arguments.data.absolute(),
        socket=arguments.socket.absolute(),
        gid=gid_of(arguments.group),
        runtime=arguments.runtime.absolute(),
        pull_stall=arguments.pull_stall,
        jump_keys=arguments.jump_keys and arguments.jump_keys.absolute(),
        controller_keys=arguments.controller_keys and arguments.controller_keys.absolute(),
        gateways=_gateways(arguments),
        direct=_direct(arguments),
        image_gc=watermarks(arguments.image_gc),
        leash=leash(arguments.leash),
        host_key=host_key(os.environ),
        private_images_open=arguments.private_images == "open",
        volume_prefixes=volume_prefixes(arguments.volume_prefix),
        allow_privileged=arguments.allow_privileged,
        host_network=HostNetwork(arguments.host_network),
        job_networks=tuple(map(SubnetRange.parse, arguments.job_networks)),
        networks=arguments.networks,
        oci_runtime=arguments.oci_runtime,
        allow_raw_sockets=arguments.allow_raw_sockets,
        python_mirror=arguments.python_mirror,
        python_downloads=arguments.python_downloads,
        proxy_variables=proxy_variables(os.environ) if arguments.container_proxy else {},
    )
    settings.check_paths()
    if adapters.engine(EngineKind(arguments.engine)).needs_runtime:
        check_runtime(settings.runtime)
    if not safe_files.is_supported():
        raise StartError("the kernel has no openat2 (Linux 5.6 or newer is needed)")
    make_data_folder(settings.data)
    _make_folders_of_sockets(settings)
    return settings


def capacity_of(arguments: argparse.Namespace, settings: Settings) -> Capacity:
    return machine.capacity(
        settings.data,
        _positive(arguments.cpus),
        arguments.memory and machine.parse_memory(arguments.memory, "--memory"),
        arguments.disk and machine.parse_size(arguments.disk, "--disk"),
    )


def log_level(asked: str | None, environ: Mapping[str, str]) -> str:
    """Return the level for `logging`. Raises StartError."""
    source, text = "--log-level", asked
    if text is None:
        source, text = "FAIRLEAD_LOG_LEVEL", environ.get("FAIRLEAD_LOG_LEVEL") or "info"
    if text not in LOG_LEVELS:
        raise StartError(f"{source} {text!r}: expected one of {', '.join(LOG_LEVELS)}")
    return text.upper()


def watermarks(text: str) -> tuple[float, float] | None:
    """Return the shares of `90:70`; None for `off`. Raises StartError."""
    if text == "off":
        return None
    high, colon, low = text.partition(":")
    if not (colon and high.isdecimal() and low.isdecimal() and 0 <= int(low) <= int(high) <= 100):
        raise StartError(f"--image-gc {text!r}: expected HIGH:LOW in percent (90:70), or off")
    return int(high) / 100, int(low) / 100


def leash(seconds: float | None) -> float | None:
    """Return the seconds. Raises StartError for less than a minute: a controller that starts again
    is silent for some time."""
    if seconds is not None and not seconds >= _MIN_LEASH_SECONDS:
        raise StartError(f"--leash {seconds:g}: expected at least {_MIN_LEASH_SECONDS:g} seconds")
    return seconds


def volume_prefixes(texts: Sequence[str]) -> tuple[Path, ...]:
    """Return the paths. Raises StartError."""
    for text in texts:
        if not text.startswith("/") or ".." in Path(text).parts:
            raise StartError(f"--volume-prefix {text!r}: expected an absolute path without '..'")
    return tuple(Path(text) for text in texts)


def host_key(environment: Mapping[str, str]) -> Path | None:
    """Return the host key to replace. It is no option: an older shim would refuse to start."""
    path = environment.get("FAIRLEAD_HOST_KEY")
    return Path(path).absolute() if path else None


def proxy_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in both spellings.

    Raises StartError for one with a password, which every user who may inspect a container would
    see.
    """
    found: dict[str, str] = {}
    for name in _PROXY:
        value = environment.get(name) or environment.get(name.lower())
        if not value:
            continue
        if urlsplit(value).password is not None:
            raise StartError(
                f"--container-proxy: {name} contains a password, which tasks would see"
            )
        found |= {name: value, name.lower(): value}
    return found


def make_data_folder(path: Path) -> None:
    """Make the folder. Raises StartError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError):
        raise StartError(f"--data {path}: it, or a folder above it, is not a folder") from None
    except OSError as error:
        raise StartError(f"--data {path}: cannot be made: {error.strerror}") from None


def _gateways(arguments: argparse.Namespace) -> GatewayAccess | None:
    if arguments.gateway_folder is None:
        if arguments.gateway_keys or arguments.gateway_group:
            raise StartError("--gateway-keys and --gateway-group need --gateway-folder")
        return None
    keys, group = arguments.gateway_keys, arguments.gateway_group
    return GatewayAccess(
        folder=arguments.gateway_folder.absolute(),
        keys=keys and keys.absolute(),
        gid=None if group is None else _gid_of_gateways(group),
    )


def _direct(arguments: argparse.Namespace) -> DirectAccess | None:
    port, folder = arguments.gateway_port, arguments.direct_folder
    if port is None:
        return None
    if not 1 <= port <= _MAX_PORT:
        raise StartError(f"--gateway-port {port}: expected a number from 1 to {_MAX_PORT}")
    if folder is None or arguments.gateway_folder is None:
        raise StartError("--gateway-port needs --direct-folder and --gateway-folder")
    user = arguments.direct_user
    try:
        if user is not None:
            pwd.getpwnam(user)
    except KeyError:
        raise StartError(f"--direct-user {user}: there is no such user") from None
    return DirectAccess(
        folder=folder.absolute(),
        port=port,
        user=user,
        # HAProxy does not start with an address of a family that the kernel does not have.
        addresses=("*", "[::]") if _IPV6.exists() else ("*",),
    )


def _gid_of_gateways(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise StartError(f"--gateway-group {group}: there is no such group") from None


def _make_folders_of_sockets(settings: Settings) -> None:
    try:
        if not settings.socket.parent.exists():
            make_shared(settings.socket.parent, settings.gid, 0o2750)
        make_shared(settings.run_folder, settings.gid, 0o2750)
    except OSError as error:
        raise StartError(
            f"--socket {settings.socket}: {error.filename} cannot be made: {error.strerror}"
        ) from None


def gid_of(asked: str | None) -> int:
    """Return the group. Without the default group, or without the right to give files to it, it is
    the own group."""
    group = _DEFAULT_GROUP if asked is None else asked
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        if asked is not None:
            raise StartError(f"--group {asked}: there is no such group") from None
        own = os.getegid()
        log.warning(
            "there is no group %r: sockets and shared folders belong to group %d, and a controller "
            "that is neither in it nor user %d cannot reach them",
            group,
            own,
            os.geteuid(),
        )
        return own
    return gid if os.geteuid() == 0 or gid in os.getgroups() else os.getegid()


def _positive(cpus: float | None) -> float | None:
    if cpus is not None and not cpus > 0:
        raise StartError(f"--cpus {cpus:g}: must be greater than 0")
    return cpus
