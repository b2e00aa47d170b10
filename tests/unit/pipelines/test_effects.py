"""The effect runner with scripted performers: the outside follows the committed state."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import RunState
from controller.links.base import NodeConnection
from controller.logs.store import LogStore
from controller.nodes.manager import NodeManager
from controller.pipelines import effects
from controller.pipelines.effects import EffectRunner, Performer
from controller.pipelines.to_node import AttemptContext, RetryLater
from fairlead.model.statuses import AttemptStatus
from shim.client import ShimUnavailable
from tests.doubles.clock import ManualClock
from tests.support.attempts import attempt_with
from tests.support.waiting import eventually
from tests.unit.pipelines.parts import NotedPipeline, attempt_of, placed, steady_chance


class FakeNodes:
    """`connected` is set while the one node can be reached."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.connected.set()

    async def connection(self, node_id: str) -> NodeConnection:
        await self.connected.wait()
        return cast(NodeConnection, object())


class Scripted:
    """Counts what is begun; `fail` is raised as often as it says; then it waits for `go_on`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.live: Counter[str] = Counter()
        self.cancelled = 0
        self.failures: list[Exception] = []
        self.go_on = asyncio.Event()
        self.finished = 0

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        self.begun.append(context.attempt.id)
        self.live[context.attempt.id] += 1
        assert self.live[context.attempt.id] == 1
        try:
            if self.failures:
                raise self.failures.pop(0)
            await self.go_on.wait()
            self.finished += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.live[context.attempt.id] -= 1


class World:
    def __init__(self, state: RunState, folder: Path) -> None:
        self.state = state
        self.pipeline = NotedPipeline(state)
        self.nodes = FakeNodes()
        self.logs = LogStore(folder)
        self.scripts = {kind: Scripted() for kind in EffectKind}
        self.runner = EffectRunner(
            self.pipeline,
            cast(NodeManager, self.nodes),
            self.logs,
            cast(Mapping[EffectKind, Performer], self.scripts),
            ManualClock(),
            steady_chance(),
        )

    def commit(self, status: AttemptStatus | None = None, **changes: Any) -> None:
        """The turn's message after a commit that changed the attempt like this."""
        job = self.state.jobs[0]
        attempt = attempt_with(job.attempts[0], **({"status": status} if status else {}), **changes)
        jobs = (msgspec.structs.replace(job, attempts=(attempt,)),)
        self.state = msgspec.structs.replace(self.state, jobs=jobs)
        self.pipeline.runs[self.state.run.id] = self.state
        self.runner.committed([self.state])

    def begun(self, kind: EffectKind) -> int:
        return len(self.scripts[kind].begun)


@contextlib.asynccontextmanager
async def world(status: AttemptStatus, folder: Path, **changes: Any) -> AsyncIterator[World]:
    made = World(placed(status, **changes), folder)
    try:
        yield made
    finally:
        await made.runner.close()
        await asyncio.to_thread(made.logs.close)


async def test_a_wanted_effect_begins_once_however_often_it_is_committed(tmp_path: Path) -> None:
    async with world(AttemptStatus.RUNNING, tmp_path) as it:
        for _ in range(5):
            it.commit()
        await eventually(lambda: it.begun(EffectKind.COLLECT_LOGS))
        assert {kind: it.begun(kind) for kind in EffectKind if it.begun(kind)} == {
            EffectKind.FOLLOW_RUNNER: 1,
            EffectKind.COLLECT_LOGS: 1,
        }


async def test_a_finished_effect_is_not_repeated_by_the_next_commit(tmp_path: Path) -> None:
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        submit.go_on.set()
        it.commit()
        await eventually(lambda: submit.finished)
        it.commit()
        it.commit()
        assert submit.begun == [attempt_of(it.state).id]


async def test_an_effect_that_is_no_longer_wanted_is_cancelled(tmp_path: Path) -> None:
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        it.commit()
        await eventually(lambda: submit.begun)
        it.commit(AttemptStatus.PULLING, container_started=True)
        await eventually(lambda: submit.cancelled)
        await eventually(lambda: it.begun(EffectKind.START_JOB))
        assert submit.finished == 0


async def test_a_final_attempt_has_nothing_under_way_and_its_readers_end(tmp_path: Path) -> None:
    async with world(AttemptStatus.RUNNING, tmp_path) as it:
        collect = it.scripts[EffectKind.COLLECT_LOGS]
        it.commit()
        await eventually(lambda: collect.begun)
        reading = asyncio.create_task(anext(it.logs.follow(attempt_of(it.state).id, 0), b"end"))
        it.commit(AttemptStatus.FAILED)
        assert await reading == b"end"
        await eventually(lambda: collect.cancelled)
        assert not it.runner.remembers(attempt_of(it.state).id)


@pytest.mark.parametrize(
    ("failure", "is_shown", "is_ours"),
    [
        (RetryLater("busy"), False, False),
        (ShimUnavailable("cut"), False, False),
        (OSError(errno.ENOSPC, "disk full"), True, False),
        (ValueError("wrong"), True, True),
    ],
)
async def test_a_failed_effect_is_tried_again_until_it_works(
    tmp_path: Path,
    failure: Exception,
    is_shown: bool,
    is_ours: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        submit.failures = [failure, failure]
        submit.go_on.set()
        it.commit()
        await eventually(lambda: submit.finished)
        assert len(submit.begun) == 3
    assert ["Traceback" in caplog.text, str(failure) in caplog.text] == [is_ours, is_shown]
    if isinstance(failure, OSError):
        assert len(caplog.records) == 1, "a full disk is told once, however often it is tried"


async def test_an_effect_that_is_refused_again_and_again_is_told_once_for_each_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "MAX_WAIT_SECONDS", 0.001)
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        busy = [RetryLater("busy") for _ in range(effects.REFUSALS_UNTOLD + 3)]
        submit.failures = [*busy, RetryLater("fenced"), RetryLater("fenced")]
        submit.go_on.set()
        it.commit()
        await eventually(lambda: submit.finished)
    told = [
        record.getMessage().partition("refused and will be tried again: ")[2]
        for record in caplog.records
    ]
    assert told == ["busy", "fenced"]


async def test_a_commit_cuts_the_wait_for_the_next_try_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "FIRST_WAIT_SECONDS", 3600.0)
    monkeypatch.setattr(effects, "MAX_WAIT_SECONDS", 3600.0)
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        submit.failures = [RetryLater("not yet")]
        submit.go_on.set()
        it.commit()
        await eventually(lambda: submit.begun)
        it.commit()
        await eventually(lambda: submit.finished)
        assert len(submit.begun) == 2


async def test_nothing_is_begun_while_the_node_is_away(tmp_path: Path) -> None:
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        it.nodes.connected.clear()
        it.commit()
        for _ in range(10):
            await asyncio.sleep(0)
        assert submit.begun == []
        it.nodes.connected.set()
        await eventually(lambda: submit.begun)
        assert submit.begun == [attempt_of(it.state).id]


async def test_a_node_reached_anew_gets_again_what_is_still_wanted(tmp_path: Path) -> None:
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        submit.go_on.set()
        it.commit()
        await eventually(lambda: submit.finished)
        it.runner.repeat("n1")
        await eventually(lambda: submit.finished == 2)
        it.runner.repeat("another")
        for _ in range(10):
            await asyncio.sleep(0)
        assert submit.finished == 2


async def test_each_request_of_a_node_for_credentials_is_answered_once(tmp_path: Path) -> None:
    asked = {"container_started": False, "credentials_asked": 1}
    async with world(AttemptStatus.PULLING, tmp_path, **asked) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        submit.go_on.set()
        it.commit()
        it.commit()
        await eventually(lambda: submit.finished == 1)
        it.commit(credentials_asked=None)
        it.commit(credentials_asked=2)
        it.commit()
        await eventually(lambda: submit.finished == 2)
        assert len(submit.begun) == 2


async def test_closing_ends_all_that_is_under_way(tmp_path: Path) -> None:
    async with world(AttemptStatus.RUNNING, tmp_path) as it:
        it.commit()
        follow = it.scripts[EffectKind.FOLLOW_RUNNER]
        await eventually(lambda: follow.begun)
        await it.runner.close()
        assert follow.cancelled == 1


async def test_only_some_of_thousands_of_jobs_begin_at_once_and_ends_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "LENT_SECONDS", 60.0)
    many = [placed(AttemptStatus.PROVISIONING) for _ in range(5 * effects.BEGUN_AT_ONCE)]
    ending = placed(AttemptStatus.TERMINATING)
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        for state in (*many, ending):
            it.pipeline.runs[state.run.id] = state
        it.runner.committed([*many, ending])
        await eventually(lambda: it.begun(EffectKind.TERMINATE_TASK))
        assert len(submit.begun) == effects.BEGUN_AT_ONCE
        submit.go_on.set()
        await eventually(lambda: submit.finished == len(many))


async def test_a_beginning_that_takes_long_keeps_nobody_else_from_his(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "LENT_SECONDS", 0.01)
    many = [placed(AttemptStatus.PROVISIONING) for _ in range(5 * effects.BEGUN_AT_ONCE)]
    async with world(AttemptStatus.PROVISIONING, tmp_path) as it:
        submit = it.scripts[EffectKind.SUBMIT_TASK]
        it.pipeline.runs.update({state.run.id: state for state in many})
        it.runner.committed(many)
        await eventually(lambda: len(submit.begun) == len(many))
        assert submit.finished == 0


async def test_an_effect_as_long_as_its_job_keeps_others_from_beginning_only_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "LENT_SECONDS", 60.0)
    many = [placed(AttemptStatus.RUNNING) for _ in range(5 * effects.BEGUN_AT_ONCE)]
    async with world(AttemptStatus.RUNNING, tmp_path) as it:
        it.pipeline.runs.update({state.run.id: state for state in many})
        it.runner.committed(many)
        await eventually(lambda: it.begun(EffectKind.FOLLOW_RUNNER) == len(many))
        await eventually(lambda: it.begun(EffectKind.COLLECT_LOGS) == len(many))
        assert it.scripts[EffectKind.FOLLOW_RUNNER].finished == 0
