"""The answers of every runner to its controller: the real one, the simulated one and the fake one.

A test module gives the fixtures `runner`, which has no job yet, and `job`, which runs until it is
stopped and writes nothing, and inherits the tests.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from controller.links.base import RunnerApi
from fairlead.wire.job import EndSignal, Files, SubmitRequest
from fairlead.wire.runner import ExitReason, RunnerState, SignalRequest, StatusEvent
from runner.client import RunnerError
from tests.support.waiting import LONG

DEADLINE = LONG
DIGEST = "0" * 64


async def refused(asked: Any) -> str:
    with pytest.raises(RunnerError) as caught:
        await asked
    return caught.value.code


async def states_until(runner: RunnerApi, state: RunnerState, after: int = 0) -> list[StatusEvent]:
    """The states up to this one, each once."""
    found: dict[int, StatusEvent] = {}
    async with asyncio.timeout(DEADLINE), aclosing(runner.status_events(after)) as events:
        async for event in events:
            found[event.seq] = event
            if event.state is state:
                return list(found.values())
    raise AssertionError(f"the runner was never {state}")


class RunnerContract:
    @pytest.fixture
    def job(self) -> SubmitRequest:
        raise NotImplementedError

    async def test_a_job_that_is_submitted_twice_runs_once(
        self, runner: RunnerApi, job: SubmitRequest
    ) -> None:
        await runner.start(job)
        await states_until(runner, RunnerState.RUNNING)
        again = await runner.start(job)
        assert again.state is RunnerState.RUNNING
        assert (await runner.run()).seq == again.seq

    async def test_another_job_is_refused(self, runner: RunnerApi, job: SubmitRequest) -> None:
        await runner.start(job)
        other = msgspec.structs.replace(job, job=msgspec.structs.replace(job.job, index=7))
        assert await refused(runner.start(other)) == "conflict"

    async def test_nothing_runs_before_the_job_and_its_code_have_come(
        self, runner: RunnerApi, job: SubmitRequest
    ) -> None:
        assert await refused(runner.run()) == "not_ready"
        files = (Files(path="/f", archive=DIGEST),)
        coded = msgspec.structs.replace(job, job=msgspec.structs.replace(job.job, files=files))
        assert (await runner.start(coded)).state is RunnerState.WAITING_FOR_CODE
        assert await refused(runner.run()) == "not_ready"

    async def test_a_job_that_is_stopped_before_it_came_never_runs(
        self, runner: RunnerApi, job: SubmitRequest
    ) -> None:
        await runner.stop()
        ended = (await states_until(runner, RunnerState.SERVING_LOGS))[-1].exit
        assert ended is not None
        assert (ended.reason, ended.exit_code) == (ExitReason.EXECUTOR_ERROR, None)
        assert await refused(runner.start(job)) == "ended"

    async def test_a_stopped_job_ends_once_and_says_how(
        self, runner: RunnerApi, job: SubmitRequest
    ) -> None:
        await runner.start(job)
        running = (await states_until(runner, RunnerState.RUNNING))[-1]
        await runner.stop(grace=0.0)
        told = await states_until(runner, RunnerState.SERVING_LOGS, running.seq)
        assert [event.seq for event in told] == [running.seq + 1]
        ended = told[-1].exit
        assert ended is not None
        assert ended.reason == ExitReason.CONTAINER_EXITED_WITH_ERROR
        assert (await runner.stop()).exit == ended
        assert (await runner.start(job)).exit == ended

    async def test_an_interrupted_job_that_does_not_end_by_itself_counts_as_interrupted(
        self, runner: RunnerApi, job: SubmitRequest
    ) -> None:
        await runner.start(job)
        await states_until(runner, RunnerState.RUNNING)
        await runner.stop(grace=0.0, interrupt=True)
        ended = (await states_until(runner, RunnerState.SERVING_LOGS))[-1].exit
        assert ended is not None
        assert ended.reason == ExitReason.INTERRUPTED

    async def test_a_signal_is_for_a_job_that_asks_for_one(
        self, runner: RunnerApi, job: SubmitRequest
    ) -> None:
        request = SignalRequest(id="preempted 0", cause="preempted", ends_in=1.0)
        assert await refused(runner.signal(request)) == "no_signal"
        wanted = msgspec.structs.replace(job.job, signal=EndSignal(name="SIGUSR1", before=60.0))
        await runner.start(msgspec.structs.replace(job, job=wanted))
        await states_until(runner, RunnerState.RUNNING)
        for _ in range(2):
            assert (await runner.signal(request)).state is RunnerState.RUNNING
        await runner.stop(grace=0.0)
        await states_until(runner, RunnerState.SERVING_LOGS)
        assert (await runner.signal(request)).state is RunnerState.SERVING_LOGS

    async def test_only_bytes_that_were_written_are_acknowledged(self, runner: RunnerApi) -> None:
        assert await runner.ack(0) == 0
        assert await refused(runner.ack(1)) == "invalid"
        assert await refused(runner.ack(-1)) == "invalid"

    async def test_a_log_is_not_followed_from_beyond_its_end(self, runner: RunnerApi) -> None:
        async with aclosing(runner.follow_logs(5)) as pieces:
            assert await refused(anext(pieces)) == "refused"

    async def test_a_notice_is_written_once_and_not_after_the_end(self, runner: RunnerApi) -> None:
        for _ in range(2):
            await runner.notice("n1", "[gpu-health] lost")
        await runner.stop()
        await states_until(runner, RunnerState.SERVING_LOGS)
        assert await refused(runner.notice("n2", "late")) == "ended"
