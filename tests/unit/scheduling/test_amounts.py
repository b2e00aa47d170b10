"""Every amount is counted by the scheduler and by the shim: a new one needs no code of theirs."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.model import Resources
from controller.pipelines.from_node import capacity
from controller.scheduling.fitting.fit import in_blocks, less, room, shortfalls
from fairlead.configuration.values.resources import ResourcesFields
from fairlead.wire.amounts import UNITS, Amounts, amounts_of, left_of, sums_of
from fairlead.wire.errors import Refused
from fairlead.wire.shim import TaskResources
from shim.node.ledger import Capacity, Ledger
from tests.doubles.shim import node_info
from tests.unit.scheduling.parts import node
from tests.unit.shim.parts import request

WHOLE: dict[str, Any] = dict.fromkeys(UNITS, 64 << 30) | {"cpu": 64.0}
PART: dict[str, Any] = dict.fromkeys(UNITS, 1 << 30) | {"cpu": 1.0}


def with_most_of(name: str) -> dict[str, Any]:
    return PART | {name: 60.0 if name == "cpu" else 60 << 30}


@pytest.mark.parametrize("name", UNITS)
def test_what_a_job_holds_of_an_amount_no_other_gets(name: str) -> None:
    there = node(capacity=amounts_of(capacity(node_info(**WHOLE))))
    taken = Resources(**with_most_of(name))
    left = less(room(there, ()), in_blocks(taken, there.capacity), ())
    assert getattr(left, name) == WHOLE[name] - with_most_of(name)[name]
    (short,) = shortfalls(taken, left)
    need, has = short.lack.words()
    assert need.endswith(name.replace("_", " ")) or name == "cpu"
    assert "free of" in has


@pytest.mark.parametrize("name", UNITS)
def test_the_shim_refuses_what_it_has_not_and_names_it(name: str) -> None:
    ledger = Ledger(Capacity(**WHOLE))
    resources = TaskResources(**with_most_of(name))
    ledger.hold(ledger.plan("t1", request(allocation_id="a", resources=resources)))
    assert getattr(ledger.used(), name) == with_most_of(name)[name]
    with pytest.raises(Refused) as refused:
        ledger.plan("t2", request(allocation_id="b", resources=resources))
    assert refused.value.field == f"resources.{name}"


def test_every_amount_can_be_asked_for_in_a_jobs_file() -> None:
    assert set(UNITS) <= set(ResourcesFields.__struct_fields__)


def test_amounts_are_summed_and_taken_away() -> None:
    one, other = Amounts(cpu=0.5, memory=4, disk=1), Amounts(cpu=1.0, memory=1)
    assert sums_of([one, other]) == amounts_of(Amounts()) | {"cpu": 1.5, "memory": 5, "disk": 1}
    assert left_of(one, other) == amounts_of(Amounts()) | {"cpu": -0.5, "memory": 3, "disk": 1}
    assert sums_of([]) == amounts_of(Amounts())
