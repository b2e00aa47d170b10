"""The cloud of Hetzner as a provider, on a double of its API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.clouds.base import (
    CloudAway,
    CloudError,
    Examined,
    NoCapacity,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
)
from controller.clouds.hetzner import MAX_USER_DATA, HetznerCloud
from controller.lifecycle.machines.model import Offer, Reach
from controller.provider_config.hetzner import HetznerProvider
from tests.doubles.hetzner import (
    IMAGE,
    NAMED_IMAGE,
    SSH_RULE,
    TOKEN,
    HetznerDouble,
    HetznerFailure,
    hetzner,
)
from tests.support.cloud_contract import CloudContract, installation, order_of
from tests.unit.machines.parts import GIB

__all__ = ["installation"]

SERVERS = ("POST", "/servers")
FAILURES: dict[type[CloudError], HetznerFailure] = {
    NoCapacity: HetznerFailure(412, "resource_unavailable"),
    QuotaReached: HetznerFailure(403, "resource_limit_exceeded"),
    Refused: HetznerFailure(422, "invalid_input"),
    Throttled: HetznerFailure(429, "rate_limit_exceeded"),
    Unauthorized: HetznerFailure(403, "forbidden"),
}


class HetznerWorld:
    def __init__(self, cloud: HetznerCloud, other_side: HetznerDouble) -> None:
        self.cloud = cloud
        self.other_side = other_side
        self.offer = Offer(
            provider="hz",
            instance_type="cx23",
            region="fsn1",
            price=0.006,
            cpu=2.0,
            memory=3 * GIB,
            disk=30 * GIB,
        )

    def refuse(self, error: type[CloudError]) -> None:
        self.other_side.fails[SERVERS] = [FAILURES[error]]

    def lose(self) -> None:
        self.other_side.loses = True

    def cut(self) -> None:
        self.other_side.page, self.other_side.cuts = 1, True


def config(folder: Path, url: str, **more: Any) -> HetznerProvider:
    file = folder / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    fields: dict[str, Any] = {"locations": ("fsn1",), "image": IMAGE, "firewalls": (7,)}
    fields |= more
    return HetznerProvider(token_file=file, endpoint=url, **fields)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HetznerWorld]:
    async with hetzner() as other_side:
        cloud = HetznerCloud("hz", config(tmp_path, other_side.url))
        yield HetznerWorld(cloud, other_side)
        await cloud.close()


class TestContract(CloudContract):
    pass


async def test_a_machine_is_made_of_everything_that_the_order_has(
    world: HetznerWorld, installation: str
) -> None:
    order = order_of(world, installation)
    made = await world.cloud.create(order)
    (wish,) = world.other_side.wishes
    assert wish == {
        "name": f"{order.name}-{order.token[:12]}",
        "server_type": "cx23",
        "location": "fsn1",
        "image": IMAGE,
        "user_data": order.user_data,
        "labels": {
            "fairlead-installation": installation,
            "fairlead-machine": order.machine_id,
            "fairlead-fleet": "burst",
        },
        "start_after_create": True,
        "public_net": {"enable_ipv4": True, "enable_ipv6": True},
        "firewalls": [{"firewall": 7}],
    }
    assert made.place is not None
    assert str(made.place.host).startswith("127.1.0.")


async def test_a_private_machine_is_reached_in_its_network(
    tmp_path: Path, installation: str
) -> None:
    async with hetzner() as other_side:
        settings = config(tmp_path, other_side.url, networks=(1,), is_public=False)
        cloud = HetznerCloud("hz", settings)
        made = await cloud.create(order_of(HetznerWorld(cloud, other_side), installation))
        await cloud.close()
    assert made.place is not None
    assert str(made.place.host).startswith("127.2.0.")


async def test_offers_are_what_the_image_runs_on_where_machines_may_be(
    world: HetznerWorld,
) -> None:
    offers = (await world.cloud.offers()).offers
    assert {(one.instance_type, one.region, one.price) for one in offers} == {
        ("cx23", "fsn1", 0.006),
        ("ccx63", "fsn1", 0.5),
    }
    small = next(one for one in offers if one.instance_type == "cx23")
    # What the kernel, the image and the shim keep is not for jobs.
    assert 3 * GIB < small.memory < 3.5 * GIB
    assert small.disk < 30 * GIB


async def test_a_type_is_offered_only_where_it_may_be_ordered_and_stays(tmp_path: Path) -> None:
    async with hetzner() as other_side:
        settings = config(tmp_path, other_side.url, locations=("fsn1", "hel1"))
        cloud = HetznerCloud("hz", settings)
        offers = (await cloud.offers()).offers
        assert {(one.instance_type, one.region) for one in offers} == {
            ("cx23", "fsn1"),
            ("cx23", "hel1"),
            ("ccx63", "fsn1"),
            ("ccx63", "hel1"),
            # `cpx11` ends in the other location, and a price is told where a type is not sold.
            ("cpx11", "hel1"),
        }
        other_side.tells_locations = False
        offers = (await cloud.offers()).offers
        assert {one.region for one in offers if one.instance_type == "cpx12"} == {"fsn1", "hel1"}
        await cloud.close()


async def test_a_new_token_of_the_same_project_changes_nothing(tmp_path: Path) -> None:
    async with hetzner() as other_side:
        settings = config(tmp_path, other_side.url)
        cloud = HetznerCloud("hz", settings)
        assert await cloud.account() == "firewall-7"
        settings.token_file.write_text("rotated")
        with pytest.raises(Unauthorized):
            await cloud.account()
        other_side.tokens = {"rotated"}
        assert await cloud.account() == "firewall-7"
        other_side.firewalls = {}
        assert await cloud.account() == "firewall-7"  # It is asked for once for each token.
        settings.token_file.write_text(TOKEN)
        other_side.tokens = {TOKEN}
        assert await cloud.account() == f"snapshot-{IMAGE}"
        await cloud.close()


async def test_a_project_without_things_of_its_own_is_known_by_its_token_or_a_name(
    tmp_path: Path,
) -> None:
    async with hetzner() as other_side:
        other_side.firewalls, other_side.image_type = {}, "system"
        other_side.tokens = {TOKEN, "another"}
        settings = config(tmp_path, other_side.url)
        cloud = HetznerCloud("hz", settings)
        first = await cloud.account()
        assert first.startswith("token-")
        assert TOKEN not in first
        settings.token_file.write_text("another")
        assert await cloud.account() != first
        settings.token_file.unlink()
        with pytest.raises(CloudAway, match=r"providers\.hz\.token_file"):
            await cloud.account()
        await cloud.close()
    named = HetznerCloud("hz", config(tmp_path, "http://127.0.0.1:9", project="lab"))
    assert await named.account() == "lab"


async def test_an_image_that_is_not_there_is_named_with_its_field(
    world: HetznerWorld, tmp_path: Path
) -> None:
    assert [one.fault for one in await world.cloud.examine()] == [None, None]
    assert await _faults(world, tmp_path, image=1) == [
        "providers.hz.image: GET /images/1: image not found (not_found): write the id of a "
        "snapshot of this project"
    ]
    assert await _faults(world, tmp_path, image="debian-99") == [
        "providers.hz.image: there is no image of the name debian-99: write the id of a snapshot "
        "of this project"
    ]
    world.other_side.image_status = "creating"
    assert await _faults(world, tmp_path) == [
        "providers.hz.image: it is creating: wait, or write the id of another snapshot"
    ]


async def test_an_image_that_no_machine_can_begin_from_is_named(
    world: HetznerWorld, tmp_path: Path
) -> None:
    (found, _) = await _examined(world, tmp_path, image=NAMED_IMAGE)
    assert found.fault is None
    assert str(found.note).startswith("providers.hz.image: it is of the type system")


async def test_an_image_by_its_name_is_what_machines_are_made_of(
    world: HetznerWorld, tmp_path: Path, installation: str
) -> None:
    cloud = HetznerCloud("hz", config(tmp_path, world.other_side.url, image=NAMED_IMAGE))
    await cloud.create(order_of(world, installation))
    await cloud.close()
    assert [one["image"] for one in world.other_side.wishes] == [NAMED_IMAGE]


async def test_what_an_order_names_and_the_project_lacks_is_named_with_its_field(
    world: HetznerWorld, tmp_path: Path
) -> None:
    there: dict[str, Any] = {"ssh_keys": (5, "operator"), "firewalls": (7,), "networks": (1,)}
    assert await _faults(world, tmp_path, **there) == []
    missing: dict[str, Any] = {"ssh_keys": (6, "nobody"), "firewalls": (8,), "networks": (2,)}
    fix = "name one of this project, or take it out"
    assert await _faults(world, tmp_path, **missing) == [
        f"providers.hz.ssh_keys: GET /ssh_keys/6: SSH key not found (not_found): {fix}",
        f"providers.hz.ssh_keys: there is no SSH key of the name nobody: {fix}",
        f"providers.hz.networks: GET /networks/2: network not found (not_found): {fix}",
        f"providers.hz.firewalls: GET /firewalls/8: firewall not found (not_found): {fix}",
    ]


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "unavailable"), (429, "rate_limit_exceeded"), (403, "forbidden")],
)
async def test_a_check_that_fails_for_another_cause_says_nothing_of_what_is_named(
    world: HetznerWorld, tmp_path: Path, status: int, code: str
) -> None:
    failure = HetznerFailure(status, code, "not now")
    world.other_side.fails = {
        # The double counts each thing by its id under this path.
        ("GET", "/servers/ID"): [failure] * 3,
        ("GET", "/ssh_keys"): [failure],
        ("GET", "/images"): [failure],
    }
    there: dict[str, Any] = {"ssh_keys": ("operator",), "networks": (1,), "firewalls": (7,)}
    # A name for its account, which is else one of these things.
    named = {"image": NAMED_IMAGE, "project": "lab"}
    assert await _faults(world, tmp_path, **there, **named) == [
        f"providers.hz.{field}: GET /{path}: not now ({code})"
        for field, path in [
            ("image", "images"),
            ("ssh_keys", "ssh_keys"),
            ("networks", "networks/1"),
            ("firewalls", "firewalls/7"),
        ]
    ]


@pytest.mark.parametrize(
    ("rule", "is_open"),
    [
        ({}, True),
        ({"port": "20-25"}, True),
        ({"port": "any"}, True),
        ({"port": "80-85"}, False),
        ({"direction": "out"}, False),
        ({"protocol": "udp"}, False),
        ({"protocol": "icmp", "port": None}, False),
    ],
)
async def test_firewalls_that_keep_the_controller_out_are_named(
    world: HetznerWorld, tmp_path: Path, rule: dict[str, Any], is_open: bool
) -> None:
    world.other_side.firewalls[7] = [{"direction": "in", "protocol": "icmp"}, SSH_RULE | rule]
    found = await _faults(world, tmp_path)
    shut = ["providers.hz.firewalls: no rule lets TCP port 22 in, so the controller reaches no"]
    assert [one[: len(shut[0])] for one in found] == ([] if is_open else shut)
    # Hetzner asks no firewall about what comes from a private network.
    assert await _faults(world, tmp_path, networks=(1,), is_public=False) == []


async def test_an_answer_that_is_not_hetzners_names_the_endpoint(
    world: HetznerWorld, tmp_path: Path
) -> None:
    cloud = HetznerCloud("hz", config(tmp_path, f"{world.other_side.url}/v9"))
    with pytest.raises(CloudAway) as caught:
        await cloud.offers()
    await cloud.close()
    assert str(caught.value) == (
        "GET /server_types: status 404, in words that are not of Hetzner's API: see to "
        "providers.hz.endpoint, and to proxies on the way"
    )


async def _examined(world: HetznerWorld, folder: Path, **more: Any) -> list[Examined]:
    cloud = HetznerCloud("hz", config(folder, world.other_side.url, **more))
    found = list(await cloud.examine())
    await cloud.close()
    return found


async def _faults(world: HetznerWorld, folder: Path, **more: Any) -> list[str]:
    return [one.fault for one in await _examined(world, folder, **more) if one.fault is not None]


async def test_a_location_in_which_nothing_is_rented_is_named(
    world: HetznerWorld, tmp_path: Path
) -> None:
    locations = ("fsn1", "fsn9")
    cloud = HetznerCloud("hz", config(tmp_path, world.other_side.url, locations=locations))
    found = (await cloud.examine())[0]
    await cloud.close()
    assert str(found.fault).startswith("providers.hz.locations: Hetzner rents no type")
    assert "fsn9" in str(found.fault)


async def test_a_name_that_another_owner_has_is_a_refusal(
    world: HetznerWorld, installation: str
) -> None:
    order = order_of(world, installation)
    await world.cloud.create(order)
    other = msgspec.structs.replace(order, installation="another")
    with pytest.raises(Refused, match="another owner"):
        await world.cloud.create(other)


async def test_a_name_that_no_list_shows_yet_leaves_the_outcome_open(
    world: HetznerWorld, installation: str
) -> None:
    world.other_side.fails[SERVERS] = [HetznerFailure(409, "uniqueness_error")]
    with pytest.raises(CloudAway):
        await world.cloud.create(order_of(world, installation))


@pytest.mark.parametrize(
    "failure",
    [
        HetznerFailure(503, "unavailable"),
        HetznerFailure(500, "server_error"),
        HetznerFailure(423, "locked"),
    ],
)
async def test_a_fault_of_the_other_side_leaves_the_outcome_open(
    world: HetznerWorld, installation: str, failure: HetznerFailure
) -> None:
    world.other_side.fails[SERVERS] = [failure]
    with pytest.raises(CloudAway, match=failure.code):
        await world.cloud.create(order_of(world, installation))


async def test_a_wrong_token_is_told_without_it(tmp_path: Path) -> None:
    async with hetzner() as other_side:
        settings = config(tmp_path, other_side.url)
        settings.token_file.write_text("canary-of-another")
        cloud = HetznerCloud("hz", settings)
        with pytest.raises(Unauthorized) as caught:
            await cloud.offers()
        settings.token_file.write_bytes(b"canary\xe8\nof-another")
        with pytest.raises(CloudAway, match="has no token: one line") as wrong:
            await cloud.offers()
        settings.token_file.unlink()
        with pytest.raises(CloudAway) as unread:
            await cloud.offers()
        await cloud.close()
    assert "canary" not in f"{caught.value} {wrong.value} {unread.value}"


@pytest.mark.parametrize(
    ("failure", "names", "reach"),
    [
        (HetznerFailure(404, "not_found", "image not found"), "image: POST", Reach.PROVIDER),
        (HetznerFailure(404, "not_found", "SSH key not found"), "ssh_keys: POST", Reach.PROVIDER),
        (
            HetznerFailure(422, "invalid_input", "wrong", {"fields": [{"name": "firewalls"}]}),
            "firewalls: POST",
            Reach.PROVIDER,
        ),
        (
            HetznerFailure(404, "not_found", "no such thing"),
            "see to image, ssh_keys, firewalls, networks of providers.hz",
            Reach.PROVIDER,
        ),
        (HetznerFailure(404, "not_found", "server type not found"), "server type", Reach.OFFER),
        # A larger server type, or one of the image's architecture, would do.
        (
            HetznerFailure(
                422, "invalid_input", "image disk is bigger than server type disk", {"fields": []}
            ),
            "image: POST .*bigger",
            Reach.OFFER,
        ),
        (
            HetznerFailure(422, "invalid_input", "network is not in the server's location"),
            "networks: POST",
            Reach.OFFER,
        ),
        (HetznerFailure(422, "invalid_input", "wrong", ["user_data"]), "wrong", Reach.OFFER),
    ],
)
async def test_a_part_of_an_order_that_is_not_there_is_a_refusal(
    world: HetznerWorld, installation: str, failure: HetznerFailure, names: str, reach: Reach
) -> None:
    world.other_side.fails[SERVERS] = [failure]
    with pytest.raises(Refused, match=names) as caught:
        await world.cloud.create(order_of(world, installation))
    assert caught.value.reach is reach


async def test_what_hetzner_would_refuse_is_not_asked(
    world: HetznerWorld, installation: str
) -> None:
    order = order_of(world, installation)
    long = msgspec.structs.replace(order, user_data="x" * (MAX_USER_DATA + 1))
    with pytest.raises(Refused, match="Hetzner takes 32768"):
        await world.cloud.create(long)
    elsewhere = msgspec.structs.replace(world.offer, region="ash")
    with pytest.raises(Refused, match="does not name ash"):
        await world.cloud.create(msgspec.structs.replace(order, offer=elsewhere))
    assert not world.other_side.wishes
