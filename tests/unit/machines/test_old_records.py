"""Records of machines that ended long ago are not kept by a controller that runs for months."""

from __future__ import annotations

from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.machines.orphans import KEPT_SECONDS
from controller.pipelines.renting.rentals import Rentals
from controller.scheduling.index import CapacityIndex
from tests.unit.machines.parts import NOW, machine, rentals_of

DAY = 86400.0


def with_an_ended_machine() -> Rentals:
    ended = machine("old", status=MachineStatus.TERMINATED, terminated_at=NOW)
    return rentals_of(CapacityIndex(), ended, machine("m2", ordered_at=NOW))


def names_after(rentals: Rentals, *times: float) -> set[str]:
    for now in times:
        rentals.decide({}, {}, lambda node_id: True, now)
    assert set(rentals.machines) == set(rentals.committed)
    return set(rentals.committed)


def test_one_that_ended_more_than_35_days_ago_is_forgotten() -> None:
    rentals = with_an_ended_machine()
    days = [NOW + at * DAY for at in range(36)]
    assert names_after(rentals, *days) == {"old", "m2"}
    assert names_after(rentals, NOW + KEPT_SECONDS + DAY) == {"m2"}


def test_a_clock_that_jumps_makes_no_controller_forget_the_month() -> None:
    rentals = with_an_ended_machine()
    assert names_after(rentals, NOW, NOW + 400 * DAY, NOW + 1.0) == {"old", "m2"}
