"""`./dev sim`: many worlds, a summary, and for each failure the line that shows it again."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.simulation import cuts, tracing
from tests.simulation.crew import each
from tests.simulation.exploring import explored
from tests.simulation.leaders import simulate_controllers
from tests.simulation.machines import simulate_machines
from tests.simulation.world import (
    Outcome,
    Scale,
    simulate,
    simulate_engines,
    simulate_services,
    simulate_sweeps,
    simulate_watched,
)

MAX_SHOWN = 10


def main() -> int:
    _hash_the_same_way_always()
    options = _options()
    if not options.verbose:
        logging.getLogger("controller").addHandler(logging.NullHandler())
    if options.seed:
        play = _play_of_one(options)
        return _report([play(seed) for seed in options.seed], 0.0, options)
    if options.coverage:
        tracing.prepare()
    began = time.monotonic()
    if options.cuts is not None:
        return _cuts(options)
    play = explored if options.explore else simulate
    if options.services:
        play = simulate_services
    elif options.sweeps:
        play = simulate_sweeps
    elif options.watched:
        play = simulate_watched
    elif options.engines:
        play = simulate_engines
    elif options.machines:
        play = simulate_machines
    elif options.controllers:
        play = simulate_controllers
    outcomes = list(each(play, _seeds(options, began), options.workers))
    status = _report(outcomes, time.monotonic() - began, options)
    if options.coverage:
        print(tracing.told())
    return 0 if options.explore else status


def _play_of_one(options: argparse.Namespace) -> Callable[[int], Outcome]:
    """Return what plays one seed as the options say."""
    if options.verbose:
        _log_all()
    if options.machines:
        return simulate_machines
    if options.controllers:
        return simulate_controllers
    services, whole = options.services, not options.narrow
    scale = Scale(
        wide=services or whole,
        services=services,
        desks=whole,
        gateways=whole,
        engines=options.engines,
        sweeps=options.sweeps,
        watched=options.watched,
    )
    return partial(simulate, scale=scale)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many worlds")
    parser.add_argument("--seconds", type=float, help="worlds until that long has passed, instead")
    parser.add_argument("--start", type=int, help="the first seed; without it a fresh one")
    parser.add_argument("--seed", type=int, nargs="+", help="only these")
    parser.add_argument(
        "--narrow", action="store_true", help="with --seed: without what was added later"
    )
    parser.add_argument(
        "--services", action="store_true", help="worlds with services and dev environments"
    )
    parser.add_argument(
        "--engines", action="store_true", help="worlds in which engines of nodes stay away"
    )
    parser.add_argument("--sweeps", action="store_true", help="worlds with sweeps")
    parser.add_argument(
        "--watched", action="store_true", help="worlds whose jobs start again in their containers"
    )
    parser.add_argument(
        "--machines", action="store_true", help="worlds whose nodes are rented machines"
    )
    parser.add_argument("--controllers", action="store_true", help="worlds with three controllers")
    parser.add_argument("--verbose", action="store_true", help="with --seed: the controller's log")
    parser.add_argument("--coverage", action="store_true", help="which lines of the core were run")
    parser.add_argument(
        "--explore", action="store_true", help="violations are told, and leave the status 0"
    )
    parser.add_argument("--cuts", type=int, help="so many cuts of a node's link, instead")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    return parser.parse_args()


def _hash_the_same_way_always() -> None:
    """The order of a set of strings must not differ from one process to the next."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])


def _seeds(options: argparse.Namespace, began: float) -> Iterator[int]:
    start = secrets.randbelow(10**9) if options.start is None else options.start
    if options.seconds is None:
        print(f"seeds {start} to {start + options.seeds - 1}", flush=True)
        yield from range(start, start + options.seeds)
        return
    print(f"seeds from {start} for {options.seconds:g} s", flush=True)
    for seed in itertools.count(start):
        if time.monotonic() - began > options.seconds:
            return
        yield seed


def _cuts(options: argparse.Namespace) -> int:
    start = secrets.randbelow(10**9) if options.start is None else options.start
    print(f"seeds {start} to {start + options.cuts - 1}", flush=True)
    done = list(each(cuts.cut, range(start, start + options.cuts), options.workers))
    for one in done:
        for text in one.wrong:
            print(f"  {text}\n  ./dev sim --cuts 1 --start {one.seed}")
    print(cuts.told(done))
    return 1 if any(one.wrong for one in done) else 0


class _VirtualTime(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{asyncio.get_running_loop().time():10.3f} {super().format(record)}"


def _log_all() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_VirtualTime("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _report(outcomes: list[Outcome], seconds: float, options: argparse.Namespace) -> int:
    failed = [outcome for outcome in outcomes if outcome.violations]
    for outcome in failed:
        print(f"seed {outcome.seed}: {len(outcome.violations)} violations")
        for violation in outcome.violations[:MAX_SHOWN]:
            print(f"  {violation.at:9.3f} s  {violation.text}")
        kinds = ("narrow", "services", "engines", "sweeps", "watched", "machines", "controllers")
        kind = "".join(f" --{kind}" for kind in kinds if getattr(options, kind))
        print(f"  ./dev sim --seed {outcome.seed}{kind}")
    runs = sum(outcome.runs for outcome in outcomes)
    hours = sum(outcome.virtual_seconds for outcome in outcomes) / 3600
    controllers = sum(outcome.controllers for outcome in outcomes)
    print(
        f"{len(outcomes)} seeds, {runs} runs, {controllers} lives of controllers, {hours:.1f} h of "
        f"virtual time in {seconds:.1f} s: {len(failed)} with violations"
    )
    for outcome in outcomes if len(outcomes) == 1 else ():
        print(f"story {outcome.digest:08x}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
