"""Who pays for a machine: the jobs that are on it, or the run that it was bought for."""

from __future__ import annotations

import pytest

from controller.lifecycle.machines.cost import Stay, shares
from controller.lifecycle.machines.model import Machine, cost_between
from tests.unit.machines.parts import NOW, machine, offer

HOUR = 3600.0


def paid(one: Machine, *stays: Stay, start: float = 0.0, hours: float = 4.0) -> dict[str, float]:
    found = shares(one, stays, start, NOW + hours * HOUR)
    total = cost_between(one, start, NOW + hours * HOUR)
    assert sum(share.cost for share in found) == pytest.approx(total)
    return {share.run_id or "-": round(share.cost, 6) for share in found}


def stay(run_id: str, start: float, end: float | None = None) -> Stay:
    until = None if end is None else NOW + end * HOUR
    return Stay(run_id=run_id, start=NOW + start * HOUR, end=until)


BOUGHT = machine(offer=offer(price=6.0), run_id="buyer", user="ada")


def test_the_run_that_a_machine_was_bought_for_pays_while_it_is_idle() -> None:
    assert paid(BOUGHT) == {"buyer": 24.0}
    assert paid(BOUGHT, stay("other", 1.0, 2.0)) == {"buyer": 18.0, "other": 6.0}


def test_nobody_pays_for_a_machine_that_its_fleet_keeps() -> None:
    assert paid(machine(offer=offer(price=1.0))) == {"-": 4.0}


def test_jobs_that_are_there_together_share_the_price() -> None:
    found = paid(BOUGHT, stay("a", 0.0, 2.0), stay("b", 1.0), stay("b", 1.0, 2.0))
    assert found == {"a": 8.0, "b": 16.0}


def test_only_the_asked_time_counts_and_no_time_after_the_end() -> None:
    assert paid(BOUGHT, stay("a", 0.0), start=NOW + 3 * HOUR) == {"a": 6.0}
    ended = machine(offer=offer(price=6.0), run_id="buyer", terminated_at=NOW + HOUR)
    assert paid(ended, stay("a", 0.5)) == {"buyer": 3.0, "a": 3.0}


def test_an_order_that_was_refused_costs_nothing() -> None:
    assert paid(machine(run_id="buyer", terminated_at=NOW)) == {}
