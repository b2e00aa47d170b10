"""One pass of the scheduler, alone: no daemon, no disk, no network."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.scale.parts import Row
from bench.scheduling import JOBS, NODES, Bench, new_job
from controller.commands.serve import prepare_for_many_nodes
from controller.lifecycle.model import RunState

TRIES = 3
GOAL_SECONDS = 0.3


def measure() -> list[Row]:
    """Measure passes with the garbage collector's settings of a controller. CPU time counts: a busy
    machine tells nothing about the scheduler."""
    prepare_for_many_nodes()
    return [
        _row("alike, all fit", lambda number: new_job(8), full=False),
        _row("of 104 kinds, all fit", _mixed, full=False),
        _row("alike, none fits", lambda number: new_job(8), full=True),
    ]


def _mixed(number: int) -> RunState:
    return new_job(number % 8 + 1, cpu=float(number % 13 + 1))


def _row(what: str, make: Callable[[int], RunState], *, full: bool) -> Row:
    """Return the best of some tries: other load of this machine is not the scheduler's."""
    walls, cpus = [], []
    for _ in range(TRIES):
        bench = Bench()
        if full:
            bench.add(lambda number: new_job(8), NODES)
            bench.settle()
        bench.add(make, JOBS)
        wall, cpu = time.perf_counter(), time.process_time()
        bench.pipeline.place(1.0)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    best = min(cpus)
    figure = f"{best * 1000:.0f} ms CPU ({min(walls) * 1000:.0f} ms), best of {TRIES}"
    name = f"one scheduling pass, {JOBS} pending jobs ({what}), {NODES} nodes"
    kind = "scale.pass" if full else ""
    return Row(name, figure, "≤ 300 ms", best <= GOAL_SECONDS, kind, best * 1000)
