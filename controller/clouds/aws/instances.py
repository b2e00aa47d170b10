"""What EC2 says of images and instances, read; and what it is told of tags, disks and bids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from controller.clouds.base import Created, Order, Refused
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.reconcile import Traits

INSTALLATION_TAG = "fairlead-installation"
MACHINE_TAG = "fairlead-machine"
FLEET_TAG = "fairlead-fleet"
_GIB = 1 << 30
_WITH_PLACE = frozenset({"pending", "running"})


class Image(msgspec.Struct, frozen=True):
    """An AMI: its root disk, its size in GiB, and the names of its other disks."""

    root: str
    size: int
    others: tuple[str, ...]


def tags_of(order: Order) -> list[dict[str, str]]:
    tags = {
        "Name": order.name,
        INSTALLATION_TAG: order.installation,
        MACHINE_TAG: order.machine_id,
        FLEET_TAG: order.fleet,
    }
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def disks_of(image: Image, size: int) -> list[dict[str, Any]]:
    """Return the image's disks: all of them end with their machine."""
    root = {
        "VolumeSize": max(image.size, -(-size // _GIB)),
        "VolumeType": "gp3",
        "DeleteOnTermination": True,
    }
    others = [{"DeviceName": name, "Ebs": {"DeleteOnTermination": True}} for name in image.others]
    return [{"DeviceName": image.root, "Ebs": root}, *others]


def image_of(answer: Mapping[str, Any]) -> Image:
    root = answer.get("RootDeviceName") or "/dev/sda1"
    disks = {
        one["DeviceName"]: one["Ebs"]
        for one in answer.get("BlockDeviceMappings", ())
        if "Ebs" in one
    }
    size = int(disks.get(root, {}).get("VolumeSize", 0))
    return Image(root, size, tuple(sorted(set(disks) - {root})))


def words_of_bid(bid: float) -> str:
    """Return the bid in EC2's digits, never above it: budgets count no more."""
    # What a float lacks of a price of six digits is no reason to take the last one off.
    return f"{math.floor(bid * 1e6 + 1e-3) / 1e6:.6f}"


def created_of(region: str, instance: Mapping[str, Any], is_public: bool) -> Created:
    """Raises Refused for an instance that has ended: a known token tells it for some time."""
    if state_of(instance) == "terminated":
        raise Refused(f"the machine of this order, {instance['InstanceId']}, has ended already")
    return Created(
        instance_id=f"{region}/{instance['InstanceId']}", place=place_of(instance, is_public)
    )


def state_of(instance: Mapping[str, Any]) -> str:
    return str(instance.get("State", {}).get("Name", ""))


def tag_of(instance: Mapping[str, Any], key: str) -> str | None:
    return next((one["Value"] for one in instance.get("Tags", ()) if one["Key"] == key), None)


def traits_of(region: str, instance: Mapping[str, Any]) -> Traits:
    return Traits(
        instance_type=instance.get("InstanceType"),
        region=region,
        zone=instance.get("Placement", {}).get("AvailabilityZone"),
        # EC2 leaves it out for a machine on demand.
        spot=instance.get("InstanceLifecycle") == "spot",
    )


def place_of(instance: Mapping[str, Any], is_public: bool) -> Place | None:
    if state_of(instance) not in _WITH_PLACE:
        return None
    host = instance.get("PublicIpAddress" if is_public else "PrivateIpAddress")
    return Place(host=host) if host else None
