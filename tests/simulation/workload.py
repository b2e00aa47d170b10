"""What the simulated users do: submit, look away, change their minds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from controller.lifecycle.model import (
    GpuNeed,
    JobSpec,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunState,
)
from controller.lifecycle.submission import PlannedJob, new_run
from tests.simulation.script import image_of, random_script, random_start

GIB = 1 << 30

RETRIES = (
    RetryPolicy(),
    RetryPolicy(on_events=frozenset()),
    RetryPolicy(on_events=frozenset(RetryEvent), max_failures=2),
    RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), max_failures=1, duration=900.0),
)


def random_run(name: str, chance: Random, now: float, new_id: Callable[[], str]) -> RunState:
    count = chance.choices((1, 2, 4), weights=(75, 15, 10))[0]
    together = chance.random() < 0.5
    jobs = [
        PlannedJob(cookie=cookie, replica=0 if together else cookie, spec=_spec(chance))
        for cookie in range(count)
    ]
    return new_run(
        name=name, user="somebody", jobs=jobs, now=now, new_id=new_id, policy=_policy(chance)
    )


def _spec(chance: Random) -> JobSpec:
    start, script = random_start(chance), random_script(chance)
    return JobSpec(image=image_of(start), env=script.env(), resources=_resources(chance))


def _resources(chance: Random) -> Resources:
    """The first node can hold any of them, once it is empty."""
    return Resources(
        cpu=chance.choice((0.5, 1.0, 2.0, 4.0)),
        memory=chance.choice((1, 2, 8)) * GIB,
        gpu=GpuNeed(count=chance.choices((0, 1, 2), weights=(80, 15, 5))[0]),
    )


def _policy(chance: Random) -> RunPolicy:
    return RunPolicy(
        retry=chance.choice(RETRIES),
        stop_duration=chance.choice((0.0, 3.0, 60.0, 300.0)),
        max_duration=chance.choices((None, 30.0, 200.0), weights=(80, 10, 10))[0],
        scheduling_timeout=chance.choices((None, 0.0, 300.0), weights=(85, 5, 10))[0],
        max_failed_jobs=chance.choices((0, 1), weights=(80, 20))[0],
    )
