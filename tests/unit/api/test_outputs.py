"""Outputs by the API: listed, downloaded, gone on with, and refused with what happened to them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientPayloadError
from aiohttp.test_utils import TestClient
from msgspec.structs import replace

from controller.lifecycle.model import CollectedOutputs
from controller.lifecycle.reports import OutputsCollected
from controller.outputs import bucket
from controller.outputs.bucket import BucketError
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus
from fairlead.wire.shim import PullProgress
from fairlead.wire.sizes import OutputsAbout
from tests.support.attempts import attempt_with
from tests.support.object_storage import ObjectStorage
from tests.unit.api.asking import error_of, submit
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import PlayedNode


def a_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("deep/a.txt")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"hello"))
    return packed.getvalue()


async def stored(controller: Controller, run: dict[str, Any]) -> bytes:
    """The run's job has a node, and its outputs are stored."""
    await PlayedNode(controller).runs(run["name"])
    (state,) = controller.pipeline.runs.values()
    attempt_id, data = state.jobs[0].attempts[0].id, a_tar()
    about = OutputsAbout(files=1, size=5, left_out=2, left_out_size=9, length=len(data))
    writer = await controller.outputs.writer(attempt_id)
    await writer.append(data)
    await writer.complete(about)
    await writer.close()
    collected = CollectedOutputs(files=1, size=5, left_out=2, left_out_size=9)
    await controller.pipeline.report(
        OutputsCollected(run_id=state.run.id, attempt_id=attempt_id, outputs=collected)
    )
    return data


async def test_outputs_are_listed_with_their_files_and_what_was_left_out(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    await stored(controller, run)
    async with api.get("/v1/runs/hello/outputs") as answer:
        (found,) = (await answer.json())["outputs"]
    assert (found["state"], found["count"], found["size"]) == ("collected", 1, 5)
    assert (found["left_out"], found["files"]) == (2, [{"name": "deep/a.txt", "size": 5}])
    async with api.get("/v1/runs/hello") as answer:
        shown = (await answer.json())["jobs"][0]["attempts"][0]["outputs"]
    expected = {"state": "collected", "count": 1, "size": 5, "left_out": 2, "left_out_size": 9}
    assert shown == {**expected, "received": None, "total": None}


async def test_outputs_that_are_on_their_way_have_their_bytes(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    await submit(api, name="hello")
    await PlayedNode(controller).runs("hello")
    (state,) = controller.pipeline.runs.values()
    (attempt,) = state.jobs[0].attempts
    ended = attempt_with(
        attempt,
        status=AttemptStatus.TERMINATING,
        reason=Reason.DONE_BY_RUNNER,
        has_outputs=True,
    )
    jobs = (replace(state.jobs[0], attempts=(ended,)),)
    controller.pipeline.runs[state.run.id] = replace(state, jobs=jobs)
    controller.service.runs.progress[attempt.id] = PullProgress(downloaded=300, total=1000)
    async with api.get("/v1/runs/hello/outputs") as answer:
        (found,) = (await answer.json())["outputs"]
    assert (found["state"], found["received"], found["total"]) == ("collecting", 300, 1000)
    async with api.get("/v1/runs/hello") as answer:
        shown = (await answer.json())["jobs"][0]["attempts"][0]["outputs"]
    assert (shown["state"], shown["received"], shown["total"]) == ("collecting", 300, 1000)
    del controller.service.runs.progress[attempt.id]
    async with api.get("/v1/runs/hello") as answer:
        shown = (await answer.json())["jobs"][0]["attempts"][0]["outputs"]
    assert (shown["state"], shown["received"], shown["total"]) == ("collecting", None, None)


async def test_a_download_goes_on_where_it_stopped(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    data = await stored(controller, await submit(api, name="hello"))
    path = "/v1/runs/hello/outputs/archive"
    async with api.get(path) as answer:
        assert (answer.status, answer.content_type) == (200, "application/x-tar")
        assert await answer.read() == data
    async with api.get(path, headers={"Range": "bytes=700-"}) as answer:
        assert (answer.status, await answer.read()) == (206, data[700:])
    async with api.get(path, headers={"Range": f"bytes={len(data)}-"}) as answer:
        assert answer.status == 416


async def test_no_outputs_and_removed_ones_are_told_apart(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    path = "/v1/runs/hello/outputs/archive"
    async with api.get(path) as answer:
        assert await error_of(answer) == (404, "no_outputs", None)
    await stored(controller, run)
    assert await controller.outputs.sweep((), float("inf")) == 1
    async with api.get(path) as answer:
        assert await error_of(answer) == (410, "outputs_removed", None)
    async with api.get("/v1/runs/hello/outputs") as answer:
        (found,) = (await answer.json())["outputs"]
    assert (found["removed"], found["files"], found["count"]) == (True, None, 1)


@pytest.mark.parametrize("query", [{"job": "7"}, {"attempt": "9"}])
async def test_outputs_of_a_job_that_is_not_there_are_refused_by_its_name(
    api: TestClient[Any, Any], query: dict[str, str]
) -> None:
    await submit(api, name="hello")
    async with api.get("/v1/runs/hello/outputs", params=query) as answer:
        status, code, _ = await error_of(answer)
    assert (status, code) == (404, "not_found")


async def test_outputs_in_a_bucket_are_listed_and_downloaded_as_others(
    api: TestClient[Any, Any], controller: Controller, storage: ObjectStorage
) -> None:
    data = await stored(controller, await submit(api, name="hello"))
    (attempt_id,) = await controller.outputs.larger_than(0)
    place = storage.bucket.object(f"{attempt_id}/outputs.tar")
    await controller.outputs.move(attempt_id, place)
    controller.outputs.archive(attempt_id).unlink()
    async with api.get("/v1/runs/hello/outputs") as answer:
        (found,) = (await answer.json())["outputs"]
    assert (found["state"], found["count"], found["place"]) == ("collected", 1, str(place))
    path = "/v1/runs/hello/outputs/archive"
    async with api.get(path) as answer:
        assert (answer.status, answer.content_type) == (200, "application/x-tar")
        assert (answer.content_length, await answer.read()) == (len(data), data)
    async with api.get(path, headers={"Range": "bytes=700-"}) as answer:
        assert (answer.status, await answer.read()) == (206, data[700:])
        assert answer.headers["Content-Range"] == f"bytes 700-{len(data) - 1}/{len(data)}"
    async with api.get(path, headers={"Range": "bytes=-100"}) as answer:
        assert (answer.status, await answer.read()) == (206, data[-100:])
    for beyond in (f"bytes={len(data)}-", "bytes=9-5", "lines=1-2"):
        async with api.get(path, headers={"Range": beyond}) as answer:
            assert answer.status == 416, beyond


async def test_a_bucket_that_is_away_is_named_and_may_be_asked_again(
    api: TestClient[Any, Any], controller: Controller, storage: ObjectStorage
) -> None:
    await stored(controller, await submit(api, name="hello"))
    (attempt_id,) = await controller.outputs.larger_than(0)
    await controller.outputs.move(attempt_id, storage.bucket.object("x"))
    storage.away()
    async with api.get("/v1/runs/hello/outputs/archive") as answer:
        assert await error_of(answer) == (503, "outputs_unreachable", None)
        assert "s3://outputs/kept/here/x" in await answer.text()
    storage.back()


async def test_a_bucket_that_stops_in_the_middle_cuts_the_download(
    api: TestClient[Any, Any],
    controller: Controller,
    storage: ObjectStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stops(*_: object) -> AsyncIterator[bytes]:
        yield b"x" * 512
        raise BucketError("it was reset")

    await stored(controller, await submit(api, name="hello"))
    (attempt_id,) = await controller.outputs.larger_than(0)
    await controller.outputs.move(attempt_id, storage.bucket.object("x"))
    monkeypatch.setattr(bucket, "read", stops)
    async with api.get("/v1/runs/hello/outputs/archive") as answer:
        assert answer.status == 200
        with pytest.raises(ClientPayloadError):
            await answer.read()
