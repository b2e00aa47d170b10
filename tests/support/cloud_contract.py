"""The promises of every provider of machines, whatever is behind it.

A test module gives a fixture `world`, a provider whose other side a test can make fail, and
inherits the tests.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Protocol

import pytest

from controller.clouds.base import (
    Cloud,
    CloudError,
    NoCapacity,
    Order,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
    made_by,
)
from controller.lifecycle.machines.model import Offer
from tests.support.waiting import LONG

_PAUSE = 0.01
DEFINITE = (NoCapacity, QuotaReached, Refused)
REFUSALS = (*DEFINITE, Throttled, Unauthorized)


class CloudWorld(Protocol):
    """A provider and its other side."""

    @property
    def cloud(self) -> Cloud: ...

    @property
    def offer(self) -> Offer:
        """One that can be had."""
        ...

    def refuse(self, error: type[CloudError]) -> None:
        """Have the other side refuse the next `create` so; it makes nothing."""
        ...

    def lose(self) -> None:
        """Have the next `create` do its work and lose its answer."""
        ...

    def cut(self) -> None:
        """Have the next list fail after a part of it."""
        ...


def order_of(world: CloudWorld, installation: str, machine_id: str | None = None) -> Order:
    """Return an order that nobody has made before."""
    machine_id = machine_id or uuid.uuid4().hex
    return Order(
        machine_id=machine_id,
        name=f"burst-{machine_id[:8]}",
        installation=installation,
        fleet="burst",
        offer=world.offer,
        token=machine_id,
        user_data="#cloud-config\n",
    )


async def ended(cloud: Cloud, instance_id: str) -> None:
    """Ask for the machine's end until it is gone."""
    async with asyncio.timeout(LONG):
        is_gone = await cloud.terminate(instance_id)
        while not is_gone:
            await asyncio.sleep(_PAUSE)
            is_gone = await cloud.terminate(instance_id)


@pytest.fixture
def installation() -> str:
    """Return the name of one that has no machines yet."""
    return uuid.uuid4().hex


class CloudContract:
    async def test_offers_are_of_this_provider_and_have_a_price(self, world: CloudWorld) -> None:
        offers = (await world.cloud.offers()).offers
        assert world.offer.key in {one.key for one in offers}
        assert all(one.price > 0 and one.cpu > 0 and one.memory > 0 for one in offers)
        assert {one.provider for one in offers} == {world.offer.provider}

    async def test_a_machine_is_listed_until_it_is_gone(
        self, world: CloudWorld, installation: str
    ) -> None:
        order = order_of(world, installation)
        made = await made_by(world.cloud, order)
        (listed,) = await world.cloud.list_tagged(installation)
        assert (listed.instance_id, listed.machine_id) == (made.instance_id, order.machine_id)
        assert listed.fleet == order.fleet
        assert listed.created_at > 1_600_000_000
        assert set(await world.cloud.describe([made.instance_id])) == {made.instance_id}

        await ended(world.cloud, made.instance_id)
        assert list(await world.cloud.list_tagged(installation)) == []
        assert await world.cloud.describe([made.instance_id]) == {}

    async def test_a_machine_gets_an_address(self, world: CloudWorld, installation: str) -> None:
        made = await made_by(world.cloud, order_of(world, installation))
        place = None
        async with asyncio.timeout(LONG):
            while place is None:
                place = (await world.cloud.describe([made.instance_id]))[made.instance_id].place
                await asyncio.sleep(_PAUSE)
        assert place.host or place.socket

    async def test_the_end_of_what_is_gone_is_no_error(
        self, world: CloudWorld, installation: str
    ) -> None:
        made = await made_by(world.cloud, order_of(world, installation))
        await ended(world.cloud, made.instance_id)
        assert await world.cloud.terminate(made.instance_id)

    async def test_another_installations_machines_are_not_listed(
        self, world: CloudWorld, installation: str
    ) -> None:
        await made_by(world.cloud, order_of(world, f"other-{installation}"))
        assert list(await world.cloud.list_tagged(installation)) == []

    async def test_machines_that_nobody_knows_are_left_out(
        self, world: CloudWorld, installation: str
    ) -> None:
        one = await made_by(world.cloud, order_of(world, installation))
        two = await made_by(world.cloud, order_of(world, installation))
        await ended(world.cloud, one.instance_id)
        known = await world.cloud.describe([one.instance_id, two.instance_id])
        assert set(known) == {two.instance_id}

    @pytest.mark.parametrize("error", REFUSALS)
    async def test_a_refusal_has_its_kind_and_makes_nothing(
        self, world: CloudWorld, installation: str, error: type[CloudError]
    ) -> None:
        world.refuse(error)
        with pytest.raises(CloudError) as caught:
            await made_by(world.cloud, order_of(world, installation))
        assert type(caught.value) is error
        assert str(caught.value)
        assert list(await world.cloud.list_tagged(installation)) == []

    async def test_a_lost_answer_is_no_refusal_and_leaves_one_machine(
        self, world: CloudWorld, installation: str
    ) -> None:
        order = order_of(world, installation)
        world.lose()
        with pytest.raises(CloudError) as caught:
            await made_by(world.cloud, order)
        assert not isinstance(caught.value, DEFINITE)
        if world.cloud.abilities.idempotent:
            again = (await made_by(world.cloud, order)).instance_id
        else:
            again = (await world.cloud.list_tagged(installation))[0].instance_id
        assert [one.instance_id for one in await world.cloud.list_tagged(installation)] == [again]

    async def test_a_list_that_is_not_whole_is_an_error(
        self, world: CloudWorld, installation: str
    ) -> None:
        for _ in range(2):
            await made_by(world.cloud, order_of(world, installation))
        world.cut()
        with pytest.raises(CloudError):
            await world.cloud.list_tagged(installation)
        assert len(await world.cloud.list_tagged(installation)) == 2

    async def test_the_console_is_text_or_nothing(
        self, world: CloudWorld, installation: str
    ) -> None:
        made = await made_by(world.cloud, order_of(world, installation))
        text = await world.cloud.console(made.instance_id)
        assert text is None or isinstance(text, str)
