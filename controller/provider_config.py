"""The providers of machines as the controller's file names them (`providers.NAME`): one struct for
each type, which the provider of that type is made from.

A type that is not configured loads nothing: this module knows no library of a cloud.
"""

from __future__ import annotations

import math
import os
import pwd
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from controller.currencies import rates, take_money
from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field, fields_of
from fairlead.configuration.values.units import (
    DURATION_ALLOWED,
    SIZE_ALLOWED,
    AtLeastOne,
    Duration,
    Size,
)

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}")
_IMAGE = re.compile(r"ami-[0-9a-f]{8,17}")
_SUBNET = re.compile(r"subnet-[0-9a-f]{8,17}")
_GROUP = re.compile(r"sg-[0-9a-f]{8,17}")
_GIB = 1 << 30
_MAX_FOLDER = 60
_MIN_MEMORY = 1_000_000_000
"""The system takes half of that (`controller/clouds/sizes.py`)."""
_MIN_DISK = 5_000_000_000
_ISO_PROGRAMS = ("genisoimage", "mkisofs", "xorrisofs")
_SOME_TIME = f"{DURATION_ALLOWED}, more than 0"
_COMMAND = "a list: an absolute path of a program, and its arguments"
_URL = "a URL such as https://ec2.example.com"
_NAMES = "1 to 40 of a-z, 0-9 and '-'"
_SIZES = "a mapping of names to mappings of cpu, memory, disk and price"
_PRICES = "a mapping of types of machines to prices of an hour, such as {g6.xlarge: 0.8}"
_IMAGES = "the id of an image of Fairlead in this region, such as ami-0123456789abcdef0"
_SUBNETS = "a mapping of availability zones to subnets, such as {eu-central-1a: subnet-0123abcd}"
_GROUPS = "a list of 1 to 5 ids, such as [sg-0123abcd]"
_DISK = f"{SIZE_ALLOWED}, from 8GB to 16TB"
_TOKENS = "the absolute path of a file with a token of the project that may read and write"
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_GCP_REGION = re.compile(r"[a-z]+-[a-z]+\d{1,2}")
_GCP_NAME = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
_GCP_IMAGE = re.compile(
    rf"(projects/(?P<project>[a-z0-9.:-]+)/global/images/)?(?P<family>family/)?(?P<name>{_GCP_NAME})"
)
_GCP_SUBNETWORK = re.compile(
    rf"(?P<name>{_GCP_NAME})|projects/[a-z0-9.:-]+/regions/(?P<region>[a-z0-9-]+)/subnetworks/{_GCP_NAME}"
)
_GCP_ACCOUNT = re.compile(r"[a-z0-9._-]+@[a-z0-9.-]+\.gserviceaccount\.com")
_GCP_IMAGES = (
    "an image of Fairlead: its name, family/NAME, or projects/PROJECT/global/images/… with either"
)
_SUBNETWORKS = "a subnetwork's name, or projects/PROJECT/regions/REGION/subnetworks/NAME"
_CREDENTIALS = (
    "the absolute path of a credentials file of Google Cloud, such as a service account's key"
)
_ACCOUNTS = "a name of 1 to 60 characters without spaces, by which records of machines know it"
_ACCOUNT = re.compile(r"[!-~]{1,60}")
_ADDRESSES = "public or private: the address at which the controller reaches the machines"
T = TypeVar("T", bound=msgspec.Struct)


class _Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written about a provider."""


class _ExecFields(_Fields, frozen=True, kw_only=True):
    type: Annotated[Literal["exec"], Field("exec: a program of yours makes the machines")]
    command: Annotated[tuple[str, ...], Field(_COMMAND)]
    timeout: Annotated[Duration | None, Field(_SOME_TIME)] = None
    idempotent: Annotated[
        bool, Field("true: the program makes one machine for one token, however often it is asked")
    ] = False
    visible_after: Annotated[
        Duration | None,
        Field(f"{DURATION_ALLOWED}: how long a new machine may be missing from its list"),
    ] = None
    account: Annotated[str | None, Field(_ACCOUNTS)] = None


class _AwsRegionFields(_Fields, frozen=True, kw_only=True):
    image: Annotated[str, Field(_IMAGES)]
    subnets: Annotated[dict[str, str], Field(_SUBNETS)]
    security_groups: Annotated[tuple[str, ...], Field(_GROUPS)]


class _AwsFields(_Fields, frozen=True, kw_only=True):
    type: Annotated[Literal["aws"], Field("aws: EC2 of Amazon makes the machines")]
    regions: Annotated[
        dict[str, dict[str, Any]],
        Field("a mapping of regions to mappings of image, subnets and security_groups"),
    ]
    profile: Annotated[str | None, Field("a profile of the file of AWS credentials")] = None
    key_name: Annotated[str | None, Field("the name of a key pair of EC2")] = None
    instance_profile: Annotated[str | None, Field("the name of an instance profile of IAM")] = None
    address: Annotated[Literal["public", "private"], Field(_ADDRESSES)] = "public"
    disk: Annotated[Size | None, Field(_DISK)] = None
    prices: Annotated[dict[str, float], Field(_PRICES)] = msgspec.field(default_factory=dict)
    endpoint: Annotated[str | None, Field("the URL of an endpoint of EC2 in your own network")] = (
        None
    )


class _HetznerFields(_Fields, frozen=True, kw_only=True):
    type: Annotated[Literal["hetzner"], Field("hetzner: the cloud of Hetzner makes the machines")]
    token_file: Annotated[str, Field(_TOKENS)]
    locations: Annotated[tuple[str, ...], Field("a list of locations, such as [fsn1, nbg1]")]
    project: Annotated[str | None, Field(_ACCOUNTS)] = None
    image: Annotated[int | str, Field("the id of a snapshot of Fairlead, or an image's name")]
    ssh_keys: Annotated[tuple[int | str, ...], Field("a list of ids or names of SSH keys")] = ()
    firewalls: Annotated[tuple[int, ...], Field("a list of ids of firewalls")] = ()
    networks: Annotated[tuple[int, ...], Field("a list of ids of networks")] = ()
    address: Annotated[Literal["public", "private"], Field(_ADDRESSES)] = "public"
    endpoint: Annotated[str | None, Field("the URL of another server with this API")] = None


class _GcpRegionFields(_Fields, frozen=True, kw_only=True):
    zones: Annotated[tuple[str, ...], Field("a list of zones, such as [europe-west4-a]")]
    subnetwork: Annotated[str, Field(_SUBNETWORKS)] = "default"


class _GcpFields(_Fields, frozen=True, kw_only=True):
    type: Annotated[Literal["gcp"], Field("gcp: Compute Engine of Google makes the machines")]
    project: Annotated[str, Field("the id of a project, such as my-project-123")]
    image: Annotated[str, Field(_GCP_IMAGES)]
    regions: Annotated[
        dict[str, dict[str, Any]],
        Field("a mapping of regions to mappings of zones and subnetwork"),
    ]
    credentials_file: Annotated[str | None, Field(_CREDENTIALS)] = None
    network_tags: Annotated[tuple[str, ...], Field("a list of tags that firewall rules name")] = ()
    service_account: Annotated[
        str | None, Field("the e-mail address of a service account for the machines")
    ] = None
    address: Annotated[Literal["public", "private"], Field(_ADDRESSES)] = "public"
    disk: Annotated[Size | None, Field(_DISK)] = None
    prices: Annotated[dict[str, float], Field(_PRICES)] = msgspec.field(default_factory=dict)
    endpoint: Annotated[
        str | None, Field("the URL of an endpoint of Compute Engine in your own network")
    ] = None


class _InstanceTypeFields(_Fields, frozen=True, kw_only=True):
    cpu: AtLeastOne
    memory: Annotated[Size, Field(f"{SIZE_ALLOWED}, at least 1GB")]
    disk: Annotated[Size, Field(f"{SIZE_ALLOWED}, at least 5GB")]
    price: Annotated[float, msgspec.Meta(ge=0), Field("a number of at least 0, an hour")] = 0.0


class _QemuFields(_Fields, frozen=True, kw_only=True):
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


class _Priced(msgspec.Struct, frozen=True, kw_only=True):
    """A provider. `rate`: what 1 of its currency is in that of the installation."""

    rate: float = 1.0


class ExecProvider(_Priced, frozen=True, kw_only=True):
    """A provider that is a program. Times in seconds. `account`: a name for the account that the
    program uses."""

    command: tuple[str, ...]
    timeout: float = 300.0
    idempotent: bool = False
    visible_after: float = 60.0
    account: str | None = None
    regions: None = None
    """A program's offers name its regions."""


class AwsRegion(msgspec.Struct, frozen=True, kw_only=True):
    """Where machines of one region begin. `subnets`: by availability zone."""

    image: str
    subnets: Mapping[str, str]
    security_groups: tuple[str, ...]


class AwsProvider(_Priced, frozen=True, kw_only=True):
    """EC2 in some regions. `disk` in bytes; `prices` of an hour on demand, instead of the
    catalog's."""

    regions: Mapping[str, AwsRegion]
    profile: str | None = None
    key_name: str | None = None
    instance_profile: str | None = None
    is_public: bool = True
    disk: int = 100 * _GIB
    prices: Mapping[str, float] = {}
    endpoint: str | None = None


class HetznerProvider(_Priced, frozen=True, kw_only=True):
    """A project at Hetzner. `locations`: those in which machines may be. `project` None: it is
    known by its token."""

    token_file: Path
    project: str | None = None
    locations: tuple[str, ...]
    image: int | str
    ssh_keys: tuple[int | str, ...] = ()
    firewalls: tuple[int, ...] = ()
    networks: tuple[int, ...] = ()
    is_public: bool = True
    endpoint: str = "https://api.hetzner.cloud/v1"

    @property
    def regions(self) -> tuple[str, ...]:
        return self.locations

    def token(self) -> str:
        """Return the token: read each time, so that a new one needs no restart.

        Raises OSError, and ValueError with a sentence that does not show the content.
        """
        content = self.token_file.read_bytes().strip()
        # It goes into a header of HTTP.
        if not re.fullmatch(rb"[!-~]{1,500}", content):
            raise ValueError(f"{self.token_file} has no token: one line of ASCII is needed")
        return content.decode()


class GcpRegion(msgspec.Struct, frozen=True, kw_only=True):
    """Where machines of one region begin. `subnetwork`: its path, from `projects/` on."""

    zones: tuple[str, ...]
    subnetwork: str


class GcpProvider(_Priced, frozen=True, kw_only=True):
    """Compute Engine in some regions of a project.

    `image`: its path, from `projects/` on; of a family, the newest one. `credentials_file` None:
    where all programs of Google Cloud look. `disk` in bytes; `prices` of an hour on demand, instead
    of the catalog's.
    """

    project: str
    image: str
    regions: Mapping[str, GcpRegion]
    credentials_file: Path | None = None
    network_tags: tuple[str, ...] = ()
    service_account: str | None = None
    is_public: bool = True
    disk: int = 100 * _GIB
    prices: Mapping[str, float] = {}
    endpoint: str = "https://compute.googleapis.com"


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


class QemuProvider(_Priced, frozen=True, kw_only=True):
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


ProviderConfig = ExecProvider | AwsProvider | GcpProvider | HetznerProvider | QemuProvider


def read_providers(
    written: Mapping[str, Mapping[str, Any]], currency: str | None = None
) -> dict[str, ProviderConfig]:
    """Return the providers of the controller's file; `currency`: of the installation. Raises
    ConfigurationError."""
    fields = {name: dict(data) for name, data in written.items()}
    money = {name: take_money(f"providers.{name}", data) for name, data in fields.items()}
    providers = {name: read_provider(name, data) for name, data in fields.items()}
    for name, rate in rates(money, currency).items():
        providers[name] = msgspec.structs.replace(providers[name], rate=rate)
    folders: dict[Path, str] = {}
    for name, one in providers.items():
        if not isinstance(one, QemuProvider):
            continue
        # Each takes what it did not finish itself for rubbish.
        if (other := folders.setdefault(Path(os.path.normpath(one.folder)), name)) != name:
            problem = f"is that of provider {other}"
            raise ConfigurationError(f"providers.{name}.folder", problem, "one folder for each")
    return providers


def read_provider(name: str, data: Mapping[str, Any]) -> ProviderConfig:
    """Return the provider that is written as `providers.NAME`. Raises ConfigurationError."""
    within = f"providers.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(within, "is not a provider's name", _NAMES)
    kind = data.get("type")
    if not isinstance(kind, str) or kind not in _READERS:
        known = ", ".join(_READERS)
        problem = "is missing" if kind is None else f"{kind!r} is no type of providers"
        raise ConfigurationError(f"{within}.type", problem, known)
    return _READERS[kind](within, dict(data))


def _exec(within: str, data: dict[str, Any]) -> ExecProvider:
    written = convert(data, _ExecFields, within=within)
    field = f"{within}.command"
    if not written.command:
        raise ConfigurationError(field, "is empty", _COMMAND)
    program = Path(written.command[0])
    if not program.is_absolute():
        raise ConfigurationError(field, f"{program} is not an absolute path", _COMMAND)
    if "\0" in "".join(written.command):
        raise ConfigurationError(field, "has a zero byte", _COMMAND)
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise ConfigurationError(field, f"{program} is no program that can be run", _COMMAND)
    plain = ExecProvider(command=written.command)
    timeout, visible_after = written.timeout, written.visible_after
    if timeout is not None and float(timeout) <= 0:
        raise ConfigurationError(f"{within}.timeout", "leaves no time for a call", _SOME_TIME)
    return ExecProvider(
        command=written.command,
        timeout=plain.timeout if timeout is None else float(timeout),
        idempotent=written.idempotent,
        visible_after=plain.visible_after if visible_after is None else float(visible_after),
        account=_account(f"{within}.account", written.account),
    )


def _account(field: str, written: str | None) -> str | None:
    """Raises ConfigurationError."""
    if written is not None and not _ACCOUNT.fullmatch(written):
        raise ConfigurationError(field, f"{written!r} is no such name", _ACCOUNTS)
    return written


def _aws(within: str, data: dict[str, Any]) -> AwsProvider:
    written = convert(data, _AwsFields, within=within)
    if not written.regions:
        raise ConfigurationError(f"{within}.regions", "is empty", "at least one region")
    regions = {
        name: _aws_region(f"{within}.regions.{name}", name, region)
        for name, region in written.regions.items()
    }
    disk = _disk_of(within, written.disk)
    _check_prices(within, written.prices)
    _check_endpoint(within, written.endpoint)
    return AwsProvider(
        regions=regions,
        profile=written.profile,
        key_name=written.key_name,
        instance_profile=written.instance_profile,
        is_public=written.address == "public",
        disk=disk,
        prices=written.prices,
        endpoint=written.endpoint,
    )


def _gcp(within: str, data: dict[str, Any]) -> GcpProvider:
    written = convert(data, _GcpFields, within=within)
    known = fields_of(_GcpFields)

    def require(is_right: bool, name: str, message: str) -> None:
        if not is_right:
            raise ConfigurationError(f"{within}.{name}", message, known[name].allowed)

    project, file, account = written.project, written.credentials_file, written.service_account
    require(bool(_PROJECT.fullmatch(project)), "project", f"{project!r} is no project's id")
    require(bool(written.regions), "regions", "is empty")
    if file is not None:
        require(Path(file).is_absolute(), "credentials_file", f"{file} is not an absolute path")
        require(os.access(file, os.R_OK), "credentials_file", f"{file} cannot be read")
    for tag in written.network_tags:
        is_tag = bool(re.fullmatch(_GCP_NAME, tag))
        require(is_tag, "network_tags", f"{tag!r} is no tag of a network")
    if account is not None:
        is_account = bool(_GCP_ACCOUNT.fullmatch(account))
        require(is_account, "service_account", f"{account!r} is no service account")
    _check_prices(within, written.prices)
    _check_endpoint(within, written.endpoint)
    plain = GcpProvider(
        project=project,
        image=_gcp_image(f"{within}.image", project, written.image),
        regions={
            name: _gcp_region(f"{within}.regions.{name}", project, name, region)
            for name, region in written.regions.items()
        },
    )
    return msgspec.structs.replace(
        plain,
        credentials_file=None if file is None else Path(file),
        network_tags=written.network_tags,
        service_account=account,
        is_public=written.address == "public",
        disk=_disk_of(within, written.disk),
        prices=written.prices,
        endpoint=(written.endpoint or plain.endpoint).rstrip("/"),
    )


def _gcp_image(field: str, project: str, image: str) -> str:
    """Raises ConfigurationError."""
    if (parts := _GCP_IMAGE.fullmatch(image)) is None:
        raise ConfigurationError(field, f"{image!r} is no image", _GCP_IMAGES)
    owner = parts["project"] or project
    return f"projects/{owner}/global/images/{parts['family'] or ''}{parts['name']}"


def _gcp_region(field: str, project: str, name: str, data: dict[str, Any]) -> GcpRegion:
    """Raises ConfigurationError."""
    region = convert(data, _GcpRegionFields, within=field)
    if not _GCP_REGION.fullmatch(name):
        problem = "is no region of Google Cloud"
        raise ConfigurationError(field, problem, "a region such as europe-west4")
    if not region.zones:
        raise ConfigurationError(f"{field}.zones", "is empty", f"a list such as [{name}-a]")
    for zone in region.zones:
        if not re.fullmatch(rf"{name}-[a-z]", zone):
            problem = f"{zone!r} is no zone of {name}"
            raise ConfigurationError(f"{field}.zones", problem, f"a list such as [{name}-a]")
    parts = _GCP_SUBNETWORK.fullmatch(region.subnetwork)
    if parts is None or parts["region"] not in (None, name):
        problem = f"{region.subnetwork!r} is no subnetwork of {name}"
        raise ConfigurationError(f"{field}.subnetwork", problem, _SUBNETWORKS)
    path = region.subnetwork
    if parts["name"] is not None:
        path = f"projects/{project}/regions/{name}/subnetworks/{path}"
    return GcpRegion(zones=region.zones, subnetwork=path)


def _hetzner(within: str, data: dict[str, Any]) -> HetznerProvider:
    written = convert(data, _HetznerFields, within=within)
    field = f"{within}.token_file"
    file = Path(written.token_file)
    if not file.is_absolute():
        raise ConfigurationError(field, f"{file} is not an absolute path", _TOKENS)
    plain = HetznerProvider(token_file=file, locations=written.locations, image=written.image)
    try:
        plain.token()
    except OSError as error:
        raise ConfigurationError(field, f"{file}: {error.strerror}", _TOKENS) from None
    except ValueError as error:
        raise ConfigurationError(field, str(error), _TOKENS) from None
    if not written.locations:
        raise ConfigurationError(f"{within}.locations", "is empty", "a list such as [fsn1, nbg1]")
    is_public = written.address == "public"
    if not is_public and not written.networks:
        problem = "is needed with address: private"
        raise ConfigurationError(f"{within}.networks", problem, "a list of ids of networks")
    _check_endpoint(within, written.endpoint)
    return msgspec.structs.replace(
        plain,
        project=_account(f"{within}.project", written.project),
        ssh_keys=written.ssh_keys,
        firewalls=written.firewalls,
        networks=written.networks,
        is_public=is_public,
        endpoint=(written.endpoint or plain.endpoint).rstrip("/"),
    )


def _qemu(within: str, data: dict[str, Any]) -> QemuProvider:
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
    if not _NAME.fullmatch(name):
        raise ConfigurationError(field, f"{name!r} is no name", _NAMES)
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


def _aws_region(field: str, name: str, data: dict[str, Any]) -> AwsRegion:
    """Raises ConfigurationError."""
    region = convert(data, _AwsRegionFields, within=field)
    _check_region(field, name, region)
    return AwsRegion(
        image=region.image, subnets=region.subnets, security_groups=region.security_groups
    )


def _check_endpoint(within: str, url: str | None) -> None:
    """Raises ConfigurationError."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not re.fullmatch(r"[!-~]+", url):
        raise ConfigurationError(f"{within}.endpoint", "is no URL", _URL)
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigurationError(f"{within}.endpoint", "is more than a host and a path", _URL)


def _check_region(field: str, name: str, region: _AwsRegionFields) -> None:
    """Raises ConfigurationError."""
    if not _REGION.fullmatch(name):
        raise ConfigurationError(field, "is no region of AWS", "a region such as eu-central-1")
    if not _IMAGE.fullmatch(region.image):
        raise ConfigurationError(f"{field}.image", f"{region.image!r} is no image", _IMAGES)
    if not region.subnets:
        raise ConfigurationError(f"{field}.subnets", "is empty", _SUBNETS)
    for zone, subnet in region.subnets.items():
        where = f"{field}.subnets.{zone}"
        if not (zone.startswith(name) and len(zone) > len(name)):
            raise ConfigurationError(where, f"is no zone of {name}", f"a zone such as {name}a")
        if not _SUBNET.fullmatch(subnet):
            raise ConfigurationError(where, f"{subnet!r} is no subnet", _SUBNETS)
    groups = region.security_groups
    if not 1 <= len(groups) <= 5:
        raise ConfigurationError(f"{field}.security_groups", f"has {len(groups)} ids", _GROUPS)
    for group in groups:
        if not _GROUP.fullmatch(group):
            problem = f"{group!r} is no security group"
            raise ConfigurationError(f"{field}.security_groups", problem, _GROUPS)


def _disk_of(within: str, written: Size | None) -> int:
    """Raises ConfigurationError."""
    disk = 100 * _GIB if written is None else int(written)
    if not 8 * 10**9 <= disk <= 16 * (1 << 40):
        raise ConfigurationError(f"{within}.disk", f"is {disk} bytes", _DISK)
    return disk


def _check_prices(within: str, prices: Mapping[str, float]) -> None:
    """Raises ConfigurationError. A machine without a price would be outside of every budget."""
    for instance_type, price in prices.items():
        if not 0 < price < 10_000:
            field = f"{within}.prices.{instance_type}"
            raise ConfigurationError(field, f"is {price:g}", "a price of an hour, more than 0")


_READERS: Mapping[str, Callable[[str, dict[str, Any]], ProviderConfig]] = {
    "exec": _exec,
    "aws": _aws,
    "gcp": _gcp,
    "hetzner": _hetzner,
    "qemu": _qemu,
}
