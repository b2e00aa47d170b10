"""Which volumes a task may have at all: decided from the request and the operator's settings alone.

Nothing here looks at the disk, so that a wrong wish is refused before anything is mounted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from shim.schemas import VolumeKind, VolumeMount
from shim.volumes.errors import VolumeError

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_OURS = PurePosixPath("/opt/fairlead")
_NOT_FOR_VOLUMES = (_OURS, "/proc", "/sys", "/dev")
_DEVICES = "/dev"
_SHARED_MEMORY = PurePosixPath("/dev/shm")
MOST_VOLUMES = 64


class HostPlace(msgspec.Struct, frozen=True):
    """A path on the node as the prefix that allows it, and the rest."""

    prefix: Path
    relative: str


def check(volumes: Sequence[VolumeMount]) -> None:
    """Raises VolumeError for what no node would accept."""
    if len(volumes) > MOST_VOLUMES:
        raise VolumeError(f"{len(volumes)} volumes are too many: {MOST_VOLUMES} at most")
    seen: set[PurePosixPath] = set()
    for volume in volumes:
        target = _target(volume)
        if target in seen:
            raise VolumeError(f"two volumes are to be mounted at {target}")
        seen.add(target)
        if volume.kind is VolumeKind.NAMED and not _NAME.fullmatch(volume.source):
            raise VolumeError(
                f"{volume.source!r} is no name of a volume: small letters, digits, '_', '.' and "
                "'-' make one"
            )
        if volume.kind in (VolumeKind.HOST, VolumeKind.DEVICE):
            _check_source(volume.source)
        if volume.size is not None and (volume.kind is not VolumeKind.TMPFS or volume.size <= 0):
            raise VolumeError(f"the volume at {target} cannot have the size {volume.size}")


def allowed_place(volume: VolumeMount, prefixes: Sequence[Path]) -> HostPlace:
    """Raises VolumeError unless the operator allows a prefix of the path; the longest counts. Of a
    device it must lie below /dev, where jobs put no links."""
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
    return HostPlace(prefix, str(path.relative_to(prefix)))


def _target(volume: VolumeMount) -> PurePosixPath:
    target = PurePosixPath(re.sub("^/+", "/", volume.target))  # "//proc" is "/proc" to an engine
    is_path = target.is_absolute() and ".." not in target.parts and "\0" not in volume.target
    if not is_path or len(target.parts) < 2:
        raise VolumeError(f"{volume.target!r} is no absolute path below / in the container")
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
        raise VolumeError(f"{source!r} is no absolute path without '..' on the node")
