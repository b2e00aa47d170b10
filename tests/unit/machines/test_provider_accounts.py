"""A machine belongs to the account that ordered it, whatever credentials a provider has later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from common.refusals import Conflict, NotFound
from controller.clouds.base import (
    Abilities,
    CloudAway,
    Unauthorized,
)
from controller.lifecycle.machines.model import Machine, MachineStatus, Offer
from controller.lifecycle.machines.reconcile import Found
from controller.service.machines.fleets import FleetService
from controller.service.machines.rented import RentedService
from tests.doubles.clouds import MemoryCloud, MemoryInstance
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.machines.parts import fleet, offer
from tests.unit.machines.renting import ADMIN, Renting, quick, renting
from tests.unit.scheduling import parts

__all__ = ["quick"]


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


async def test_an_answer_while_the_account_was_not_known_ends_no_record() -> None:
    cloud = PutBackCloud(offer())
    async with renting(cloud, fleet(min=1)) as lab:
        await lab.join()
        machine = lab.only()
        cloud.is_another = True
        await lab.pipeline.save_node(None, machine.id)
        await lab.until(lambda: not lab.rentals.committed[machine.id].is_live)
        assert not cloud.is_another
        assert machine.instance_id not in cloud.instances


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


async def _refused_by_the_wrong_account(cloud: MemoryCloud) -> MemoryDatabase:
    """Return the records of a controller that has ended, with one order that nothing came of."""
    cloud.uses = "wrong"
    cloud.fails["create"] = [Unauthorized("not allowed")] * 1000
    database = MemoryDatabase()
    async with renting(cloud, fleet(min=1), database) as lab:
        await lab.until(
            lambda: bool(lab.rentals.committed) and "not allowed" in str(lab.only().trouble)
        )
        await lab.until(lambda: lab.only().account is None)
    database.held = False
    return database


async def test_an_order_that_wrong_credentials_could_not_make_is_made_with_the_right_ones() -> None:
    cloud = MemoryCloud(offer())
    database = await _refused_by_the_wrong_account(cloud)
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
    database = await _refused_by_the_wrong_account(cloud)
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


class PutBackCloud(MemoryCloud):
    """`is_another`: calls go to another account, which nobody tells, and which knows no machine.
    They go to the former one again after the first call for an end."""

    def __init__(self, *offers: Offer) -> None:
        super().__init__(*offers)
        self.uses, self.is_another = "first", False

    async def account(self) -> str | None:
        if self.is_another:
            raise CloudAway("no way to the account service")
        return await super().account()

    async def terminate(self, instance_id: str) -> bool:
        if self.is_another:
            self.is_another = False
            return True
        return await super().terminate(instance_id)
