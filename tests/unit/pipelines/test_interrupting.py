"""`job interrupt` on its way to the runner."""

from __future__ import annotations

import pytest

from controller.pipelines.performers.job_running import JobInterrupter
from controller.pipelines.to_node import RetryLater
from fairlead.model.statuses import AttemptStatus
from runner.client import RunnerError
from tests.doubles.clock import NOW, ManualClock
from tests.doubles.node import FakeConnection
from tests.unit.pipelines.parts import context_of, placed


async def test_the_runner_is_asked_with_the_time_that_is_left() -> None:
    node = FakeConnection()
    context = context_of(placed(AttemptStatus.RUNNING, interrupt_requested_at=NOW))
    await JobInterrupter(ManualClock(NOW + 40))(context, node)
    assert node.the_runner.asked == ["interrupt"]
    assert node.the_runner.stops == [("SIGTERM", 260.0)]


async def test_a_job_that_nobody_wants_to_interrupt_is_left_alone() -> None:
    node = FakeConnection()
    await JobInterrupter(ManualClock())(context_of(placed(AttemptStatus.RUNNING)), node)
    assert node.the_runner.asked == []


async def test_a_runner_that_refuses_is_asked_again() -> None:
    node = FakeConnection()
    node.the_runner.failures = [RunnerError("busy", "not now", 503)]
    context = context_of(placed(AttemptStatus.RUNNING, interrupt_requested_at=NOW))
    with pytest.raises(RetryLater):
        await JobInterrupter(ManualClock())(context, node)
