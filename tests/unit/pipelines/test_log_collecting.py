"""A job's log on its way to the controller's disk, from a runner that behaves and from others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from controller.blobs import BlobStore
from controller.lifecycle import reports
from controller.lifecycle.model import RunState
from controller.logs.store import LogStore, LogWriter
from controller.outputs.bucket import BucketError
from controller.pipelines.performers import log_collection
from controller.pipelines.performers.log_collection import LogCollector
from controller.pipelines.to_node import RetryLater
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.frames import Decoder, Frame, Stream, encode
from fairlead.wire.runner import ExitRecord
from fairlead.wire.shim import Fence
from runner.client import RunnerError, RunnerUnavailable
from shim.client import ShimError
from tests.doubles.clock import NOW
from tests.doubles.node import FakeConnection
from tests.support.attempts import attempt_with
from tests.support.waiting import eventually
from tests.unit.pipelines.parts import NotedPipeline, attempt_of, context_of, placed, task_of

FENCE = Fence(1, 7)
NO_BLOBS = BlobStore(Path("/nonexistent"))
CONFLICT = ShimError("conflict", "another body", 409)
BROKEN = ShimError("bad_answer", "status 500", 500)
EXIT = ExitRecord(reason="done_by_runner", exit_code=0, finished_at=NOW, log_end=30)


def frame(number: int) -> bytes:
    return encode(Frame(10 * number, number, Stream.STDOUT, b"line %04d\n" % number))


async def stored(logs: LogStore, state: RunState) -> bytes:
    decoder = Decoder()
    pieces = logs.read(attempt_of(state).id, 0)
    return b"".join([f.payload async for piece in pieces for f in decoder.feed(piece)])


async def test_a_log_is_stored_acknowledged_and_complete(
    node: FakeConnection, logs: LogStore
) -> None:
    state, pipeline = placed(AttemptStatus.RUNNING), NotedPipeline()
    node.the_runner.log = [frame(0) + frame(1)[:9], frame(1)[9:], frame(2)]
    await LogCollector(pipeline, logs)(context_of(state), node)
    assert await stored(logs, state) == b"line 0000\nline 0001\nline 0002\n"
    assert node.the_runner.acked == [30]
    assert await logs.is_complete(attempt_of(state).id)
    assert [type(report) for report in pipeline.posted] == [reports.LogsComplete]


async def test_durable_bytes_are_acknowledged_while_the_job_still_runs(
    node: FakeConnection, logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_collection, "SOON_SECONDS", 0.0)
    monkeypatch.setattr(log_collection, "LATE_SECONDS", 0.0)
    state = placed(AttemptStatus.RUNNING)
    node.the_runner.log = [frame(0), node.the_runner.acknowledged, frame(1)]
    await LogCollector(NotedPipeline(), logs)(context_of(state), node)
    assert (node.the_runner.acked[0], node.the_runner.acked[-1]) == (10, 20)


async def test_after_a_rest_an_acknowledgement_that_fails_is_told_with_what_comes_next(
    node: FakeConnection, logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_collection, "SOON_SECONDS", 0.0)
    monkeypatch.setattr(log_collection, "LATE_SECONDS", 0.0)
    writer = await logs.writer(attempt_of(placed(AttemptStatus.RUNNING)).id)
    node.the_runner.log = [frame(0), frame(1)]
    telling = log_collection.Acknowledging(node.the_runner, writer)
    for number in (0, 1):
        await writer.append(frame(number))
        telling.came()
        await eventually(lambda: node.the_runner.acked[-1:] == [writer.end])
    node.the_runner.ack_failure = RunnerUnavailable("cut")
    await writer.append(frame(2))
    telling.came()

    def hears_nothing() -> bool:
        telling.came()
        return False

    with pytest.raises(RunnerUnavailable):
        await eventually(hears_nothing)
    await telling.end()
    await writer.close()
    assert node.the_runner.acked == [10, 20]


async def test_while_the_bucket_is_away_the_log_goes_on_and_is_acknowledged_later(
    node: FakeConnection, logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SOON_SECONDS", "LATE_SECONDS", "AWAY_SECONDS"):
        monkeypatch.setattr(log_collection, name, 0.0)
    writer = await logs.writer(attempt_of(placed(AttemptStatus.RUNNING)).id)
    tries: list[int] = []
    sync = writer.sync

    async def away_twice() -> int:
        tries.append(writer.end)
        if len(tries) <= 2:
            raise BucketError("503 Slow Down")
        return await sync()

    monkeypatch.setattr(writer, "sync", away_twice)
    node.the_runner.log = [frame(0), frame(1)]
    telling = log_collection.Acknowledging(node.the_runner, writer)
    await writer.append(frame(0))
    telling.came()
    await eventually(lambda: len(tries) >= 1)
    await writer.append(frame(1))
    telling.came()
    await eventually(lambda: node.the_runner.acked[-1:] == [20])
    await telling.end()
    await writer.close()


async def test_a_log_whose_bucket_is_away_at_its_end_is_told_as_one_that_waits(
    node: FakeConnection, logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: LogWriter) -> int:
        raise BucketError("503 Slow Down")

    node.the_runner.log = [frame(0)]
    state, pipeline = placed(AttemptStatus.RUNNING), NotedPipeline()
    monkeypatch.setattr(LogWriter, "sync", away)
    with pytest.raises(RetryLater, match="the log waits for its bucket: 503 Slow Down"):
        await LogCollector(pipeline, logs)(context_of(state), node)
    assert pipeline.posted == []
    assert node.the_runner.acked == []


async def test_little_waits_for_its_acknowledgement_until_it_is_much(
    node: FakeConnection, logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_collection, "SOON_SECONDS", 0.0)
    monkeypatch.setattr(log_collection, "LATE_SECONDS", 3600.0)
    monkeypatch.setattr(log_collection, "MUCH_BYTES", 20)
    state = placed(AttemptStatus.RUNNING)
    node.the_runner.log = [frame(0), frame(1), node.the_runner.acknowledged, frame(2)]
    await LogCollector(NotedPipeline(), logs)(context_of(state), node)
    assert (node.the_runner.acked[0], node.the_runner.acked[-1]) == (20, 30)


async def test_a_cut_log_goes_on_where_it_stopped(node: FakeConnection, logs: LogStore) -> None:
    state, pipeline = placed(AttemptStatus.RUNNING), NotedPipeline()
    collect = LogCollector(pipeline, logs)
    node.the_runner.log = [frame(0), frame(1) + frame(2)[:15], RunnerUnavailable("cut")]
    with pytest.raises(RunnerUnavailable):
        await collect(context_of(state), node)
    node.the_runner.log = [frame(2), frame(3)]
    await collect(context_of(state), node)
    assert node.the_runner.log_offsets == [0, 20]
    assert await stored(logs, state) == b"".join(b"line %04d\n" % n for n in range(4))


@pytest.mark.parametrize(
    "failure", [RunnerError("too_slow", "the reader read nothing", 4008), b"\0" * 64]
)
async def test_a_runner_whose_stream_goes_wrong_is_followed_again(
    node: FakeConnection, logs: LogStore, failure: RunnerError | bytes
) -> None:
    state, pipeline = placed(AttemptStatus.RUNNING), NotedPipeline()
    collect = LogCollector(pipeline, logs)
    node.the_runner.log = [frame(0), failure]
    with pytest.raises(RetryLater):
        await collect(context_of(state), node)
    node.the_runner.log = [frame(1)]
    await collect(context_of(state), node)
    assert await stored(logs, state) == b"line 0000\nline 0001\n"


async def test_a_log_that_cannot_be_acknowledged_is_not_called_complete(
    node: FakeConnection, logs: LogStore
) -> None:
    state, pipeline = placed(AttemptStatus.RUNNING), NotedPipeline()
    node.the_runner.log = [frame(0)]
    node.the_runner.ack_failure = RunnerUnavailable("cut")
    with pytest.raises(RunnerUnavailable):
        await LogCollector(pipeline, logs)(context_of(state), node)
    assert not await logs.is_complete(attempt_of(state).id)
    assert pipeline.posted == []


async def test_the_rest_of_a_log_is_read_from_the_shim_when_the_container_is_gone(
    node: FakeConnection, logs: LogStore
) -> None:
    state, pipeline = placed(AttemptStatus.RUNNING), NotedPipeline()
    collect = LogCollector(pipeline, logs)
    node.the_runner.log = [frame(0), frame(1), RunnerUnavailable("gone")]
    with pytest.raises(RunnerUnavailable):
        await collect(context_of(state), node)
    gone = context_of(placed(AttemptStatus.TERMINATING))
    gone = msgspec.structs.replace(
        gone, attempt=attempt_with(attempt_of(state), container_gone=True)
    )
    node.shim.listing[attempt_of(state).id] = task_of(state)
    node.shim.log = [frame(0) + frame(1) + frame(2)[:5], frame(2)[5:] + b"FLOG torn"]
    await collect(gone, node)
    assert node.shim.log_offsets == [20]
    assert await stored(logs, state) == b"line 0000\nline 0001\nline 0002\n"
    assert await logs.is_complete(attempt_of(state).id)


async def test_a_log_that_the_job_damaged_is_complete_up_to_there(
    node: FakeConnection, logs: LogStore
) -> None:
    state, pipeline = placed(AttemptStatus.TERMINATING, container_gone=True), NotedPipeline()
    node.shim.listing[attempt_of(state).id] = task_of(state)
    node.shim.log = [frame(0) + b"\0" * 64 + frame(1)]
    await LogCollector(pipeline, logs)(context_of(state), node)
    assert await stored(logs, state) == b"line 0000\n"
    assert [type(report) for report in pipeline.posted] == [reports.LogsComplete]


async def test_a_log_of_a_task_that_the_shim_has_not_is_a_missing_task(
    node: FakeConnection, logs: LogStore
) -> None:
    state, pipeline = placed(AttemptStatus.TERMINATING, container_gone=True), NotedPipeline()
    await LogCollector(pipeline, logs)(context_of(state), node)
    assert [type(report) for report in pipeline.posted] == [reports.TaskMissing]
    assert not await logs.is_complete(attempt_of(state).id)


async def test_a_complete_log_is_not_asked_for_again(node: FakeConnection, logs: LogStore) -> None:
    state, pipeline = placed(AttemptStatus.TERMINATING, container_gone=True), NotedPipeline()
    await logs.complete(attempt_of(state).id)
    await LogCollector(pipeline, logs)(context_of(state), node)
    assert (node.shim.log_offsets, node.the_runner.log_offsets) == ([], [])
    assert [type(report) for report in pipeline.posted] == [reports.LogsComplete]


async def test_a_link_that_a_job_prints_is_reported_once(
    node: FakeConnection, logs: LogStore
) -> None:
    url = "https://wandb.ai/ada/mnist/runs/1a"
    line, pipeline = f"View run at {url}\n".encode(), NotedPipeline()
    state = placed(AttemptStatus.RUNNING)
    pieces = (line[:20], line[20:], line)
    at = 0
    for number, piece in enumerate(pieces):
        node.the_runner.log.append(encode(Frame(at, number, Stream.STDERR, piece)))
        at += len(piece)
    node.the_runner.log.append(encode(Frame(at, 9, Stream.SYSTEM, line.replace(b"1a", b"2b"))))
    await LogCollector(pipeline, logs)(context_of(state), node)
    found, complete = pipeline.posted
    assert isinstance(found, reports.LinksFound)
    assert [one.url for one in found.links] == [url]
    assert isinstance(complete, reports.LogsComplete)
