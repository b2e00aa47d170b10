"""Uploads as the command makes them: by their sha256, limited, and demanded by a submission."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from controller.blob_bucket import BlobBucket
from controller.blobs import BlobStore
from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import OwnBucket
from controller.service.runs.blobs import BlobService
from tests.unit.api.conftest import USER_TOKEN, Controller

CONTENT = b"an archive"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PLACE = f"/v1/blobs/{DIGEST}"
FILES = [{"local_path": "a", "path": "/a", "uploaded": [DIGEST, "/"]}]
TASK: dict[str, Any] = {"type": "task", "commands": ["true"], "files": FILES}

Api = TestClient[Any, Any]


async def said(answer: Any) -> tuple[int, Any]:
    body = await answer.json()
    return answer.status, body["error"]["code"] if "error" in body else body


async def test_an_upload_is_there_once_it_was_sent(api: Api) -> None:
    stored = {"sha256": DIGEST, "size": len(CONTENT)}
    async with api.get(PLACE) as answer:
        assert await said(answer) == (404, "not_found")
    async with api.put(PLACE, data=CONTENT) as answer:
        assert await said(answer) == (200, stored)
    async with api.get(PLACE) as answer:
        assert await said(answer) == (200, stored)


async def test_a_full_disk_has_a_code_of_its_own(
    api: Api, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(controller.blobs, "put", full)
    async with api.put(PLACE, data=CONTENT) as answer:
        assert await said(answer) == (503, "upload_not_stored")


async def test_a_run_whose_files_were_uploaded_is_taken(api: Api, controller: Controller) -> None:
    async with api.put(PLACE, data=CONTENT) as answer:
        assert answer.status == 200
    async with api.post("/v1/runs", json={"configuration": TASK}) as answer:
        run = await answer.json()
    spec = controller.pipeline.runs[run["id"]].jobs[0].spec
    assert spec.blobs == (DIGEST,)


async def test_an_upload_of_another_user_is_neither_told_nor_given(api: Api) -> None:
    """A sha256 can be known without the file."""
    ada = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with api.put(PLACE, data=CONTENT) as answer:
        assert answer.status == 200
    async with api.get(PLACE, headers=ada) as answer:
        assert await said(answer) == (404, "not_found")
    wish = {"configuration": TASK}
    async with api.post("/v1/runs", json=wish, headers=ada) as answer:
        assert await said(answer) == (409, "not_uploaded")
    async with api.put(PLACE, data=CONTENT, headers=ada) as answer:
        assert answer.status == 200
    async with api.post("/v1/runs", json=wish, headers=ada) as answer:
        assert answer.status == 201


async def test_a_user_with_too_many_uploads_is_told_what_to_do(
    api: Api, controller: Controller, tmp_path: Path
) -> None:
    controller.service.runs.blobs = BlobService(BlobStore(tmp_path / "few", max_of_user=5000))
    async with api.put(PLACE, data=CONTENT) as answer:
        assert answer.status == 200
    more = b"more"
    async with api.put(f"/v1/blobs/{hashlib.sha256(more).hexdigest()}", data=more) as answer:
        body = await answer.json()
    assert (answer.status, body["error"]["code"]) == (422, "too_many_uploads")
    assert "--user-upload-limit" in body["error"]["message"]


async def test_a_run_whose_files_are_missing_is_refused(api: Api) -> None:
    async with api.post("/v1/runs", json={"configuration": TASK}) as answer:
        body = await answer.json()
    assert (answer.status, body["error"]["code"]) == (409, "not_uploaded")
    assert body["error"]["field"] == "files"


@pytest.mark.parametrize(
    ("path", "content", "expected"),
    [
        (PLACE, b"other bytes", (400, "damaged")),
        ("/v1/blobs/short", CONTENT, (400, "invalid")),
        (f"/v1/blobs/{'Z' * 64}", CONTENT, (400, "invalid")),
        ("/v1/blobs/..%2f..%2fetc%2fpasswd", CONTENT, (400, "invalid")),
    ],
)
async def test_a_wrong_upload_is_refused(
    api: Api, path: str, content: bytes, expected: tuple[int, str]
) -> None:
    async with api.put(path, data=content) as answer:
        assert await said(answer) == expected


def part(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


async def test_an_upload_comes_in_parts(api: Api) -> None:
    parts = [part(b"an "), part(b"archive")]
    names = [one["sha256"] for one in parts]
    async with api.post(f"{PLACE}/missing", json={"parts": parts}) as answer:
        assert await said(answer) == (200, {"missing": names})
    line = json.dumps({"parts": parts, "sent": names}).encode() + b"\n"
    async with api.put(f"{PLACE}/parts", data=line + CONTENT) as answer:
        assert await said(answer) == (200, {"sha256": DIGEST, "size": len(CONTENT)})


@pytest.mark.parametrize(
    ("sent", "rest", "expected"),
    [
        ([], b"", (409, "parts_missing")),
        ([part(CONTENT)["sha256"]], b"an archivE", (400, "damaged")),
        ([part(CONTENT)["sha256"]], b"", (400, "damaged")),
        ([part(CONTENT)["sha256"]], CONTENT + b"!", (400, "damaged")),
    ],
)
async def test_wrong_parts_are_refused(
    api: Api, sent: list[str], rest: bytes, expected: tuple[int, str]
) -> None:
    line = json.dumps({"parts": [part(CONTENT)], "sent": sent}).encode() + b"\n"
    async with api.put(f"{PLACE}/parts", data=line + rest) as answer:
        assert await said(answer) == expected


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"no line", "not_json"),
        (b"x" * (5 << 20), "not_json"),
        (b"[1]\n", "invalid"),
        (b'{"parts": [], "sent": []}\n', "invalid"),
        (b'{"parts": [{"sha256": "../x", "size": 1}], "sent": []}\n', "invalid"),
        (b'{"parts": [{"sha256": "%s", "size": -1}], "sent": []}\n' % (b"0" * 64), "invalid"),
    ],
)
async def test_a_wrong_list_of_parts_is_refused(api: Api, body: bytes, code: str) -> None:
    async with api.put(f"{PLACE}/parts", data=io.BytesIO(body)) as answer:
        assert await said(answer) == (400, code)


async def test_uploads_are_for_users_only(server: TestServer) -> None:
    async with TestClient(server) as stranger, stranger.put(PLACE, data=CONTENT) as answer:
        assert await said(answer) == (401, "unauthenticated")


async def test_more_than_a_request_body_may_be_uploaded(api: Api) -> None:
    content = b"0123456789abcdef" * (1 << 18)
    digest = hashlib.sha256(content).hexdigest()
    async with api.put(f"/v1/blobs/{digest}", data=io.BytesIO(content)) as answer:
        assert await said(answer) == (200, {"sha256": digest, "size": 4 << 20})


SECRETS: dict[str, Any] = {
    "type": "task",
    "commands": ["true"],
    "secrets": {"A": "canary-1"},
    "repos": [{"url": "https://h/r", "uploaded": {"token": "canary-2", "private_key": "canary-3"}}],
}


async def test_secrets_are_kept_for_the_job_and_shown_to_nobody(
    api: Api, controller: Controller
) -> None:
    async with api.post("/v1/runs", json={"configuration": SECRETS}) as answer:
        text = await answer.text()
        run = await answer.json()
    state = controller.pipeline.runs[run["id"]]
    spec = state.jobs[0].spec
    assert (spec.secrets, spec.repos[0].token) == ({"A": "canary-1"}, "canary-2")
    for path in (f"/v1/runs/{run['id']}", "/v1/runs", f"/v1/events?run={run['id']}"):
        async with api.get(path) as answer:
            text += await answer.text()
    assert "canary" not in text + str(state.run.configuration)


async def test_a_bucket_that_is_away_acknowledges_no_upload_and_no_run(
    api: Api, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api.put(PLACE, data=CONTENT) as answer:
        assert answer.status == 200
    own = OwnBucket(Bucket.parse("s3://away"), "installation")

    async def ask(*_: object) -> None:
        raise BucketError("s3://away: no answer")

    monkeypatch.setattr(own, "ask", ask)
    monkeypatch.setattr(controller.blobs, "_bucket", BlobBucket(own))
    async with api.put(PLACE, data=CONTENT) as answer:
        assert await said(answer) == (503, "uploads_unreachable")
    async with api.get(PLACE) as answer:
        assert await said(answer) == (503, "uploads_unreachable")
    async with api.post("/v1/runs", json={"configuration": TASK}) as answer:
        assert await said(answer) == (503, "uploads_unreachable")
        assert "s3://away" in (await answer.json())["error"]["message"]
    own.close()


async def test_a_bucket_that_hangs_keeps_a_submission_waiting_for_a_while_only(
    api: Api, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api.put(PLACE, data=CONTENT) as answer:
        assert answer.status == 200
    own = OwnBucket(Bucket.parse("s3://hangs"), "installation")

    async def ask(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(own, "ask", ask)
    monkeypatch.setattr(controller.blobs, "_bucket", BlobBucket(own))
    monkeypatch.setattr("controller.blobs.ANSWER_SECONDS", 0.01)
    async with api.post("/v1/runs", json={"configuration": TASK}) as answer:
        assert await said(answer) == (503, "uploads_unreachable")
        assert "no answer within" in (await answer.json())["error"]["message"]
    assert not controller.pipeline.runs
    own.close()


async def test_a_sweep_that_waits_keeps_its_uploads(api: Api, controller: Controller) -> None:
    """It has no job until it begins."""
    async with api.put(PLACE, data=CONTENT) as answer:
        assert answer.status == 200
    waits = {**TASK, "begin": "48h", "sweep": {"matrix": {"seed": [1, 2]}}}
    async with api.post("/v1/runs", json={"configuration": waits}) as answer:
        run = await answer.json()
    state = controller.pipeline.runs[run["id"]]
    assert not state.jobs
    assert state.uploads == {DIGEST}
