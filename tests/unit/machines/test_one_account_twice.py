"""Two providers of the controller's file that name one account, as for two sets of regions: each
machine without a record is the orphan of one of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.lifecycle.inventory import Budget
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.machines.reconcile import Found, Orphan, Traits
from controller.machines.calls import ProviderCalls
from controller.pipelines.renting.rentals import Rentals
from controller.scheduling.index import CapacityIndex
from tests.doubles.clock import ManualClock
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.parts import NOW, fleet, known_orphan, offer, rentals_of
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


EAST, WEST = "us-east-1", "us-west-1"
IN_EAST = Traits(region=EAST)


def listed_by_twin(machine_id: str | None = "m9") -> Orphan:
    return Orphan(
        provider="twin",
        instance_id="i-1",
        machine_id=machine_id,
        created_at=NOW - 3600.0,
        seen_at=NOW,
        quarantined=True,
        traits=IN_EAST,
    )


def turn(rentals: Rentals, now: float) -> list[tuple[str | None, str | None, str]]:
    found = rentals.decide({}, {}, lambda node_id: False, now).events
    rentals.stored({})
    return [(one.reason, one.to_status, one.cause) for one in found]


@pytest.mark.parametrize("machine_id", ["m9", None])
@pytest.mark.parametrize(
    ("providers", "regions", "account"),
    [
        # Its region was moved in the file, ...
        ({"lab", "twin"}, {"lab": (WEST,), "twin": (EAST,)}, "ours"),
        # ... its account got a name of its own, ...
        ({"lab", "twin"}, {}, "another"),
        # ... or its provider got another name.
        ({"twin"}, {}, None),
    ],
)
def test_one_that_another_provider_lists_now_is_that_ones_alone(
    providers: set[str],
    regions: dict[str, tuple[str, ...]],
    account: str | None,
    machine_id: str | None,
) -> None:
    left = known_orphan(account="ours", machine_id=machine_id, traits=IN_EAST)
    rentals = rentals_of(
        CapacityIndex(), orphans=[left], providers=frozenset(providers), regions=regions
    )
    if "lab" in providers:
        rentals.orphans_listed("lab", (), account)
    assert turn(rentals, NOW) == []
    assert rentals.all_orphans == [left]
    rentals.orphans_listed("twin", (listed_by_twin(machine_id),), "ours")
    events = turn(rentals, NOW)
    assert ("lab/i-1", "gone", "provider twin lists it now") in events
    assert sorted(event[:2] for event in events) == [("lab/i-1", "gone"), ("twin/i-1", "kept")]
    (taken,) = rentals.all_orphans
    assert taken.name == "twin/i-1"
    # Budgets and costs count each second of it once.
    spans = [(one.ordered_at, one.terminated_at) for one in rentals.orphans_as_machines(NOW)]
    whole = [(NOW - 3600.0, None)]
    assert spans == ([(NOW - 3600.0, NOW), (NOW, None)] if "lab" in providers else whole)


def test_what_was_gone_at_one_provider_counts_at_the_other_from_then_on() -> None:
    left = known_orphan(account="ours", machine_id="m9", gone_at=NOW - 30.0)
    rentals = rentals_of(CapacityIndex(), orphans=[left], providers=frozenset({"lab", "twin"}))
    rentals.orphans_listed("twin", (listed_by_twin(),), "ours")
    turn(rentals, NOW)
    (taken,) = rentals.all_orphans
    assert taken.costs_since == NOW - 30.0


@pytest.mark.parametrize(("account", "machine_id"), [("theirs", None), ("theirs", "m1")])
def test_another_machine_with_its_id_takes_nothing_over(
    account: str, machine_id: str | None
) -> None:
    left = known_orphan(account="ours", machine_id=None if machine_id is None else "m9")
    rentals = rentals_of(CapacityIndex(), orphans=[left], providers=frozenset({"lab", "twin"}))
    rentals.orphans_listed("lab", (), "another")
    rentals.orphans_listed("twin", (listed_by_twin(machine_id),), account)
    assert [event[:2] for event in turn(rentals, NOW)] == [("twin/i-1", "kept")]
    assert {one.costs_since for one in rentals.all_orphans} == {NOW - 3600.0}


async def test_a_list_that_adopts_a_machine_takes_no_orphan_from_its_provider() -> None:
    def stored(provider: str, instance_id: str) -> KnownOrphan:
        return known_orphan(machine_id="m9")

    desk = SimpleNamespace(installation="here", stored_orphan=stored)
    calls = ProviderCalls("lab", MemoryCloud(offer()), cast(Any, desk), ManualClock(NOW))
    assert await calls._list() is not None
    assert calls.has_orphan(Found(instance_id="i-1", machine_id="m9", created_at=NOW), None)
