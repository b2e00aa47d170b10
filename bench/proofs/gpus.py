"""GPUs are requested, released, broken and repaired at random: each has one owner, the sums are
exact, and no possible request is refused; whole nodes are found wherever one is empty.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from bench.proofs._table import conclude
from tests.unit.scheduling.packing import Fleet
from tests.unit.shim.gpus.model import MACHINES, ORDERS, Model, Order

ORDERS_EACH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="SEED")
    given_ = parser.parse_args()
    counts: Counter[str] = Counter()
    broken: list[str] = []
    started = time.monotonic()
    try:
        _obey(given_.operations, given_.seed, counts)
    except AssertionError as error:
        broken.append(f"{error}; shrunk: {'; '.join(getattr(error, '__notes__', []))}")
    fleet = Fleet(random.Random(given_.seed), nodes=8)
    try:
        for _ in range(given_.operations // 10):
            fleet.step()
    except AssertionError as error:
        broken.append(f"whole nodes: {error}")
    figures = [
        ("operations on a node", counts.pop("operations")),
        *sorted(counts.items()),
        ("operations on a fleet", given_.operations // 10),
        *sorted(fleet.counts.items()),
        ("seconds", f"{time.monotonic() - started:.0f}"),
    ]
    conclude("GPU allocator", figures, broken)


def _obey(operations: int, number: int, counts: Counter[str]) -> None:
    @seed(number)
    @settings(
        max_examples=max(operations // ORDERS_EACH, 1),
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.sampled_from(sorted(MACHINES)),
        st.lists(ORDERS, min_size=ORDERS_EACH, max_size=ORDERS_EACH),
    )
    def obey(machine: str, orders: list[Order]) -> None:
        model = Model(MACHINES[machine]())
        for order in orders:
            model.obey(order)
        counts.update(model.counts)
        counts["operations"] += len(orders)

    obey()
