"""Compute Engine as a provider, on a double that is made from its discovery document."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.clouds.base import (
    Accepted,
    CloudAway,
    CloudError,
    NoCapacity,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
    made_by,
)
from controller.clouds.gcp.cloud import CHECKED_WITH, MAX_USER_DATA, PERMISSIONS, GcpCloud
from controller.clouds.gcp.order import name_of
from controller.lifecycle.machines.model import GpuOffer, Offer, Reach
from controller.provider_config.gcp import GcpProvider, GcpRegion
from tests.doubles.gcp import IMAGE, PROJECT, SSH_RULE, GcpDouble, gcp
from tests.doubles.google_apis import GoogleFailure, Method, WrongRequest
from tests.support.cloud_contract import CloudContract, ended, installation, order_of
from tests.support.ssh_daemon import free_port
from tests.unit.machines.parts import GIB

__all__ = ["installation"]

REGION, OTHER = "us-central1", "europe-west4"
SUBNETWORK = f"projects/{PROJECT}/regions/{REGION}/subnetworks/default"
AT_ONCE: dict[type[CloudError], GoogleFailure] = {
    Refused: GoogleFailure(400, "invalid"),
    Throttled: GoogleFailure(403, "rateLimitExceeded"),
    Unauthorized: GoogleFailure(403, "forbidden"),
}
LATER: dict[type[CloudError], tuple[str, str]] = {
    NoCapacity: ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "there are none"),
    QuotaReached: ("QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 1.0"),
}


class GcpWorld:
    def __init__(self, cloud: GcpCloud, other_side: GcpDouble) -> None:
        self.cloud = cloud
        self.other_side = other_side
        self.offer = _offer()

    def refuse(self, error: type[CloudError]) -> None:
        if error in AT_ONCE:
            self.other_side.fails["insert"] = [AT_ONCE[error]]
        else:
            self.other_side.fails_later = [LATER[error]]

    def lose(self) -> None:
        self.other_side.loses = True

    def cut(self) -> None:
        self.other_side.page, self.other_side.cuts = 1, True


def _offer(**more: Any) -> Offer:
    plain = Offer(
        provider="gcp-us",
        instance_type="g2-standard-4",
        region=REGION,
        zone=f"{REGION}-a",
        price=0.70683,
        cpu=4.0,
        memory=15 * GIB,
        disk=80 * GIB,
        gpus=(GpuOffer(name="NVIDIA L4", count=1, memory=22888 << 20),),
    )
    return msgspec.structs.replace(plain, **more)


def config(other_side: GcpDouble, folder: Path, **more: Any) -> GcpProvider:
    fields: dict[str, Any] = {
        "project": PROJECT,
        "image": IMAGE,
        "regions": {REGION: GcpRegion(zones=(f"{REGION}-a",), subnetwork=SUBNETWORK)},
        "credentials_file": other_side.write_key(folder / "key.json"),
        "endpoint": other_side.url,
    }
    return GcpProvider(**(fields | more))


def cloud_of(other_side: GcpDouble, settings: GcpProvider) -> GcpCloud:
    url = other_side.url
    return GcpCloud(
        "gcp-us", settings, describe_every=0.0, projects_url=url, billing_url=url, iam_url=url
    )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[GcpWorld]:
    async with gcp() as other_side:
        cloud = cloud_of(other_side, config(other_side, tmp_path))
        yield GcpWorld(cloud, other_side)
        await cloud.close()


class TestContract(CloudContract):
    pass


async def test_a_machine_is_made_of_everything_that_the_order_has(
    world: GcpWorld, tmp_path: Path, installation: str
) -> None:
    account = f"jobs@{PROJECT}.iam.gserviceaccount.com"
    more = {"network_tags": ("fairlead",), "service_account": account}
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, **more))
    order = msgspec.structs.replace(order_of(world, installation), fleet="Team/Burst")
    made = await made_by(cloud, order)
    await cloud.close()
    (wish,) = world.other_side.wishes
    assert len(wish.pop("requestId")) == 36
    labels = {
        "fairlead-installation": installation,
        "fairlead-machine": order.machine_id,
        "fairlead-fleet": "team-burst",
    }
    assert wish == {
        "name": f"{order.name}-{order.token[:12]}",
        "machineType": f"zones/{REGION}-a/machineTypes/g2-standard-4",
        "labels": labels,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": IMAGE,
                    "diskSizeGb": "100",
                    "diskType": f"zones/{REGION}-a/diskTypes/pd-balanced",
                    "labels": labels,
                },
            }
        ],
        "networkInterfaces": [
            {
                "subnetwork": SUBNETWORK,
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
            }
        ],
        "metadata": {
            "items": [
                {"key": "user-data", "value": order.user_data},
                {"key": "block-project-ssh-keys", "value": "TRUE"},
                {"key": "enable-oslogin", "value": "FALSE"},
            ]
        },
        "scheduling": {"automaticRestart": False, "onHostMaintenance": "TERMINATE"},
        "tags": {"items": ["fairlead"]},
        "serviceAccounts": [
            {"email": account, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        ],
    }
    assert made.instance_id == f"{REGION}-a/{wish['name']}"
    assert made.place is not None
    assert str(made.place.host).startswith("127.1.0.")


async def test_a_spot_machine_ends_with_its_interruption(
    world: GcpWorld, installation: str
) -> None:
    order = msgspec.structs.replace(order_of(world, installation), offer=_offer(spot=True))
    await made_by(world.cloud, order)
    (wish,) = world.other_side.wishes
    assert wish["scheduling"] == {
        "automaticRestart": False,
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
    }


async def test_a_private_machine_is_reached_in_its_network(
    world: GcpWorld, tmp_path: Path, installation: str
) -> None:
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, is_public=False))
    made = await made_by(cloud, order_of(world, installation))
    await cloud.close()
    assert made.place is not None
    assert str(made.place.host).startswith("127.2.0.")


async def test_each_try_of_an_order_is_the_same_request(world: GcpWorld, installation: str) -> None:
    order = order_of(world, installation)
    world.lose()
    with pytest.raises(CloudAway):
        await made_by(world.cloud, order)
    await made_by(world.cloud, order)
    first, second = world.other_side.wishes
    assert first == second


async def test_a_request_id_that_is_forgotten_finds_the_machine_by_its_name(
    world: GcpWorld, installation: str
) -> None:
    order = order_of(world, installation)
    made = await made_by(world.cloud, order)
    world.other_side.remembers = False
    assert await made_by(world.cloud, order) == made
    # Another refusal comes first: the machine of the first try is there all the same.
    world.other_side.fails["insert"] = [GoogleFailure(403, "quotaExceeded")]
    assert await made_by(world.cloud, order) == made
    other = msgspec.structs.replace(order, installation="another")
    with pytest.raises(Refused, match="another owner"):
        await made_by(world.cloud, other)


async def test_an_order_whose_machine_has_ended_is_refused(
    world: GcpWorld, installation: str
) -> None:
    order = order_of(world, installation)
    made = await made_by(world.cloud, order)
    await ended(world.cloud, made.instance_id)
    with pytest.raises(Refused, match="has ended"):
        await made_by(world.cloud, order)


async def test_an_order_is_answered_when_it_is_accepted(world: GcpWorld, installation: str) -> None:
    begun = await world.cloud.create(order_of(world, installation))
    assert isinstance(begun, Accepted)
    assert world.other_side.calls["wait"] == 0
    made = await begun.outcome()
    assert world.other_side.calls["wait"] == 1
    assert [one.instance_id for one in await world.cloud.list_tagged(installation)] == [
        made.instance_id
    ]


async def test_an_operation_that_takes_long_leaves_the_outcome_open(
    world: GcpWorld, installation: str
) -> None:
    order = order_of(world, installation)
    world.other_side.slow = 1
    with pytest.raises(CloudAway, match="takes long"):
        await made_by(world.cloud, order)
    made = await made_by(world.cloud, order)
    assert [one.instance_id for one in await world.cloud.list_tagged(installation)] == [
        made.instance_id
    ]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacity),
        ("RESOURCE_POOL_EXHAUSTED", NoCapacity),
        ("INTERNAL_ERROR", NoCapacity),
        ("QUOTA_EXCEEDED", QuotaReached),
        ("RESOURCE_NOT_FOUND", Refused),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", NoCapacity),
        ("PERMISSIONS_ERROR", Refused),
        ("RESOURCE_ALREADY_EXISTS", Refused),
        ("RESOURCE_NOT_READY", NoCapacity),
    ],
)
async def test_an_operation_that_fails_later_is_a_refusal_of_its_kind(
    world: GcpWorld, installation: str, code: str, kind: type[CloudError]
) -> None:
    world.other_side.fails_later = [(code, "not today")]
    with pytest.raises(CloudError, match=f"not today \\({code}\\)") as caught:
        await made_by(world.cloud, order_of(world, installation))
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("message", "field", "reach"),
    [
        (f"The resource '{IMAGE}' was not found", "image", Reach.PROVIDER),
        (
            "Invalid value for field 'resource.disks[0].initializeParams.sourceImage': 'x'",
            "image",
            Reach.PROVIDER,
        ),
        (
            f"There is no '{SUBNETWORK}'",
            f"regions.{REGION}.subnetwork",
            Reach.REGION,
        ),
        (
            "The resource 'x@y' of type 'serviceAccount' was not found.",
            "service_account",
            Reach.PROVIDER,
        ),
    ],
)
async def test_a_refusal_of_what_the_file_names_tells_the_field_and_its_reach(
    world: GcpWorld, installation: str, message: str, field: str, reach: Reach
) -> None:
    world.other_side.fails["insert"] = [GoogleFailure(404, "notFound", message)]
    world.other_side.fails_later = [("RESOURCE_NOT_FOUND", message)]
    for _ in ("at once", "by its operation"):
        with pytest.raises(Refused) as caught:
            await made_by(world.cloud, order_of(world, installation))
        assert str(caught.value).startswith(f"providers.gcp-us.{field}: ")
        assert caught.value.reach is reach


async def test_a_refusal_of_a_type_is_of_that_offer_alone(
    world: GcpWorld, installation: str
) -> None:
    message = f"The resource 'projects/p/zones/{REGION}-a/machineTypes/a9' was not found"
    world.other_side.fails["insert"] = [GoogleFailure(404, "notFound", message)]
    with pytest.raises(Refused) as caught:
        await made_by(world.cloud, order_of(world, installation))
    assert caught.value.reach is Reach.OFFER


@pytest.mark.parametrize(
    ("code", "is_made"),
    [("ZONE_RESOURCE_POOL_EXHAUSTED", False), ("INTERNAL_ERROR", True)],
)
async def test_what_is_seen_of_a_machine_that_was_not_made_is_no_machine(
    world: GcpWorld, installation: str, code: str, is_made: bool
) -> None:
    order = order_of(world, installation)
    made = await made_by(world.cloud, order)
    # As if what was made is only what Google takes back after a failed operation.
    world.other_side.remembers, world.other_side.hides = False, True
    world.other_side.fails_later = [(code, "not today")]
    if is_made:
        assert await made_by(world.cloud, order) == made
    else:
        with pytest.raises(NoCapacity, match="not today"):
            await made_by(world.cloud, order)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (GoogleFailure(503, "resourcePoolExhausted"), NoCapacity),
        (GoogleFailure(403, "quotaExceeded"), QuotaReached),
        (GoogleFailure(404, "notFound"), Refused),
        (GoogleFailure(412, "conditionNotMet"), Refused),
        (GoogleFailure(429, "tooMany"), Throttled),
        (GoogleFailure(403, "accessNotConfigured"), Unauthorized),
        (GoogleFailure(401, "authError"), Unauthorized),
        (GoogleFailure(503, "backendError"), CloudAway),
        (GoogleFailure(500, "internalError"), CloudAway),
        (GoogleFailure(400, "resourceNotReady"), CloudAway),
    ],
)
async def test_a_refusal_at_once_has_its_kind(
    world: GcpWorld, installation: str, failure: GoogleFailure, kind: type[CloudError]
) -> None:
    world.other_side.fails["insert"] = [failure]
    with pytest.raises(CloudError, match=failure.reason) as caught:
        await made_by(world.cloud, order_of(world, installation))
    assert type(caught.value) is kind


async def test_a_list_that_lacks_a_zone_is_an_error(world: GcpWorld, installation: str) -> None:
    made = await made_by(world.cloud, order_of(world, installation))
    for field in ("unreachable", "silent"):
        setattr(world.other_side, field, (f"{REGION}-a",))
        with pytest.raises(CloudAway, match=f"{REGION}-a"):
            await world.cloud.list_tagged(installation)
        with pytest.raises(CloudAway, match=f"{REGION}-a"):
            await world.cloud.describe([made.instance_id])
        setattr(world.other_side, field, ())
    # No machine of this provider can be in that region.
    world.other_side.silent = ("europe-west4-a",)
    assert len(await world.cloud.list_tagged(installation)) == 1


async def test_a_zone_that_the_file_names_no_more_is_still_listed(
    world: GcpWorld, tmp_path: Path, installation: str
) -> None:
    made = await made_by(world.cloud, order_of(world, installation))
    elsewhere = {REGION: GcpRegion(zones=(f"{REGION}-f",), subnetwork=SUBNETWORK)}
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, regions=elsewhere))
    (found,) = await cloud.list_tagged(installation)
    assert found.instance_id == made.instance_id
    assert set(await cloud.describe([made.instance_id])) == {made.instance_id}
    await ended(cloud, made.instance_id)
    await cloud.close()


async def test_settings_that_change_between_two_tries_make_no_second_machine(
    world: GcpWorld, tmp_path: Path, installation: str
) -> None:
    order = order_of(world, installation)
    world.lose()
    with pytest.raises(CloudAway):
        await made_by(world.cloud, order)
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, disk=200 * GIB))
    # Google may take a known request id with other content either way.
    world.other_side.fails["insert"] = [GoogleFailure(400, "invalid", "requestId is known")]
    made = await made_by(cloud, order)
    assert await made_by(cloud, order) == made
    await cloud.close()
    assert len(world.other_side.instances) == 1


async def test_a_token_is_asked_for_once(world: GcpWorld, installation: str) -> None:
    await made_by(world.cloud, order_of(world, installation))
    await world.cloud.offers()
    assert world.other_side.calls["token"] == 1


async def test_a_token_that_is_withdrawn_is_asked_for_again(world: GcpWorld) -> None:
    world.other_side.fails["types"] = [GoogleFailure(401, "authError")]
    with pytest.raises(Unauthorized, match="authError"):
        await world.cloud.offers()
    assert (await world.cloud.offers()).offers
    assert world.other_side.calls["token"] == 2


async def test_a_machine_that_is_off_exists_and_has_no_address(
    world: GcpWorld, installation: str
) -> None:
    made = await made_by(world.cloud, order_of(world, installation))
    (instance,) = world.other_side.instances.values()
    instance["status"] = "TERMINATED"
    (found,) = await world.cloud.list_tagged(installation)
    assert (found.instance_id, found.place) == (made.instance_id, None)


async def test_what_google_would_refuse_is_not_asked(world: GcpWorld, installation: str) -> None:
    order = order_of(world, installation)
    long = msgspec.structs.replace(order, user_data="x" * (MAX_USER_DATA + 1))
    with pytest.raises(Refused, match="Google takes 262144"):
        await made_by(world.cloud, long)
    for elsewhere in (_offer(zone=f"{REGION}-f"), _offer(region="asia-east1")):
        with pytest.raises(Refused, match="regions does not name"):
            await made_by(world.cloud, msgspec.structs.replace(order, offer=elsewhere))
    assert not world.other_side.wishes


async def test_a_name_has_what_a_name_may_have(world: GcpWorld) -> None:
    order = order_of(world, "here", "0" * 32)
    odd = msgspec.structs.replace(order, name="7.GPUs." + "x" * 70)
    assert name_of(odd) == f"n-7-gpus-{'x' * 41}-{'0' * 12}"


async def test_offers_are_the_types_of_each_zone_that_have_a_price(
    world: GcpWorld, tmp_path: Path
) -> None:
    offers = (await world.cloud.offers()).offers
    assert {(one.instance_type, one.spot, one.price) for one in offers} == {
        ("e2-standard-4", False, 0.13402),
        ("e2-standard-4", True, 0.13402),
        ("g2-standard-4", False, 0.70683),
        ("g2-standard-4", True, 0.70683),
    }
    assert next(one for one in offers if one.gpus).gpus == _offer().gpus
    assert all(one.zone == f"{REGION}-a" for one in offers)
    # The types are asked for once an hour.
    await world.cloud.offers()
    assert world.other_side.calls["types"] == 2
    own = config(world.other_side, tmp_path, prices={"c4-standard-8": 0.4})
    cloud = cloud_of(world.other_side, own)
    assert {one.price for one in (await cloud.offers()).offers if one.cpu == 8} == {0.4}
    await cloud.close()


async def test_a_zone_that_is_not_there_is_named_with_its_field(
    world: GcpWorld, tmp_path: Path
) -> None:
    elsewhere = {REGION: GcpRegion(zones=(f"{REGION}-z",), subnetwork=SUBNETWORK)}
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, regions=elsewhere))
    try:
        with pytest.raises(Refused, match=rf"\.regions\.{REGION}\.zones: .*Unknown zone") as caught:
            await cloud.offers()
        assert str(caught.value).startswith("providers.")
    finally:
        await cloud.close()


async def test_a_zone_that_refuses_keeps_no_other_from_being_rented(
    world: GcpWorld, tmp_path: Path
) -> None:
    zones = ("europe-west4-a", "europe-west4-b")
    regions = {"europe-west4": GcpRegion(zones=zones, subnetwork=SUBNETWORK)}
    more = {"regions": regions, "prices": {"e2-standard-4": 0.1}}
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, **more))
    try:
        world.other_side.fails["types"] = [GoogleFailure(403, "forbidden", "not for you")]
        known = await cloud.offers()
        assert {one.zone for one in known.offers} == {zones[1]}
        assert "not for you" in known.unknown[zones[0]]
        assert (await cloud.offers()).unknown == {}
    finally:
        await cloud.close()


async def test_a_project_whose_every_zone_refuses_tells_nothing(world: GcpWorld) -> None:
    world.other_side.fails["types"] = [GoogleFailure(403, "forbidden", "not for you")]
    with pytest.raises(Unauthorized, match="not for you"):
        await world.cloud.offers()


async def test_the_account_is_the_project(world: GcpWorld) -> None:
    assert await world.cloud.account() == PROJECT


async def test_new_machines_have_the_disk_that_their_type_takes(
    world: GcpWorld, installation: str
) -> None:
    offer = _offer(instance_type="c4-standard-8", gpus=())
    await made_by(world.cloud, msgspec.structs.replace(order_of(world, installation), offer=offer))
    (wish,) = world.other_side.wishes
    assert wish["disks"][0]["initializeParams"]["diskType"].endswith("/hyperdisk-balanced")
    assert wish["scheduling"]["onHostMaintenance"] == "MIGRATE"


async def test_what_an_order_needs_is_examined(world: GcpWorld, tmp_path: Path) -> None:
    world.other_side.quotas = [
        {"metric": "CPUS", "limit": 24.0, "usage": 4.0},
        {"metric": "NVIDIA_L4_GPUS", "limit": 0.0, "usage": 0.0},
        {"metric": "COMMITTED_NVIDIA_L4_GPUS", "limit": 0.0, "usage": 0.0},
        {"metric": "SNAPSHOTS", "limit": 5000.0, "usage": 0.0},
    ]
    found = await world.cloud.examine()
    assert [one.fault for one in found] == [None] * 6
    assert found[4].what == f"quota CPUS in {REGION}: 4 of 24 used"
    assert found[5].note == "none until Google raises it from 0"
    assert [one.note for one in found[:5]] == [None] * 5

    world.other_side.allowed = frozenset(PERMISSIONS) - {"compute.instances.delete"}
    wrong = config(
        world.other_side,
        tmp_path,
        image=f"projects/{PROJECT}/global/images/family/none",
        prices={"x1-none": 1.0},
    )
    cloud = cloud_of(world.other_side, wrong)
    rights, image, price, *_ = await cloud.examine()
    await cloud.close()
    small = cloud_of(world.other_side, config(world.other_side, tmp_path, disk=10 * GIB))
    (_, too_big, *_) = await small.examine()
    await small.close()
    assert too_big.fault == "providers.gcp-us.disk: the image needs 20GiB"
    assert str(rights.fault).startswith("compute.instances.delete: give its account a role")
    assert str(image.fault).startswith("providers.gcp-us.image: ")
    assert str(price.fault).startswith("providers.gcp-us.prices.x1-none: ")


async def test_a_subnetwork_and_an_account_that_are_not_there_are_named_with_their_fields(
    world: GcpWorld, tmp_path: Path
) -> None:
    account = f"jobs@{PROJECT}.iam.gserviceaccount.com"
    where = GcpRegion(zones=(f"{REGION}-a",), subnetwork=SUBNETWORK.replace("default", "none"))
    wrong = config(world.other_side, tmp_path, regions={REGION: where}, service_account=account)
    cloud = cloud_of(world.other_side, wrong)
    faults = {one.what: str(one.fault) for one in await cloud.examine() if one.fault is not None}
    its, theirs = faults[f"service account {account}"], faults[f"subnetwork {where.subnetwork}"]
    assert its.startswith("providers.gcp-us.service_account: POST v1/projects/-/")
    assert its.endswith("Unknown service account (NOT_FOUND): name one that there is")
    assert theirs.startswith(f"providers.gcp-us.regions.{REGION}.subnetwork: GET compute/")
    assert theirs.endswith(f": name one that is in {REGION}")
    assert len(faults) == 2

    world.other_side.accounts = {account: False}
    world.other_side.subnetworks["none"] = "default"
    (fault,) = [str(one.fault) for one in await cloud.examine() if one.fault is not None]
    assert fault.endswith("give it the role roles/iam.serviceAccountUser there")
    world.other_side.accounts = {account: True}
    assert [one.fault for one in await cloud.examine() if one.fault is not None] == []
    await cloud.close()


@pytest.mark.parametrize(
    ("change", "tags", "is_let_in"),
    [
        ({}, (), True),
        ({}, ("fairlead",), True),
        ({"targetTags": ["fairlead"]}, ("fairlead",), True),
        ({"targetTags": ["fairlead"]}, (), False),
        ({"targetTags": ["web"]}, ("fairlead",), False),
        ({"targetServiceAccounts": ["a@b.iam.gserviceaccount.com"]}, (), False),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["80", "20-25"]}]}, (), True),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["80"]}]}, (), False),
        ({"allowed": [{"IPProtocol": "all"}]}, (), True),
        ({"allowed": [{"IPProtocol": "udp"}]}, (), False),
        ({"direction": "EGRESS"}, (), False),
        ({"disabled": True}, (), False),
        ({"sourceRanges": []}, (), False),
        ({"network": SSH_RULE["network"].replace("default", "another")}, (), False),
    ],
)
async def test_it_is_told_if_no_rule_lets_the_controller_in(
    world: GcpWorld, tmp_path: Path, change: dict[str, Any], tags: tuple[str, ...], is_let_in: bool
) -> None:
    shut = {**SSH_RULE, "disabled": True}
    world.other_side.firewalls = [shut, {**SSH_RULE, **change}]
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, network_tags=tags))
    (told,) = [one for one in await cloud.examine() if one.what.startswith("firewall rules")]
    await cloud.close()
    assert told.fault is None
    assert (told.note is None) == is_let_in
    if not is_let_in:
        whom = "machines with the tag fairlead" if tags else "all machines"
        assert str(told.note).startswith(f"none lets TCP port 22 in to {whom}: ")


async def test_what_only_a_check_reads_is_no_fault_without_its_rights(world: GcpWorld) -> None:
    world.other_side.allowed = frozenset(PERMISSIONS)
    for method in ("subnetwork", "firewalls"):
        world.other_side.fails[method] = [GoogleFailure(403, "forbidden")]
    first = await world.cloud.examine()
    second = await world.cloud.examine()  # The subnetwork is told now, and its rules are not.
    notes = [one.note for one in (*first, *second) if one.note is not None]
    assert [one.fault for one in (*first, *second) if one.fault is not None] == []
    assert [one.partition(":")[0] for one in notes] == [
        "compute.firewalls.list, compute.subnetworks.get",
        "not known",
    ] * 2


async def test_a_zone_without_a_price_is_named(world: GcpWorld, tmp_path: Path) -> None:
    region = "europe-west4"
    where = GcpRegion(zones=(f"{region}-a",), subnetwork=SUBNETWORK)
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, regions={region: where}))
    found = [one.fault for one in await cloud.examine() if one.fault is not None]
    await cloud.close()
    assert len(found) == 1
    assert found[0].startswith(f"providers.gcp-us.regions.{region}: the catalog has no price")


def test_the_role_has_the_permissions_that_are_examined() -> None:
    file = Path(__file__).parents[3] / "examples/machines/gcp-role.yaml"
    permissions = yaml.safe_load(file.read_text())["includedPermissions"]
    assert permissions == sorted((*PERMISSIONS, *CHECKED_WITH))


async def test_credentials_that_do_not_work_are_told_without_them(
    world: GcpWorld, tmp_path: Path
) -> None:
    settings = config(world.other_side, tmp_path)
    file = settings.credentials_file
    assert file is not None
    content = file.read_text()
    file.write_text('{"canary": 1}')
    cloud = cloud_of(world.other_side, settings)
    with pytest.raises(Unauthorized, match=r"key\.json is no key of a service account") as wrong:
        await cloud.offers()
    file.write_text("")
    empty = r"providers\.gcp-us\.credentials_file: .*key\.json is empty"
    with pytest.raises(Unauthorized, match=empty):
        await cloud.offers()
    file.unlink()
    with pytest.raises(CloudAway, match="No such file") as gone:
        await cloud.offers()
    port = free_port()
    file.write_text(content.replace(f"{world.other_side.url}/token", f"http://127.0.0.1:{port}/t"))
    away = f"^credentials: there is no connection to 127\\.0\\.0\\.1:{port}$"
    with pytest.raises(CloudAway, match=away):
        await cloud.offers()
    file.write_text(content.replace("/token", "/nothing"))
    with pytest.raises(CloudError) as refused:
        await cloud.offers()
    # A new key needs no restart.
    file.write_text(content)
    assert (await cloud.offers()).offers
    await cloud.close()
    assert "canary" not in f"{wrong.value} {gone.value} {refused.value}"
    assert "PRIVATE" not in f"{wrong.value} {gone.value} {refused.value}"


async def test_a_machine_of_google_needs_no_file(
    world: GcpWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.auth.compute_engine import _metadata

    host = world.other_side.url.removeprefix("http://")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("GCE_METADATA_IP", host)
    # The library reads its name when it is imported.
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, credentials_file=None))
    assert (await cloud.offers()).offers
    await cloud.close()


def sku(
    description: str, price: float, *, region: str = REGION, kind: str = "OnDemand", **more: Any
) -> dict[str, Any]:
    unit = "GiBy.h" if description.endswith(" Ram") else "h"
    units, nanos = divmod(round(price * 10**9), 10**9)
    rate = {"unitPrice": {"currencyCode": "USD", "units": str(units), "nanos": nanos}}
    expression = {"usageUnit": unit, "tieredRates": [rate]} | more
    return {
        "description": f"{description} running in Iowa",
        "category": {"resourceFamily": "Compute", "usageType": kind},
        "serviceRegions": [region],
        "pricingInfo": [{"pricingExpression": expression}],
    }


async def test_prices_are_the_sum_of_a_types_parts(world: GcpWorld) -> None:
    spot = {"kind": "Preemptible"}
    world.other_side.skus = [
        sku("E2 Instance Core", 0.02),
        sku("E2 Instance Ram", 0.003),
        sku("Spot Preemptible E2 Instance Core", 0.01, **spot),
        sku("Spot Preemptible E2 Instance Ram", 0.001, **spot),
        sku("G2 Instance Core", 0.025),
        sku("G2 Instance Ram", 0.003),
        sku("Nvidia L4 GPU", 1.56),
        # None of these is the price of a machine that is rented here by the hour.
        sku("E2 Custom Instance Core", 9.0),
        sku("E2 Instance Core", 9.0, region="asia-east1"),
        sku("E2 Instance Core", 9.0, kind="Commit1Yr"),
        sku("E2 Sole Tenancy Instance Ram", 9.0),
        sku("E2 Instance Core", 9.0, usageUnit="s"),
        sku("E2 Instance Core", 9.0, tieredRates=[]),
        sku("E2 Instance Core", 0.0),
        sku("E2 Instance Core", 0.01),
    ]
    await world.cloud.refresh()
    assert world.other_side.calls["skus"] == 2
    offers = (await world.cloud.offers()).offers
    prices = {(one.instance_type, one.spot): one.price for one in offers}
    assert prices == {
        ("e2-standard-4", False): pytest.approx(4 * 0.02 + 16 * 0.003),
        ("e2-standard-4", True): pytest.approx(4 * 0.01 + 16 * 0.001),
        ("g2-standard-4", False): pytest.approx(4 * 0.025 + 16 * 0.003 + 1.56),
        # Nothing tells a spot price, so it counts as the price on demand.
        ("g2-standard-4", True): pytest.approx(4 * 0.025 + 16 * 0.003 + 1.56),
    }
    reading = world.cloud.catalog.reading
    assert reading is not None
    assert [one.split(", so none")[0] for one in reading.notes] == [
        f"{REGION}: there is no price of e2-medium, c4-standard-8"
    ]


async def test_a_refresh_that_fails_keeps_what_was_known(world: GcpWorld) -> None:
    before = (await world.cloud.offers()).offers
    world.other_side.fails["skus"] = [GoogleFailure(403, "accessNotConfigured")]
    with pytest.raises(Unauthorized, match="accessNotConfigured"):
        await world.cloud.refresh()
    assert (await world.cloud.offers()).offers == before
    # A list without a price of what the release has: its prices stay, and that is said.
    await world.cloud.refresh()
    assert (await world.cloud.offers()).offers == before
    reading = world.cloud.catalog.reading
    assert reading is not None
    assert "g2-standard-4" in reading.notes[0]
    assert "that of the release is kept" in reading.notes[0]


async def test_a_region_that_refuses_keeps_its_former_figures(
    world: GcpWorld, tmp_path: Path
) -> None:
    regions = {
        REGION: GcpRegion(zones=(f"{REGION}-a",), subnetwork=SUBNETWORK),
        OTHER: GcpRegion(zones=(f"{OTHER}-a", f"{OTHER}-b"), subnetwork=SUBNETWORK),
    }
    cloud = cloud_of(world.other_side, config(world.other_side, tmp_path, regions=regions))
    parts = [("E2 Instance Core", 0.02), ("E2 Instance Ram", 0.003)]
    world.other_side.skus = [
        sku(name, price, region=region) for name, price in parts for region in regions
    ]
    await cloud.refresh()
    first = cloud.catalog.reading
    world.other_side.skus = [
        sku(name, 2 * price, region=region) for name, price in parts for region in regions
    ]
    world.other_side.fails["types"] = [GoogleFailure(403, "forbidden")]
    await cloud.refresh()
    reading = cloud.catalog.reading
    assert first is not None
    assert reading is not None
    ((refused, read_at),) = reading.older.items()
    assert read_at == first.read_at
    assert reading.notes[0].startswith(f"{refused}: it was not read (")
    prices = {
        one.region: one.price
        for one in (await cloud.offers()).offers
        if one.instance_type == "e2-standard-4" and not one.spot
    }
    (read,) = regions.keys() - {refused}
    former = 4 * 0.02 + 16 * 0.003
    assert prices == {refused: pytest.approx(former), read: pytest.approx(2 * former)}
    await cloud.close()


def test_a_controller_without_such_a_provider_loads_nothing_of_it() -> None:
    code = (
        "import sys, controller.daemon.serving, controller.commands.serve, "
        "controller.machines.manager, controller.clouds.exec; "
        "sys.exit(any(name.startswith(('google.auth', 'controller.clouds.gcp')) "
        "for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "Burst"}, "content.name: 'Burst' is not"),
        ({"nickname": "burst"}, "content has no nickname"),
        ({"status": "RUNNING"}, "content.status is only told"),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "'CHEAP' is none of its values"),
        ({"disks": [{"autoDelete": "yes"}]}, r"content.disks\[0\].autoDelete is no boolean"),
        ({"metadata": {"items": [{"value": "x"}]}}, r"items\[0\].key is missing"),
    ],
)
def test_the_double_refuses_what_the_document_does_not_have(
    change: dict[str, Any], problem: str
) -> None:
    wish = {"name": "burst", "machineType": "x", "disks": [], "networkInterfaces": []}
    with pytest.raises(WrongRequest, match=problem):
        Method("compute.v1", "instances.insert").require({}, {**wish, **change})
    with pytest.raises(WrongRequest, match="has no parameter requestID"):
        Method("compute.v1", "instances.insert").require({"requestID": "1"}, wish)
