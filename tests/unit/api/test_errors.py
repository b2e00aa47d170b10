from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import io
import json
import logging
import socket
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientConnectionResetError, web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from aiohttp.typedefs import Handler

from common.http import is_our_failure
from common.proxy.errors import NOTHING_DONE
from controller.api import app
from controller.api.app import make_runner
from controller.api.http import errors as errors_of_requests
from controller.api.http import holding
from controller.daemon.lease import Leading
from controller.outputs.bucket import BucketError
from controller.store.base import Commits
from controller.store.errors import (
    LeaseLost,
    LeaseTaken,
    NotKnown,
    NotYetStored,
    Stops,
    StoreRefused,
    StoreUnavailable,
)
from controller.store.peers import LEASE_SECONDS
from fairlead.wire.errors import LEADS_NO_MORE, STORE_UNAVAILABLE
from tests.support import waiting
from tests.support.waiting import eventually
from tests.unit.api.asking import HELLO, shape_of, submit
from tests.unit.api.conftest import ADMIN_TOKEN, Controller

DEADLINE = waiting.LONG
LONG = b"k" * 201


async def test_a_path_that_is_not_there_is_said_in_the_one_shape(api: TestClient[Any, Any]) -> None:
    async with api.get("/v1/nothing") as answer:
        assert await shape_of(answer) == (404, "not_found", None)


async def test_a_wrong_method_is_said_with_what_is_allowed(api: TestClient[Any, Any]) -> None:
    async with api.put("/v1/runs") as answer:
        assert await shape_of(answer) == (405, "method_not_allowed", None)
        assert "POST" in answer.headers["Allow"]


async def test_a_body_that_is_too_large_is_refused(api: TestClient[Any, Any]) -> None:
    async with api.post("/v1/runs", data=io.BytesIO(b"x" * (3 << 20))) as answer:
        assert await shape_of(answer) == (413, "too_large", None)


async def test_one_that_may_have_been_replaced_answers_questions_and_refuses_changes(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "LOOK_AGAIN_SECONDS", 0.0)
    lead = Leading(5.0)
    server = TestServer(app.make_app(controller.service, lead=lead))
    async with TestClient(server, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as client:
        # The lease has run out, so the controller cannot know whether it leads.
        async with client.get("/v1/runs") as answer:
            assert answer.status == 200
        # The database has told that another one leads.
        lead.end()
        for asked in (
            client.get("/v1/runs"),
            client.post("/v1/runs", json={"configuration": {}}),
        ):
            async with asked as answer:
                assert await shape_of(answer) == (503, "leads_no_more", None)
                assert answer.headers["Retry-After"] == "1"
        async with client.get("/v1/health") as answer:
            assert answer.status == 200


class _Refusing:
    """A change that stores something or nothing, and then fails, at a leader whose lease may run
    out meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lead = Leading(LEASE_SECONDS, lambda: self.now)
        self.lead.renewed(0.0)
        self.error: Exception = StoreUnavailable("the database is away")
        self.has_stored = False
        self.takes = 0.0

    def mount(self, mounted: web.Application) -> None:
        mounted.router.add_post("/v1/change", self._change)

    async def _change(self, _request: web.Request) -> web.StreamResponse:
        if self.has_stored:
            Commits.note()
        self.now += self.takes
        raise self.error


_TAKEN, _AWAY = LeaseTaken("another one leads"), StoreUnavailable("the database is away")
_LOST, _ENDS = LeaseLost("nobody knows"), NotKnown("this controller is stopping")
_STOPS = Stops("this controller is stopping")
_WANTED = NotYetStored("the database is away")


@pytest.mark.parametrize(
    ("error", "has_stored", "takes", "code", "marks"),
    [
        (_TAKEN, False, 0.0, LEADS_NO_MORE, {NOTHING_DONE, errors_of_requests.LEAVES}),
        (_TAKEN, True, 0.0, STORE_UNAVAILABLE, {errors_of_requests.NOT_KNOWN}),
        (_LOST, False, 0.0, STORE_UNAVAILABLE, {errors_of_requests.NOT_KNOWN}),
        (_ENDS, False, 0.0, STORE_UNAVAILABLE, {errors_of_requests.NOT_KNOWN}),
        (_STOPS, False, 0.0, LEADS_NO_MORE, {NOTHING_DONE, errors_of_requests.LEAVES}),
        (_STOPS, True, 0.0, STORE_UNAVAILABLE, set()),
        (_AWAY, False, 0.0, STORE_UNAVAILABLE, set()),
        (_AWAY, False, LEASE_SECONDS, LEADS_NO_MORE, {NOTHING_DONE}),
        (_AWAY, True, LEASE_SECONDS, STORE_UNAVAILABLE, set()),
        (_WANTED, False, 0.0, STORE_UNAVAILABLE, set()),
        (_WANTED, False, LEASE_SECONDS, STORE_UNAVAILABLE, {errors_of_requests.NOT_KNOWN}),
    ],
)
async def test_a_change_that_a_leader_could_not_store_is_said_to_be_undone_only_if_it_surely_is(
    controller: Controller,
    error: Exception,
    has_stored: bool,
    takes: float,
    code: str,
    marks: set[web.ResponseKey[bool]],
) -> None:
    refusing = _Refusing()
    refusing.error, refusing.has_stored, refusing.takes = error, has_stored, takes
    marked: set[web.ResponseKey[bool]] = set()

    @web.middleware
    async def seen(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await handler(request)
        known = (NOTHING_DONE, errors_of_requests.LEAVES, errors_of_requests.NOT_KNOWN)
        marked.update(key for key in known if key in answer)
        return answer

    made = app.make_app(
        controller.service, lead=refusing.lead, mounts=[refusing.mount], first=[seen]
    )
    async with TestClient(TestServer(made)) as client, client.post("/v1/change") as answer:
        assert await shape_of(answer) == (503, code, None)
    assert marked == marks


async def test_a_submission_that_meets_a_successor_is_said_to_be_undone(
    controller: Controller,
) -> None:
    lead = Leading(LEASE_SECONDS, lambda: 0.0)
    lead.renewed(0.0)
    controller.store.lose_lease()
    server = TestServer(app.make_app(controller.service, lead=lead))
    async with TestClient(server, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as client:
        for _ in range(2):
            async with client.post("/v1/runs", json={"configuration": HELLO}) as answer:
                assert await shape_of(answer) == (503, LEADS_NO_MORE, None)


@pytest.fixture
async def port(controller: Controller) -> AsyncIterator[int]:
    """Of a server as the controller runs it."""
    runner = make_runner(controller.service, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def answer_to(port: int, head: str, body: bytes) -> bytes:
    """All that comes back until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    told = f"{head}\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\nConnection: close\r\n\r\n"
    writer.write(told.encode() + body)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("part", [b"", b"GET /v1/runs HTTP/1.1\r\nX-A: "])
async def test_a_connection_without_a_whole_head_is_closed(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, part: bytes, is_second: bool
) -> None:
    monkeypatch.setattr(app, "HEAD_SECONDS", 0.1)
    runner = make_runner(controller.service, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    # Sent before the server sees the connection: the first of two heads must come in time.
    sent = socket.create_connection(runner.addresses[0])
    sent.sendall(b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n" * is_second + part)
    reader, writer = await asyncio.open_connection(sock=sent)
    async with asyncio.timeout(DEADLINE):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 404 ") is is_second
    writer.close()
    await runner.cleanup()


@pytest.mark.parametrize("path", ["runs/here/watch", "runs/here/logs", "events/watch"])
async def test_a_reader_that_left_before_the_first_byte_is_no_error(
    port: int,
    api: TestClient[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    async def find_it_gone(*_: object) -> None:
        raise ClientConnectionResetError("Cannot write to closing transport")

    await submit(api, name="here")
    monkeypatch.setattr(web.StreamResponse, "prepare", find_it_gone)
    assert await answer_to(port, f"GET /v1/{path} HTTP/1.1", b"") == b""
    assert errors(caplog) == []


async def test_a_client_that_leaves_within_its_body_is_no_error(
    port: int,
    api: TestClient[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_begun, has_ended = asyncio.Event(), asyncio.Event()
    read, seen = web.Request.read, errors_of_requests.as_response

    async def noted(request: web.Request) -> bytes:
        has_begun.set()
        return await read(request)

    def answered(request: web.Request, error: Exception) -> web.Response:
        has_ended.set()
        return seen(request, error)

    monkeypatch.setattr(web.Request, "read", noted)
    monkeypatch.setattr(app, "as_response", answered)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n"
    writer.write(f"{head}Content-Length: 50\r\n\r\nbegun".encode())
    await has_begun.wait()
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    await has_ended.wait()
    assert errors(caplog) == []


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "x-gzip", "gzip, br"])
@pytest.mark.parametrize(
    ("request_line", "body"),
    [
        ("POST /v1/runs", b"{}"),
        ("POST /v1/runs", gzip.compress(b"{}")),
        ("POST /v1/runs", b"garbage" * 50),
        ("GET /v1/runs", b"garbage" * 50),
        (f"PUT /v1/blobs/{'a' * 64}", b"garbage" * 50_000),
    ],
    ids=["json", "gzip", "garbage", "get", "upload"],
)
async def test_a_body_that_says_that_it_is_encoded_is_refused_and_logged_by_nobody(
    port: int, caplog: pytest.LogCaptureFixture, request_line: str, body: bytes, encoding: str
) -> None:
    head = f"{request_line} HTTP/1.1\r\nContent-Length: {len(body)}\r\nContent-Encoding: {encoding}"
    answer = await answer_to(port, head, body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"bad_body"' in answer
    assert f"Content-Encoding {encoding}: send it without an encoding".encode() in answer
    assert errors(caplog) == []


async def test_a_body_whose_encoding_says_that_there_is_none_is_taken(port: int) -> None:
    head = "POST /v1/runs HTTP/1.1\r\nContent-Length: 2\r\nContent-Encoding: identity"
    assert b'"field":"configuration"' in await answer_to(port, head, b"{}")


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("POST /v1/runs HTTP/1.1\r\nTransfer-Encoding: chunked", b"ZZZ\r\nno\r\n"),
        (f"PUT /v1/blobs/{'a' * 64} HTTP/1.1\r\nTransfer-Encoding: chunked", b"ZZZ\r\n"),
        ("\x16\x03\x01", b""),
        ("POST /v1/runs HTTP/9", b""),
    ],
)
async def test_a_malformed_request_brings_no_traceback_into_the_log(
    port: int, caplog: pytest.LogCaptureFixture, head: str, body: bytes
) -> None:
    assert b" 400 " in await answer_to(port, head, body)
    assert errors(caplog) == []


def test_a_failure_of_ours_stays_in_the_log() -> None:
    error = ValueError("ours")
    info = (ValueError, error, None)
    assert is_our_failure(
        logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "failed", (), info)
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", (400, "not_json", None)),
        (b'{"configuration": {"a": ' + b"[" * 100_000, (400, "not_json", None)),
        (b"{}", (400, "invalid", "configuration")),
        (b'{"configuration": []}', (400, "invalid", "configuration")),
        (b'{"configuration": {}}', (400, "invalid_configuration", "type")),
        (b'{"configuration": {}, "client_key": ""}', (400, "invalid", "client_key")),
        (b'{"configuration": {}, "client_key": "%b"}' % LONG, (400, "invalid", "client_key")),
    ],
)
async def test_a_wrong_body_is_refused_by_its_field(
    api: TestClient[Any, Any], body: bytes, expected: tuple[int, str, str | None]
) -> None:
    async with api.post("/v1/runs", data=body) as answer:
        assert await shape_of(answer) == expected


@pytest.mark.parametrize(
    ("path", "field"),
    [("events", "after"), ("events", "cursor"), ("events/watch", "cursor")],
)
async def test_a_number_that_no_list_can_count_to_is_refused(
    api: TestClient[Any, Any], path: str, field: str
) -> None:
    async with api.get(f"/v1/{path}", params={field: "9" * 23}) as answer:
        assert await shape_of(answer) == (400, "invalid", field)


_RUN = {"configuration": {"type": "task", "commands": ["true"]}}


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "fix"),
    [
        ("POST", "runs", {**_RUN, "if_exist": "keep"}, "if_exist", "did you mean if_exists?"),
        ("POST", "runs:batch", {"runs": [{**_RUN, "nam": "a"}]}, "runs[0].nam", "name?"),
        ("PUT", "fleets/default/machines", {"machine": {}}, "machine", "machines?"),
        ("PATCH", "fleets/default", {"machines": {}}, "machines", "(fields: attributes, placement"),
        ("POST", "nodes", {"name": "a", "local_sockt": "/s"}, "local_sockt", "local_socket?"),
        (
            "POST",
            "gateways",
            {"name": "a", "domain": "b.c", "certificate": {"emial": "a@b.c"}},
            "certificate.emial",
            "email?",
        ),
    ],
)
async def test_an_unknown_field_is_refused_by_its_name(
    api: TestClient[Any, Any], method: str, path: str, body: dict[str, Any], field: str, fix: str
) -> None:
    async with api.request(method, f"/v1/{path}", json=body) as answer:
        assert await shape_of(answer) == (400, "invalid", field)
        assert fix in (await answer.json())["error"]["message"]
    async with api.get("/v1/runs") as answer:
        assert (await answer.json())["runs"] == []


@pytest.mark.parametrize(("path", "field"), [("machines", "machines"), ("images", "images")])
async def test_what_replaces_a_section_of_a_fleet_must_name_it(
    api: TestClient[Any, Any], path: str, field: str
) -> None:
    async with api.put(f"/v1/fleets/default/{path}", json={}) as answer:
        assert await shape_of(answer) == (400, "invalid", field)


async def test_an_unknown_field_of_a_configuration_is_refused(api: TestClient[Any, Any]) -> None:
    configuration = {"type": "task", "commands": ["true"], "colour": 1}
    async with api.post("/v1/runs", json={"configuration": configuration}) as answer:
        assert await shape_of(answer) == (400, "invalid_configuration", "colour")


@pytest.mark.parametrize(
    ("query", "field"), [("limit=0", "limit"), ("limit=many", "limit"), ("colour=red", "colour")]
)
async def test_a_wrong_query_is_refused_by_its_field(
    api: TestClient[Any, Any], query: str, field: str
) -> None:
    async with api.get(f"/v1/runs?{query}") as answer:
        assert await shape_of(answer) == (400, "invalid", field)


async def test_a_number_below_its_bound_is_told_so(api: TestClient[Any, Any]) -> None:
    async with api.get("/v1/runs?limit=0") as answer:
        assert (await answer.json())["error"]["message"] == "is less than 1"


async def test_an_unknown_run_is_named(api: TestClient[Any, Any]) -> None:
    async with api.get("/v1/runs/nobody") as answer:
        assert await shape_of(answer) == (404, "not_found", "run")
        assert "nobody" in await answer.text()


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", "Basic YWRtaW4=", "Bearer ü"])
async def test_without_a_known_token_nothing_is_answered(
    server: TestServer, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with TestClient(server) as client, client.get("/v1/runs", headers=headers) as answer:
        assert await shape_of(answer) == (401, "unauthenticated", None)
        assert "FAIRLEAD_TOKEN" in await answer.text()


async def test_health_needs_no_token(server: TestServer) -> None:
    async with TestClient(server) as client, client.get("/v1/health") as answer:
        assert (answer.status, (await answer.json())["status"]) == (200, "ok")


async def test_a_store_that_is_away_is_said_and_may_be_tried_again(
    api: TestClient[Any, Any], controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(controller.service.runs.lookup, "page", away)
    async with api.get("/v1/runs") as answer:
        assert await shape_of(answer) == (503, "store_unavailable", None)


async def test_a_refusal_of_the_store_has_a_code_of_its_own(
    api: TestClient[Any, Any], controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise StoreRefused("the database refuses a value: out of range")

    monkeypatch.setattr(controller.service.runs.lookup, "page", refuse)
    async with api.get("/v1/runs") as answer:
        assert await shape_of(answer) == (500, "store_refused", None)


async def test_an_unforeseen_error_is_logged_and_shown_without_a_traceback(
    api: TestClient[Any, Any],
    controller: Controller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise KeyError("secret-detail")

    monkeypatch.setattr(controller.service.runs.lookup, "page", broken)
    async with api.get("/v1/runs") as answer:
        assert await shape_of(answer) == (500, "internal", None)
        assert "secret-detail" not in await answer.text()
    assert "secret-detail" in caplog.text


async def test_answers_are_json_that_ends_in_no_surprise(api: TestClient[Any, Any]) -> None:
    async with api.get("/v1/nodes") as answer:
        assert answer.content_type == "application/json"
        assert json.loads(await answer.read()) == {"nodes": [], "next_cursor": None}


async def test_an_application_that_has_ended_is_kept_by_nobody(controller: Controller) -> None:
    """A process may lead many times, and each application reaches all that was live in its lead."""
    ended = await _ended_app(controller)

    def is_gone() -> bool:
        gc.collect()
        return ended() is None

    await eventually(is_gone)


async def _ended_app(controller: Controller) -> weakref.ref[web.Application]:
    runner = make_runner(controller.service, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    answer = await answer_to(runner.addresses[0][1], "GET /v1/runs HTTP/1.1", b"")
    assert answer.startswith(b"HTTP/1.1 200 ")
    await runner.cleanup()
    return weakref.ref(runner.app)


def test_a_bucket_that_is_away_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    bucket = errors_of_requests.FailingBucket(lambda: now)
    asked = make_mocked_request("GET", "/v1/runs/hello/logs")
    for _ in range(300):
        bucket.failed(asked, BucketError("s3://logs/a: connection refused"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.messages == [
        "the bucket of logs does not answer: s3://logs/a: connection refused "
        "(GET /v1/runs/hello/logs; 0 more requests since this was told last)"
    ]
    now += errors_of_requests.BUCKET_TOLD_SECONDS
    bucket.failed(asked, BucketError("s3://logs/b: timed out"))
    assert caplog.messages[1:] == [
        "the bucket of logs does not answer: s3://logs/b: timed out "
        "(GET /v1/runs/hello/logs; 299 more requests since this was told last)"
    ]


@pytest.mark.parametrize("headers", [{}, {"Upgrade": "websocket", "Connection": "close"}])
async def test_a_proxy_that_passes_no_websockets_is_named(
    api: TestClient[Any, Any], headers: dict[str, str]
) -> None:
    await submit(api, name="hello")
    async with api.get("/v1/runs/hello/logs/ws", headers=headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"] == errors_of_requests.NO_WEBSOCKET
