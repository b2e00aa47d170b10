"""The example program for Lambda Cloud as a provider, on a double of its API."""

from __future__ import annotations

import email
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
from tests.doubles.lambda_cloud import KEY, LambdaDouble, LambdaFailure, lambda_cloud
from tests.support.cloud_contract import CloudContract, installation, order_of
from tests.support.installed import CHECKOUT
from tests.unit.machines.parts import GIB

__all__ = ["installation"]

PROGRAM = CHECKOUT / "examples/machines/lambda_cloud.py"
LAUNCH = "/instance-operations/launch"
NO_ROOM = LambdaFailure(400, "instance-operations/launch/insufficient-capacity")
FAILURES: dict[type[CloudError], LambdaFailure] = {
    NoCapacity: NO_ROOM,
    QuotaReached: LambdaFailure(400, "global/quota-exceeded"),
    Refused: LambdaFailure(400, "global/invalid-parameters"),
    Throttled: LambdaFailure(429, "global/too-many-requests"),
    Unauthorized: LambdaFailure(403, "global/account-inactive"),
}


class LambdaWorld:
    def __init__(self, other_side: LambdaDouble, folder: Path, *more: str) -> None:
        self.other_side = other_side
        self.key_file = folder / "key"
        self.key_file.write_text(f"{KEY}\n")
        command = [sys.executable, "-I", "-S", str(PROGRAM), "--ssh-key", "laptop"]
        command += ["--endpoint", other_side.url, "--key-file", str(self.key_file), *more]
        self.cloud = ExecCloud("lab", command, abilities=Abilities())
        self.offer = Offer(
            provider="lab",
            instance_type="gpu_1x_h100_sxm5",
            region="us-east-1",
            price=4.29,
            cpu=26.0,
            memory=int((225 * 0.975 - 0.5) * GIB),
            disk=int((2816 * 0.94 - 40) * GIB),
            gpus=(GpuOffer(name="NVIDIA H100", count=1, memory=80 * GIB),),
        )

    def refuse(self, error: type[CloudError]) -> None:
        self.other_side.fails[LAUNCH] = [FAILURES[error]]

    def lose(self) -> None:
        self.other_side.loses = True

    def cut(self) -> None:
        self.other_side.cuts = True


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LambdaWorld]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with lambda_cloud() as other_side:
        yield LambdaWorld(other_side, tmp_path)


class TestContract(CloudContract):
    pass


async def test_an_instance_is_launched_with_everything_that_the_order_has(
    world: LambdaWorld, installation: str
) -> None:
    order = order_of(world, installation)
    await world.cloud.create(order)
    (launch,) = world.other_side.launches
    marks = {one["key"]: one["value"] for one in launch.pop("tags")}
    assert marks.pop("fairlead-created").isdecimal()
    assert marks == {
        "fairlead-installation": installation,
        "fairlead-machine": order.machine_id,
        "fairlead-fleet": "burst",
    }
    assert launch == {
        "name": f"{order.name}-{order.token[:12]}",
        "region_name": "us-east-1",
        "instance_type_name": "gpu_1x_h100_sxm5",
        "ssh_key_names": ["laptop"],
        "user_data": order.user_data,
    }


async def test_an_order_that_is_repeated_finds_its_instance(
    world: LambdaWorld, installation: str
) -> None:
    order = order_of(world, installation)
    world.lose()
    with pytest.raises(CloudAway):
        await world.cloud.create(order)
    again = await world.cloud.create(order)
    assert again.instance_id in world.other_side.instances
    assert len(world.other_side.launches) == 1


async def test_offers_are_what_has_capacity_and_runs_the_bundle(world: LambdaWorld) -> None:
    offers = (await world.cloud.offers()).offers
    assert {(one.instance_type, one.region, one.price) for one in offers} == {
        ("gpu_1x_h100_sxm5", "us-east-1", 4.29),
        ("gpu_1x_h100_sxm5", "us-west-3", 4.29),
        ("cpu_4x_general", "us-east-1", 0.4),
    }
    assert world.offer in offers


async def test_only_the_named_regions_are_rented_in(world: LambdaWorld, tmp_path: Path) -> None:
    only = LambdaWorld(world.other_side, tmp_path, "--region", "us-west-3")
    assert [one.region for one in (await only.cloud.offers()).offers] == ["us-west-3"]


async def test_the_script_that_installs_the_bundle_runs_before_the_nodes_part(
    world: LambdaWorld, tmp_path: Path, installation: str
) -> None:
    script = tmp_path / "prepare.sh"
    script.write_text("#!/bin/sh\necho é\n")
    prepared = LambdaWorld(world.other_side, tmp_path, "--prepare", str(script))
    order = order_of(prepared, installation)
    await prepared.cloud.create(order)
    await prepared.cloud.create(order_of(prepared, installation))
    first, second = [one["user_data"] for one in world.other_side.launches]
    assert first == second
    parts = [
        (part.get_content_type(), part.get_payload(decode=True))
        for part in email.message_from_string(first).walk()
        if not part.is_multipart()
    ]
    assert parts == [
        ("text/cloud-boothook", script.read_bytes()),
        ("text/cloud-config", order.user_data.encode()),
    ]


@pytest.mark.parametrize(
    "failure",
    [
        LambdaFailure(500, "global/unknown"),
        LambdaFailure(400, "provider/internal-unavailable"),
        LambdaFailure(400, "a-code-of-tomorrow"),
    ],
)
async def test_a_fault_of_the_other_side_leaves_the_outcome_open(
    world: LambdaWorld, installation: str, failure: LambdaFailure
) -> None:
    world.other_side.fails[LAUNCH] = [failure]
    with pytest.raises(CloudAway, match=failure.code):
        await world.cloud.create(order_of(world, installation))


@pytest.mark.parametrize(
    ("code", "message", "reach"),
    [
        ("global/object-does-not-exist", "SSH key 'laptop' was not found", Reach.PROVIDER),
        ("global/invalid-parameters", "ssh_key_names: exactly one is needed", Reach.PROVIDER),
        ("global/invalid-parameters", "user_data is too long", Reach.PROVIDER),
        ("global/invalid-parameters", "Unknown region: us-east-1", Reach.REGION),
        ("global/invalid-parameters", "no such instance type", Reach.OFFER),
    ],
)
async def test_a_refusal_holds_for_the_offers_that_share_its_cause(
    world: LambdaWorld, installation: str, code: str, message: str, reach: Reach
) -> None:
    world.other_side.fails[LAUNCH] = [LambdaFailure(400, code, message)]
    with pytest.raises(Refused, match=message) as caught:
        await world.cloud.create(order_of(world, installation))
    assert caught.value.reach is reach


@pytest.mark.parametrize(
    ("headers", "seconds"), [({}, 12.0), ({"Retry-After": "30"}, 30.0), ({"Retry-After": "x"}, 12)]
)
async def test_a_throttled_launch_says_when_the_next_may_follow(
    world: LambdaWorld, installation: str, headers: dict[str, str], seconds: float
) -> None:
    world.other_side.fails[LAUNCH] = [LambdaFailure(429, "x", headers=headers)]
    with pytest.raises(Throttled) as caught:
        await world.cloud.create(order_of(world, installation))
    assert caught.value.after == seconds


async def test_an_endpoint_without_the_api_does_not_say_that_a_machine_is_gone(
    world: LambdaWorld, installation: str
) -> None:
    made = await world.cloud.create(order_of(world, installation))
    world.other_side.fails[f"/instances/{made.instance_id}"] = [LambdaFailure(404, "not-found")]
    with pytest.raises(CloudAway, match="not-found"):
        await world.cloud.terminate(made.instance_id)


async def test_a_wrong_key_is_told_without_it(world: LambdaWorld) -> None:
    world.key_file.write_text("canary-of-another")
    with pytest.raises(Unauthorized, match="API key was invalid") as caught:
        await world.cloud.offers()
    for wrong in ("", "canary and another", "canaryé"):
        world.key_file.write_text(wrong)
        with pytest.raises(Unauthorized, match="has no API key: one line") as unread:
            await world.cloud.offers()
    world.key_file.unlink()
    with pytest.raises(CloudAway, match=r"--key-file .*No such file") as missing:
        await world.cloud.offers()
    assert "canary" not in f"{caught.value} {unread.value} {missing.value}"


async def test_what_lambda_does_not_have_is_refused(world: LambdaWorld, installation: str) -> None:
    order = order_of(world, installation)
    spot = msgspec.structs.replace(world.offer, spot=True)
    with pytest.raises(Refused, match="no spot machines"):
        await world.cloud.create(msgspec.structs.replace(order, offer=spot))
    assert not world.other_side.calls
