"""`type: qemu`: QEMU makes the machines, on the controller's own host."""

from __future__ import annotations

import math
import os
import pwd
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from controller.provider_config.checks import NAME, NAMES, Fields, Priced
from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field, fields_of
from fairlead.configuration.values.units import SIZE_ALLOWED, AtLeastOne, Size

_MAX_FOLDER = 60
_MIN_MEMORY = 1_000_000_000
"""The system takes half of that (`controller/clouds/sizes.py`)."""
_MIN_DISK = 5_000_000_000
_ISO_PROGRAMS = ("genisoimage", "mkisofs", "xorrisofs")
_SIZES = "a mapping of names to mappings of cpu, memory, disk and price"


class _InstanceTypeFields(Fields, frozen=True, kw_only=True):
    cpu: AtLeastOne
    memory: Annotated[Size, Field(f"{SIZE_ALLOWED}, at least 1GB")]
    disk: Annotated[Size, Field(f"{SIZE_ALLOWED}, at least 5GB")]
    price: Annotated[float, msgspec.Meta(ge=0), Field("a number of at least 0, an hour")] = 0.0


class _QemuFields(Fields, frozen=True, kw_only=True):
    type: Annotated[Literal["qemu"], Field("qemu: virtual machines of this host")]
    image: Annotated[str, Field("the absolute path of a node's image (qcow2)")]
    folder: Annotated[str, Field("an absolute path of at most 60 characters, for the disks")]
    instance_types: Annotated[dict[str, dict[str, Any]], Field(_SIZES)]
    machines: AtLeastOne
    user: Annotated[str | None, Field("an account, other than root, for the machines")] = None
    accelerator: Annotated[
        Literal["auto", "kvm", "tcg"], Field("auto (kvm where it boots), kvm, or tcg")
    ] = "auto"
    network: Annotated[
        Literal["closed", "open"],
        Field("closed: machines reach nothing; open: what this host's accounts reach"),
    ] = "closed"


class InstanceType(msgspec.Struct, frozen=True, kw_only=True):
    """A size of machine. `memory` and `disk` in bytes, `price` an hour."""

    cpu: int
    memory: int
    disk: int
    price: float


class QemuPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """The programs by which machines are made. `iso`: one with the options of mkisofs."""

    system: str
    img: str
    iso: str


class QemuProvider(Priced, frozen=True, kw_only=True):
    """A provider that is this host. `types`: by name. `most`: how many machines there may be.

    `image`: a qcow2 file; it must stay as it is while machines are layers over it. `user`: the
    account of the QEMU processes; None: the controller's own. `accelerator` None: KVM where it
    boots. `is_open`: machines reach the network, and so this host's loopback addresses.
    """

    image: Path
    folder: Path
    types: Mapping[str, InstanceType]
    most: int
    programs: QemuPrograms
    user: str | None = None
    accelerator: str | None = None
    is_open: bool = False
    regions: None = None
    """This host is the only region."""


def read_qemu(within: str, data: dict[str, Any]) -> QemuProvider:
    """Raises ConfigurationError."""
    written = convert(data, _QemuFields, within=within)
    known = fields_of(_QemuFields)

    def require(is_right: bool, name: str, message: str) -> None:
        if not is_right:
            raise ConfigurationError(f"{within}.{name}", message, known[name].allowed)

    image, folder = Path(written.image), Path(written.folder)
    require(image.is_absolute(), "image", f"{image} is not an absolute path")
    require(image.is_file(), "image", f"there is no file {image}")
    require(folder.is_absolute(), "folder", f"{folder} is not an absolute path")
    require(len(str(folder)) <= _MAX_FOLDER, "folder", "is too long for a socket's path")
    # QEMU's options have paths between commas.
    require(not set(str(folder)) & set(",\0"), "folder", "may have no comma or zero byte")
    require(folder.is_dir() or not folder.exists(), "folder", f"{folder} is no folder")
    require(bool(written.instance_types), "instance_types", "is empty")
    _require_account(written.user, require)
    return QemuProvider(
        image=image,
        folder=folder,
        types={
            name: _instance_type(f"{within}.instance_types", name, one)
            for name, one in written.instance_types.items()
        },
        most=written.machines,
        user=written.user,
        accelerator=None if written.accelerator == "auto" else written.accelerator,
        is_open=written.network == "open",
        programs=_qemu_programs(within),
    )


def _require_account(name: str | None, require: Callable[[bool, str, str], None]) -> None:
    """A process of QEMU shares its memory with whoever breaks out of a machine."""
    if name is None:
        require(os.geteuid() != 0, "user", "is missing, and this controller runs as root")
        return
    try:
        uid: int | None = pwd.getpwnam(name).pw_uid
    except KeyError:
        uid = None
    require(uid is not None, "user", f"there is no account {name}")
    require(uid != 0, "user", f"{name} is root")
    is_own = os.geteuid() in (0, uid)
    require(is_own, "user", f"only a controller that runs as root can start processes of {name}")


def _qemu_programs(within: str) -> QemuPrograms:
    # What `clouds/guests.py` starts is a PC, also on a host of another architecture.
    system = "qemu-system-x86_64"
    found = [shutil.which(system), shutil.which("qemu-img")]
    found.append(next(filter(None, map(shutil.which, _ISO_PROGRAMS)), None))
    for name, path in zip((system, "qemu-img", _ISO_PROGRAMS[0]), found, strict=True):
        if path is None:
            problem = f"qemu needs the program {name}, which is not installed"
            raise ConfigurationError(f"{within}.type", problem, "exec")
    system, img, iso = filter(None, found)
    return QemuPrograms(system=system, img=img, iso=iso)


def _instance_type(field: str, name: str, data: dict[str, Any]) -> InstanceType:
    """Raises ConfigurationError."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(field, f"{name!r} is no name", NAMES)
    field = f"{field}.{name}"
    one = convert(data, _InstanceTypeFields, within=field)
    known = fields_of(_InstanceTypeFields)
    for part, is_right in (
        ("memory", one.memory >= _MIN_MEMORY),
        ("disk", one.disk >= _MIN_DISK),
        ("price", math.isfinite(one.price)),
    ):
        if not is_right:
            problem = f"is {getattr(one, part):.12g}"
            raise ConfigurationError(f"{field}.{part}", problem, known[part].allowed)
    return InstanceType(cpu=one.cpu, memory=int(one.memory), disk=int(one.disk), price=one.price)
