"""`type: gcp`: Compute Engine of Google Cloud makes the machines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from controller.provider_config.checks import (
    ADDRESSES,
    DISK,
    GIB,
    PRICES,
    Fields,
    Priced,
    check_endpoint,
    check_prices,
    disk_of,
)
from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field, fields_of
from fairlead.configuration.values.units import Size

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


class _GcpRegionFields(Fields, frozen=True, kw_only=True):
    zones: Annotated[tuple[str, ...], Field("a list of zones, such as [europe-west4-a]")]
    subnetwork: Annotated[str, Field(_SUBNETWORKS)] = "default"


class _GcpFields(Fields, frozen=True, kw_only=True):
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
    address: Annotated[Literal["public", "private"], Field(ADDRESSES)] = "public"
    disk: Annotated[Size | None, Field(DISK)] = None
    prices: Annotated[dict[str, float], Field(PRICES)] = msgspec.field(default_factory=dict)
    endpoint: Annotated[
        str | None, Field("the URL of an endpoint of Compute Engine in your own network")
    ] = None


class GcpRegion(msgspec.Struct, frozen=True, kw_only=True):
    """Where machines of one region begin. `subnetwork`: its path, from `projects/` on."""

    zones: tuple[str, ...]
    subnetwork: str


class GcpProvider(Priced, frozen=True, kw_only=True):
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
    disk: int = 100 * GIB
    prices: Mapping[str, float] = {}
    endpoint: str = "https://compute.googleapis.com"


def read_gcp(within: str, data: dict[str, Any]) -> GcpProvider:
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
    check_prices(within, written.prices)
    check_endpoint(within, written.endpoint)
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
        disk=disk_of(within, written.disk),
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
