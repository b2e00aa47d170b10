"""Machines that no record knows, which an admin has ended."""

from __future__ import annotations

from typing import Any, cast

import pytest

from common.refusals import Conflict, Forbidden, NotFound, Unavailable
from controller.clouds.base import CloudAway
from controller.lifecycle.events import NO_RUN
from controller.service.machines.rented import RentedService
from controller.store.accounts import User
from controller.store.base import Changes
from controller.store.errors import StoreRefused, StoreUnavailable
from fairlead.model.spec import Role
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.parts import fleet, offer
from tests.unit.machines.renting import ADMIN, Renting, quick, renting

__all__ = ["quick"]

BOB = User(name="bob", role=Role.USER, created_at=0.0)
RESTORED_AT = ManualClock().now()


def service_of(lab: Renting) -> RentedService:
    return RentedService(lab.pipeline, cast(Any, None), lab.clock, lab.manager)


def told(database: MemoryDatabase) -> list[tuple[str | None, str]]:
    every = [one.event for one in database.events if one.event.run_id == NO_RUN]
    return [(one.to_status, one.cause) for one in every]


async def planted(lab: Renting, count: int = 1) -> list[str]:
    """Put machines there that are older than the restore, and wait until they are listed."""
    ids = [
        lab.cloud.plant(
            f"m{at}", installation=lab.manager.installation, created_at=RESTORED_AT - 3600.0
        )
        for at in range(count)
    ]
    await lab.until(lambda: len(lab.manager.orphans) == count)
    return ids


async def an_hour_later(lab: Renting) -> None:
    """Let the provider be listed twice in an hour from now: what is due then is asked for."""
    lab.clock.time += 3600.0
    asked = lab.cloud.calls.count("list")
    await lab.until(lambda: lab.cloud.calls.count("list") > asked + 2)


async def test_a_quarantined_machine_ends_once_an_admin_says_so_and_no_other_does() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        first, second = await planted(lab, 2)
        await an_hour_later(lab)
        assert set(cloud.instances) == {first, second}
        (asked,) = await service_of(lab).end_orphans("lab", [first], ADMIN)
        assert (asked.instance_id, asked.is_to_end) == (first, True)
        await lab.until(lambda: first not in cloud.instances)
        await lab.until(lambda: ("gone", "the provider lists it no longer") in told(database))
        await an_hour_later(lab)
        assert set(cloud.instances) == {second}
        assert ("ending", "ada had it ended") in told(database)
        assert [one.is_to_end for one in service_of(lab).orphans(ADMIN)] == [False]


async def test_a_controller_asks_for_the_end_that_its_predecessor_was_asked_for() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    cloud.fails["terminate"] = [CloudAway("no answer")] * 5
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        ids = await planted(lab)
        await service_of(lab).end_orphans("lab", ids, ADMIN)
        # Asked for again, as by an admin whose answer was lost, it changes nothing.
        await service_of(lab).end_orphans("lab", ids, ADMIN)
    assert set(cloud.instances) == set(ids)
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        await lab.until(lambda: not cloud.instances)
        await lab.until(lambda: told(database)[-1][0] == "gone")
    assert [status for status, _ in told(database)] == ["kept", "ending", "gone"]


async def test_an_orphan_ends_before_its_grace_is_over_when_an_admin_says_so() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud) as lab:
        ids = await planted(lab)
        began = lab.clock.time
        await service_of(lab).end_orphans("lab", ids, ADMIN)
        await lab.until(lambda: not cloud.instances)
        assert lab.clock.time - began < 60.0


async def test_nothing_is_ended_before_it_is_stored_that_it_is_to_end() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        ids = await planted(lab)
        await lab.until(lambda: bool(database.events))
        commit, fails = lab.store.commit, [StoreUnavailable("the disk is full")]

        async def refusing(changes: Changes) -> None:
            if changes.events and fails:
                assert set(cloud.instances) == set(ids)
                raise fails.pop()
            await commit(changes)

        lab.store.commit = refusing  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await service_of(lab).end_orphans("lab", ids, ADMIN)
        assert "terminate" not in cloud.calls
        # What was handed in outlives the commit that failed.
        await lab.until(lambda: not cloud.instances)
        assert not fails


async def test_an_end_that_the_database_refuses_is_told_as_such_and_does_not_come() -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        ids = await planted(lab)
        await lab.until(lambda: bool(database.events))
        commit = lab.store.commit

        async def refusing(changes: Changes) -> None:
            if any(one.to_status == "ending" for one in changes.events):
                raise StoreRefused("the value is too long", runs=frozenset({NO_RUN}))
            await commit(changes)

        lab.store.commit = refusing  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="it was not stored"):
            await service_of(lab).end_orphans("lab", ids, ADMIN)
        await an_hour_later(lab)
        assert set(cloud.instances) == set(ids)


async def test_what_is_no_orphan_is_not_ended_and_nor_are_those_named_with_it() -> None:
    cloud = MemoryCloud(offer())
    async with renting(cloud, fleet(min=1), restored_at=RESTORED_AT) as lab:
        await lab.join()
        (mine,) = cloud.instances
        foreign = cloud.plant("m9", installation="another", created_at=RESTORED_AT - 3600.0)
        (orphan,) = await planted(lab)
        rented = service_of(lab)
        for wrong in (foreign, "i-99", "", orphan.upper()):
            with pytest.raises(NotFound, match="has no orphan") as caught:
                await rented.end_orphans("lab", [orphan, wrong], ADMIN)
            assert caught.value.field == "instance_ids"
        with pytest.raises(Conflict, match=f"is machine {lab.only().name} and no orphan"):
            await rented.end_orphans("lab", [orphan, mine], ADMIN)
        with pytest.raises(NotFound, match="there is no provider 'lob'; this controller has lab"):
            await rented.end_orphans("lob", [orphan], ADMIN)
        with pytest.raises(NotFound, match="there is no provider 'lob'"):
            await rented.end_orphans("lob", [], ADMIN)
        assert await rented.end_orphans("lab", [], ADMIN) == []
        with pytest.raises(Forbidden):
            await rented.end_orphans("lab", [orphan], BOB)
        await an_hour_later(lab)
        assert set(cloud.instances) == {mine, foreign, orphan}


async def test_a_controller_that_has_no_list_yet_says_so_and_ends_nothing() -> None:
    cloud = MemoryCloud(offer())
    cloud.fails["list"] = [CloudAway("no answer")] * 1000
    async with renting(cloud, restored_at=RESTORED_AT) as lab:
        cloud.plant("m1", installation=lab.manager.installation, created_at=RESTORED_AT - 60.0)
        await lab.until(lambda: lab.manager.calls["lab"].trouble is not None)
        with pytest.raises(Unavailable, match=r"has not listed its machines yet .*\(no answer\)"):
            await service_of(lab).end_orphans("lab", ["i-1"], ADMIN)
