"""EC2 as a provider, on moto behind a front that has what moto lacks."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import botocore.session
import msgspec
import pytest

from controller.clouds.aws import cloud as aws_cloud
from controller.clouds.aws.cloud import MAX_USER_DATA, AwsCloud
from controller.clouds.aws.instances import disks_of, image_of
from controller.clouds.base import (
    CloudAway,
    CloudError,
    NoCapacity,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
)
from controller.clouds.pace import Pace
from controller.lifecycle.machines.model import Offer, Reach
from controller.provider_config.aws import AwsProvider, AwsRegion
from tests.support.cloud_contract import CloudContract, ended, installation, order_of
from tests.support.ec2_account import moto_server
from tests.support.ec2_front import Ec2Front, Failure, front_of
from tests.support.ssh_daemon import free_port

__all__ = ["installation"]

REGION, OTHER = "eu-central-1", "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "fairlead-tests", "AWS_SECRET_ACCESS_KEY": "canary-of-ec2"}
SSH_RULE = {
    "IpProtocol": "tcp",
    "FromPort": 22,
    "ToPort": 22,
    "IpRanges": [{"CidrIp": "203.0.113.7/32"}],
}
CODES: dict[type[CloudError], str] = {
    NoCapacity: "InsufficientInstanceCapacity",
    QuotaReached: "VcpuLimitExceeded",
    Refused: "InvalidParameterValue",
    Throttled: "RequestLimitExceeded",
    Unauthorized: "UnauthorizedOperation",
}


class Account(msgspec.Struct, frozen=True):
    """moto, and what its account has in both regions."""

    url: str
    regions: dict[str, AwsRegion]


def _client(url: str, region: str) -> Any:
    return botocore.session.Session().create_client("ec2", region_name=region, endpoint_url=url)


def _with_what_operators_make(url: str, region: str) -> AwsRegion:
    """An image, beside the network that every account has."""
    ec2 = _client(url, region)
    try:
        image = ec2.register_image(Name="fairlead", RootDeviceName="/dev/sda1")["ImageId"]
        subnets = ec2.describe_subnets()["Subnets"]
        groups = ec2.describe_security_groups()["SecurityGroups"]
        ec2.authorize_security_group_ingress(GroupId=groups[0]["GroupId"], IpPermissions=[SSH_RULE])
        return AwsRegion(
            image=image,
            subnets={one["AvailabilityZone"]: one["SubnetId"] for one in subnets},
            security_groups=(groups[0]["GroupId"],),
        )
    finally:
        ec2.close()


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with (
        moto_server(tmp_path_factory.mktemp("ec2")) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in KEYS.items():
            patch.setenv(name, value)
        for service in ("IAM", "SERVICE_QUOTAS", "STS"):
            patch.setenv(f"AWS_ENDPOINT_URL_{service}", url)
        yield Account(url, {name: _with_what_operators_make(url, name) for name in (REGION, OTHER)})


class Ec2World:
    def __init__(self, cloud: AwsCloud, front: Ec2Front, offer: Offer) -> None:
        self.cloud = cloud
        self.front = front
        self.offer = offer

    def refuse(self, error: type[CloudError]) -> None:
        self.front.fails["RunInstances"] = [Failure(CODES[error])]

    def lose(self) -> None:
        self.front.loses.append("RunInstances")

    def cut(self) -> None:
        self.front.page, self.front.cuts = 1, True


@pytest.fixture
async def world(account: Account) -> AsyncIterator[Ec2World]:
    async with front_of(account.url) as front:
        config = AwsProvider(regions=account.regions, endpoint=front.url)
        cloud = AwsCloud("aws-eu", config, describe_every=0.0, visible_after=0.0)
        yield Ec2World(cloud, front, _offer(REGION))
        await cloud.close()


def _offer(region: str, **more: Any) -> Offer:
    return Offer(
        provider="aws-eu",
        instance_type="g6.xlarge",
        region=region,
        zone=f"{region}a",
        price=1.006,
        cpu=4.0,
        memory=1 << 34,
        disk=1 << 36,
        **more,
    )


class TestContract(CloudContract):
    pass


async def test_a_spot_machine_has_the_most_that_it_may_cost(
    world: Ec2World, installation: str
) -> None:
    spot = msgspec.structs.replace(
        order_of(world, installation), offer=_offer(REGION, spot=True, rate=1.08)
    )
    made = await world.cloud.create(spot)
    assert await world.cloud.create(spot) == made
    first, again = world.front.wishes
    assert first["InstanceMarketOptions.SpotOptions.MaxPrice"] == "0.931481"
    assert {**first, "Timestamp": ""} == {**again, "Timestamp": ""}
    on_demand = order_of(world, installation)
    await world.cloud.create(on_demand)
    assert not any("Spot" in name for name in world.front.wishes[-1])


async def test_a_machine_has_what_no_machine_may_lack(world: Ec2World, installation: str) -> None:
    order = order_of(world, installation)
    await world.cloud.create(msgspec.structs.replace(order, offer=_offer(REGION, spot=True)))
    (wish,) = world.front.wishes
    assert wish["MetadataOptions.HttpTokens"] == "required"
    assert wish["MetadataOptions.HttpPutResponseHopLimit"] == "1"
    assert wish["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert wish["ClientToken"] == order.token
    assert base64.b64decode(wish["UserData"]).decode() == order.user_data
    assert (wish["MinCount"], wish["MaxCount"]) == ("1", "1")
    assert wish["BlockDeviceMapping.1.DeviceName"] == "/dev/sda1"
    assert wish["BlockDeviceMapping.1.Ebs.DeleteOnTermination"] == "true"
    assert wish["BlockDeviceMapping.1.Ebs.VolumeSize"] == "100"
    assert wish["NetworkInterface.1.DeleteOnTermination"] == "true"
    assert wish["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"
    kinds = {wish[f"TagSpecification.{number}.ResourceType"] for number in (1, 2, 3)}
    assert kinds == {"instance", "volume", "network-interface"}
    tags = {
        wish[f"TagSpecification.2.Tag.{number}.Key"]: wish[f"TagSpecification.2.Tag.{number}.Value"]
        for number in (1, 2, 3, 4)
    }
    assert tags == {
        "Name": order.name,
        "fairlead-installation": installation,
        "fairlead-machine": order.machine_id,
        "fairlead-fleet": "burst",
    }


async def test_each_try_of_an_order_is_the_same_request(world: Ec2World, installation: str) -> None:
    order = order_of(world, installation)
    world.lose()
    with pytest.raises(CloudAway):
        await world.cloud.create(order)
    await world.cloud.create(order)
    first, second = world.front.wishes
    assert first == second


async def test_a_token_that_was_used_with_other_settings_finds_its_machine(
    world: Ec2World, account: Account, installation: str
) -> None:
    order = order_of(world, installation)
    made = await world.cloud.create(order)
    later = AwsProvider(regions=account.regions, endpoint=world.front.url, disk=1 << 37)
    after = AwsCloud("aws-eu", later, describe_every=0.0)
    try:
        world.front.hides = True
        # It may have been made: no other offer is tried before a list shows it.
        with pytest.raises(CloudAway):
            await after.create(order)
        world.front.hides = False
        assert (await after.create(order)).instance_id == made.instance_id
        await world.cloud.terminate(made.instance_id)
        with pytest.raises(Refused, match="has ended already"):
            await after.create(order)
    finally:
        await after.close()


async def test_the_token_of_a_machine_that_has_ended_is_a_refusal(
    world: Ec2World, installation: str
) -> None:
    order = order_of(world, installation)
    made = await world.cloud.create(order)
    await world.cloud.terminate(made.instance_id)
    with pytest.raises(Refused, match="has ended already"):
        await world.cloud.create(order)


async def test_a_machine_that_ec2_does_not_know_yet_is_not_gone(
    world: Ec2World, account: Account, installation: str
) -> None:
    made = await world.cloud.create(order_of(world, installation))
    config = AwsProvider(regions=account.regions, endpoint=world.front.url)
    patient = AwsCloud("aws-eu", config, describe_every=0.0, visible_after=3600.0)
    try:
        world.front.hides = True
        assert not await patient.terminate(made.instance_id)
        assert await patient.describe([made.instance_id]) == {}
        world.front.hides = False
        await ended(patient, made.instance_id)
    finally:
        await patient.close()


async def test_an_end_that_is_refused_since_the_machine_has_ended_is_done(
    world: Ec2World, installation: str
) -> None:
    made = await world.cloud.create(order_of(world, installation))
    world.front.ends_once = True
    world.front.fails["TerminateInstances"] = [Failure("OperationNotPermitted", "it is protected")]
    with pytest.raises(CloudError, match="it is protected"):
        await world.cloud.terminate(made.instance_id)
    assert [await world.cloud.terminate(made.instance_id) for _ in range(2)] == [False, True]
    world.front.fails["DescribeInstances"] = [Failure("Unavailable", "away", 503)] * 9
    with pytest.raises(CloudError, match="InvalidNetworkInterfaceID"):
        await world.cloud.terminate(made.instance_id)
    world.front.fails.clear()


async def test_a_list_has_all_pages_of_all_regions(world: Ec2World, installation: str) -> None:
    world.front.page = 1
    made = set()
    for region in (REGION, REGION, OTHER):
        order = msgspec.structs.replace(order_of(world, installation), offer=_offer(region))
        made.add((await world.cloud.create(order)).instance_id)
    assert {one.instance_id for one in await world.cloud.list_tagged(installation)} == made
    assert set(await world.cloud.describe(sorted(made))) == made


async def test_each_question_about_a_regions_machines_keeps_its_pace(
    world: Ec2World, account: Account, installation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []

    class Counted(Pace):
        def __init__(self, every: float) -> None:
            self._every_of = every
            super().__init__(0.0)

        @asynccontextmanager
        async def turn(self) -> AsyncIterator[None]:
            turns.append(self._every_of)
            async with super().turn():
                yield

    monkeypatch.setattr(aws_cloud, "Pace", Counted)
    cloud = AwsCloud("aws-eu", AwsProvider(regions=account.regions, endpoint=world.front.url))
    world.front.calls.clear()
    await cloud.list_tagged(installation)
    await cloud.describe([f"{REGION}/i-0123456789abcdef0"])
    await cloud.close()
    asked = {("DescribeInstances", REGION): 2, ("DescribeInstances", OTHER): 1}
    assert world.front.calls == asked
    assert turns == [5.0] * 3


async def test_a_region_that_does_not_answer_leaves_no_list(
    world: Ec2World, installation: str
) -> None:
    world.front.fails["DescribeInstances"] = [Failure("Unavailable", "away", 503)]
    with pytest.raises(CloudAway, match=r"describe_instances in \S+: away"):
        await world.cloud.list_tagged(installation)


async def test_one_question_asks_for_the_addresses_of_many_machines(
    world: Ec2World, account: Account, installation: str
) -> None:
    ids = [(await world.cloud.create(order_of(world, installation))).instance_id for _ in range(3)]
    world.front.calls.clear()
    assert len(await world.cloud.describe([*ids, f"{REGION}/i-0123456789abcdef0"])) == 3
    assert world.front.calls == {("DescribeInstances", REGION): 1}


async def test_offers_have_the_zones_of_the_subnets_and_the_prices_of_today(
    world: Ec2World,
) -> None:
    offers = (await world.cloud.offers()).offers
    assert {one.zone for one in offers if one.region == REGION} == {
        f"{REGION}{letter}" for letter in "abc"
    }
    (eight,) = [
        one
        for one in offers
        if (one.instance_type, one.zone, one.spot) == ("p5.48xlarge", f"{OTHER}a", False)
    ]
    assert (eight.gpus[0].count, eight.price) == (8, 55.04)
    assert not [one for one in offers if one.instance_type == "p5.48xlarge" and one.region != OTHER]
    by_key = {one.key: one.price for one in offers if not one.spot}
    for one in offers:
        if one.spot:
            assert one.price <= by_key[one.key.replace("/spot", "/on-demand")]
    await world.cloud.offers()
    assert world.front.calls["DescribeSpotPriceHistory", REGION] == 1


@pytest.mark.parametrize(
    ("present", "settings", "most"),
    [
        (0.5, {}, 0.55),
        (0.5, {"spot_margin": 0.0}, 0.5),
        (0.5, {"spot_margin": 0.5, "rate": 2.0}, 1.5),
        (0.95, {}, 1.0),
        (1.2, {}, 1.0),
    ],
)
async def test_a_spot_machine_is_never_charged_more_than_budgets_count(
    world: Ec2World,
    account: Account,
    installation: str,
    present: float,
    settings: dict[str, Any],
    most: float,
) -> None:
    world.front.spot_prices, world.front.zones = {"g6.xlarge": present}, (f"{REGION}a",)
    prices = {"g6.xlarge": 1.0}
    config = AwsProvider(
        regions=account.regions, endpoint=world.front.url, prices=prices, **settings
    )
    cloud = AwsCloud("aws-eu", config, describe_every=0.0, visible_after=0.0)
    try:
        (spot,) = [
            one
            for one in (await cloud.offers()).offers
            if (one.instance_type, one.zone, one.spot) == ("g6.xlarge", f"{REGION}a", True)
        ]
        assert spot.price == pytest.approx(most)
        order = msgspec.structs.replace(order_of(world, installation), offer=spot)
        await cloud.create(order)
        bid = float(world.front.wishes[-1]["InstanceMarketOptions.SpotOptions.MaxPrice"])
        assert spot.price / spot.rate - 1e-6 < bid <= spot.price / spot.rate + 1e-12
    finally:
        await cloud.close()


async def test_wrong_credentials_leave_no_offers(world: Ec2World) -> None:
    wrong = Failure("AuthFailure", "not valid", 401)
    world.front.fails["DescribeSpotPriceHistory"] = [wrong, wrong]
    with pytest.raises(Unauthorized, match="not valid"):
        await world.cloud.offers()


async def test_a_region_that_refuses_keeps_no_other_from_being_rented(world: Ec2World) -> None:
    world.front.fails["DescribeSpotPriceHistory"] = [Failure("OptInRequired", "not opted in", 403)]
    known = await world.cloud.offers()
    assert {one.region for one in known.offers} == {OTHER}
    assert list(known.unknown) == [REGION]
    assert "not opted in" in known.unknown[REGION]


async def test_a_region_that_is_not_enabled_is_thought_of(world: Ec2World) -> None:
    world.front.fails["DescribeSpotPriceHistory"] = [Failure("AuthFailure", "not valid", 401)]
    known = await world.cloud.offers()
    assert known.unknown[REGION].endswith(
        f"in {REGION}: not valid (AuthFailure); so refuses a region that the account has not "
        "enabled, too"
    )


async def test_a_missing_permission_is_told_without_what_nobody_can_read(
    world: Ec2World, installation: str
) -> None:
    message = (
        "You are not authorized to perform: ec2:RunInstances. Encoded authorization failure "
        f"message: {'aB3_-' * 300}"
    )
    world.front.fails["RunInstances"] = [Failure("UnauthorizedOperation", message, 403)]
    with pytest.raises(Unauthorized, match=r"to perform: ec2:RunInstances\. \(Unauth") as caught:
        await world.cloud.create(order_of(world, installation))
    assert "Encoded" not in str(caught.value)


async def test_the_account_is_that_of_the_credentials(world: Ec2World, account: Account) -> None:
    assert await world.cloud.account() == "123456789012"


async def test_an_account_that_is_not_told_is_not_asked_for_at_each_call(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{free_port()}")
    cloud = AwsCloud("aws-eu", AwsProvider(regions=account.regions, endpoint=account.url))
    asked = 0

    def caller() -> str:
        nonlocal asked
        asked += 1
        return caller_of()

    caller_of = cloud._calls._caller
    monkeypatch.setattr(cloud._calls, "_caller", caller)
    try:
        for _ in range(3):
            with pytest.raises(CloudAway, match="get_caller_identity"):
                await cloud.account()
        assert asked == 1
    finally:
        await cloud.close()


async def test_an_image_that_is_not_there_is_named_with_its_field(
    world: Ec2World, account: Account, installation: str
) -> None:
    where = msgspec.structs.replace(account.regions[REGION], image="ami-00000000000000000")
    config = AwsProvider(regions={REGION: where}, endpoint=world.front.url)
    cloud = AwsCloud("aws-eu", config)
    try:
        with pytest.raises(Refused, match=rf"providers\.aws-eu\.regions\.{REGION}\.image") as no:
            await cloud.create(order_of(world, installation))
        assert no.value.reach is Reach.REGION
    finally:
        await cloud.close()
    assert not world.front.wishes


@pytest.mark.parametrize(
    ("code", "message", "field", "reach"),
    [
        ("InvalidAMIID.Unavailable", "gone", f"regions.{REGION}.image", Reach.REGION),
        ("InvalidGroup.NotFound", "gone", f"regions.{REGION}.security_groups", Reach.REGION),
        ("InvalidKeyPair.NotFound", "gone", "key_name", Reach.REGION),
        (
            "InvalidParameterValue",
            "Value (jobs) for parameter iamInstanceProfile.name is invalid",
            "instance_profile",
            Reach.REGION,
        ),
        ("InvalidSubnetID.NotFound", "gone", f"regions.{REGION}.subnets.{REGION}a", Reach.ZONE),
        (
            "InvalidParameter",
            "Security group sg-1 and subnet subnet-1 belong to different networks.",
            f"regions.{REGION}.subnets.{REGION}a",
            Reach.ZONE,
        ),
    ],
)
async def test_a_refusal_of_what_the_file_names_tells_the_field_and_its_reach(
    world: Ec2World, installation: str, code: str, message: str, field: str, reach: Reach
) -> None:
    world.front.fails["RunInstances"] = [Failure(code, message)]
    with pytest.raises(Refused) as caught:
        await world.cloud.create(order_of(world, installation))
    assert str(caught.value).startswith(f"providers.aws-eu.{field}: run_instances")
    assert (code in str(caught.value), caught.value.reach) == (True, reach)


async def test_a_refusal_of_a_type_is_of_that_offer_alone(
    world: Ec2World, installation: str
) -> None:
    world.front.fails["RunInstances"] = [Failure("Unsupported", "not supported in this zone")]
    with pytest.raises(Refused, match="Unsupported") as caught:
        await world.cloud.create(order_of(world, installation))
    assert caught.value.reach is Reach.OFFER


async def test_a_check_names_the_field_of_a_subnet_that_is_not_there(world: Ec2World) -> None:
    world.front.fails["RunInstances"] = [Failure("InvalidSubnetID.NotFound", "gone")] * 9
    faults = [one.fault for one in await world.cloud.examine() if one.fault is not None]
    assert any(f"providers.aws-eu.regions.{REGION}.subnets.{REGION}a: " in one for one in faults)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"user_data": "x" * (MAX_USER_DATA + 1)}, "EC2 takes 16384"),
        ({"offer": _offer("eu-west-1")}, "names no subnet in eu-west-1a"),
    ],
)
async def test_what_ec2_would_refuse_is_not_asked(
    world: Ec2World, installation: str, change: dict[str, Any], why: str
) -> None:
    order = msgspec.structs.replace(order_of(world, installation), **change)
    with pytest.raises(Refused, match=why):
        await world.cloud.create(order)
    assert not world.front.wishes


async def test_secrets_are_in_no_error(world: Ec2World, installation: str) -> None:
    order = msgspec.structs.replace(order_of(world, installation), user_data="canary-of-boot")
    for failure in (Failure("InvalidParameterValue"), Failure("InternalError", "x", 500)):
        world.front.fails["RunInstances"] = [failure]
        with pytest.raises(CloudError) as caught:
            await world.cloud.create(order)
        assert "canary" not in str(caught.value)


async def test_prices_and_types_are_read_from_amazon(
    world: Ec2World, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", world.front.url)
    world.front.prices = {
        REGION: {"g6.xlarge": 1.5, "g5.24xlarge": 4.2},
        OTHER: {"t3.medium": 0.05},
    }
    await world.cloud.refresh()
    offers = [one for one in (await world.cloud.offers()).offers if not one.spot]
    prices = {(one.region, one.instance_type): one.price for one in offers}
    assert prices[REGION, "g6.xlarge"] == 1.5
    # The release does not know this type, which has a GPU.
    new = next(one for one in offers if one.instance_type == "g5.24xlarge")
    assert (new.price, new.gpus[0].name, new.gpus[0].count) == (4.2, "NVIDIA A10G", 4)
    assert prices[OTHER, "t3.medium"] == 0.05
    reading = world.cloud.catalog.reading
    assert reading is not None
    assert any("that of the release is kept" in note for note in reading.notes)
    # Nothing is offered where Amazon does not have it.
    for one in offers:
        kind = next(kind for kind in reading.types if kind.name == one.instance_type)
        assert one.zone in kind.zones[one.region]


async def test_one_region_that_refuses_leaves_the_refresh_of_the_others(
    world: Ec2World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", world.front.url)
    world.front.prices = {REGION: {"g6.xlarge": 1.5}, OTHER: {"t3.medium": 0.05}}
    await world.cloud.refresh()
    first = world.cloud.catalog.reading
    world.front.fails["DescribeInstanceTypes"] = [Failure("UnauthorizedOperation")]
    await world.cloud.refresh()
    reading = world.cloud.catalog.reading
    assert first is not None
    assert reading is not None
    assert set(reading.regions) == {REGION, OTHER}
    ((region, read_at),) = reading.older.items()
    assert read_at == first.read_at
    assert reading.notes[0].startswith(f"{region}: it was not read (")
    assert {one.name for one in reading.types} == {one.name for one in first.types}


async def test_without_the_price_list_the_releases_prices_stay(
    world: Ec2World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", world.front.url)
    before = {(one.key, one.price) for one in (await world.cloud.offers()).offers}
    world.front.prices = None
    await world.cloud.refresh()
    reading = world.cloud.catalog.reading
    assert reading is not None
    assert reading.notes[0].startswith(f"{REGION}: the price list was not told: get_products")
    assert set(reading.unpriced) == {REGION, OTHER}
    assert {(one.key, one.price) for one in (await world.cloud.offers()).offers} <= before


async def test_prices_that_were_read_once_outlast_a_price_list_that_fails(
    world: Ec2World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", world.front.url)
    world.front.prices = {REGION: {"g6.xlarge": 1.5}, OTHER: {"t3.medium": 0.05}}
    await world.cloud.refresh()
    first = world.cloud.catalog.reading
    before = {(one.key, one.price) for one in (await world.cloud.offers()).offers}
    world.front.prices = None
    await world.cloud.refresh()
    reading = world.cloud.catalog.reading
    assert first is not None
    assert reading is not None
    assert reading.older == dict.fromkeys((REGION, OTHER), first.read_at)
    assert f"{REGION}: it was not read (the price list was not told" in reading.notes[0]
    assert {(one.key, one.price) for one in (await world.cloud.offers()).offers} == before


def test_a_controller_without_such_a_provider_loads_nothing_of_it() -> None:
    code = (
        "import sys, controller.daemon.serving, controller.commands.serve, "
        "controller.machines.manager, controller.clouds.exec; "
        "sys.exit(any(name.startswith(('botocore', 'controller.clouds.aws')) "
        "for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_an_endpoint_at_which_nothing_answers_is_told_by_its_url(account: Account) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    cloud = AwsCloud("aws-eu", AwsProvider(regions=account.regions, endpoint=url))
    with pytest.raises(CloudAway, match=f"^describe_instances in .*: nothing answers at {url}/$"):
        await cloud.list_tagged("here")
    await cloud.close()


async def test_an_examination_makes_nothing_and_names_what_is_missing(
    world: Ec2World, account: Account, installation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", world.front.url)
    world.front.quotas = {"L-1216C47A": 64.0, "L-DB2E81BA": 0.0}
    world.front.fails["RunInstances"] = [Failure("UnauthorizedOperation", "no", 403)]
    examined = await world.cloud.examine()
    found = {one.what: one.fault for one in examined}
    notes = {one.what: one.note for one in examined}
    image = account.regions[REGION].image
    assert found[f"image {image} in {REGION}"] is None
    rights = [fault for what, fault in found.items() if what.startswith("rights to make")]
    assert len([fault for fault in rights if fault is None]) == len(rights) - 1
    assert found[f"quota of standard machines on demand in {REGION}: 64 vCPUs"] is None
    # No fault: an account need not have all kinds of machines.
    assert "0 vCPUs" in str(notes[f"quota of machines of G and VT on demand in {REGION}"])
    assert "no such quota" in str(notes[f"quota of spot machines of P in {REGION}"])
    assert sum(fault is not None for fault in found.values()) == 1
    assert all(wish["DryRun"] == "true" for wish in world.front.wishes)
    assert list(await world.cloud.list_tagged("check")) == []


@contextmanager
def made(account: Account, make: str, unmake: str, key: str, **wish: Any) -> Iterator[str]:
    """Make a thing of EC2 in `REGION`, and remove it afterwards; its id, which has this key."""
    ec2 = _client(account.url, REGION)
    try:
        answer = getattr(ec2, make)(**wish)
        found = str(answer[key] if key in answer else answer["Subnet"][key])
        yield found
        getattr(ec2, unmake)(**{key: found})
    finally:
        ec2.close()


async def faults_of(front: Ec2Front, region: AwsRegion, **more: Any) -> dict[str, str]:
    """Return the faults that a check of this region finds."""
    cloud = AwsCloud("eu", AwsProvider(regions={REGION: region}, endpoint=front.url, **more))
    try:
        return {one.what: str(one.fault) for one in await cloud.examine() if one.fault is not None}
    finally:
        await cloud.close()


@pytest.mark.parametrize(
    ("change", "more", "field", "code"),
    [
        ({"image": "ami-00000000000000000"}, {}, f"regions.{REGION}.image", "InvalidAMIID"),
        (
            {"security_groups": ("sg-00000000",)},
            {},
            f"regions.{REGION}.security_groups",
            "InvalidGroup.NotFound",
        ),
        (
            {"subnets": {f"{REGION}a": "subnet-00000000"}},
            {},
            f"regions.{REGION}.subnets.{REGION}a",
            "InvalidSubnetID.NotFound",
        ),
        ({}, {"key_name": "nobodys"}, "key_name", "InvalidKeyPair.NotFound"),
        ({}, {"instance_profile": "nobodys"}, "instance_profile", "NoSuchEntity"),
    ],
)
async def test_a_check_names_the_field_of_each_thing_that_is_not_there(
    world: Ec2World,
    account: Account,
    change: dict[str, Any],
    more: dict[str, Any],
    field: str,
    code: str,
) -> None:
    where = account.regions[REGION]
    assert await faults_of(world.front, where) == {}
    found = await faults_of(world.front, msgspec.structs.replace(where, **change), **more)
    (fault,) = found.values()
    assert fault.startswith(f"providers.eu.{field}: ")
    assert code in fault
    fix = "in this account" if field == "instance_profile" else f"in {REGION}"
    assert fault.endswith(f": name one that is {fix}")
    assert all(wish["DryRun"] == "true" for wish in world.front.wishes)


async def test_a_check_compares_what_the_file_names_with_each_other(
    world: Ec2World, account: Account
) -> None:
    where, zone, other = account.regions[REGION], f"{REGION}a", f"{REGION}b"
    crossed = {zone: where.subnets[other]}
    found = await faults_of(world.front, msgspec.structs.replace(where, subnets=crossed))
    assert found == {
        f"subnet {where.subnets[other]} in {zone}": (
            f"providers.eu.regions.{REGION}.subnets.{zone}: it is in zone {other}: name one of "
            f"{zone}"
        )
    }
    ec2 = _client(account.url, REGION)
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    try:
        with made(
            account,
            "create_subnet",
            "delete_subnet",
            "SubnetId",
            VpcId=vpc,
            CidrBlock="10.9.1.0/24",
            AvailabilityZone=zone,
        ) as subnet:
            apart = msgspec.structs.replace(where, subnets={zone: subnet})
            (fault,) = (await faults_of(world.front, apart)).values()
        assert fault.startswith(f"providers.eu.regions.{REGION}.subnets.{zone}: it is in network ")
        assert fault.endswith("name those of one network")
    finally:
        ec2.delete_vpc(VpcId=vpc)
        ec2.close()


@pytest.mark.parametrize(
    ("rule", "is_public", "is_let_in"),
    [
        (SSH_RULE, True, True),
        ({**SSH_RULE, "FromPort": 20, "ToPort": 25}, True, True),
        ({**SSH_RULE, "FromPort": 80, "ToPort": 80}, True, False),
        ({**SSH_RULE, "IpProtocol": "udp"}, True, False),
        ({"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}, True, True),
        ({"IpProtocol": "-1", "UserIdGroupPairs": ["itself"]}, True, False),
        ({"IpProtocol": "-1", "UserIdGroupPairs": ["itself"]}, False, True),
    ],
)
async def test_a_check_says_when_no_rule_lets_the_controller_in(
    world: Ec2World, account: Account, rule: dict[str, Any], is_public: bool, is_let_in: bool
) -> None:
    where = account.regions[REGION]
    ec2 = _client(account.url, REGION)
    (default,) = ec2.describe_security_groups(GroupIds=list(where.security_groups))[
        "SecurityGroups"
    ]
    ec2.close()
    wish = {"GroupName": "tried", "Description": "tried", "VpcId": default["VpcId"]}
    with made(account, "create_security_group", "delete_security_group", "GroupId", **wish) as id_:
        ec2 = _client(account.url, REGION)
        pairs = [{"GroupId": id_} for _ in rule.get("UserIdGroupPairs", ())]
        asked = {**rule, "UserIdGroupPairs": pairs} if pairs else rule
        ec2.authorize_security_group_ingress(GroupId=id_, IpPermissions=[asked])
        ec2.close()
        closed = msgspec.structs.replace(where, security_groups=(id_,))
        found = await faults_of(world.front, closed, is_public=is_public)
    told = f"providers.eu.regions.{REGION}.security_groups: no rule lets TCP port 22 in, so the "
    assert [one.startswith(told) for one in found.values()] == [True] * (not is_let_in)


async def test_what_only_a_check_reads_is_no_fault_without_its_rights(world: Ec2World) -> None:
    actions = ("DescribeSecurityGroups", "DescribeSubnets", "DescribeKeyPairs", "DescribeImages")
    for action in actions:
        world.front.fails[action] = [Failure("UnauthorizedOperation", "no", 403)] * 9
    examined = [one for one in await world.cloud.examine() if "quota" not in one.what]
    # The image is needed by orders, too.
    assert {one.what.partition(" ")[0] for one in examined if one.fault is not None} == {"rights"}
    notes = [str(one.note) for one in examined if one.what.startswith(("security", "subnet"))]
    assert notes
    assert all("its rights lack what examples/machines/aws-policy.json has" in one for one in notes)


async def test_the_policy_allows_each_call_and_no_call_that_is_not_made(
    world: Ec2World, account: Account, installation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(__file__).parents[3] / "examples/machines/aws-policy.json"
    statements = json.loads(file.read_text())["Statement"]
    each = [one["Action"] for one in statements]
    allowed = {one for found in each for one in ([found] if isinstance(found, str) else found)}
    ec2 = _client(account.url, REGION)
    ec2.create_key_pair(KeyName="operator")
    where = {REGION: account.regions[REGION]}
    config = AwsProvider(regions=where, endpoint=world.front.url, key_name="operator")
    cloud = AwsCloud("aws-eu", config, describe_every=0.0, visible_after=0.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", world.front.url)
    try:
        await cloud.examine()
        await cloud.offers()
        await cloud.refresh()
        made_one = await cloud.create(order_of(world, installation))
        await cloud.describe([made_one.instance_id])
        await cloud.console(made_one.instance_id)
        await cloud.list_tagged(installation)
        await cloud.terminate(made_one.instance_id)
    finally:
        await cloud.close()
        ec2.delete_key_pair(KeyName="operator")
        ec2.close()
    # RunInstances with tags is two actions.
    asked = {f"ec2:{action}" for action, _ in world.front.calls} | {"ec2:CreateTags"}
    assert asked == {one for one in allowed if one.startswith("ec2:")}
    assert allowed - asked == {
        "iam:CreateServiceLinkedRole",
        "iam:GetInstanceProfile",
        "pricing:GetProducts",
        "servicequotas:GetServiceQuota",
    }


async def test_what_the_file_names_in_vain_is_told(
    world: Ec2World, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", world.front.url)
    regions = {"sa-east-1": account.regions[REGION]}
    config = AwsProvider(regions=regions, endpoint=world.front.url, prices={"g6.xlrage": 0.9})
    cloud = AwsCloud("eu", config)
    faults = {one.what: str(one.fault) for one in await cloud.examine()}
    await cloud.close()
    assert faults["offers in sa-east-1"].startswith("providers.eu.regions.sa-east-1: the catalog")
    assert faults["price of g6.xlrage"].startswith("providers.eu.prices.g6.xlrage: the catalog")


def test_all_disks_of_an_image_end_with_their_machine() -> None:
    mappings = [
        {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 130, "DeleteOnTermination": True}},
        {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 10, "DeleteOnTermination": False}},
        {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"},
    ]
    image = image_of({"RootDeviceName": "/dev/xvda", "BlockDeviceMappings": mappings})
    root, other = disks_of(image, 100 << 30)
    assert (root["DeviceName"], root["Ebs"]["VolumeSize"]) == ("/dev/xvda", 130)
    assert (other["DeviceName"], other["Ebs"]) == ("/dev/sdb", {"DeleteOnTermination": True})
    assert root["Ebs"]["DeleteOnTermination"]
