"""A turn loop, a worker and a provider in memory: from a waiting job to a machine and back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from common.links.errors import LinkError
from common.refusals import Conflict, NotFound
from controller.api.views import job_view, run_summary
from controller.clock import month_began
from controller.clouds.base import (
    Abilities,
    Accepted,
    CloudAway,
    Created,
    NoCapacity,
    Order,
    Refused,
    Unauthorized,
)
from controller.lifecycle.events import NO_RUN
from controller.lifecycle.inventory import Budget, Fleet
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Machine, MachineEnd, MachineStatus, Offer, Reach
from controller.lifecycle.machines.reconcile import Found
from controller.lifecycle.model import NodeCapacity, NodeStatus, RunState
from controller.machines import supplies, worker
from controller.machines.manager import MachineManager, MachineSettings
from controller.pipelines.rentals import Pinned, Rentals, RentalSettings
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.service.machines.fleets import FleetService
from controller.service.machines.rented import RentedService
from controller.store.accounts import User
from controller.store.base import Changes
from controller.store.errors import StoreUnavailable
from fairlead.model.spec import Role
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud, MemoryInstance
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.support.waiting import LONG
from tests.unit.machines.parts import GIB, fleet, offer
from tests.unit.pipelines.parts import Ids, steady_chance
from tests.unit.scheduling import parts

ADMIN = User(name="ada", role=Role.ADMIN, created_at=0.0)


class Renting:
    """A controller's part for machines. `empty`: what shims say when they are asked; None: they do
    not answer."""

    def __init__(self, database: MemoryDatabase, cloud: MemoryCloud, burst: Fleet) -> None:
        self.cloud = cloud
        self.clock = ManualClock()
        self.store = MemoryStore(database, self.clock.now)
        self.empty: bool | None = True
        self.asked = 0
        self.setups: dict[str, str] = {}
        self._burst = burst

    async def begin(self) -> None:
        boot = await self.store.open()
        snapshot = await self.store.load()
        self.cloud.now = self.clock.now()
        chance = steady_chance()
        placement = JobSubmittedPipeline(Ids())
        settings = RentalSettings(
            installation=boot.installation_id,
            pin=lambda machine_id: Pinned(host_key=f"key {machine_id}", token_digest="d"),
            new_id=chance.new_id,
            month_of=month_began,
            setups=self.setups,
        )
        self.rentals = Rentals(
            placement.index, settings, snapshot.machines, events=snapshot.events_of_no_run
        )
        self.pipeline = RunPipeline(self.store, self.clock, chance, placement, self.rentals)
        self.pipeline.restore(snapshot.runs, snapshot.nodes, snapshot.fleets or (self._burst,))
        self.manager = MachineManager(
            self.rentals,
            self.pipeline.nodes,
            MachineSettings(
                clouds={"lab": self.cloud}, boot_data=lambda one: one.name, pin=settings.pin
            ),
            self.clock,
            installation=boot.installation_id,
            is_empty=self._is_empty,
        )
        self._work = [
            asyncio.create_task(self.pipeline.run()),
            asyncio.create_task(self.manager.run()),
        ]
        if not snapshot.fleets:
            await self.pipeline.save_fleet(self._burst, self._burst.name)

    async def _is_empty(self, machine_id: str) -> bool:
        self.asked += 1
        if self.empty is None:
            raise LinkError("no answer")
        return self.empty

    async def end(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.store.close()

    def only(self) -> Machine:
        (machine,) = self.rentals.committed.values()
        return machine

    def waits_for(self, run: RunState) -> str:
        """What the only job of the run waits for, as its user reads it."""
        (job,) = self.pipeline.known[run.run.id].jobs
        return job.attempts[-1].waits_for or ""

    async def until(self, wanted: Callable[[], bool], step: float = 0.6) -> None:
        """Let `step` seconds pass for each look."""
        async with asyncio.timeout(LONG):
            while not wanted():
                self.clock.time += step
                await self.pipeline.settled()
                await asyncio.sleep(0.01)

    async def after(self, seconds: float) -> None:
        end = self.clock.time + seconds
        await self.until(lambda: self.clock.time > end, step=6.0)

    async def until_status(self, status: MachineStatus) -> None:
        await self.until(
            lambda: any(one.status is status for one in self.rentals.committed.values()),
        )

    async def join(self) -> None:
        """Its machine boots and its node is connected."""
        await self.until(lambda: any(one.instance_id for one in self.rentals.committed.values()))
        await self.connect(next(iter(self.rentals.committed)))
        await self.until_status(MachineStatus.JOINED)

    async def connect(self, node_id: str, **more: Any) -> None:
        """Connect the node of a machine, with these fields."""
        capacity = NodeCapacity(cpu=4.0, memory=16 * GIB, disk=100 * GIB)
        fields = {"registration": None, "capacity": capacity} | more
        node = self.pipeline.nodes[node_id]
        await self.pipeline.save_node(replace(node, status=NodeStatus.CONNECTED, **fields), node_id)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds between two calls; the tests move the clock of decisions themselves."""
    for name in ("_FIRST_RETRY_SECONDS", "_FIRST_END_SECONDS", "_RELEASE_RETRY_SECONDS"):
        monkeypatch.setattr(worker, name, 0.01)
    monkeypatch.setattr(worker, "DESCRIBE_EVERY_SECONDS", 0.02)

    def soon(began: float, ended: float, now: float, **_: object) -> float:
        return max(0.0, ended + 0.02 - now)

    monkeypatch.setattr(worker, "until_next_list", soon)


@contextlib.asynccontextmanager
async def renting(
    cloud: MemoryCloud,
    burst: Fleet | None = None,
    database: MemoryDatabase | None = None,
    setups: dict[str, str] | None = None,
) -> AsyncIterator[Renting]:
    found = Renting(database or MemoryDatabase(), cloud, burst or fleet(idle_duration=60.0))
    found.setups = setups or {}
    await found.begin()
    try:
        yield found
    finally:
        await found.end()


async def test_a_waiting_job_gets_a_machine_and_the_machine_ends() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await lab.until_status(MachineStatus.PROVISIONING)
        (instance,) = await _made(lab)
        assert instance.order is not None
        assert instance.order.user_data == lab.only().name
        assert lab.pipeline.nodes[lab.only().id].status is NodeStatus.EXPECTED
        await lab.join()
        await lab.until(lambda: bool(lab.pipeline.runs_on(lab.only().id)))
        assert lab.only().idle_since is None


async def test_a_machine_whose_node_takes_no_work_yet_is_not_bought_twice() -> None:
    cloud, slow = MemoryCloud(offer()), "its engine does not answer: timed out"
    async with renting(cloud, fleet(boot_limit=300.0)) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await lab.until(lambda: any(one.instance_id for one in lab.rentals.committed.values()))
        machine = lab.only()
        await lab.connect(machine.id, unfit=slow)
        await lab.after(200.0)
        assert list(lab.rentals.committed) == [machine.id]
        (state,) = lab.pipeline.known.values()
        assert f"booting ({slow}), ordered at" in lab.waits_for(state)
        # One that never does is a failed boot: its offer is left out, and not bought for ever.
        await lab.after(200.0)
        assert lab.rentals.committed[machine.id].end is MachineEnd.BOOT_FAILED
        assert list(lab.rentals.committed) == [machine.id]
        refused = "has refused small in north-1 (on demand, 1 an hour): its node took no work"
        waits = lab.waits_for(state)
        assert refused in waits
        assert slow in waits


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


async def test_an_orphan_is_told_once_and_so_is_its_end() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()

    def told() -> list[str | None]:
        return [one.event.to_status for one in database.events if one.event.run_id == NO_RUN]

    async with renting(cloud, database=database) as lab:
        here, old = lab.manager.installation, lab.clock.now() - 60.0
        cloud.plant("aa", installation=here, created_at=old)
        await lab.until(lambda: bool(told()))
    async with renting(cloud, database=database) as lab:
        await lab.until(lambda: cloud.calls.count("list") > 4)
        assert told() == ["found"]
        lab.clock.time += 600.0
        await lab.until(lambda: len(told()) > 1)
        assert told() == ["found", "gone"]
        assert "terminate" in cloud.calls


async def test_an_orphan_ends_although_controllers_are_restarted_within_its_grace() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    for step in range(3):
        async with renting(cloud, database=database) as lab:
            lab.clock.time += 350.0 * step
            if step == 0:
                here, old = lab.manager.installation, lab.clock.now() - 60.0
                cloud.plant("aa", installation=here, created_at=old)
            await lab.until(lambda: bool(lab.manager.orphans) or "terminate" in cloud.calls)
            await lab.until(lambda: bool(database.events))
    assert "terminate" in cloud.calls


async def test_the_machine_of_a_check_is_not_told_as_an_orphan() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, database=database) as lab:
        trial = lab.manager.try_one("lab", offer(), "aa")
        await _made(lab)
        lab.clock.time += 60.0
        listed = cloud.calls.count("list")
        await lab.until(lambda: cloud.calls.count("list") > listed + 2)
        assert not trial.is_over
        assert (lab.manager.orphans, database.events) == ([], [])


async def test_the_event_of_an_orphan_outlasts_a_commit_that_fails() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, database=database) as lab:
        commit, fails = lab.store.commit, [StoreUnavailable("the disk is full")]

        async def refusing(changes: Changes) -> None:
            if changes.events and fails:
                raise fails.pop()
            await commit(changes)

        lab.store.commit = refusing  # type: ignore[method-assign]
        old = lab.clock.now() - 60.0
        cloud.plant("aa", installation=lab.manager.installation, created_at=old)
        await lab.until(lambda: bool(database.events))
        assert not fails
        assert [one.event.to_status for one in database.events] == ["found"]


async def test_users_read_which_machine_their_job_waits_for() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud) as lab:
        run = parts.run("hello")
        await lab.pipeline.admit(run)

        def shown() -> str:
            state = lab.pipeline.known[run.run.id]
            summary = run_summary(state, {}).pending_reason
            assert summary == job_view(state, state.jobs[0], {}).pending_reason
            return summary or ""

        await lab.until(lambda: "booting" in shown())
        assert "fleet burst rents a machine for it: small in north-1" in shown()
        await lab.join()
        await lab.until(lambda: not shown())


async def test_a_job_that_gets_no_machine_says_so_at_once() -> None:
    async with renting(MemoryCloud(offer()), fleet(max_price=0.5)) as lab:
        await lab.until(lambda: bool(lab.rentals.offers_of("lab")))
        # So the turn that admits the run looks at it; else no look follows for a minute.
        lab.clock.time += 5.0
        run = parts.run("hello")
        await lab.pipeline.admit(run)
        await lab.pipeline.settled()
        (job,) = lab.pipeline.known[run.run.id].jobs
        assert "burst rents no machine for it" in (job.attempts[-1].waits_for or "")
        assert job.attempts[-1].unrentable is not None


async def _made(lab: Renting) -> list[MemoryInstance]:
    await lab.until(lambda: bool(lab.cloud.instances))
    return list(lab.cloud.instances.values())


async def test_a_provider_that_tells_the_address_is_enough() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await _made(lab)
        next(iter(cloud.instances.values())).place = Place(host="10.0.0.5", port=2222)
        node_id = lab.only().id
        await lab.until(lambda: lab.pipeline.nodes[node_id].status is NodeStatus.CONNECTING)
        address = lab.pipeline.nodes[node_id].address
        assert (address.host, address.port, address.host_key) == (
            "10.0.0.5",
            2222,
            f"key {node_id}",
        )


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


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_controller_that_was_killed_finds_what_it_had_made(idempotent: bool) -> None:
    cloud = MemoryCloud(offer(), idempotent=idempotent)
    cloud.loses = ["create"]
    cloud.fails["create"] = [CloudAway("connection reset")] * 1000
    cloud.fails["list"] = [CloudAway("connection reset")] * 1000
    database = MemoryDatabase()
    async with renting(cloud, database=database) as lab:
        await lab.pipeline.admit(parts.run("hello"))
        await _made(lab)
    database.held = False
    cloud.fails.clear()
    async with renting(cloud, database=database) as lab:
        await lab.until(lambda: any(one.instance_id for one in lab.rentals.committed.values()))
        assert len(cloud.instances) == 1


async def test_an_idle_machine_is_given_back_only_when_its_shim_agrees() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1, idle_duration=60.0)) as lab:
        await lab.join()
        lab.empty = False
        await lab.pipeline.save_fleet(fleet(idle_duration=60.0), "burst")
        await lab.until(lambda: lab.asked > 0, 1.0)
        await lab.until(lambda: not lab.only().closing, 0.1)
        assert lab.only().status is MachineStatus.JOINED
        assert not lab.pipeline.nodes[lab.only().id].cordoned
        lab.empty = True
        await lab.until_status(MachineStatus.TERMINATED)
        assert cloud.instances == {}
        assert lab.pipeline.nodes == {}


async def test_a_machine_whose_node_comes_and_goes_is_given_back() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1, idle_duration=60.0)) as lab:
        await lab.join()
        lab.empty = None
        await lab.pipeline.save_fleet(fleet(idle_duration=60.0), "burst")
        await lab.until(lambda: lab.asked > 0, 1.0)
        start = lab.clock.time
        limit = worker.RELEASE_LIMIT_SECONDS
        await lab.until(lambda: lab.clock.time > start + limit - 120.0, 60.0)
        assert lab.only().closing
        await lab.until(lambda: not lab.only().is_live, 60.0)
        assert lab.only().message == "nothing used it, and its shim did not answer for 30 min"
        assert cloud.instances == {}


async def test_a_machine_without_a_record_ends_and_a_foreign_one_does_not() -> None:
    cloud = MemoryCloud(offer())
    orphan = cloud.plant("gone", installation="installation", created_at=0.0)
    foreign = cloud.plant("gone", installation="another", created_at=0.0)
    async with renting(cloud) as lab:
        await lab.until(lambda: bool(lab.manager.orphans))
        assert [one.instance_id for one in lab.manager.orphans] == [orphan]
        await lab.until(lambda: orphan not in cloud.instances, 60.0)
        assert foreign in cloud.instances


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


async def test_a_fault_in_the_calls_of_a_provider_does_not_end_the_controller() -> None:
    cloud = MemoryCloud(offer())
    for call in ("list", "describe", "create"):
        cloud.fails[call] = [ValueError("canary")]
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.until(lambda: not any(cloud.fails.values()))
        await lab.join()
        assert len(cloud.instances) == 1


async def test_a_fault_in_the_offers_of_a_provider_does_not_end_the_controller() -> None:
    cloud = MemoryCloud(offer())
    cloud.fails["offers"] = [ValueError("canary")]
    async with renting(cloud) as lab:
        await lab.until(lambda: not cloud.fails["offers"])
        listed, asked = cloud.calls.count("list"), cloud.calls.count("offers")
        await lab.until(lambda: cloud.calls.count("list") > listed + 2)
        await lab.until(lambda: cloud.calls.count("offers") > asked)
        assert cloud.instances == {}


async def test_machines_that_end_right_after_their_order_are_not_bought_for_ever() -> None:
    cloud = MemoryCloud(offer("first"), offer("second", price=2.0))
    async with renting(cloud, fleet(min=1)) as lab:
        for _ in range(2):
            await lab.until(lambda: bool(cloud.instances))
            await lab.until(lambda: all(one.instance_id for one in lab.rentals.committed.values()))
            cloud.instances.clear()
            await lab.after(60.0)
        await lab.after(400.0)
        ended = lab.rentals.committed.values()
        assert [(one.offer.instance_type, one.end) for one in ended] == [
            ("first", MachineEnd.BOOT_FAILED),
            ("second", MachineEnd.BOOT_FAILED),
        ]
        assert cloud.calls.count("create") == 2


async def test_machines_that_join_and_are_lost_soon_are_not_bought_for_ever() -> None:
    cloud = MemoryCloud(offer("first"), offer("second", price=2.0))
    async with renting(cloud, fleet(min=1)) as lab:
        for number in range(1, 3):
            await lab.until(lambda: bool(cloud.instances))
            (live,) = (one for one in lab.rentals.committed.values() if one.end is None)
            await lab.connect(live.id)
            await lab.until_status(MachineStatus.JOINED)
            node = lab.pipeline.nodes[live.id]
            await lab.pipeline.save_node(replace(node, status=NodeStatus.UNREACHABLE), node.id)
            cloud.instances.clear()
            await lab.until(lambda: all(one.end for one in lab.rentals.committed.values()))
            assert len(lab.rentals.committed) == number
            await lab.after(30.0)
        await lab.after(60.0)
        ended = lab.rentals.committed.values()
        assert [(one.offer.instance_type, one.end) for one in ended] == [
            ("first", MachineEnd.LOST),
            ("second", MachineEnd.LOST),
        ]
        assert cloud.calls.count("create") == 2
        # The first one may be tried again.
        await lab.until(lambda: cloud.calls.count("create") == 3, step=6.0)


async def test_machines_that_have_less_than_promised_are_not_bought_for_ever() -> None:
    cloud = MemoryCloud(offer(cpu=8.0))
    async with renting(cloud, fleet(idle_duration=60.0)) as lab:
        state = parts.run("large", cpu=8.0)
        await lab.pipeline.admit(state)
        await lab.join()
        first = lab.only()
        await lab.after(600.0)
        assert lab.only().end is MachineEnd.IDLE
        assert (
            "it needs 8 CPU, and the nearest offer, small, has 4 free of 4 "
            f"(machine {first.name} had less than the offer small says)"
        ) in lab.waits_for(state)
        # What such a machine does hold is bought.
        await lab.pipeline.admit(parts.run("fits", cpu=4.0))
        await lab.until(lambda: len(lab.rentals.committed) == 2)
        lab.manager.found_faultless("lab")
        await lab.until(lambda: len(lab.rentals.committed) == 3)


async def test_a_month_that_begins_has_a_budget_of_its_own() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(budget=Budget(per_month=2.1))) as lab:
        midnight = month_began(lab.clock.now() + 40 * 86400.0)
        lab.clock.time = midnight - 5400.0
        await lab.pipeline.admit(parts.run("first", cpu=4.0))
        await lab.join()
        lab.clock.time = midnight - 600.0
        second = parts.run("second", cpu=4.0)
        await lab.pipeline.admit(second)
        await lab.until(lambda: "fleet burst may cost 2.1 a month" in lab.waits_for(second))
        await lab.until(lambda: lab.clock.now() > midnight - 10.0, step=6.0)
        assert len(lab.rentals.committed) == 1
        await lab.until(lambda: len(lab.rentals.committed) == 2, step=6.0)
        assert midnight <= lab.clock.now() <= midnight + 70.0


async def test_a_machine_whose_node_was_removed_is_given_back() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.join()
        first = lab.only()
        await lab.pipeline.save_node(None, first.id)
        await lab.until(lambda: not lab.rentals.committed[first.id].is_live)
        assert lab.rentals.committed[first.id].end is MachineEnd.ASKED


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


@pytest.mark.parametrize("status", [MachineStatus.PROVISIONING, MachineStatus.JOINED])
async def test_a_machine_of_another_account_is_kept_until_that_account_is_back(
    status: MachineStatus,
) -> None:
    cloud = MemoryCloud(offer())
    cloud.uses = "first"
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.until(lambda: bool(cloud.instances))
        if status is MachineStatus.JOINED:
            await lab.join()
        machine = lab.only()
        assert machine.account == "first"
        there, cloud.instances, cloud.uses = cloud.instances, {}, "second"
        await lab.pipeline.save_node(None, machine.id)
        await lab.until(
            lambda: "account first" in (lab.rentals.committed[machine.id].trouble or "")
        )
        calls = len(cloud.calls)
        await lab.until(lambda: cloud.calls[calls:].count("list") > 5, 60.0)
        assert lab.rentals.committed[machine.id].status is MachineStatus.TERMINATING
        assert "terminate" not in cloud.calls
        # It may cost money as long as nobody knows its end, and nothing is made elsewhere.
        assert list(lab.rentals.committed) == [machine.id]
        assert cloud.instances == {}
        cloud.instances, cloud.uses = there, "first"
        await lab.until(lambda: not lab.rentals.committed[machine.id].is_live)
        assert "terminate" in cloud.calls


async def test_a_machine_of_an_account_that_nobody_uses_any_more_can_be_forgotten() -> None:
    cloud = MemoryCloud(offer())
    cloud.uses = "first"
    async with renting(cloud, fleet(min=1)) as lab:
        rented = RentedService(lab.pipeline, cast("FleetService", None), lab.clock, lab.manager)
        await lab.join()
        machine = lab.only()
        with pytest.raises(Conflict, match=f"fairlead node remove {machine.name} --lost"):
            await rented.forget(machine.name, ADMIN)
        cloud.instances, cloud.uses = {}, "second"
        await lab.pipeline.save_node(None, machine.id)
        await lab.until(lambda: _trouble(lab, machine).startswith("it is in account first"))
        gone = await rented.forget(machine.name, ADMIN)
        assert gone.status is MachineStatus.TERMINATED
        assert gone.message is not None
        assert "may still run in account first and cost money" in gone.message
        with pytest.raises(NotFound):
            await rented.forget(machine.name, ADMIN)
        await lab.until(lambda: bool(cloud.instances))
        (next_one,) = (one for one in lab.rentals.committed.values() if one.is_live)
        assert next_one.account == "second"


async def test_a_machine_that_its_provider_can_tell_of_is_not_forgotten() -> None:
    cloud = MemoryCloud(offer())
    cloud.uses = "first"
    cloud.fails["terminate"] = [CloudAway("500")] * 1000
    async with renting(cloud, fleet(min=1)) as lab:
        rented = RentedService(lab.pipeline, cast("FleetService", None), lab.clock, lab.manager)
        await lab.join()
        machine = lab.only()
        await lab.pipeline.save_node(None, machine.id)
        await lab.until(lambda: _trouble(lab, machine) == "500")
        with pytest.raises(Conflict, match="is being ended there"):
            await rented.forget(machine.id, ADMIN)


async def test_a_fleet_whose_provider_refuses_the_credentials_says_so_before_a_job_waits() -> None:
    cloud = MemoryCloud(offer())
    cloud.fails["offers"] = [Unauthorized("the file is empty")]
    burst = fleet()
    async with renting(cloud, burst) as lab:
        await lab.until(lambda: lab.rentals.why_never(burst) is not None)
        assert lab.rentals.why_never(burst) == (
            "it rents nothing now: the file is empty: see to the credentials of `providers.lab` "
            "and to their rights"
        )


async def test_a_fleet_with_rented_nodes_is_not_removed_and_says_how_they_end() -> None:
    async with renting(MemoryCloud(offer()), fleet(min=1)) as lab:
        await lab.join()
        fleets = FleetService(lab.pipeline, lab.clock, cast(Any, None))
        with pytest.raises(Conflict) as caught:
            await fleets.remove("burst", user=ADMIN)
        assert caught.value.field == "fleet"
        assert str(caught.value) == (
            f"fleet burst still has nodes: {lab.only().name}; move them (`fairlead node set NODE "
            f"--fleet OTHER`) or remove them; rented ones end with `machines: off` in its file"
        )


@pytest.mark.parametrize(
    ("call", "words"), [("list", "tells no list"), ("describe", "tells no addresses")]
)
async def test_a_provider_that_stays_away_is_logged_once_for_each_reason(
    call: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="controller.machines.worker")
    cloud = MemoryCloud(offer())
    cloud.fails[call] = [*[CloudAway("503")] * 5, *[CloudAway("504")] * 5]
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.until(lambda: not cloud.fails[call])
        await lab.until(lambda: cloud.calls.count(call) > 11)
    said = [one.getMessage() for one in caplog.records if words in one.getMessage()]
    assert said == [f"provider lab {words}: 503", f"provider lab {words}: 504"]


async def test_credentials_that_change_during_a_call_end_no_record() -> None:
    cloud = HastyCloud(offer())
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.join()
        machine = lab.only()
        await lab.pipeline.save_node(None, machine.id)
        await lab.until(lambda: _trouble(lab, machine).startswith("it is in account first"))
        assert lab.rentals.committed[machine.id].status is MachineStatus.TERMINATING
        cloud.instances, cloud.uses = cloud.first, "first"
        await lab.until(lambda: not lab.rentals.committed[machine.id].is_live)


def _trouble(lab: Renting, machine: Machine) -> str:
    return lab.rentals.committed[machine.id].trouble or ""


class HastyCloud(MemoryCloud):
    """Its credentials become those of another account during the first call for an end; `first`:
    the machines of the former one."""

    def __init__(self, *offers: Offer) -> None:
        super().__init__(*offers)
        self.uses, self.first = "first", dict[str, MemoryInstance]()

    async def terminate(self, instance_id: str) -> bool:
        if not self.first:
            self.first, self.instances, self.uses = self.instances, {}, "second"
        return await super().terminate(instance_id)


async def test_a_provider_whose_machines_are_in_another_account_rents_nothing() -> None:
    cloud = MemoryCloud(offer())
    cloud.uses = "first"
    database = MemoryDatabase()
    async with renting(cloud, fleet(min=1), database) as lab:
        await lab.pipeline.admit(parts.run("busy", cpu=4.0))
        await lab.join()
        name = lab.only().name
        await lab.until(lambda: bool(lab.pipeline.runs_on(lab.only().id)))
    database.held = False
    cloud.uses, cloud.instances = "second", {}
    async with renting(cloud, database=database) as lab:
        run = parts.run("hello", cpu=4.0)
        await lab.pipeline.admit(run)
        await lab.until(lambda: "account first" in lab.waits_for(run))
        told = f"provider lab of fleet burst rents nothing now: machine {name}: it is in"
        assert told in lab.waits_for(run)
        assert cloud.instances == {}


async def test_an_order_that_wrong_credentials_could_not_make_is_made_with_the_right_ones() -> None:
    cloud = MemoryCloud(offer())
    cloud.uses = "wrong"
    cloud.fails["create"] = [Unauthorized("not allowed")] * 1000
    database = MemoryDatabase()
    async with renting(cloud, fleet(min=1), database) as lab:
        await lab.until(
            lambda: bool(lab.rentals.committed) and "not allowed" in str(lab.only().trouble)
        )
        await lab.until(lambda: lab.only().account is None)
    database.held = False
    cloud.uses = "right"
    cloud.fails.clear()
    async with renting(cloud, database=database) as lab:
        await lab.until(lambda: bool(lab.only().instance_id))
        assert lab.only().account == "right"


async def test_an_order_that_was_never_sent_is_made_in_the_account_that_came_meanwhile() -> None:
    cloud = MemoryCloud(offer())
    cloud.uses = "first"
    async with renting(cloud) as lab:
        await lab.until(lambda: lab.rentals.account_of("lab") == "first")
        cloud.uses = "second"
        await lab.pipeline.admit(parts.run("hello"))
        await lab.until(lambda: bool(cloud.instances))
        await lab.until(lambda: bool(lab.only().instance_id))
        assert lab.only().account == "second"


async def test_an_order_whose_outcome_is_not_known_stays_in_its_account() -> None:
    cloud = MemoryCloud(offer())
    cloud.uses = "first"
    cloud.fails["create"] = [CloudAway("reset"), *[Unauthorized("not allowed")] * 1000]
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.until(
            lambda: bool(lab.rentals.committed) and "not allowed" in str(lab.only().trouble)
        )
        cloud.uses = "second"
        await lab.until(lambda: _trouble(lab, lab.only()).startswith("it is in account first"))
        calls = len(cloud.calls)
        await lab.until(lambda: cloud.calls[calls:].count("list") > 5)
        assert "create" not in cloud.calls[calls:]


async def test_nothing_is_rented_until_the_account_is_known() -> None:
    cloud = Nameless(offer())
    async with renting(cloud) as lab:
        run = parts.run("hello")
        await lab.pipeline.admit(run)

        await lab.until(
            lambda: "its account is not known: no way to the account" in lab.waits_for(run)
        )
        assert lab.rentals.committed == {}
        cloud.uses = "first"
        await lab.manager.offered("lab", await cloud.offers())
        await lab.until(lambda: bool(cloud.instances))
        assert lab.only().account == "first"


async def test_an_order_without_an_account_is_sent_once_the_account_is_known() -> None:
    cloud = Nameless(offer())
    cloud.uses = "wrong"
    cloud.fails["create"] = [Unauthorized("not allowed")] * 1000
    database = MemoryDatabase()
    async with renting(cloud, fleet(min=1), database) as lab:
        await lab.until(
            lambda: bool(lab.rentals.committed) and "not allowed" in str(lab.only().trouble)
        )
        await lab.until(lambda: lab.only().account is None)
    database.held = False
    cloud.uses = None
    cloud.fails.clear()
    calls = len(cloud.calls)
    async with renting(cloud, database=database) as lab:
        await lab.until(lambda: lab.only().trouble == "no way to the account service")
        assert "create" not in cloud.calls[calls:]
        cloud.uses = "right"
        await lab.until(lambda: bool(lab.only().instance_id))
        assert lab.only().account == "right"


class Nameless(MemoryCloud):
    """It cannot be asked for its account as long as that has no name."""

    async def account(self) -> str | None:
        if self.uses is None:
            raise CloudAway("no way to the account service")
        return self.uses


async def test_nothing_is_made_in_an_account_that_comes_during_the_look_for_a_former_try() -> None:
    cloud = ListsElsewhere(offer(), idempotent=False)
    cloud.fails["create"] = [CloudAway("reset")]
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.until(lambda: bool(lab.rentals.committed))
        machine = lab.only()
        await lab.until(lambda: _trouble(lab, machine).startswith("it is in account first"))
        await lab.until(lambda: cloud.calls.count("list") > 9)
        assert cloud.calls.count("create") == 1
        assert cloud.instances == {}
        cloud.uses = "first"
        await lab.until(lambda: bool(lab.only().instance_id))
        assert lab.only().account == "first"


class ListsElsewhere(MemoryCloud):
    """Its credentials become those of another account during the first list that is made for an
    order."""

    def __init__(self, *offers: Offer, idempotent: bool) -> None:
        super().__init__(*offers, idempotent=idempotent)
        self.uses = "first"
        self._is_moved = False
        self.abilities = Abilities(idempotent=idempotent, visible_after=0.0)

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        task = asyncio.current_task()
        if task is not None and task.get_name() == "machine" and not self._is_moved:
            self.uses, self._is_moved = "second", True
        return await super().list_tagged(installation)


async def test_machines_that_are_being_made_hold_up_no_other_call() -> None:
    cloud = SlowCloud(offer())
    async with renting(cloud, fleet(min=worker.CALLS_AT_ONCE + 4, max=99)) as lab:
        await lab.until(lambda: cloud.begun == worker.CALLS_AT_ONCE + 4)
        listed = cloud.calls.count("list")
        await lab.until(lambda: cloud.calls.count("list") > listed + 2)
        cloud.is_done.set()
        await lab.until(lambda: all(one.instance_id for one in lab.rentals.committed.values()))
        assert len(cloud.instances) == worker.CALLS_AT_ONCE + 4


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


def _is_not_allowed(lab: Renting) -> bool:
    return bool(lab.rentals.committed) and str(lab.only().trouble).startswith("not allowed: see to")
