"""A GPU's fault is in its job's log, whoever was late: the runner, the controller or the news."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from controller.lifecycle.model import RunState
from controller.logs.store import LogStore
from controller.pipelines.performers.log_collection import LogCollector
from controller.pipelines.to_node import RetryLater
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.frames import Decoder, Frame, Stream, encode
from fairlead.wire.shim import Notice, TaskInfo, TaskStatus, TaskTimes
from shim.client import ShimError
from tests.doubles.node import FakeConnection, FakeShim
from tests.support.attempts import attempt_with
from tests.unit.pipelines.parts import NotedPipeline, attempt_of, context_of, placed

LOST = Notice(id="GPU-0:xid-79", at=5.0, text="[gpu-health] GPU 0: XID 79")
LINE = b"[gpu-health] GPU 0: XID 79\n"


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogStore]:
    store = LogStore(tmp_path)
    yield store
    await asyncio.to_thread(store.close)


@pytest.fixture(params=["runner", "shim"])
def on_gpu(request: pytest.FixtureRequest) -> RunState:
    """A job with a GPU whose log is read from its runner, or, when that is gone, from its shim."""
    gone = request.param == "shim"
    status = AttemptStatus.TERMINATING if gone else AttemptStatus.RUNNING
    return placed(status, container_gone=gone, gpus=("GPU-0",))


def node_with(state: RunState, log: list[Frame], *notices: Notice) -> FakeConnection:
    node = FakeConnection()
    node.the_runner.log = [encode(frame) for frame in log]
    node.shim.log = [encode(frame) for frame in log]
    attempt = attempt_of(state)
    node.shim.listing[attempt.id] = TaskInfo(
        id=attempt.id,
        run_id=state.run.id,
        run_name="run",
        allocation_id="p1",
        status=TaskStatus.TERMINATED,
        image="busybox",
        notices=notices,
        times=TaskTimes(submitted_at=0.0),
    )
    return node


async def stored(logs: LogStore, state: RunState) -> list[tuple[Stream, bytes]]:
    decoder = Decoder()
    pieces = logs.read(attempt_of(state).id, 0)
    return [(f.stream, f.payload) async for piece in pieces for f in decoder.feed(piece)]


OUTPUT = Frame(0, 1, Stream.STDOUT, b"out\n")


async def test_a_fault_that_the_runner_was_never_told_is_added_at_the_end(
    logs: LogStore, on_gpu: RunState
) -> None:
    node = node_with(on_gpu, [OUTPUT], LOST)
    await LogCollector(NotedPipeline(), logs)(context_of(on_gpu), node)
    assert await stored(logs, on_gpu) == [(Stream.STDOUT, b"out\n"), (Stream.SYSTEM, LINE)]
    assert await logs.is_complete(attempt_of(on_gpu).id)


async def test_a_fault_that_is_in_the_log_is_not_told_twice(
    logs: LogStore, on_gpu: RunState
) -> None:
    told = Frame(4, 2, Stream.SYSTEM, LINE)
    node = node_with(on_gpu, [OUTPUT, told, Frame(told.end, 3, Stream.STDOUT, b"more\n")], LOST)
    await LogCollector(NotedPipeline(), logs)(context_of(on_gpu), node)
    assert [text for _, text in await stored(logs, on_gpu)] == [b"out\n", LINE, b"more\n"]


async def test_an_unfinished_line_is_ended_first_and_a_repeated_look_adds_nothing(
    logs: LogStore, on_gpu: RunState
) -> None:
    node = node_with(on_gpu, [Frame(0, 1, Stream.STDOUT, b"cut")], LOST)
    collect = LogCollector(NotedPipeline(), logs)
    await collect(context_of(on_gpu), node)
    (logs.folder_of(attempt_of(on_gpu).id) / "complete").unlink()  # killed just before it
    await node.the_runner.stop()  # its job has ended, and its log with it
    await collect(context_of(on_gpu), node)
    lines = [text for _, text in await stored(logs, on_gpu)]
    assert lines == [b"cut", b"\n" + LINE]


async def test_a_shim_that_cannot_say_now_is_asked_again(logs: LogStore, on_gpu: RunState) -> None:
    class Busy(FakeShim):
        async def task(self, task_id: str) -> TaskInfo:
            raise ShimError("internal", "not now", 500)

    node = node_with(on_gpu, [OUTPUT], LOST)
    well, node.shim = node.shim, Busy()
    node.shim.log = well.log
    node.shim.listing.update(well.listing)
    with pytest.raises(RetryLater):
        await LogCollector(NotedPipeline(), logs)(context_of(on_gpu), node)
    assert not await logs.is_complete(attempt_of(on_gpu).id)


async def test_without_a_gpu_nobody_is_asked(logs: LogStore, on_gpu: RunState) -> None:
    attempt = attempt_with(attempt_of(on_gpu), gpus=())
    node = node_with(on_gpu, [OUTPUT], LOST)
    context = msgspec.structs.replace(context_of(on_gpu), attempt=attempt)
    await LogCollector(NotedPipeline(), logs)(context, node)
    assert await stored(logs, on_gpu) == [(Stream.STDOUT, b"out\n")]
