"""A clock that was wrong by a year, as before its first synchronisation, and is put back."""

from __future__ import annotations

import pytest

from controller.lifecycle.machines.market import Penalties
from controller.lifecycle.machines.model import MachineEnd, MachineStatus, Size
from controller.lifecycle.machines.reconcile import Circumstances, Found, reconcile
from controller.lifecycle.machines.sizes import Sizes
from tests.doubles.clouds import MemoryCloud
from tests.unit.machines.parts import GIB, NOW, fleet, machine, offer
from tests.unit.machines.renting import Renting, quick, renting
from tests.unit.scheduling import parts

__all__ = ["quick"]
YEAR = 365 * 86400.0
SOON = 700.0


async def _until_soon(lab: Renting, status: MachineStatus) -> None:
    """Wait until the first machine has this status, and see that it took less than SOON."""
    before = lab.clock.time
    (machine_id, *_) = lab.rentals.committed
    await lab.until(lambda: lab.rentals.committed[machine_id].status is status, step=6.0)
    assert lab.clock.time - before < SOON


async def test_the_next_job_gets_its_machine_at_once() -> None:
    async with renting(MemoryCloud(offer())) as lab:
        lab.clock.time += YEAR
        await lab.pipeline.admit(parts.run("first", cpu=4.0))
        await lab.join()
        lab.clock.time -= YEAR
        await lab.pipeline.admit(parts.run("second", cpu=4.0))
        before = lab.clock.time
        await lab.until(lambda: len(lab.rentals.committed) == 2)
        assert lab.clock.time - before < 60.0


async def test_an_idle_machine_ends_after_its_time() -> None:
    async with renting(MemoryCloud(offer()), fleet(idle_duration=60.0, min=1)) as lab:
        lab.clock.time += YEAR
        await lab.join()
        await lab.until(lambda: lab.only().idle_since is not None)
        lab.clock.time -= YEAR
        await lab.pipeline.save_fleet(fleet(idle_duration=60.0), "burst")
        await _until_soon(lab, MachineStatus.TERMINATED)


async def test_a_machine_that_does_not_boot_ends_after_its_time() -> None:
    async with renting(MemoryCloud(offer()), fleet(boot_limit=300.0)) as lab:
        lab.clock.time += YEAR
        await lab.pipeline.admit(parts.run("first"))
        await lab.until_status(MachineStatus.PROVISIONING)
        lab.clock.time -= YEAR
        await _until_soon(lab, MachineStatus.TERMINATED)
        (first, *_) = lab.rentals.committed.values()
        assert first.end is MachineEnd.BOOT_FAILED


@pytest.mark.parametrize("end", [MachineEnd.NO_CAPACITY, MachineEnd.QUOTA_REACHED])
def test_a_refused_offer_is_left_out_as_long_as_ever(end: MachineEnd) -> None:
    penalties = Penalties()
    penalties.add(offer(), end, NOW)
    (wait,) = [(penalties.until(offer(), NOW) or 0.0) - NOW]
    penalties = Penalties()
    penalties.add(offer(), end, NOW + YEAR)
    penalties.note_time(NOW)
    assert penalties.until(offer(), NOW) == NOW + wait
    assert penalties.until(offer(), NOW + wait) is None


def test_a_small_machine_is_remembered_for_its_hour_alone() -> None:
    less = Size(cpu=1.0, memory=GIB, disk=GIB, gpus=0)
    sizes = Sizes([machine(joined_at=NOW + YEAR, size=less)])
    assert sizes.of(offer(), NOW) == offer()
    assert sizes.of(offer(), NOW + YEAR).cpu == 1.0


def test_the_grace_of_an_orphan_is_over_in_its_time() -> None:
    case = Circumstances(provider="lab", visible_after=60.0, found_at=lambda _: NOW + YEAR)
    listed = [Found(instance_id="i-1", machine_id="gone", created_at=NOW - 60.0)]
    (orphan,) = reconcile(listed, {}, case, NOW).orphans
    assert orphan.ends_at() == NOW + 600.0
