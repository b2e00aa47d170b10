"""Two providers of the controller's file that name one account, as for two sets of regions: each
machine without a record is the orphan of one of them."""

from __future__ import annotations

from controller.lifecycle.inventory import Budget
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.parts import fleet, offer
from tests.unit.machines.renting import ADMIN, Renting, quick, renting
from tests.unit.machines.test_ended_orphans import RESTORED_AT, planted, service_of, told

__all__ = ["quick"]


def twins() -> tuple[MemoryCloud, MemoryCloud]:
    first, second = MemoryCloud(offer()), MemoryCloud(offer(provider="twin"))
    first.uses = second.uses = "ours"
    second.instances = first.instances
    return first, second


async def both_list(lab: Renting) -> None:
    """Let both providers list their machines twice more."""
    clouds = (lab.cloud, *lab.others.values())
    asked = [one.calls.count("list") for one in clouds]
    await lab.until(
        lambda: all(
            one.calls.count("list") > before + 2 for one, before in zip(clouds, asked, strict=True)
        )
    )


async def test_an_orphan_is_shown_and_counted_once() -> None:
    first, second = twins()
    database = MemoryDatabase()
    async with renting(
        first,
        fleet(budget=Budget(per_hour=5.0)),
        database,
        restored_at=RESTORED_AT,
        others={"twin": second},
    ) as lab:
        tagged = first.plant("m9", installation=lab.manager.installation, created_at=1.0)
        untagged = first.plant(None, installation=lab.manager.installation, created_at=1.0)
        await lab.until(lambda: len(lab.rentals.orphans) == 2)
        await both_list(lab)
        shown = {one.instance_id for one in service_of(lab).orphans(ADMIN)}
        assert len(service_of(lab).orphans(ADMIN)) == 2
        assert shown == {tagged, untagged}
        assert len(service_of(lab).paid_orphans()) == 2
        assert [status for status, _ in told(database)] == ["kept", "kept"]


async def test_the_end_that_an_admin_asked_for_outlasts_a_start_whichever_lists_first() -> None:
    first, second = twins()
    database = MemoryDatabase()
    async with renting(
        first, database=database, restored_at=RESTORED_AT, others={"twin": second}
    ) as lab:
        (orphan,) = await planted(lab)
        await lab.until(lambda: len(lab.rentals.orphans) == 1)
        (known,) = lab.rentals.orphans
        owner, other = (first, second) if known.provider == "lab" else (second, first)
        owner.fails["terminate"] = [ConnectionError("no answer")] * 10_000
        await service_of(lab).end_orphans(known.provider, [orphan], ADMIN)
    owner.fails["list"] = [ConnectionError("no answer")] * 10
    async with renting(
        first, database=database, restored_at=RESTORED_AT, others={"twin": second}
    ) as lab:
        asked = other.calls.count("list")
        await lab.until(lambda: other.calls.count("list") > asked + 3)
        await both_list(lab)
        assert [one.status.value for one in lab.rentals.orphans] == ["ending"]
        owner.fails["terminate"] = []
        await lab.until(lambda: not first.instances)
        await lab.until(lambda: told(database)[-1][0] == "gone")
    assert [status for status, _ in told(database)] == ["kept", "ending", "gone"]


async def test_one_that_its_provider_lists_no_longer_is_that_of_the_other() -> None:
    first, second = twins()
    async with renting(first, restored_at=RESTORED_AT, others={"twin": second}) as lab:
        (orphan,) = await planted(lab)
        await lab.until(lambda: len(lab.rentals.orphans) == 1)
        (known,) = lab.rentals.orphans
        owner = first if known.provider == "lab" else second
        # As a region that was taken out of its part of the file.
        owner.instances = {}
        await lab.until(
            lambda: (
                [one.name for one in lab.rentals.orphans] not in ([], [known.name])
                and len(lab.rentals.orphans) == 1
            )
        )
        (taken,) = lab.rentals.orphans
        assert (taken.instance_id, taken.provider != known.provider) == (orphan, True)


async def test_machines_of_other_accounts_with_one_id_are_two_orphans() -> None:
    first, second = twins()
    second.uses = "theirs"
    second.instances = {}
    async with renting(first, restored_at=RESTORED_AT, others={"twin": second}) as lab:
        for cloud in (first, second):
            cloud.plant(None, installation=lab.manager.installation, created_at=1.0)
        await lab.until(lambda: len(lab.rentals.orphans) == 2)
        await both_list(lab)
        ids = {one.name for one in lab.rentals.orphans}
        assert ids == {"lab/i-1", "twin/i-1"}
