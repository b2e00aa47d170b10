"""The rules that decide what a container may have: options, capabilities, limits, volumes. Pure.

They read only the request and the operator's settings, never the disk, so a wrong request is
refused before anything is mounted. At submit, the controller applies those about volumes, and
the lists of capabilities and ulimits. A container
with a capability of the host is root on the host, so such requests need the operator's permission.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from common.host_paths import allowing_prefix
from fairlead.wire import container_rules as shared_rules
from fairlead.wire.container_rules import CAPABILITIES, HARMLESS, ULIMITS
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.errors import Refused
from fairlead.wire.node import EngineKind, HostNetwork
from fairlead.wire.shim import (
    ContainerOptions,
    NetworkMode,
    RefusalCode,
    TaskRequest,
    VolumeKind,
    VolumeMount,
)
from shim.errors import VolumeError, invalid
from shim.settings import Settings

_DEVICES = "/dev"


class HostPath(msgspec.Struct, frozen=True):
    """A path on the node: the prefix that allows it, and the rest."""

    prefix: Path
    relative: str


def check_volumes(volumes: Sequence[VolumeMount]) -> None:
    """Raise VolumeError for volumes that no node would accept."""
    try:
        shared_rules.check_volumes(volumes)
    except shared_rules.VolumeInvalid as error:
        raise VolumeError(str(error)) from None


def allowed_path(volume: VolumeMount, prefixes: Sequence[Path]) -> HostPath:
    """Return the path's longest allowed prefix. Raises VolumeError if the operator allows none."""
    source, is_device = volume.source, volume.kind is VolumeKind.DEVICE
    found = allowing_prefix(source, map(str, prefixes), is_device=is_device)
    if found is None:
        allowed = ", ".join(map(str, prefixes)) or "none"
        raise VolumeError(
            f"{source} may not be a volume on this node (its operator allows: {allowed})"
        )
    prefix = Path(found)
    return HostPath(prefix, str(Path(source).relative_to(prefix)))


MIN_PROCESSES = 8
"""The runner has several threads; with fewer processes it cannot start a job, or say why."""
MAX_PROCESSES = 4_194_304
"""The most that `kernel.pid_max` can be (proc_sys_kernel(5))."""
_MAX_LIMIT = (1 << 63) - 1
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
    if most is not None and not MIN_PROCESSES <= most <= MAX_PROCESSES:
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
    # Without CAP_SETUID and CAP_SETGID not even root becomes another user (capabilities(7)).
    if any(name in options.cap_drop for name in _CHANGES_USERS):
        return options.user or of_image or "0:0"
    return "0:0"


def _check_ulimit(name: str, soft: int, hard: int) -> None:
    if name not in ULIMITS:
        raise invalid(f"{name!r:.80} is not a limit", "container.ulimits")
    if max(soft, hard) > _MAX_LIMIT:
        raise invalid(f"{name}: at most {_MAX_LIMIT}, or -1: unlimited", "container.ulimits")
    # The kernel refuses it with EINVAL (setrlimit(2)): the container would never start.
    if soft < -1 or hard < -1 or (hard != -1 and not -1 < soft <= hard):
        raise invalid(
            f"{name}: the soft limit must not be greater than the hard limit", "container.ulimits"
        )


def _forbidden(what: str, field: str) -> Refused:
    text = f"{what} on this node (its operator may start the shim with --allow-privileged)"
    return Refused(403, "not_allowed", text, field)
