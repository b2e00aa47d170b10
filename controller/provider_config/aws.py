"""`type: aws`: EC2 of Amazon makes the machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from fairlead.configuration.field import Field
from fairlead.configuration.values.units import Size

SPOT_MARGIN = 0.1
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}")
_IMAGE = re.compile(r"ami-[0-9a-f]{8,17}")
_SUBNET = re.compile(r"subnet-[0-9a-f]{8,17}")
_GROUP = re.compile(r"sg-[0-9a-f]{8,17}")
_IMAGES = "the id of an image of Fairlead in this region, such as ami-0123456789abcdef0"
_SUBNETS = "a mapping of availability zones to subnets, such as {eu-central-1a: subnet-0123abcd}"
_MARGIN = "a number from 0 to 10, such as 0.1 for 10 %"
_GROUPS = "a list of 1 to 5 ids, such as [sg-0123abcd]"


class _AwsRegionFields(Fields, frozen=True, kw_only=True):
    image: Annotated[str, Field(_IMAGES)]
    subnets: Annotated[dict[str, str], Field(_SUBNETS)]
    security_groups: Annotated[tuple[str, ...], Field(_GROUPS)]


class _AwsFields(Fields, frozen=True, kw_only=True):
    type: Annotated[Literal["aws"], Field("aws: EC2 of Amazon makes the machines")]
    regions: Annotated[
        dict[str, dict[str, Any]],
        Field("a mapping of regions to mappings of image, subnets and security_groups"),
    ]
    profile: Annotated[str | None, Field("a profile of the file of AWS credentials")] = None
    key_name: Annotated[str | None, Field("the name of a key pair of EC2")] = None
    instance_profile: Annotated[str | None, Field("the name of an instance profile of IAM")] = None
    address: Annotated[Literal["public", "private"], Field(ADDRESSES)] = "public"
    disk: Annotated[Size | None, Field(DISK)] = None
    prices: Annotated[dict[str, float], Field(PRICES)] = msgspec.field(default_factory=dict)
    spot_margin: Annotated[float | None, Field(_MARGIN)] = None
    endpoint: Annotated[str | None, Field("the URL of an endpoint of EC2 in your own network")] = (
        None
    )


class AwsRegion(msgspec.Struct, frozen=True, kw_only=True):
    """Where machines of one region begin. `subnets`: by availability zone."""

    image: str
    subnets: Mapping[str, str]
    security_groups: tuple[str, ...]


class AwsProvider(Priced, frozen=True, kw_only=True):
    """EC2 in some regions. `disk` in bytes; `prices` of an hour on demand, instead of the
    catalog's. `spot_margin`: how much more than its present price a spot machine may cost, as a
    part of it."""

    regions: Mapping[str, AwsRegion]
    profile: str | None = None
    key_name: str | None = None
    instance_profile: str | None = None
    is_public: bool = True
    disk: int = 100 * GIB
    prices: Mapping[str, float] = {}
    spot_margin: float = SPOT_MARGIN
    endpoint: str | None = None


def read_aws(within: str, data: dict[str, Any]) -> AwsProvider:
    written = convert(data, _AwsFields, within=within)
    if not written.regions:
        raise ConfigurationError(f"{within}.regions", "is empty", "at least one region")
    regions = {
        name: _aws_region(f"{within}.regions.{name}", name, region)
        for name, region in written.regions.items()
    }
    disk = disk_of(within, written.disk)
    check_prices(within, written.prices)
    check_endpoint(within, written.endpoint)
    return AwsProvider(
        regions=regions,
        profile=written.profile,
        key_name=written.key_name,
        instance_profile=written.instance_profile,
        is_public=written.address == "public",
        disk=disk,
        prices=written.prices,
        spot_margin=_margin_of(within, written.spot_margin),
        endpoint=written.endpoint,
    )


def _margin_of(within: str, margin: float | None) -> float:
    """Raises ConfigurationError."""
    if margin is None:
        return SPOT_MARGIN
    # NaN is in no range.
    if not 0.0 <= margin <= 10.0:
        raise ConfigurationError(f"{within}.spot_margin", f"is {margin:g}", _MARGIN)
    return margin


def _aws_region(field: str, name: str, data: dict[str, Any]) -> AwsRegion:
    """Raises ConfigurationError."""
    region = convert(data, _AwsRegionFields, within=field)
    _check_region(field, name, region)
    return AwsRegion(
        image=region.image, subnets=region.subnets, security_groups=region.security_groups
    )


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
