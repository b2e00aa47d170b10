"""The request that makes a machine: the same for the same order and settings."""

import re
from collections.abc import Mapping
from typing import Any

from controller.clouds.base import Order
from controller.clouds.gcp.types import takes_hyperdisks
from controller.lifecycle.machines.model import Offer
from controller.provider_config.gcp import GcpProvider, GcpRegion

INSTALLATION_LABEL = "fairlead-installation"
MACHINE_LABEL = "fairlead-machine"
FLEET_LABEL = "fairlead-fleet"
_GIB = 1 << 30
_MAX_NAME = 63
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")


def request_for(order: Order, config: GcpProvider, where: GcpRegion) -> dict[str, Any]:
    """Return what Compute Engine is asked for."""
    offer = order.offer
    labels = {
        INSTALLATION_LABEL: order.installation,
        MACHINE_LABEL: order.machine_id,
        FLEET_LABEL: _as_label(order.fleet),
    }
    interface: dict[str, Any] = {"subnetwork": where.subnetwork}
    if config.is_public:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    request: dict[str, Any] = {
        "name": name_of(order),
        "machineType": f"zones/{offer.zone}/machineTypes/{offer.instance_type}",
        "labels": labels,
        "disks": [_disk(offer, config, labels)],
        "networkInterfaces": [interface],
        "metadata": {
            "items": [
                {"key": "user-data", "value": order.user_data},
                # The guest agent of Google's images would let in whoever is in the project.
                {"key": "block-project-ssh-keys", "value": "TRUE"},
                {"key": "enable-oslogin", "value": "FALSE"},
            ]
        },
        "scheduling": _scheduling(offer),
    }
    if config.network_tags:
        request["tags"] = {"items": list(config.network_tags)}
    if config.service_account is not None:
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        request["serviceAccounts"] = [{"email": config.service_account, "scopes": scopes}]
    return request


def name_of(order: Order) -> str:
    """Return the instance's name: letters, digits and `-`, unique also among installations."""
    end = f"-{order.token[:12]}"
    begin = re.sub(r"[^a-z0-9-]", "-", order.name.lower())
    if not begin[:1].isalpha():
        begin = f"n-{begin}"
    return begin[: _MAX_NAME - len(end)] + end


def _disk(offer: Offer, config: GcpProvider, labels: Mapping[str, str]) -> dict[str, Any]:
    kind = "hyperdisk-balanced" if takes_hyperdisks(offer.instance_type) else "pd-balanced"
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": config.image,
            "diskSizeGb": str(-(-config.disk // _GIB)),
            "diskType": f"zones/{offer.zone}/diskTypes/{kind}",
            "labels": dict(labels),
        },
    }


def _scheduling(offer: Offer) -> dict[str, Any]:
    # A machine that its host has lost is given up, and its jobs are tried again on another one.
    plain: dict[str, Any] = {"automaticRestart": False}
    if offer.spot:
        return plain | {
            "provisioningModel": "SPOT",
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
        }
    # GPUs cannot move to another host.
    return plain | {"onHostMaintenance": "TERMINATE" if offer.gpus else "MIGRATE"}


def _as_label(name: str) -> str:
    """Return the name with what a label may have."""
    if _LABEL.fullmatch(name):
        return name
    return re.sub(r"[^a-z0-9_-]", "-", name.lower())[:_MAX_NAME]
