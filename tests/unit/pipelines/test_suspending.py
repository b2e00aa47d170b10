"""SuspensionNotifier: the runner's own limit stands still while its run is suspended."""

from __future__ import annotations

import pytest

from controller.pipelines.performers.job_running import SuspensionNotifier
from controller.pipelines.to_node import RetryLater
from fairlead.model.statuses import AttemptStatus
from runner.client import RunnerError
from tests.doubles.node import FakeConnection
from tests.unit.pipelines.parts import context_of, placed

RUNNING = context_of(placed(AttemptStatus.RUNNING))


@pytest.mark.parametrize(("suspended", "told"), [(True, "suspend"), (False, "go on")])
async def test_the_runner_is_told(node: FakeConnection, suspended: bool, told: str) -> None:
    await SuspensionNotifier(suspended=suspended)(RUNNING, node)
    assert node.the_runner.asked == [told]


async def test_a_runner_of_before_that_knows_no_suspension_is_left_alone(
    node: FakeConnection,
) -> None:
    node.the_runner.failures.append(RunnerError("not_found", "no such path", 404))
    await SuspensionNotifier(suspended=True)(RUNNING, node)
    assert node.the_runner.asked == []


async def test_a_runner_that_cannot_do_it_now_is_asked_again(node: FakeConnection) -> None:
    node.the_runner.failures.append(RunnerError("internal", "no memory", 500))
    with pytest.raises(RetryLater, match="no memory"):
        await SuspensionNotifier(suspended=True)(RUNNING, node)
