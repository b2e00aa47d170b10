"""The shim's notices about a job's GPUs reach the job's log, by way of its runner."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from controller.nodes import notices
from controller.nodes.notices import NoticeCarrier
from fairlead.wire.shim import Notice, TaskInfo, TaskStatus, TaskTimes
from runner.client import RunnerError, RunnerUnavailable
from tests.doubles.node import FakeConnection, FakeRunner
from tests.support.waiting import LONG, eventually

LOST = Notice(id="GPU-0:lost", at=1.0, text="[gpu-health] lost")
TASK = TaskInfo(
    id="a1",
    run_id="r1",
    run_name="run",
    allocation_id="p1",
    status=TaskStatus.RUNNING,
    image="busybox",
    notices=(LOST,),
    times=TaskTimes(submitted_at=0.0),
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PAUSES", (0.0, 0.0))


def connection() -> tuple[FakeConnection, FakeRunner]:
    made = FakeConnection()
    return made, made.the_runner


async def test_a_notice_is_carried_once_by_each_connection() -> None:
    made, runner = connection()
    carrier = NoticeCarrier(made)
    for _ in range(3):
        carrier.carry(TASK)
    await asyncio.wait_for(runner.noticed.wait(), LONG)
    await carrier.close()
    assert runner.notices == [("GPU-0:lost", "[gpu-health] lost")]


async def test_a_runner_that_is_not_there_yet_is_told_later() -> None:
    made, runner = connection()
    runner.notice_failures = [RunnerUnavailable("not yet"), RunnerUnavailable("not yet")]
    carrier = NoticeCarrier(made)
    carrier.carry(TASK)
    await asyncio.wait_for(runner.noticed.wait(), LONG)
    await carrier.close()
    assert len(runner.notices) == 1


async def test_a_runner_that_stayed_away_is_told_with_the_next_state_of_its_task() -> None:
    made, runner = connection()
    runner.notice_failures = [RunnerUnavailable("away")] * 3
    carrier = NoticeCarrier(made)
    carrier.carry(TASK)
    await eventually(lambda: not runner.notice_failures, what="three tries")

    def again() -> bool:
        carrier.carry(TASK)
        return runner.noticed.is_set()

    await eventually(again, what="the notice")
    await carrier.close()
    assert len(runner.notices) == 1


async def test_a_job_that_has_ended_is_left_alone() -> None:
    made, runner = connection()
    runner.notice_failures = [RunnerError("ended", "the job has ended", 409)]
    carrier = NoticeCarrier(made)
    carrier.carry(TASK)
    carrier.carry(msgspec.structs.replace(TASK, status=TaskStatus.TERMINATED))
    await eventually(lambda: not runner.notice_failures, what="the refusal")
    await carrier.close()
    assert runner.notices == []
