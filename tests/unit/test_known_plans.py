"""Plans are made once for equal configurations, and never mixed up."""

from __future__ import annotations

import math

import pytest

from controller.service.runs.submission_stages import KnownPlans, Submission
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, Plan, to_run


class Planner:
    """Counts what it plans."""

    def __init__(self) -> None:
        self.planned = 0
        self.known = KnownPlans(self._plan)

    def of(self, configuration: object, *, keys: tuple[str, ...] = (), again: bool = False) -> Plan:
        asked = Submission(configuration=configuration, ssh_keys=keys, starts_again=again)
        return self.known.of(asked)

    def _plan(self, submission: Submission) -> Plan:
        self.planned += 1
        written = submission.configuration
        configuration = parse(written)
        assert isinstance(written, dict)
        return to_run(configuration, written, Defaults(), submission.ssh_keys)


def task(**fields: object) -> dict[str, object]:
    return {"type": "task", "image": "busybox", "commands": ["true"], **fields}


def test_an_equal_configuration_is_planned_once() -> None:
    planner = Planner()
    assert planner.of(task()) is planner.of(task())
    assert planner.planned == 1


def test_what_a_plan_is_made_of_tells_it_from_others() -> None:
    planner = Planner()
    planner.of(task())
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGk6a1ouODtGu9bE6zIyzkUIIgw6y8lKb0zxT6HvYq0x"
    assert planner.of(task(), keys=(key,)).specs[0].ssh_keys == (key,)
    planner.of(task(), again=True)
    planner.of(task(env={"A": "1", "B": "2"}))
    planner.of(task(env={"B": "2", "A": "1"}))
    assert planner.planned == 5


@pytest.mark.parametrize("wrong", [True, math.inf, "1", 1 << 70, {1: 1}])
def test_a_wrong_value_is_refused_beside_a_known_right_one(wrong: object) -> None:
    planner = Planner()
    planner.of(task(priority=1))
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            planner.of(task(priority=wrong))
    assert planner.planned == 3


def test_only_the_last_plans_are_kept() -> None:
    planner = Planner()
    for number in range(33):
        planner.of(task(env={"N": str(number)}))
        planner.of(task())
    assert planner.planned == 34
    planner.of(task(env={"N": "0"}))
    assert planner.planned == 35


def test_a_large_configuration_is_not_kept() -> None:
    planner = Planner()
    for _ in range(2):
        planner.of(task(env={"A": "x" * (64 << 10)}))
    assert planner.planned == 2
