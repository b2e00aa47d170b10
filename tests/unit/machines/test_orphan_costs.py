"""What machines cost that no record knows: budgets count it (docs/rules.md 12.7, 12.9)."""

from __future__ import annotations

from typing import Any

import pytest

from controller.clouds.base import CloudAway
from controller.lifecycle.inventory import Budget, Fleet, Spending
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.machines.orphans import (
    KnownOrphan,
    OrphanMachines,
    OrphanStatus,
    OrphanTerms,
)
from controller.lifecycle.machines.reconcile import ORPHAN_GRACE_SECONDS, Orphan, Traits
from controller.lifecycle.orphan_events import OrphanBook
from controller.machines.manager import UNLISTED
from controller.scheduling.index import CapacityIndex
from controller.service.machines.costs import CostService
from controller.store.accounts import User
from fairlead.model.costs import CostKey
from fairlead.model.spec import Role
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.looking import look, sentences, waiting
from tests.unit.machines.parts import NOW, fleet, known_orphan, machine, offer, rentals_of, shop
from tests.unit.machines.renting import ADMIN, Renting, quick, renting
from tests.unit.machines.test_ended_orphans import RESTORED_AT, planted, service_of
from tests.unit.scheduling import parts

__all__ = ["quick"]

HOUR = 3600.0
SMALL = Traits(instance_type="small", region="north", zone="north-1")


@pytest.mark.parametrize(
    ("spending", "own", "found", "why"),
    [
        (Spending(), Budget(per_hour=1.5), known_orphan(), "fleet burst may cost 1.50 an hour"),
        (Spending(), Budget(per_month=2.5), known_orphan(), "fleet burst may cost 2.50 a month"),
        (Spending(), Budget(per_hour=1.5), known_orphan(fleet="other"), None),
        (Spending(), Budget(per_hour=1.5), known_orphan(price=None), None),
        (
            Spending(together=Budget(per_hour=1.5)),
            None,
            known_orphan(fleet=None),
            "this installation",
        ),
        (Spending(each_user=Budget(per_hour=1.5)), None, known_orphan(), None),
        (
            Spending(each_user=Budget(per_hour=1.5)),
            None,
            known_orphan(user="ada"),
            "user ada may cost",
        ),
    ],
    ids=str,
)
def test_budgets_count_it_that_its_tags_name(
    spending: Spending, own: Budget | None, found: KnownOrphan, why: str | None
) -> None:
    market = shop(offer(), spending=spending, orphans=OrphanMachines().of([found], NOW))
    looked = look(waiting(1, fleet(budget=own)), market)
    assert len(looked.orders) == (0 if why else 1)
    if why is not None:
        (told,) = sentences(looked)
        assert told.startswith(why)
        assert "(1 of them without a record: `fairlead machine orphans`)" in told


def test_the_month_still_counts_what_is_gone_and_the_hour_does_not() -> None:
    gone = known_orphan(status=OrphanStatus.GONE, gone_at=NOW)
    orphans = OrphanMachines().of([gone], NOW)
    hourly = look(waiting(1, fleet(budget=Budget(per_hour=1.0))), shop(offer(), orphans=orphans))
    assert len(hourly.orders) == 1
    monthly = fleet(budget=Budget(per_month=1.5))
    assert look(waiting(1, monthly), shop(offer(), orphans=orphans)).orders == ()


def test_no_place_of_the_fleet_is_taken_by_it() -> None:
    market = shop(offer(), orphans=OrphanMachines().of([known_orphan()], NOW))
    assert len(look(waiting(1, fleet(max=1)), market).orders) == 1


def listed(book: OrphanBook, terms: OrphanTerms, **more: Any) -> KnownOrphan:
    fields: dict[str, Any] = {
        "machine_id": "m9",
        "created_at": NOW - HOUR,
        "seen_at": NOW,
        "fleet": "burst",
        "traits": SMALL,
    }
    book.listed("lab", [Orphan(provider="lab", instance_id="i-1", **(fields | more))])
    book.offer(NOW, terms)
    book.committed()
    (found,) = book.there
    return found


OFFERS = {
    "lab": [
        offer(price=1.0),
        offer(price=0.3, spot=True),
        offer(zone="north-2", price=1.2),
        offer("reserved", price=0.0, reservation="r"),
        offer("huge", price=30.0),
    ]
}


@pytest.mark.parametrize(
    ("traits", "own", "price"),
    [
        (SMALL, fleet(), 1.0),
        (Traits(instance_type="small", region="north", zone="north-1", spot=True), fleet(), 0.3),
        # Its zone rents it no more, so the dearest of its type counts.
        (Traits(instance_type="small", region="north", zone="north-9"), fleet(), 1.2),
        (Traits(), fleet(), 30.0),
        (Traits(), fleet(max_price=2.0), 1.2),
        (Traits(instance_type="withdrawn"), fleet(max_price=2.0), 1.2),
        (Traits(instance_type="withdrawn"), fleet(provider="other"), None),
        (Traits(), fleet("another"), None),
    ],
    ids=str,
)
def test_its_price_is_that_of_the_nearest_that_is_known(
    traits: Traits, own: Fleet, price: float | None
) -> None:
    terms = OrphanTerms(OFFERS, {own.name: own})
    assert listed(OrphanBook(), terms, traits=traits).price == price


def test_its_price_is_that_of_its_order_where_the_record_is_known() -> None:
    ended = machine("m9", offer=offer(price=7.0), status=MachineStatus.TERMINATED, user="ada")
    found = listed(OrphanBook(), OrphanTerms(OFFERS, {}, {"m9": ended}))
    assert (found.price, found.user) == (7.0, "ada")


def test_a_price_that_is_known_stays_and_one_that_was_not_comes_later() -> None:
    book = OrphanBook()
    assert listed(book, OrphanTerms()).price is None
    assert book.offer(NOW, OrphanTerms(OFFERS)) == ()  # Nothing has changed.
    book.terms_changed()
    assert book.offer(NOW, OrphanTerms(OFFERS)) == ()
    assert [one.price for one in book.offered.values()] == [1.0]
    book.committed()
    dearer = {"lab": [offer(price=50.0)]}
    assert listed(book, OrphanTerms(dearer)).price == 1.0


def test_what_has_just_ended_and_is_still_listed_costs_nothing_before_its_grace() -> None:
    ended = machine("m9", status=MachineStatus.TERMINATED, terminated_at=NOW - 1.0)
    found = listed(OrphanBook(), OrphanTerms(OFFERS, {}, {"m9": ended}))
    assert OrphanMachines().of([found], NOW + ORPHAN_GRACE_SECONDS - 1.0) == ()
    assert len(OrphanMachines().of([found], NOW + ORPHAN_GRACE_SECONDS)) == 1
    second = listed(OrphanBook(), OrphanTerms(OFFERS, {}, {"m9": ended}), is_duplicate=True)
    assert second.costs_since == NOW - HOUR
    no_time = listed(OrphanBook(), OrphanTerms(OFFERS), created_at=0.0)
    assert no_time.costs_since == NOW


def test_what_is_gone_before_it_costs_something_is_forgotten() -> None:
    book = OrphanBook([known_orphan(id="o2", instance_id="i-2", costs_since=NOW + HOUR)])
    assert [one.id for one in book.committed_ones] == ["o2"]
    book.listed("lab", ())
    (event,) = book.offer(NOW)
    assert event.to_status == "gone"
    (row,) = book.offered.values()
    assert row.gone_at == NOW
    book.committed()
    assert [*book.committed_ones, *OrphanBook([row]).committed_ones] == []
    cost = known_orphan(status=OrphanStatus.GONE, gone_at=NOW)
    assert OrphanBook([cost]).committed_ones == (cost,)


def test_a_clock_that_is_put_back_makes_no_room_in_a_budget() -> None:
    for found in (known_orphan(), listed(OrphanBook(), OrphanTerms(OFFERS), created_at=NOW + 5.0)):
        orphans = OrphanMachines().of([found], NOW - 2 * HOUR)
        market = shop(offer(), orphans=orphans)
        cluster = waiting(1, fleet(budget=Budget(per_hour=1.5)))
        assert look(cluster, market, now=NOW - 2 * HOUR).orders == ()


def test_it_is_made_a_machine_once_for_all_turns() -> None:
    machines, found = OrphanMachines(), known_orphan()
    (first,), (second,) = machines.of([found], NOW), machines.of([found], NOW + 1.0)
    assert first is second
    (gone,) = machines.of([known_orphan(gone_at=NOW)], NOW)
    assert not gone.is_live


def test_a_label_names_the_fleet_whose_name_it_cannot_hold() -> None:
    fleets = {name: fleet(name) for name in ("Team/GPU", "burst")}
    assert listed(OrphanBook(), OrphanTerms({}, fleets), fleet="team-gpu").fleet == "Team/GPU"
    both = fleets | {"team.gpu": fleet("team.gpu")}
    assert listed(OrphanBook(), OrphanTerms({}, both), fleet="team-gpu").fleet == "team-gpu"


async def test_a_fleet_rents_nothing_that_its_quarantined_machines_leave_no_budget_for() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    cloud.fleet, cloud.traits = "burst", SMALL
    burst = fleet(idle_duration=60.0, budget=Budget(per_hour=1.5))
    # The provider's list takes longer than its offers do.
    cloud.fails["list"] = [CloudAway("no answer")] * 20
    async with renting(cloud, burst, database, restored_at=RESTORED_AT) as lab:
        old = cloud.plant("m9", installation=lab.manager.installation, created_at=RESTORED_AT - 60)
        run = parts.run("hello")
        await lab.pipeline.admit(run)
        why = f"{UNLISTED}; the last one failed: no answer"
        await lab.until(lambda: why in lab.waits_for(run))
        await lab.until(lambda: "fleet burst may cost 1.50 an hour" in lab.waits_for(run))
        assert "`fairlead machine orphans`" in lab.waits_for(run)
        assert set(cloud.instances) == {old}
        await costs_are_told(lab)
        await service_of(lab).end_orphans("lab", [old], ADMIN)
        await lab.until(lambda: len(lab.rentals.committed) == 1)
        assert old not in cloud.instances


async def costs_are_told(lab: Renting) -> None:
    costs = costs_of(lab)
    before = lab.clock.now()
    lab.clock.time += HOUR
    (row,) = await costs.costs((CostKey.FLEET, CostKey.USER), seconds=2 * HOUR, user=ADMIN)
    assert (row.fleet, row.user, row.run) == ("burst", None, None)
    assert row.cost == pytest.approx((before + HOUR - RESTORED_AT + 60) / HOUR)
    assert await costs.per_hour(ADMIN) == 1.0
    told = costs.orphans(ADMIN)
    assert (told.count, told.per_hour, told.without_price) == (1, 1.0, 0)
    bob = User(name="bob", role=Role.USER, created_at=0.0)
    assert costs.orphans(bob).count == 0
    assert await costs.costs((CostKey.FLEET,), seconds=HOUR, user=bob) == []
    (budget,) = costs.budgets(ADMIN)
    assert (budget.name, budget.hour_cost) == ("burst", 1.0)
    assert budget.month_cost == pytest.approx(row.cost)
    lab.clock.time -= HOUR


def costs_of(lab: Renting) -> CostService:
    return CostService(lab.pipeline, service_of(lab), lab.store, lab.clock)


async def test_an_end_that_was_asked_for_outlasts_its_events_and_thousands_of_others() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    cloud.fails["terminate"] = [CloudAway("no answer")] * 10_000
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        ids = await planted(lab)
        await service_of(lab).end_orphans("lab", ids, ADMIN)
        await lab.store.forget(finished_before=lab.clock.now() + 1.0, limit=10)
    assert database.events == []
    cloud.fails["terminate"] = []
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        await lab.until(lambda: not cloud.instances)
        await lab.until(lambda: lab.rentals.orphans == [])


async def test_a_thousand_and_one_orphans_are_ended_together() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, restored_at=RESTORED_AT) as lab:
        ids = await planted(lab, 1001)
        rented = service_of(lab)
        assert len(await rented.end_orphans("lab", ids[:1000], ADMIN)) == 1000
        await rented.end_orphans("lab", ids[1000:], ADMIN)
        await lab.until(lambda: not cloud.instances)
        await lab.until(lambda: lab.rentals.orphans == [])


@pytest.mark.parametrize(("names", "counted"), [("lab", 1), ("another", 0)])
def test_what_is_at_a_provider_that_the_file_names_no_more_is_not_counted(
    names: str, counted: int
) -> None:
    rentals = rentals_of(CapacityIndex(), orphans=[known_orphan()], providers=frozenset({names}))
    assert len(rentals.orphans) == counted
    assert len(rentals.orphans_as_machines(NOW)) == counted
    assert len(rentals.market(NOW).orphans) == counted
