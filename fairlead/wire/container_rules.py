"""The rules about containers that hold on every node, so a submission is refused by them already.

They need no node's settings; `shim.admission.container_rules` adds those that do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from fairlead.wire.shim import ContainerOptions, VolumeKind, VolumeMount

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_OURS = PurePosixPath("/opt/fairlead")
_NOT_FOR_VOLUMES = (_OURS, "/proc", "/sys", "/dev")
_SHARED_MEMORY = PurePosixPath("/dev/shm")
MAX_VOLUMES = 64
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


class VolumeInvalid(ValueError):
    """No node would accept the volume; the message names it and says why."""


def check_volumes(volumes: Sequence[VolumeMount]) -> None:
    """Raise VolumeInvalid for volumes that no node would accept."""
    if len(volumes) > MAX_VOLUMES:
        raise VolumeInvalid(f"{len(volumes)} volumes are too many: {MAX_VOLUMES} at most")
    seen: set[PurePosixPath] = set()
    for volume in volumes:
        target = _target(volume)
        if target in seen:
            raise VolumeInvalid(f"two volumes have the target {target}")
        seen.add(target)
        if volume.kind is VolumeKind.NAMED and not _NAME.fullmatch(volume.source):
            raise VolumeInvalid(
                f"{volume.source!r} is not the name of a volume: lowercase letters, digits, '_', "
                "'.' and '-' make one"
            )
        if volume.kind in (VolumeKind.HOST, VolumeKind.DEVICE):
            _check_source(volume.source)
        if volume.size is not None and (volume.kind is not VolumeKind.TMPFS or volume.size <= 0):
            raise VolumeInvalid(f"the volume at {target} cannot have the size {volume.size}")


def _target(volume: VolumeMount) -> PurePosixPath:
    target = PurePosixPath(re.sub("^/+", "/", volume.target))  # "//proc" is "/proc" to an engine
    is_path = target.is_absolute() and ".." not in target.parts and "\0" not in volume.target
    if not is_path or len(target.parts) < 2:
        raise VolumeInvalid(f"{volume.target!r} is not an absolute path below / in the container")
    hidden = any(target.is_relative_to(folder) for folder in _NOT_FOR_VOLUMES)
    if hidden and not target.is_relative_to(_SHARED_MEMORY):
        raise VolumeInvalid(
            f"no volume can be mounted at {target}: the container has its own there, and `gpu` "
            f"brings a GPU's devices; give another path"
        )
    if volume.read_only and _OURS.is_relative_to(target):
        raise VolumeInvalid(
            f"a volume at {target} must not be read only, since {_OURS} has to be made there; "
            f"mount what you need of it below, such as {target}/NAME"
        )
    return target


def _check_source(source: str) -> None:
    if not source.startswith("/") or ".." in PurePosixPath(source).parts or "\0" in source:
        raise VolumeInvalid(f"{source!r} is not an absolute path without '..' on the node")


def needs_privilege(options: ContainerOptions) -> bool:
    """Return whether only a node with --allow-privileged gives a container these options."""
    return options.privileged or not HARMLESS.issuperset(options.cap_add)


def wants_raw_sockets(options: ContainerOptions) -> bool:
    """Return whether these options ask for raw sockets, which not every node gives in its own
    network."""
    return "NET_RAW" in options.cap_add
