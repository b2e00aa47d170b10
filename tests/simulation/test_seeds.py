"""Some worlds on every check, the same ones always. `./dev test` runs those that take long too, and
explores some that nobody has seen before: what these find was there before the change that is being
tested.

They run in processes of their own, with a fixed hash seed, so that the line printed for a failure
shows the same failure again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import pytest

from tests.simulation import exploring

FIXED_SEEDS = 12
"""In each of two parts; `./dev test` plays both, and explores some 200 fresh ones besides."""
FOUND_NARROW = (700475, 900125, 2000375, 5000092, 5000902)
"""Worlds in which a fault was found once, before jobs could ask for as much as they can now."""
FOUND = (202, 784413626, 647714232, 126055956, 126056192, 126056451, 404522700)
"""Those since."""
FOUND_WITH_SERVICES = (23, 38, 1079, 1755)
FOUND_WITH_SWEEPS = (155, 827640065, 790229930, 58458624, 6026, 61616)
FOUND_WITH_WATCHERS = (70005, 70029, 61267)
FOUND_WITH_CONTROLLERS = (61360,)
SERVICE_SEEDS = 8
ENGINE_SEEDS = 8
SWEEP_SEEDS = 8
WATCHED_SEEDS = 8
MACHINE_SEEDS = 3
CONTROLLER_SEEDS = 3
"""In each of two parts."""
IN_ONE_PROCESS = ("--workers=1",)
"""Another lane of `./dev check` has the other processor, and a process that begins takes as long as
two worlds."""
PATIENCE_SECONDS = 900.0
LONG = partial(pytest.param, marks=pytest.mark.long)


@pytest.mark.parametrize("start", [0, LONG(FIXED_SEEDS)])
def test_the_controller_keeps_its_promises_whatever_its_nodes_do(start: int) -> None:
    done = _simulate(f"--start={start}", f"--seeds={FIXED_SEEDS}", *IN_ONE_PROCESS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_services_keep_their_promises_too() -> None:
    done = _simulate("--services", "--start=0", f"--seeds={SERVICE_SEEDS}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_sweeps_keep_their_promises_too() -> None:
    done = _simulate("--sweeps", "--start=0", f"--seeds={SWEEP_SEEDS}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_container_that_waits_for_the_next_start_loses_no_result() -> None:
    done = _simulate("--watched", "--start=0", f"--seeds={WATCHED_SEEDS}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_no_job_pays_for_an_engine_that_stays_away() -> None:
    done = _simulate("--engines", "--start=0", f"--seeds={ENGINE_SEEDS}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_no_machine_is_lost_doubled_or_too_dear_whatever_its_provider_does() -> None:
    done = _simulate("--machines", "--start=0", f"--seeds={MACHINE_SEEDS}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("start", [0, LONG(CONTROLLER_SEEDS)])
def test_one_controller_of_three_decides_and_nothing_accepted_is_lost(start: int) -> None:
    seeds = (f"--start={start}", f"--seeds={CONTROLLER_SEEDS}")
    done = _simulate("--controllers", *seeds, *IN_ONE_PROCESS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        (("--narrow",), FOUND_NARROW),
        ((), FOUND),
        LONG(("--services", "--narrow"), FOUND_WITH_SERVICES),
        LONG(("--sweeps",), FOUND_WITH_SWEEPS),
        LONG(("--watched",), FOUND_WITH_WATCHERS),
        LONG(("--controllers",), FOUND_WITH_CONTROLLERS),
    ],
)
def test_a_fault_that_was_found_once_is_not_found_again(
    kind: tuple[str, ...], seeds: tuple[int, ...]
) -> None:
    done = _simulate(*kind, "--seed", *map(str, seeds))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(seeds)} seeds, " in done.stdout


@pytest.mark.long
def test_no_healthy_job_is_restarted_for_a_cut_link_before_its_node_may_be_given_up() -> None:
    done = _simulate("--cuts=6", "--start=0")
    assert done.returncode == 0, done.stdout + done.stderr
    untouched = "0 restarted within 300 s; 0 given up"
    assert re.search(rf"2 cuts of 30 s under [1-9]\d* running jobs: {untouched}\n", done.stdout)
    assert re.search(rf"2 cuts of 120 s under [1-9]\d* running jobs: {untouched}\n", done.stdout)
    given_up = "0 restarted within 300 s; [1-9]\\d* given up"
    assert re.search(rf"2 cuts of 600 s under [1-9]\d* running jobs: {given_up}", done.stdout)


def test_one_seed_gives_one_story() -> None:
    first, second = _third_world(), _simulate("--seed=3")
    assert "story" in first.stdout
    assert first.stdout == second.stdout


def test_two_seeds_give_two_stories() -> None:
    assert _third_world().stdout != _simulate("--seed=4").stdout


def broken(seed: int) -> None:
    raise ZeroDivisionError("a mistake in the simulation")


def endless(seed: int) -> None:
    while True:
        with suppress(Exception):
            "its code forgives everything".index("x")


@pytest.mark.parametrize(
    ("story", "limit", "told"),
    [
        (broken, exploring.MAX_SECONDS, "a mistake in the simulation"),
        (endless, 0.1, "its story was not over within 0.1 s"),
    ],
)
def test_an_explored_world_that_crashes_or_never_ends_is_told_like_any_other_fault(
    monkeypatch: pytest.MonkeyPatch, story: Callable[[int], None], limit: float, told: str
) -> None:
    monkeypatch.setattr(exploring, "simulate", story)
    monkeypatch.setattr(exploring, "MAX_SECONDS", limit)
    outcome = exploring.explored(7)
    assert outcome.seed == 7
    assert [told in violation.text for violation in outcome.violations] == [True]


@cache
def _third_world() -> subprocess.CompletedProcess[str]:
    return _simulate("--seed=3")


def _simulate(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
