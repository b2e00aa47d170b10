"""Gives a container exactly its GPUs from the Docker engine, and no other container gets them.

Three ways, the first that the node has: CDI (the engine reads the vendor's description of each
device; it survives a `systemctl daemon-reload`), the vendor's runtime hook (a device request by
UUID), or the plain device files, to which the image must bring the driver's libraries itself.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from fairlead.wire.node import GpuInfo
from shim.engines.base import NodeFault
from shim.errors import EngineError
from shim.gpus.base import GpuDelivery
from shim.node import machine

log = logging.getLogger(__name__)

_MAX_SPEC = 4 << 20
_USE_BY_GROUP = stat.S_IRGRP | stat.S_IWGRP
_ROOT = 0
"""No device is worth this group."""


class Way(StrEnum):
    CDI = "cdi"
    HOOK = "hook"
    FILES = "files"


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """The ways in which engine and node can give GPUs."""

    delivery: GpuDelivery
    cdi: frozenset[str] = frozenset()
    """Names of the devices that CDI describes, without the kind."""
    hook: bool = False
    hook_by_default: bool = False
    """Every container passes the hook's runtime, which believes what the image says it wants."""
    dev: Path = Path("/dev")


class Handover(msgspec.Struct, frozen=True):
    """Values to merge into the request to the engine."""

    way: Way | None
    host_config: dict[str, Any]
    environment: dict[str, str]
    groups: tuple[int, ...] = ()
    """The groups that may use its device files, in which its processes must be."""


def means_of(info: dict[str, Any], delivery: GpuDelivery, dev: Path = Path("/dev")) -> Means:
    """`info` is the engine's. Blocks to read the CDI specs, which a driver's update renews."""
    runtimes, hook = info.get("Runtimes") or {}, delivery.hook
    return Means(
        delivery=delivery,
        cdi=frozenset(_cdi_devices(info.get("CDISpecDirs") or (), delivery.cdi_kind)),
        hook=hook is not None
        and (hook.runtime in runtimes or shutil.which(hook.program) is not None),
        hook_by_default=hook is not None and info.get("DefaultRuntime") == hook.runtime,
        dev=dev,
    )


def hand_over(
    uuids: Sequence[str],
    units: Iterable[GpuInfo],
    infiniband: bool,
    means: Means,
    devices: Iterable[dict[str, str]] = (),
) -> Handover:
    """Return the request's values. `devices`: those that the request has already, which stay in
    it.

    Raises NodeFault with what the node lacks; EngineError for InfiniBand, which is no criterion for
    the choice of a node.
    """
    host: dict[str, Any] = {}
    devices = [*devices, *(_infiniband(means.dev) if infiniband else ())]
    way = _way(uuids, {unit.uuid: unit for unit in units}, means)
    if way is Way.CDI:
        names = [
            f"{means.delivery.cdi_kind}={name}" for name in _cdi_names(uuids, units, means) or ()
        ]
        host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": names}]
    elif way is Way.HOOK:
        host["DeviceRequests"] = [{"DeviceIDs": list(uuids), "Capabilities": [["gpu"]]}]
    elif way is Way.FILES:
        devices += _gpu_files(uuids, {unit.uuid: unit for unit in units}, means)
    if devices:
        host["Devices"] = devices
    hook = means.delivery.hook if means.hook_by_default and way is not Way.HOOK else None
    groups = needed_groups(Path(device["PathOnHost"]).stat() for device in devices)
    return Handover(way, host, {} if hook is None else dict(hook.hide), groups)


def needed_groups(files: Iterable[os.stat_result]) -> tuple[int, ...]:
    """Return the groups that may use these device files, without those of files that everybody may
    use. The engine keeps a device's owner and mode, such as root:render 0660 of /dev/kfd."""
    return tuple(
        sorted(
            {
                file.st_gid
                for file in files
                if file.st_mode & _USE_BY_GROUP == _USE_BY_GROUP and not file.st_mode & stat.S_IWOTH
            }
            - {_ROOT}
        )
    )


def _way(uuids: Sequence[str], units: dict[str, GpuInfo], means: Means) -> Way | None:
    if not uuids:
        return None
    if _cdi_names(uuids, units.values(), means) is not None:
        return Way.CDI
    return Way.HOOK if means.hook else Way.FILES


def _cdi_names(
    uuids: Sequence[str], units: Iterable[GpuInfo], means: Means
) -> tuple[str, ...] | None:
    """Return the devices' names in the spec, by UUID or index; None unless it has all of them."""
    # nvidia-ctk names devices by index unless --device-name-strategy says uuid.
    indexes = {unit.uuid: str(unit.index) for unit in units if unit.parent is None}
    names = [
        uuid if uuid in means.cdi else indexes.get(uuid)
        for uuid in uuids
        if uuid in means.cdi or indexes.get(uuid) in means.cdi
    ]
    found = tuple(name for name in names if name is not None)
    return found if len(found) == len(uuids) else None


def _gpu_files(
    uuids: Sequence[str], units: dict[str, GpuInfo], means: Means
) -> list[dict[str, str]]:
    dev = means.dev
    paths: list[str] = []
    for uuid in uuids:
        unit = units.get(uuid)
        if unit is None or not unit.devices:
            raise NodeFault(f"the device files of GPU {uuid} are not known on this node")
        paths += [path for path in unit.devices if path not in paths]
    missing = [path for path in paths if not _on_node(path, dev).exists()]
    if missing:
        raise NodeFault(f"{', '.join(missing)} is not on this node: {means.delivery.advice}")
    control = [f"/dev/{name}" for name in means.delivery.control if (dev / name).exists()]
    return [_device(path, dev) for path in (*paths, *control)]


def _infiniband(dev: Path) -> list[dict[str, str]]:
    names = machine.infiniband(dev)
    if not names:
        raise EngineError("the job asks for InfiniBand, and this node has no /dev/infiniband")
    return [_device(f"/dev/infiniband/{name}", dev) for name in names]


def _on_node(path: str, dev: Path) -> Path:
    return dev / Path(path).relative_to("/dev")


def _device(path: str, dev: Path) -> dict[str, str]:
    return {
        "PathOnHost": str(_on_node(path, dev)),
        "PathInContainer": path,
        "CgroupPermissions": "rwm",
    }


def _cdi_devices(folders: Iterable[str], kind: str | None) -> Iterable[str]:
    for folder in folders:
        for path in sorted(Path(folder).glob("*")):
            if path.suffix in (".json", ".yaml", ".yml"):
                yield from _devices_of(path, kind)


def _devices_of(path: Path, kind: str | None) -> list[str]:
    """None of a spec that cannot be read: the engine cannot read it either."""
    try:
        text = path.read_bytes()[:_MAX_SPEC].decode()
        spec = json.loads(text) if path.suffix == ".json" else _yaml(text)
        if spec["kind"] != kind:
            return []
        return [str(device["name"]) for device in spec["devices"]]
    # A vendor's tool writes it, and may be doing so now; without PyYAML no spec in YAML can be
    # read.
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        log.warning("the CDI spec %s cannot be read: %s", path, error)
        return []


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
