"""Providers that refuse, lose answers, fail or are slow cost no machine and no controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from controller.clouds.base import (
    Abilities,
    Accepted,
    CloudAway,
    Created,
    NoCapacity,
    Order,
    Refused,
)
from controller.lifecycle.inventory import Budget
from controller.lifecycle.machines.model import MachineEnd, MachineStatus, Offer, Reach
from controller.lifecycle.machines.reconcile import Found
from controller.machines import calls, supplies
from controller.store.base import Changes
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.parts import fleet, offer
from tests.unit.machines.renting import quick, renting
from tests.unit.scheduling import parts

__all__ = ["quick"]


async def test_a_refused_offer_is_followed_by_the_next_one() -> None:
    cloud = MemoryCloud(offer("first"), offer("second", price=2.0))
    cloud.fails["create"] = [NoCapacity("none left")]
    async with renting(cloud) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await lab.until(lambda: bool(cloud.instances))
        ended = [one for one in lab.rentals.committed.values() if not one.is_live]
        assert [(one.offer.instance_type, one.end) for one in ended] == [
            ("first", MachineEnd.NO_CAPACITY)
        ]
        assert ended[0].id not in lab.pipeline.nodes


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_lost_answer_makes_no_second_machine(idempotent: bool) -> None:
    cloud = MemoryCloud(offer(), idempotent=idempotent)
    cloud.loses = ["create"]
    cloud.fails["create"] = [CloudAway("connection reset")]
    async with renting(cloud) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await lab.until(lambda: any(one.instance_id for one in lab.rentals.committed.values()))
        assert len(cloud.instances) == 1


async def test_a_wrong_image_has_one_refused_record_until_something_changes() -> None:
    wrong = "providers.lab.regions.north.image: there is no image ami-1 in north"
    cloud = MemoryCloud(*(offer(f"small{number}", price=1.0 + number) for number in range(8)))
    cloud.fails["create"] = [Refused(wrong, Reach.REGION) for _ in range(99)]
    database, setups = MemoryDatabase(), {"lab": "first"}

    def tries() -> int:
        return cloud.calls.count("create")

    async with renting(cloud, database=database, setups=setups) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await lab.after(240.0)
        assert tries() == 1
        (state,) = lab.pipeline.known.values()
        assert f"would be refused: {wrong}" in lab.waits_for(state)
    async with renting(cloud, database=database, setups=setups) as lab:
        await lab.after(240.0)
        assert tries() == 1
        lab.manager.found_faultless("lab")
        await lab.until(lambda: tries() == 2)
    # The file has another image now.
    cloud.fails["create"] = []
    async with renting(cloud, database=database, setups={"lab": "second"}) as lab:
        await lab.until(lambda: tries() == 3)
        await lab.until(lambda: len(cloud.instances) == 1)
        (state,) = lab.pipeline.known.values()
        assert lab.waits_for(state).startswith("fleet burst rents a machine for it: small0 ")


async def test_a_machine_whose_order_is_answered_during_the_look_for_it_is_not_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloud = AnswersLate(offer())
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.until(lambda: "create" in cloud.calls)
        machine = lab.only()
        await lab.pipeline.save_node(None, machine.id)
        await lab.until(lambda: lab.rentals.committed[machine.id].end is MachineEnd.ASKED)
        commit = lab.store.commit

        async def once_it_is_looked_for(changes: Changes) -> None:
            if cloud.answers.is_set():
                await cloud.is_looked_for.wait()
            await commit(changes)

        monkeypatch.setattr(lab.store, "commit", once_it_is_looked_for)
        cloud.answers.set()
        await lab.until(lambda: bool(lab.rentals.committed[machine.id].instance_id))
        cloud.lists.set()

        def is_gone() -> bool:
            return not lab.rentals.committed[machine.id].is_live

        await lab.until(lambda: is_gone() or cloud.calls.count("terminate") > 4)
        assert not is_gone()
        cloud.ends = True
        await lab.until(is_gone)


class AnswersLate(MemoryCloud):
    """Its answers to orders wait for `answers`; its lists wait for `lists` and have nothing. Its
    machines end once it `ends` them."""

    def __init__(self, *offers: Offer) -> None:
        super().__init__(*offers)
        self.abilities = Abilities(idempotent=True, visible_after=0.0)
        self.answers, self.lists = asyncio.Event(), asyncio.Event()
        self.is_looked_for = asyncio.Event()
        self.ends = False

    async def create(self, order: Order) -> Created:
        created = await super().create(order)
        await self.answers.wait()
        return created

    async def terminate(self, instance_id: str) -> bool:
        self._called("terminate")
        return self.ends

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        task = asyncio.current_task()
        if task is not None and task.get_name() == "machine":
            self.is_looked_for.set()
        await self.lists.wait()
        return []


async def test_a_list_that_fails_tells_nothing() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.join()
        cloud.instances.clear()
        cloud.fails["list"] = [CloudAway("a page is missing")] * 10_000
        called = len(cloud.calls)
        await lab.until(lambda: len(cloud.calls) > called + 5, 60.0)
        assert lab.only().status is MachineStatus.JOINED


async def test_offers_that_were_not_told_for_an_hour_are_not_bought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supplies, "OFFERS_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(supplies, "_OFFERS_SOON_SECONDS", 0.01)
    cloud = MemoryCloud(offer())
    async with renting(cloud) as lab:
        await lab.until(lambda: bool(lab.rentals.offers_of("lab")))
        cloud.fails["offers"] = [CloudAway("503")] * 100_000
        start = lab.clock.time
        await lab.until(lambda: lab.clock.time > start + 3000.0, 60.0)
        assert lab.rentals.offers_of("lab")
        await lab.until(lambda: not lab.rentals.offers_of("lab"), 60.0)
        assert lab.clock.time >= start + supplies.MAX_OFFERS_AGE_SECONDS - 60.0
        run = parts.run("hello")
        await lab.pipeline.admit(run)
        await lab.until(lambda: "have not been told for an hour: 503" in lab.waits_for(run))
        assert cloud.instances == {}
        cloud.fails.clear()
        await lab.until(lambda: bool(cloud.instances))


async def test_a_fault_in_the_calls_of_a_provider_does_not_end_the_controller() -> None:
    cloud = MemoryCloud(offer())
    for call in ("list", "describe", "create"):
        cloud.fails[call] = [ValueError("canary")]
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.until(lambda: not any(cloud.fails.values()))
        await lab.join()
        assert len(cloud.instances) == 1


async def test_a_fault_in_the_offers_of_a_provider_does_not_end_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supplies, "OFFERS_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(supplies, "_OFFERS_SOON_SECONDS", 0.02)
    cloud = MemoryCloud(offer())
    cloud.fails["offers"] = [ValueError("canary")]
    async with renting(cloud) as lab:
        await lab.until(lambda: not cloud.fails["offers"])
        listed, asked = cloud.calls.count("list"), cloud.calls.count("offers")
        await lab.until(lambda: cloud.calls.count("list") > listed + 2)
        await lab.until(lambda: cloud.calls.count("offers") > asked)
        assert cloud.instances == {}


async def test_an_end_is_asked_for_until_it_comes() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1, budget=Budget(per_hour=1.0))) as lab:
        await lab.join()
        first = lab.only()
        cloud.fails["terminate"] = [CloudAway("500")] * 3
        await lab.pipeline.save_node(None, first.id)
        await lab.until(lambda: lab.rentals.committed[first.id].trouble == "500", 0.1)
        assert len(lab.rentals.committed) == 1  # the budget counts it, so no other is ordered
        await lab.until(lambda: not lab.rentals.committed[first.id].is_live)
        assert lab.rentals.committed[first.id].trouble is None


@pytest.mark.parametrize(
    ("call", "words"), [("list", "tells no list"), ("describe", "tells no addresses")]
)
async def test_a_provider_that_stays_away_is_logged_once_for_each_reason(
    call: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="controller.machines.calls")
    cloud = MemoryCloud(offer())
    cloud.fails[call] = [*[CloudAway("503")] * 5, *[CloudAway("504")] * 5]
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.until(lambda: not cloud.fails[call])
        await lab.until(lambda: cloud.calls.count(call) > 11)
    said = [one.getMessage() for one in caplog.records if words in one.getMessage()]
    assert said == [f"provider lab {words}: 503", f"provider lab {words}: 504"]


async def test_machines_that_are_being_made_hold_up_no_other_call() -> None:
    cloud = SlowCloud(offer())
    async with renting(cloud, fleet(min=calls.CALLS_AT_ONCE + 4, max=99)) as lab:
        await lab.until(lambda: cloud.begun == calls.CALLS_AT_ONCE + 4)
        listed = cloud.calls.count("list")
        await lab.until(lambda: cloud.calls.count("list") > listed + 2)
        cloud.is_done.set()
        await lab.until(lambda: all(one.instance_id for one in lab.rentals.committed.values()))
        assert len(cloud.instances) == calls.CALLS_AT_ONCE + 4


class SlowCloud(MemoryCloud):
    """It accepts orders, and makes the machines once `is_done`."""

    begun = 0

    def __init__(self, *offers: Offer) -> None:
        super().__init__(*offers)
        self.is_done = asyncio.Event()

    async def create(self, order: Order) -> Accepted:  # type: ignore[override]
        self.begun += 1

        async def outcome() -> Created:
            await self.is_done.wait()
            return await MemoryCloud.create(self, order)

        return Accepted(outcome=outcome)


class OneForAll(MemoryCloud):
    """Answers each order with its first machine, as a program with a wrong cache does. `lists_as`:
    the record that its list says the machine is of."""

    lists_as: str | None = None

    async def create(self, order: Order) -> Created:
        if self.instances:
            return Created(instance_id=next(iter(self.instances)))
        return await super().create(order)

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        found = await super().list_tagged(installation)
        return [replace(one, machine_id=self.lists_as or one.machine_id) for one in found]


@pytest.mark.parametrize("is_listed_as_the_second", [False, True])
async def test_no_two_records_share_a_machine(is_listed_as_the_second: bool) -> None:
    cloud = OneForAll(offer())
    async with renting(cloud) as lab:
        await lab.pipeline.admit(parts.run("first", cpu=4.0))
        await lab.join()
        await lab.pipeline.admit(parts.run("second", cpu=4.0))
        await lab.until(lambda: any(not one.is_live for one in lab.rentals.committed.values()))
        first, second = lab.rentals.committed.values()
        assert (second.status, second.end) == (MachineStatus.TERMINATED, MachineEnd.REFUSED)
        assert f"answered with machine i-1, which is that of {first.name}" in (second.message or "")
        assert second.terminated_at == second.ordered_at, "it costs nothing"
        if is_listed_as_the_second:
            cloud.lists_as = second.id
        calls = cloud.calls.count("list")
        await lab.until(lambda: cloud.calls.count("list") > calls + 3, step=900.0)
        assert lab.manager.orphans == []
        assert "terminate" not in cloud.calls
        assert lab.rentals.committed[first.id].status is MachineStatus.JOINED
