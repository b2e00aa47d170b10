"""The example program for OpenStack as a provider, on a double of Keystone and Nova."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from controller.clouds.base import (
    Abilities,
    CloudAway,
    CloudError,
    NoCapacity,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
)
from controller.clouds.exec import ExecCloud
from controller.lifecycle.machines.model import GpuOffer, Offer, Reach
from controller.lifecycle.machines.reconcile import Traits
from tests.doubles.openstack import (
    CREDENTIAL,
    IMAGE,
    REGION,
    SECRET,
    NovaFailure,
    OpenStackDouble,
    openstack,
)
from tests.support.cloud_contract import CloudContract, installation, order_of
from tests.support.installed import CHECKOUT
from tests.unit.machines.parts import GIB

__all__ = ["installation"]

PROGRAM = CHECKOUT / "examples/machines/openstack.py"
SERVERS = ("POST", "/compute/servers")
FAILURES: dict[type[CloudError], NovaFailure] = {
    QuotaReached: NovaFailure(403, "forbidden", "Quota exceeded for cores: Requested 2, but …"),
    Refused: NovaFailure(400, "badRequest"),
    Throttled: NovaFailure(429, "overLimit"),
    Unauthorized: NovaFailure(403, "forbidden", "Policy doesn't allow it to be performed."),
}
PRICES = {
    "m1.small": {"price": 0.05},
    "g1.large": {
        "price": 1.5,
        "gpus": [{"name": "NVIDIA L40S", "count": 1, "memory_gib": 48}],
    },
    "diskless": {"price": 0.01},
    "gone": {"price": 0.01},
}


class OpenStackWorld:
    def __init__(self, other_side: OpenStackDouble, folder: Path, *more: str) -> None:
        self.other_side = other_side
        prices = folder / "prices.json"
        prices.write_text(json.dumps(PRICES))
        command = [sys.executable, "-I", "-S", str(PROGRAM), "--image", IMAGE]
        command += ["--prices", str(prices), *more]
        self.cloud = ExecCloud("lab", command, abilities=Abilities())
        self.offer = Offer(
            provider="lab",
            instance_type="m1.small",
            region=REGION,
            price=0.05,
            cpu=2.0,
            memory=int((4 * 0.975 - 0.5) * GIB),
            disk=int((40 * 0.94 - 8) * GIB),
        )

    def refuse(self, error: type[CloudError]) -> None:
        if error is NoCapacity:
            # Nova takes the order, and cannot build the server.
            self.other_side.fault = "No valid host was found."
        else:
            self.other_side.fails[SERVERS] = [FAILURES[error]]

    def lose(self) -> None:
        self.other_side.loses = True

    def cut(self) -> None:
        self.other_side.page, self.other_side.cuts = 1, True


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenStackWorld]:
    async with openstack() as other_side:
        settings = {
            "no_proxy": "127.0.0.1",
            "OS_AUTH_URL": f"{other_side.url}/identity/v3/",
            "OS_APPLICATION_CREDENTIAL_ID": CREDENTIAL,
            "OS_APPLICATION_CREDENTIAL_SECRET": SECRET,
            "OS_REGION_NAME": REGION,
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield OpenStackWorld(other_side, tmp_path)


class TestContract(CloudContract):
    pass


async def test_a_server_is_made_of_everything_that_the_order_has(
    world: OpenStackWorld, tmp_path: Path, installation: str
) -> None:
    more = ["--network", "net-1", "--network", "net-2", "--security-group", "nodes"]
    cloud = OpenStackWorld(world.other_side, tmp_path, *more, "--zone", "nova").cloud
    offer = msgspec.structs.replace(world.offer, zone="nova")
    order = msgspec.structs.replace(order_of(world, installation), offer=offer)
    await cloud.create(order)
    assert offer in (await cloud.offers()).offers
    (wish,) = world.other_side.wishes
    assert wish == {
        "name": f"{order.name}-{order.token[:12]}",
        "imageRef": IMAGE,
        "flavorRef": "f-1",
        "user_data": base64.b64encode(order.user_data.encode()).decode(),
        "config_drive": True,
        "metadata": {
            "fairlead-installation": installation,
            "fairlead-machine": order.machine_id,
            "fairlead-fleet": "burst",
        },
        "networks": [{"uuid": "net-1"}, {"uuid": "net-2"}],
        "security_groups": [{"name": "nodes"}],
        "availability_zone": "nova",
    }


@pytest.mark.parametrize("zones", [(), ("nova",)])
async def test_a_list_tells_the_offer_that_each_server_was_made_of(
    world: OpenStackWorld, tmp_path: Path, installation: str, zones: tuple[str, ...]
) -> None:
    more = [word for zone in zones for word in ("--zone", zone)]
    cloud = OpenStackWorld(world.other_side, tmp_path, *more).cloud
    offers = (await cloud.offers()).offers
    offer = next(one for one in offers if one.instance_type == "g1.large")
    order = msgspec.structs.replace(order_of(world, installation), offer=offer)
    await cloud.create(order)
    (listed,) = await cloud.list_tagged(installation)
    assert listed.traits == Traits(instance_type="g1.large", region=REGION, zone=offer.zone)
    (server,) = world.other_side.servers.values()
    # Its operator has removed the flavor since.
    server["flavor"]["id"] = "f-99"
    (listed,) = await cloud.list_tagged(installation)
    assert listed.traits == Traits(region=REGION, zone=offer.zone)


async def test_an_order_that_is_repeated_finds_its_server(
    world: OpenStackWorld, installation: str
) -> None:
    order = order_of(world, installation)
    world.lose()
    with pytest.raises(CloudAway):
        await world.cloud.create(order)
    again = await world.cloud.create(order)
    assert list(world.other_side.servers) == [again.instance_id]
    assert len(world.other_side.wishes) == 1


async def test_offers_are_the_flavors_with_a_price_and_a_disk_on_all_pages(
    world: OpenStackWorld,
) -> None:
    world.other_side.page = 1
    small, large = (await world.cloud.offers()).offers
    assert small == world.offer
    assert (large.instance_type, large.price) == ("g1.large", 1.5)
    assert large.gpus == (GpuOffer(name="NVIDIA L40S", count=1, memory=48 * GIB),)


async def test_a_server_that_cannot_be_built_is_deleted_and_told_as_no_capacity(
    world: OpenStackWorld, installation: str
) -> None:
    world.other_side.fault = "No valid host was found. There are not enough hosts available."
    with pytest.raises(NoCapacity, match="not enough hosts"):
        await world.cloud.create(order_of(world, installation))
    assert not world.other_side.servers


async def test_a_broken_server_whose_end_fails_leaves_the_outcome_open(
    world: OpenStackWorld, installation: str
) -> None:
    world.other_side.fault, world.other_side.loses = "No valid host was found.", True
    order = order_of(world, installation)
    with pytest.raises(CloudAway):
        await world.cloud.create(order)
    (server_id,) = world.other_side.servers
    failure = NovaFailure(500, "computeFault")
    world.other_side.fails["DELETE", f"/compute/servers/{server_id}"] = [failure]
    with pytest.raises(CloudAway, match="computeFault"):
        await world.cloud.create(order)
    with pytest.raises(NoCapacity):
        await world.cloud.create(order)
    assert not world.other_side.servers


@pytest.mark.parametrize(
    "failure",
    [
        NovaFailure(500, "computeFault"),
        NovaFailure(503, "serviceUnavailable"),
        NovaFailure(404, "no-such-page"),
    ],
)
async def test_a_fault_of_the_other_side_leaves_the_outcome_open(
    world: OpenStackWorld, installation: str, failure: NovaFailure
) -> None:
    world.other_side.fails[SERVERS] = [failure]
    with pytest.raises(CloudAway, match=failure.code):
        await world.cloud.create(order_of(world, installation))


async def test_an_endpoint_without_the_api_does_not_say_that_a_machine_is_gone(
    world: OpenStackWorld, installation: str
) -> None:
    made = await world.cloud.create(order_of(world, installation))
    call = ("GET", f"/compute/servers/{made.instance_id}")
    world.other_side.fails[call] = [NovaFailure(404, "no-such-page")]
    with pytest.raises(CloudAway, match="no-such-page"):
        await world.cloud.terminate(made.instance_id)


async def test_a_server_is_reached_by_ipv4_before_ipv6(
    world: OpenStackWorld, installation: str
) -> None:
    made = await world.cloud.create(order_of(world, installation))
    place = (await world.cloud.describe([made.instance_id]))[made.instance_id].place
    assert place is not None
    assert place.host == "127.1.0.9"


async def test_a_wrong_secret_is_told_without_it(
    world: OpenStackWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    monkeypatch.setenv("OS_APPLICATION_CREDENTIAL_SECRET", "canary-of-another")
    with pytest.raises(Unauthorized, match="POST /identity/v3/auth/tokens") as caught:
        await world.cloud.offers()
    assert "canary" not in str(caught.value)
    monkeypatch.setenv("OS_APPLICATION_CREDENTIAL_SECRET_FILE", str(file))
    assert (await world.cloud.offers()).offers


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OS_AUTH_URL", "", "OS_AUTH_URL is not set"),
        ("OS_REGION_NAME", "west", "OS_REGION_NAME: the catalog has no compute API in west"),
        ("OS_APPLICATION_CREDENTIAL_SECRET_FILE", "/none", "/none: No such file"),
    ],
)
async def test_a_setting_that_is_wrong_is_named(
    world: OpenStackWorld, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(CloudError, match=why):
        await world.cloud.offers()


@pytest.mark.parametrize(
    ("message", "reach"),
    [
        ("Can not find requested image", Reach.PROVIDER),
        ("Network 41d0 could not be found.", Reach.PROVIDER),
        ("Security group fairlead not found for project 1", Reach.PROVIDER),
        ("Unable to find security_group with name or id 'fairlead'", Reach.PROVIDER),
        ("The requested availability zone is not available", Reach.ZONE),
        ("Flavor's disk is too small for requested image.", Reach.OFFER),
        ("wrong flavor", Reach.OFFER),
    ],
)
async def test_a_refusal_holds_for_the_offers_that_share_its_cause(
    world: OpenStackWorld, installation: str, message: str, reach: Reach
) -> None:
    world.other_side.fails[SERVERS] = [NovaFailure(400, "badRequest", message)]
    with pytest.raises(Refused, match=message) as caught:
        await world.cloud.create(order_of(world, installation))
    assert caught.value.reach is reach


async def test_what_nova_would_refuse_is_not_asked(
    world: OpenStackWorld, installation: str
) -> None:
    order = order_of(world, installation)
    with pytest.raises(Refused, match="of 65535") as too_long:
        await world.cloud.create(msgspec.structs.replace(order, user_data="x" * 50_000))
    assert too_long.value.reach is Reach.PROVIDER
    for changed in ({"spot": True}, {"region": "south"}):
        other = msgspec.structs.replace(world.offer, **changed)
        with pytest.raises(Refused, match="on demand in north only"):
            await world.cloud.create(msgspec.structs.replace(order, offer=other))
    assert not world.other_side.wishes
