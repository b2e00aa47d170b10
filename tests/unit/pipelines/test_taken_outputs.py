"""The outputs of other runs on their way into a job."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from controller.blobs import BlobStore
from controller.lifecycle import reports
from controller.lifecycle.model import CollectedOutputs, RunState, TakenOutputs
from controller.outputs.store import OutputStore
from controller.pipelines.performers.job_running import JobStarter
from controller.pipelines.performers.taken_outputs import OutputsGone, TakenOutputsReader
from controller.pipelines.to_node import AttemptContext
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.job import Files
from tests.doubles.clock import ManualClock
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.doubles.node import FakeConnection
from tests.doubles.secrets import NO_SECRETS
from tests.unit.pipelines.parts import ALONE, NotedPipeline, attempt_of, context_of, placed
from tests.unit.pipelines.test_output_collecting import a_tar, about

KEPT = CollectedOutputs(files=1, size=3)
TAR = a_tar(model=b"abc")
DIGEST = hashlib.sha256(TAR).hexdigest()


@pytest.fixture
async def outputs(tmp_path: Path) -> AsyncIterator[OutputStore]:
    store = OutputStore(tmp_path / "outputs")
    yield store
    await asyncio.to_thread(store.close)


@pytest.fixture
def prepare() -> RunState:
    return placed(AttemptStatus.DONE, outputs=KEPT)


def train(prepare: RunState) -> AttemptContext:
    state = placed(AttemptStatus.PULLING)
    takes = (TakenOutputs(run_id=prepare.run.id, name="prepare"),)
    run = msgspec.structs.replace(state.run, outputs_from=takes)
    return context_of(msgspec.structs.replace(state, run=run))


async def keep(outputs: OutputStore, state: RunState) -> None:
    writer = await outputs.writer(attempt_of(state).id)
    await writer.append(TAR)
    await writer.complete(about(TAR))
    await writer.close()


def reader(outputs: OutputStore, *known: RunState) -> TakenOutputsReader:
    runs = {state.run.id: state for state in known}
    return TakenOutputsReader(MemoryStore(MemoryDatabase()), outputs, runs.get)


def starter(pipeline: NotedPipeline, inputs: TakenOutputsReader, folder: Path) -> JobStarter:
    blobs = BlobStore(folder / "blobs")
    return JobStarter(pipeline, ManualClock(), blobs, ALONE, NO_SECRETS, inputs)


async def test_the_job_gets_them_as_an_archive_before_it_starts(
    outputs: OutputStore, prepare: RunState, tmp_path: Path
) -> None:
    await keep(outputs, prepare)
    node, pipeline, context = FakeConnection(), NotedPipeline(), train(prepare)
    start = starter(pipeline, reader(outputs, prepare), tmp_path)
    for _ in range(2):
        await start(context, node)
    (file,) = node.the_runner.submitted[0].job.files
    assert file == Files(path=f"inputs/{prepare.run.name}", archive=DIGEST, read_only=True)
    assert node.the_runner.code == {DIGEST: TAR}
    assert node.the_runner.asked == ["start", "put_code", "run", "start"]


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        (None, "run prepare, whose outputs it takes, left none"),
        (KEPT, "the outputs of run prepare, which it takes, were removed: they are older than"),
    ],
)
async def test_without_outputs_to_take_the_job_ends_with_a_sentence_why(
    outputs: OutputStore, tmp_path: Path, left: CollectedOutputs | None, sentence: str
) -> None:
    prepare = placed(AttemptStatus.DONE, outputs=left)
    node, pipeline = FakeConnection(), NotedPipeline()
    await starter(pipeline, reader(outputs, prepare), tmp_path)(train(prepare), node)
    (exited,) = pipeline.posted
    assert isinstance(exited, reports.RunnerExited)
    assert sentence in (exited.message or "")
    assert node.the_runner.asked == []


async def test_a_run_that_was_removed_says_so(outputs: OutputStore, prepare: RunState) -> None:
    store = MemoryStore(MemoryDatabase())
    await store.open()
    with pytest.raises(OutputsGone, match="run prepare, whose outputs it takes, was removed"):
        await TakenOutputsReader(store, outputs, lambda _: None).of(train(prepare).state.run)
    await store.close()
