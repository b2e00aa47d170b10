"""The documents of Compute Engine's answers, as far as the provider reads them."""

from datetime import datetime

import msgspec

from controller.clouds.base import CloudAway
from controller.clouds.gcp.errors import Fault
from controller.clouds.gcp.types import TypeInfo
from controller.lifecycle.machines.reconcile import Traits

_EMPTY = "NO_RESULTS_ON_PAGE"


class PageWarning(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class OutsideAddress(msgspec.Struct, frozen=True, rename={"ip": "natIP"}):
    ip: str | None = None


class Interface(
    msgspec.Struct, frozen=True, rename={"ip": "networkIP", "outside": "accessConfigs"}
):
    ip: str | None = None
    outside: tuple[OutsideAddress, ...] = ()


class Scheduling(msgspec.Struct, frozen=True, rename="camel"):
    provisioning_model: str = ""


class Instance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`zone`, `machine_type`: URLs whose last parts are the names."""

    name: str
    status: str = ""
    zone: str = ""
    machine_type: str = ""
    scheduling: Scheduling = Scheduling()
    creation_timestamp: datetime
    labels: dict[str, str] = {}
    network_interfaces: tuple[Interface, ...] = ()


def traits_of(zone: str, instance: Instance) -> Traits:
    return Traits(
        instance_type=instance.machine_type.rpartition("/")[2] or None,
        region=zone.rpartition("-")[0],
        zone=zone,
        spot=instance.scheduling.provisioning_model == "SPOT",
    )


class Scope(msgspec.Struct, frozen=True):
    """The instances of one zone, or why they are missing."""

    instances: tuple[Instance, ...] = ()
    warning: PageWarning | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    next_page_token: str | None = None
    warning: PageWarning | None = None
    unreachables: tuple[str, ...] = ()


class Instances(Page, frozen=True, kw_only=True, rename="camel"):
    items: dict[str, Scope] = {}


class MachineTypes(Page, frozen=True, kw_only=True, rename="camel"):
    items: tuple[TypeInfo, ...] = ()


class Faults(msgspec.Struct, frozen=True):
    errors: tuple[Fault, ...] = ()


class Operation(msgspec.Struct, frozen=True):
    name: str
    status: str
    error: Faults | None = None


class SerialOutput(msgspec.Struct, frozen=True):
    contents: str = ""


class Quota(msgspec.Struct, frozen=True):
    metric: str
    limit: float
    usage: float = 0.0


class RegionQuotas(msgspec.Struct, frozen=True):
    quotas: tuple[Quota, ...] = ()


class AllowedPermissions(msgspec.Struct, frozen=True):
    permissions: tuple[str, ...] = ()


class Image(msgspec.Struct, frozen=True, rename="camel"):
    disk_size_gb: str = "0"


class Subnetwork(msgspec.Struct, frozen=True):
    """`network`: the URL of the network that it is of."""

    network: str


class Allowed(msgspec.Struct, frozen=True, rename={"protocol": "IPProtocol"}):
    protocol: str
    ports: tuple[str, ...] = ()


class FirewallRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    network: str
    direction: str = "INGRESS"
    disabled: bool = False
    allowed: tuple[Allowed, ...] = ()
    source_ranges: tuple[str, ...] = ()
    target_tags: tuple[str, ...] = ()
    target_service_accounts: tuple[str, ...] = ()


class FirewallRules(Page, frozen=True, kw_only=True, rename="camel"):
    items: tuple[FirewallRule, ...] = ()


class Nothing(msgspec.Struct, frozen=True):
    pass


def require_whole(warning: PageWarning | None, where: str) -> None:
    """Raises CloudAway."""
    if warning is not None and warning.code != _EMPTY:
        raise CloudAway(f"{where} is not whole: {warning.message or warning.code}")
