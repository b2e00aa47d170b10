"""A GPU has one owner, whatever the order of requests (`./dev prove gpus` asks more often)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.shim.gpus.model import MACHINES, ORDERS, Model, Order


@pytest.mark.parametrize("machine", MACHINES)
def test_no_order_breaks_the_ledger(machine: str) -> None:
    total = 0

    @settings(max_examples=25, deadline=None)
    @given(st.lists(ORDERS, max_size=50))
    def obey(orders: list[Order]) -> None:
        nonlocal total
        model = Model(MACHINES[machine]())
        for order in orders:
            model.obey(order)
        total += len(orders)

    obey()
    assert total > 0
