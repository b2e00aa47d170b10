"""Uploads as the command makes them: by their sha256, limited, and demanded by a submission."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.api.conftest import Controller

CONTENT = b"an archive"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PLACE = f"/v1/blobs/{DIGEST}"
FILES = [{"local_path": "a", "path": "/a", "uploaded": [DIGEST, "/"]}]
TASK: dict[str, Any] = {"type": "task", "commands": ["true"], "files": FILES}

Api = TestClient[Any, Any]


async def said(answer: Any) -> tuple[int, Any]:
    body = await answer.json()
    return answer.status, body["error"]["code"] if "error" in body else body


async def test_an_upload_is_there_for_everybody_who_knows_its_name(api: Api) -> None:
    stored = {"sha256": DIGEST, "size": len(CONTENT)}
    async with api.get(PLACE) as answer:
        assert await said(answer) == (404, "not_found")
    async with api.put(PLACE, data=CONTENT) as answer:
        assert await said(answer) == (200, stored)
    async with api.get(PLACE) as answer:
        assert await said(answer) == (200, stored)


async def test_a_run_whose_files_were_uploaded_is_taken(api: Api, controller: Controller) -> None:
    async with api.put(PLACE, data=CONTENT) as answer:
        assert answer.status == 200
    async with api.post("/v1/runs", json={"configuration": TASK}) as answer:
        run = await answer.json()
    spec = controller.turns.runs[run["id"]].jobs[0].spec
    assert spec.blobs == (DIGEST,)


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
    state = controller.turns.runs[run["id"]]
    spec = state.jobs[0].spec
    assert (spec.secrets, spec.repos[0].token) == ({"A": "canary-1"}, "canary-2")
    for path in (f"/v1/runs/{run['id']}", "/v1/runs", f"/v1/events?run={run['id']}"):
        async with api.get(path) as answer:
            text += await answer.text()
    assert "canary" not in text + str(state.run.configuration)
