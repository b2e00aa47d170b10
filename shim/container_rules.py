"""The rules that decide what a container may have: options, capabilities, limits, volumes. Pure.

They read only the request and the operator's settings, never the disk, so a wrong request is
refused before anything is mounted. At submit, the controller applies those about volumes, and
the lists of capabilities and ulimits. A container
with a capability of the host is root on the host, so such requests need the operator's permission.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from common.engine_abilities import EngineAbility
from common.errors import Refused
from shim.errors import VolumeError, invalid
from shim.schemas import (
    ContainerOptions,
    EngineKind,
    HostNetwork,
    NetworkMode,
    RefusalCode,
    TaskRequest,
    VolumeKind,
    VolumeMount,
)
from shim.settings import Settings

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_OURS = PurePosixPath("/opt/fairlead")
_NOT_FOR_VOLUMES = (_OURS, "/proc", "/sys", "/dev")
_DEVICES = "/dev"
_SHARED_MEMORY = PurePosixPath("/dev/shm")
MOST_VOLUMES = 64


class HostPath(msgspec.Struct, frozen=True):
    """A path on the node: the prefix that allows it, and the rest."""

    prefix: Path
    relative: str


def check_volumes(volumes: Sequence[VolumeMount]) -> None:
    """Raise VolumeError for volumes that no node would accept."""
    if len(volumes) > MOST_VOLUMES:
        raise VolumeError(f"{len(volumes)} volumes are too many: {MOST_VOLUMES} at most")
    seen: set[PurePosixPath] = set()
    for volume in volumes:
        target = _target(volume)
        if target in seen:
            raise VolumeError(f"two volumes have the target {target}")
        seen.add(target)
        if volume.kind is VolumeKind.NAMED and not _NAME.fullmatch(volume.source):
            raise VolumeError(
                f"{volume.source!r} is not the name of a volume: lowercase letters, digits, '_', "
                "'.' and '-' make one"
            )
        if volume.kind in (VolumeKind.HOST, VolumeKind.DEVICE):
            _check_source(volume.source)
        if volume.size is not None and (volume.kind is not VolumeKind.TMPFS or volume.size <= 0):
            raise VolumeError(f"the volume at {target} cannot have the size {volume.size}")


def allowed_path(volume: VolumeMount, prefixes: Sequence[Path]) -> HostPath:
    """Return the path's longest allowed prefix. Raises VolumeError if the operator allows none.

    A device's prefix must lie below /dev, where jobs put no links.
    """
    source = volume.source
    path = Path(source)
    fitting = [prefix for prefix in prefixes if path.is_relative_to(prefix)]
    if volume.kind is VolumeKind.DEVICE:
        fitting = [prefix for prefix in fitting if prefix.is_relative_to(_DEVICES)]
    if not fitting:
        allowed = ", ".join(map(str, prefixes)) or "none"
        raise VolumeError(
            f"{source} may not be a volume on this node (its operator allows: {allowed})"
        )
    prefix = max(fitting, key=lambda each: len(each.parts))
    return HostPath(prefix, str(path.relative_to(prefix)))


def _target(volume: VolumeMount) -> PurePosixPath:
    target = PurePosixPath(re.sub("^/+", "/", volume.target))  # "//proc" is "/proc" to an engine
    is_path = target.is_absolute() and ".." not in target.parts and "\0" not in volume.target
    if not is_path or len(target.parts) < 2:
        raise VolumeError(f"{volume.target!r} is not an absolute path below / in the container")
    hidden = any(target.is_relative_to(folder) for folder in _NOT_FOR_VOLUMES)
    if hidden and not target.is_relative_to(_SHARED_MEMORY):
        raise VolumeError(f"no volume can be mounted at {target}")
    if volume.read_only and _OURS.is_relative_to(target):
        raise VolumeError(
            f"a volume at {target} must not be read only, since {_OURS} has to be made there; "
            f"mount what you need of it below, such as {target}/NAME"
        )
    return target


def _check_source(source: str) -> None:
    if not source.startswith("/") or ".." in PurePosixPath(source).parts or "\0" in source:
        raise VolumeError(f"{source!r} is not an absolute path without '..' on the node")


HARMLESS = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
        *("SYS_NICE", "SYS_PTRACE"),
    }
)
"""Docker's own defaults, and what debuggers, RDMA and thread schedulers need."""
CAPABILITIES = HARMLESS | frozenset(
    {
        *("AUDIT_CONTROL", "AUDIT_READ", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE"),
        *("DAC_READ_SEARCH", "IPC_OWNER", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE"),
        *("NET_ADMIN", "NET_BROADCAST", "PERFMON", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE"),
        *("SYS_PACCT", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "SYSLOG"),
        *("WAKE_ALARM",),
    }
)
ULIMITS = frozenset(
    {
        *("as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile"),
        *("nproc", "rss", "rtprio", "rttime", "sigpending", "stack"),
    }
)
LEAST_PROCESSES = 8
"""The runner has several threads; with fewer processes it cannot start a job, or say why."""
MOST_PROCESSES = 4_194_304
_MOST_LIMIT = (1 << 63) - 1
"""The largest number that an engine accepts."""
_RAW = "NET_RAW"
_CHANGES_USERS = ("ALL", "SETUID", "SETGID")


def check_options(options: ContainerOptions, *, allow_privileged: bool) -> None:
    """Raise Refused: 400 for what no node accepts, 403 for what this node does not allow."""
    if options.privileged and not allow_privileged:
        raise _forbidden("privileged containers are not allowed", "container.privileged")
    for field, names in (("cap_add", options.cap_add), ("cap_drop", options.cap_drop)):
        for name in names:
            if name not in CAPABILITIES and name != "ALL":
                raise invalid(f"{name!r:.80} is not a capability", f"container.{field}")
    beyond = sorted(set(options.cap_add) - HARMLESS)
    if beyond and not allow_privileged:
        raise _forbidden(f"the capability {beyond[0]} is not allowed", "container.cap_add")
    for limit in options.ulimits:
        _check_ulimit(limit.name, limit.soft, limit.hard)
    most = options.pids_limit
    if most is not None and not LEAST_PROCESSES <= most <= MOST_PROCESSES:
        raise invalid("pids_limit must be from 8 to 4194304", "container.pids_limit")


def check_network(request: TaskRequest, settings: Settings) -> None:
    """Raise Refused: 409 `no_host_network`, or 403 for a capability that is harmless only in a
    network of the container's own."""
    if request.needs_host_network and settings.host_network is HostNetwork.NEVER:
        raise Refused(
            409,
            RefusalCode.NO_HOST_NETWORK,
            "the job's peers reach it at its node's address, and this node gives no job its "
            "network (--host-network never)",
            "needs_host_network",
        )
    allowed = settings.allow_raw_sockets or settings.allow_privileged
    if is_in_host_network(request, settings) and _RAW in request.container.cap_add and not allowed:
        raise Refused(
            403,
            "not_allowed",
            f"the capability {_RAW} is not allowed in this node's network (its operator may start "
            "the shim with --allow-raw-sockets)",
            "container.cap_add",
        )


def check_engine(
    request: TaskRequest, kind: EngineKind, abilities: Collection[EngineAbility]
) -> None:
    """Raise Refused: 409 `engine_lacks`, when the node has another engine than its controller
    knew."""
    lacks = [one for one in request.needs_of_engine if one not in abilities]
    if lacks:
        raise Refused(
            409,
            RefusalCode.ENGINE_LACKS,
            f"the job needs {' and '.join(lacks)}, which this node's {kind} engine does not have",
            "needs_of_engine",
        )


def is_in_host_network(request: TaskRequest, settings: Settings) -> bool:
    return request.resources.whole_node and settings.host_network is HostNetwork.WHOLE_NODE


def granted(options: ContainerOptions, mode: NetworkMode, settings: Settings) -> ContainerOptions:
    """Return the options that the container gets.

    In the node's network, a raw socket reads the traffic of the node's other software, so the
    engine's default right to raw sockets is removed there.
    """
    asked = {_RAW, "ALL"}.intersection(options.cap_add) or options.privileged
    if mode is not NetworkMode.HOST or settings.allow_raw_sockets or asked:
        return options
    return msgspec.structs.replace(options, cap_drop=(*options.cap_drop, _RAW))


def first_user(options: ContainerOptions, of_image: str) -> str:
    """Return the first process's user: root, which changes to the job's user itself, or that user
    if no process can change users."""
    if any(name in options.cap_drop for name in _CHANGES_USERS):
        return options.user or of_image or "0:0"
    return "0:0"


def _check_ulimit(name: str, soft: int, hard: int) -> None:
    if name not in ULIMITS:
        raise invalid(f"{name!r:.80} is not a limit", "container.ulimits")
    if max(soft, hard) > _MOST_LIMIT:
        raise invalid(f"{name}: at most {_MOST_LIMIT}, or -1: unlimited", "container.ulimits")
    if soft < -1 or hard < -1 or (hard != -1 and not -1 < soft <= hard):
        raise invalid(
            f"{name}: the soft limit must not be greater than the hard limit", "container.ulimits"
        )


def _forbidden(what: str, field: str) -> Refused:
    text = f"{what} on this node (its operator may start the shim with --allow-privileged)"
    return Refused(403, "not_allowed", text, field)
