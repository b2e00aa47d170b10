"""A job's outputs on their way to the controller's disk, from nodes that behave and others."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import pytest

from controller.lifecycle import reports
from controller.lifecycle.model import CollectedOutputs
from controller.outputs.bucket import BucketError
from controller.outputs.store import OutputsDamaged, OutputStore, StoredOutputs
from controller.pipelines.performers.output_collection import OutputCollector
from controller.pipelines.to_node import RetryLater
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.shim import PullProgress, TaskStatus
from fairlead.wire.sizes import OutputsAbout
from shim.client import ShimUnavailable
from tests.doubles.node import FakeConnection
from tests.unit.pipelines.parts import NotedPipeline, attempt_of, context_of, placed, task_of

STATE = placed(AttemptStatus.TERMINATING, container_gone=True, has_outputs=True)
ATTEMPT = attempt_of(STATE).id


@pytest.fixture
def node() -> FakeConnection:
    connection = FakeConnection()
    connection.shim.listing[ATTEMPT] = task_of(STATE, TaskStatus.TERMINATED)
    return connection


def a_tar(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def about(data: bytes, *, files: int = 1, size: int = 0, left_out: int = 0) -> OutputsAbout:
    return OutputsAbout(
        files=files, size=size, left_out=left_out, left_out_size=0, length=len(data)
    )


async def test_outputs_are_stored_whole_and_then_reported(
    node: FakeConnection, outputs: OutputStore
) -> None:
    pipeline, data = NotedPipeline(), a_tar(a=b"12345", b__c=b"678")
    node.shim.outputs_about, node.shim.output_pieces = about(data, left_out=2), [data]
    await OutputCollector(pipeline, outputs, {})(context_of(STATE), node)
    (told,) = pipeline.posted
    assert isinstance(told, reports.OutputsCollected)
    assert told.outputs == CollectedOutputs(files=2, size=8, left_out=2)
    assert await asyncio.to_thread(outputs.archive(ATTEMPT).read_bytes) == data
    assert node.shim.output_offsets == [(0, 1 << 20)]


class Told(dict[str, PullProgress]):
    """Keeps what it was told, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.values_told: list[PullProgress] = []

    def __setitem__(self, key: str, value: PullProgress) -> None:
        super().__setitem__(key, value)
        self.values_told.append(value)


async def test_progress_is_told_now_and_then_and_not_after_the_end(
    node: FakeConnection, tmp_path: Path
) -> None:
    outputs, told = OutputStore(tmp_path / "large"), Told()
    data, mib = a_tar(a=bytes(20 << 20)), 1 << 20
    node.shim.outputs_about = about(data)
    node.shim.output_pieces = [data[at : at + mib] for at in range(0, len(data), mib)]
    await OutputCollector(NotedPipeline(), outputs, told)(context_of(STATE), node)
    await asyncio.to_thread(outputs.close)
    shown = [PullProgress(downloaded=at, total=len(data)) for at in (0, 8 * mib, 16 * mib)]
    assert told.values_told == shown
    assert told == {}


async def test_a_broken_connection_goes_on_at_the_byte_where_it_stopped(
    node: FakeConnection, outputs: OutputStore
) -> None:
    pipeline, data = NotedPipeline(), a_tar(a=b"12345")
    node.shim.outputs_about = about(data)
    node.shim.output_pieces = [data[:700], ShimUnavailable("cut")]
    collect = OutputCollector(pipeline, outputs, {})
    with pytest.raises(ShimUnavailable):
        await collect(context_of(STATE), node)
    assert pipeline.posted == []
    assert await outputs.find(ATTEMPT) is None
    node.shim.output_pieces = [data[700:]]
    await collect(context_of(STATE), node)
    assert [offset for offset, _ in node.shim.output_offsets] == [0, 700]
    assert await asyncio.to_thread(outputs.archive(ATTEMPT).read_bytes) == data


async def test_what_is_stored_is_reported_again_without_another_request(
    node: FakeConnection, outputs: OutputStore
) -> None:
    pipeline, data = NotedPipeline(), a_tar(a=b"12345")
    node.shim.outputs_about, node.shim.output_pieces = about(data), [data]
    collect = OutputCollector(pipeline, outputs, {})
    await collect(context_of(STATE), node)
    await collect(context_of(STATE), node)
    first, second = pipeline.posted
    assert first == second
    assert len(node.shim.output_offsets) == 1


@pytest.mark.parametrize("name", ["..__evil", "__etc__passwd", "a__..__..__b"])
async def test_a_tar_with_names_that_lead_out_is_not_kept(
    node: FakeConnection, outputs: OutputStore, name: str
) -> None:
    pipeline, data = NotedPipeline(), a_tar(**{name: b"x"})
    node.shim.outputs_about, node.shim.output_pieces = about(data), [data]
    with pytest.raises(RetryLater, match="damaged: a name in it leads out of it"):
        await OutputCollector(pipeline, outputs, {})(context_of(STATE), node)
    assert (pipeline.posted, await outputs.find(ATTEMPT)) == ([], None)


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "deep/../../x"])
async def test_links_are_stored_and_one_that_leads_out_is_refused(
    node: FakeConnection, outputs: OutputStore, target: str
) -> None:
    for number, link in enumerate(("deep", target)):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member)
        data = packed.getvalue()
        writer = await outputs.writer(f"attempt-{number}")
        await writer.append(data)
        if link == "deep":
            assert (await writer.complete(about(data, files=0))).files == ()
        else:
            with pytest.raises(OutputsDamaged, match="a link in it leads out of it"):
                await writer.complete(about(data, files=0))
        await writer.close()


async def test_a_damaged_tar_is_asked_for_from_its_beginning(
    node: FakeConnection, outputs: OutputStore
) -> None:
    pipeline, data = NotedPipeline(), b"x" * 2048
    node.shim.outputs_about, node.shim.output_pieces = about(data), [data]
    collect = OutputCollector(pipeline, outputs, {})
    for _ in range(2):
        with pytest.raises(RetryLater, match="damaged"):
            await collect(context_of(STATE), node)
    assert [offset for offset, _ in node.shim.output_offsets] == [0, 0]


async def test_a_node_that_sends_more_than_it_was_asked_for_fills_no_disk(
    node: FakeConnection, outputs: OutputStore
) -> None:
    pipeline, data = NotedPipeline(), a_tar(a=b"1")
    node.shim.outputs_about = about(data)
    node.shim.output_pieces = [data, b"more"]
    with pytest.raises(RetryLater, match="more outputs than it announced"):
        await OutputCollector(pipeline, outputs, {})(context_of(STATE), node)
    node.shim.outputs_about = OutputsAbout(
        files=1, size=1, left_out=0, left_out_size=0, length=1 << 40
    )
    with pytest.raises(RetryLater, match="more outputs than it was asked for"):
        await OutputCollector(pipeline, outputs, {})(context_of(STATE), node)


async def test_outputs_of_a_task_that_the_shim_has_not_are_a_missing_task(
    node: FakeConnection, outputs: OutputStore
) -> None:
    pipeline = NotedPipeline()
    node.shim.listing.clear()
    await OutputCollector(pipeline, outputs, {})(context_of(STATE), node)
    assert [type(report) for report in pipeline.posted] == [reports.TaskMissing]


async def test_outputs_that_wait_for_their_bucket_are_not_reported(
    node: FakeConnection, outputs: OutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, data = NotedPipeline(), a_tar(a=b"12345")
    node.shim.outputs_about, node.shim.output_pieces = about(data), [data]

    async def away(attempt_id: str, stored: StoredOutputs) -> None:
        raise BucketError("s3://away: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "secure", away)
        with pytest.raises(RetryLater, match="s3://away: no answer"):
            await OutputCollector(pipeline, outputs, {})(context_of(STATE), node)
    assert pipeline.posted == []
    await OutputCollector(pipeline, outputs, {})(context_of(STATE), node)
    assert len(pipeline.posted) == 1
    assert len(node.shim.output_offsets) == 1, "the node sent them once"
