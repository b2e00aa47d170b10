"""Sweeps of 10,000 sets under kills, reboots, drains and preemption, in virtual time: each set is
done once, never more are active than may be, and the run ends when no set is left.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os

from bench.proofs._table import conclude
from tests.simulation.crew import each
from tests.simulation.large_sweeps import Outcome, play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=20, metavar="N")
    add("--first", type=int, default=0, metavar="SEED")
    add(
        "--sets", type=int, default=10_000, metavar="N", help="of each sweep (default: %(default)s)"
    )
    add("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    done = list(each(functools.partial(_quietly, sets=given.sets), seeds, given.workers))
    figures = [
        ("sweeps", len(done)),
        ("parameter sets", f"{len(done) * given.sets:,}"),
        *((f"sets {name}", f"{sum(getattr(one, name) for one in done):,}") for name in _ENDS),
        ("jobs started", f"{sum(one.attempts for one in done):,}"),
        ("of these preempted", f"{sum(one.preempted for one in done):,}"),
        ("kills of the controller", f"{sum(one.kills for one in done):,}"),
        ("commits", f"{sum(one.commits for one in done):,}"),
    ]
    conclude(
        "large sweeps",
        figures,
        (f"seed {one.seed}: {text}" for one in done for text in one.violations),
    )


def _quietly(seed: int, sets: int) -> Outcome:
    logging.disable()
    return play(seed, sets)


_ENDS = ("done", "failed", "stopped")


if __name__ == "__main__":
    main()
