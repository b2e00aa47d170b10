"""Orphans that no list of their provider can have now: those of another account, and all before the
first list."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from common.refusals import Conflict, Forbidden, NotFound, Unavailable
from controller.clouds.base import CloudAway
from controller.lifecycle.inventory import Budget
from controller.lifecycle.machines.orphans import OrphanMachines
from controller.lifecycle.machines.reconcile import Traits
from controller.scheduling.index import CapacityIndex
from controller.service.machines.rented import RentedService
from controller.store.base import Changes
from controller.store.errors import NotYetStored, StoreUnavailable
from controller.web.pages.nodes import orphan_row
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.parts import NOW, fleet, known_orphan, offer, rentals_of
from tests.unit.machines.renting import ADMIN, Renting, quick, renting
from tests.unit.machines.test_ended_orphans import BOB, RESTORED_AT, planted, service_of, told
from tests.unit.scheduling import parts

__all__ = ["quick"]

SMALL = Traits(instance_type="small", region="north", zone="north-1")


async def left_behind(lab: Renting) -> tuple[RentedService, str]:
    """Return an orphan of an account that the provider does not use any more."""
    lab.cloud.uses = "ours"
    (orphan,) = await planted(lab)
    await lab.until(lambda: bool(lab.rentals.orphans))
    await another_account(lab)
    return service_of(lab), orphan


async def another_account(lab: Renting) -> None:
    lab.cloud.uses, lab.cloud.instances = "theirs", {}
    await lab.until(lambda: lab.manager.calls["lab"].account == "theirs")


async def test_it_is_shown_with_the_fix_as_long_as_it_counts() -> None:
    async with renting(MemoryCloud(offer()), restored_at=RESTORED_AT) as lab:
        rented, orphan = await left_behind(lab)
        (shown,) = rented.orphans(ADMIN)
        assert shown.instance_id == orphan
        assert shown.ends_at() is None
        fix = (
            "it is in account ours of provider lab, which now uses theirs: go back to that account "
            f"until the machine has ended, or `fairlead machine forget lab/{orphan}`"
        )
        assert shown.unlisted == fix
        (known,) = rented.known_orphans(ADMIN)
        assert orphan_row(known, rented.out_of_reach(known)).becomes == fix
        with pytest.raises(Conflict, match="`fairlead machine forget lab/i-1`"):
            await rented.end_orphans("lab", [orphan], ADMIN)


async def test_an_admin_has_it_forgotten_and_nothing_counts_it() -> None:
    database = MemoryDatabase()
    async with renting(MemoryCloud(offer()), database=database, restored_at=RESTORED_AT) as lab:
        rented, orphan = await left_behind(lab)
        with pytest.raises(Forbidden):
            await rented.forget_orphan("lab", orphan, BOB)
        assert len(rented.paid_orphans()) == 1
        gone = await rented.forget_orphan("lab", orphan, ADMIN)
        assert "may still run in account ours and cost money" in (gone.unlisted or "")
        assert told(database)[-1] == ("gone", "ada had it forgotten")
        assert rented.orphans(ADMIN) == []
        assert rented.paid_orphans() == []
        with pytest.raises(NotFound):
            await rented.forget_orphan("lab", orphan, ADMIN)
    async with renting(MemoryCloud(offer()), database=database, restored_at=RESTORED_AT) as lab:
        assert service_of(lab).known_orphans(ADMIN) == []
        # Its account is back, and the machine is still there.
        await planted(lab)
        await lab.until(lambda: told(database)[-1][0] == "kept")


async def test_one_in_the_account_that_is_listed_is_not_forgotten() -> None:
    cloud = MemoryCloud(offer())
    cloud.uses = "ours"
    async with renting(cloud, restored_at=RESTORED_AT) as lab:
        (orphan,) = await planted(lab)
        await lab.until(lambda: bool(lab.rentals.orphans))
        with pytest.raises(Conflict, match=f"`fairlead machine end-orphans lab {orphan}`"):
            await service_of(lab).forget_orphan("lab", orphan, ADMIN)
        with pytest.raises(NotFound, match="provider other has no orphan"):
            await service_of(lab).forget_orphan("other", orphan, ADMIN)
        assert len(lab.rentals.orphans) == 1


async def test_it_is_not_forgotten_once_its_account_is_back() -> None:
    async with renting(MemoryCloud(offer()), restored_at=RESTORED_AT) as lab:
        lab.cloud.uses = "ours"
        await planted(lab)
        await lab.until(lambda: bool(lab.rentals.orphans))
        there = lab.cloud.instances
        await another_account(lab)
        commit = lab.store.commit

        async def failing(changes: Changes) -> None:
            raise StoreUnavailable("the disk is full")

        lab.store.commit = failing  # type: ignore[method-assign]
        with pytest.raises(NotYetStored):
            await service_of(lab).forget_orphan("lab", "i-1", ADMIN)
        lab.cloud.uses, lab.cloud.instances = "ours", there
        await lab.until(lambda: bool(lab.manager.orphans))
        lab.store.commit = commit  # type: ignore[method-assign]
        await lab.pipeline.settled()
        assert [one.unlisted for one in service_of(lab).orphans(ADMIN)] == [None]
        assert len(lab.rentals.orphans) == 1


async def test_until_the_first_list_those_are_shown_that_are_stored() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        await planted(lab)
        await lab.until(lambda: bool(lab.rentals.orphans))
    cloud.fails["list"] = [CloudAway("its key is wrong")] * 10_000
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        await lab.until(lambda: lab.manager.calls["lab"].trouble is not None)
        (shown,) = service_of(lab).orphans(ADMIN)
        assert "has not listed its machines yet" in (shown.unlisted or "")
        assert "(its key is wrong)" in (shown.unlisted or "")
        with pytest.raises(Unavailable, match="its key is wrong"):
            await service_of(lab).forget_orphan("lab", "i-1", ADMIN)


def test_what_is_forgotten_is_kept_by_no_turn() -> None:
    machines = OrphanMachines()
    every = [known_orphan(id=f"o{at}", instance_id=f"i-{at}") for at in range(100)]
    assert len(machines.of(every, NOW)) == 100
    (first,) = machines.of(every[:1], NOW)
    assert len(machines._made) == 1
    assert machines.of([every[0]], NOW) == (first,)
    assert machines.of([replace(every[0], price=2.0)], NOW)[0].offer.price == 2.0


def test_what_is_in_a_region_that_the_file_names_no_more_is_not_gone() -> None:
    east = known_orphan(instance_id="i;ls", traits=Traits(region="us-east-1"))
    west = known_orphan(id="o2", instance_id="i-2", traits=Traits(region="us-west-1"))
    rentals = rentals_of(
        CapacityIndex(),
        orphans=[east, west],
        providers=frozenset({"lab"}),
        regions={"lab": ("us-west-1",)},
    )
    rentals.orphans_listed("lab", ())
    turned = rentals.decide({}, {}, lambda node_id: False, NOW)
    assert [(one.reason, one.to_status) for one in turned.events] == [("lab/i-2", "gone")]
    rentals.stored({})
    assert rentals.orphans == [east]
    why = rentals.why_unlisted(east) or ""
    assert why.startswith("the controller's file names no region us-east-1 of provider lab, so")
    # Its id is what others wrote, and an admin may paste the command.
    assert why.endswith("run `fairlead machine forget 'lab/i;ls'`")


async def test_what_is_at_a_provider_that_the_file_names_no_more_is_shown_until_forgotten() -> None:
    rentals = rentals_of(
        CapacityIndex(), orphans=[known_orphan()], providers=frozenset({"another"})
    )
    events: list[tuple[str | None, str]] = []

    async def settled() -> None:
        turned = rentals.decide({}, {}, lambda node_id: False, NOW)
        events.extend((one.to_status, one.cause) for one in turned.events)
        rentals.stored({})

    pipeline = SimpleNamespace(rentals=rentals, settled=settled)
    rented = RentedService(cast(Any, pipeline), cast(Any, None), ManualClock(NOW), None)
    (shown,) = rented.orphans(ADMIN)
    why = "names no provider lab, so no budget counts the machine and nothing ends it"
    assert why in (shown.unlisted or "")
    gone = await rented.forget_orphan("lab", "i-1", ADMIN)
    assert "it may still run at provider lab" in (gone.unlisted or "")
    assert events == [("gone", "ada had it forgotten")]
    with pytest.raises(Unavailable):
        rented.orphans(ADMIN)


async def test_a_job_gets_a_machine_as_soon_as_the_orphan_is_forgotten_that_costs_as_much() -> None:
    cloud = MemoryCloud(offer())
    cloud.fleet, cloud.traits = "burst", SMALL
    burst = fleet(budget=Budget(per_hour=1.5))
    async with renting(cloud, burst, restored_at=RESTORED_AT) as lab:
        rented, orphan = await left_behind(lab)
        run = parts.run("hello")
        await lab.pipeline.admit(run)
        await lab.until(lambda: "may cost 1.50 an hour" in lab.waits_for(run))
        # Nothing changes any more, and demand is looked at once a minute.
        await lab.after(90.0)
        await rented.forget_orphan("lab", orphan, ADMIN)
        began = lab.clock.time
        await lab.until(lambda: len(lab.rentals.committed) == 1)
        assert lab.clock.time - began < 10.0
