from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
from aiohttp import WSMsgType, WSServerHandshakeError, web
from aiohttp.test_utils import TestClient, TestServer

from controller.aio import Flag
from controller.api.app import make_app
from controller.api.http.streams import STREAMS
from controller.api.runs import runs
from controller.lifecycle.reports import StopRequested
from controller.outputs.bucket import BucketError
from controller.service.jobs.logs import follow_log
from fairlead.wire.frames import Frame, Stream, encode
from fairlead.wire.runner import LogsHeader
from fairlead.wire.shim import PullProgress
from tests.support.leaks import keepers
from tests.support.waiting import eventually
from tests.unit.api.asking import HELLO, error_of, payload, submit, write_log
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller


async def test_a_submitted_run_is_queued_with_its_reason(api: TestClient[Any, Any]) -> None:
    run = await submit(api, name="hello")
    assert (run["name"], run["user"], run["status"]) == ("hello", "admin", "submitted")
    assert run["jobs"][0]["pending_reason"] == "no node is connected"


async def test_a_run_without_a_name_gets_one_and_is_found_by_it(api: TestClient[Any, Any]) -> None:
    first, second = await submit(api), await submit(api)
    assert first["name"] != second["name"]
    async with api.get(f"/v1/runs/{first['name']}") as answer:
        assert (await answer.json())["id"] == first["id"]


async def test_a_name_is_refused_while_a_live_run_has_it(api: TestClient[Any, Any]) -> None:
    live = await submit(api, name="same")
    async with api.post("/v1/runs", json={"configuration": HELLO, "name": "same"}) as answer:
        assert await error_of(answer) == (409, "name_taken", "name")
        assert live["id"] in await answer.text()


async def test_a_name_is_free_again_when_its_run_has_ended(api: TestClient[Any, Any]) -> None:
    first = await submit(api, name="same")
    await api.post("/v1/runs/same/stop", json={})
    second = await submit(api, name="same")
    assert second["id"] != first["id"]
    async with api.get("/v1/runs/same") as answer:
        assert (await answer.json())["id"] == second["id"]


@pytest.mark.parametrize("name", ["abcdef0123456789", "deadbeefdeadbeef"])
async def test_no_run_is_named_like_an_id(api: TestClient[Any, Any], name: str) -> None:
    async with api.post("/v1/runs", json={"configuration": HELLO, "name": name}) as answer:
        assert await error_of(answer) == (400, "invalid", "name")
        assert "not 16 hex digits, which an id has" in await answer.text()


async def test_the_same_client_key_gives_the_same_run(api: TestClient[Any, Any]) -> None:
    runs = await asyncio.gather(*(submit(api, client_key="k") for _ in range(5)))
    await api.post(f"/v1/runs/{runs[0]['id']}/stop", json={})
    after_its_end = await submit(api, client_key="k")
    assert {run["id"] for run in runs} == {after_its_end["id"]}


async def test_a_client_key_used_for_another_configuration_is_refused(
    api: TestClient[Any, Any],
) -> None:
    await submit(api, client_key="k")
    other = {"configuration": {**HELLO, "priority": 9}, "client_key": "k"}
    async with api.post("/v1/runs", json=other) as answer:
        assert await error_of(answer) == (409, "client_key_used", "client_key")


async def test_a_wrong_configuration_is_refused_by_its_field(api: TestClient[Any, Any]) -> None:
    wrong = {"configuration": {**HELLO, "resources": {"memory": "lots"}}}
    async with api.post("/v1/runs", json=wrong) as answer:
        assert await error_of(answer) == (400, "invalid_configuration", "resources.memory")


async def test_secrets_of_a_configuration_are_in_no_answer(api: TestClient[Any, Any]) -> None:
    secret = "hunter2-hunter2"
    configuration = {
        **HELLO,
        "env": {"TOKEN": secret},
        "registry_auth": {"username": "u", "password": secret},
    }
    async with api.post("/v1/runs", json={"configuration": configuration}) as answer:
        assert secret not in await answer.text()
    async with api.get("/v1/events") as answer:
        assert secret not in await answer.text()


async def test_a_stop_is_recorded_when_it_is_answered(api: TestClient[Any, Any]) -> None:
    await submit(api, name="hello")
    async with api.post("/v1/runs/hello/stop", json={"abort": True}) as answer:
        run = await answer.json()
    assert (run["status"], run["termination_reason"]) == ("terminated", "aborted_by_user")
    assert run["jobs"][0]["attempts"][0]["termination_reason"] == "aborted_by_user"


async def test_stopping_a_run_that_has_ended_changes_nothing(api: TestClient[Any, Any]) -> None:
    await submit(api, name="hello")
    answers = [await api.post("/v1/runs/hello/stop", json={}) for _ in range(2)]
    first, second = [await answer.json() for answer in answers]
    assert first == second


async def test_a_user_may_not_stop_anothers_run(server: TestServer) -> None:
    admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    ada = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with TestClient(server) as client:
        body = {"configuration": HELLO, "name": "admins"}
        await client.post("/v1/runs", json=body, headers=admin)
        async with client.post("/v1/runs/admins/stop", json={}, headers=ada) as answer:
            assert await error_of(answer) == (404, "not_found", "run")
        body = {"configuration": HELLO, "name": "adas"}
        await client.post("/v1/runs", json=body, headers=ada)
        async with client.post("/v1/runs/adas/stop", json={}, headers=admin) as answer:
            assert answer.status == 200


async def test_finished_runs_are_listed_on_demand_and_in_pages(api: TestClient[Any, Any]) -> None:
    for name in ("a", "b", "c"):
        await submit(api, name=name)
    await api.post("/v1/runs/b/stop", json={})

    async def names(**query: str) -> list[str]:
        async with api.get("/v1/runs", params=query) as answer:
            return [run["name"] for run in (await answer.json())["runs"]]

    assert await names() == ["c", "a"]
    assert await names(all="true", limit="2") == ["c", "b"]
    async with api.get("/v1/runs/b") as answer:
        last = (await answer.json())["id"]
    assert await names(all="true", before=last) == ["a"]


async def test_events_tell_a_runs_story_and_go_on_from_a_number(api: TestClient[Any, Any]) -> None:
    await submit(api, name="other")
    await submit(api, name="hello")
    async with api.get("/v1/events", params={"run": "hello"}) as answer:
        story = (await answer.json())["events"]
    assert (story[0]["kind"], story[0]["to_status"]) == ("run", "submitted")
    assert {event["run_id"] for event in story} == {story[0]["run_id"]}
    async with api.get("/v1/events", params={"after": str(story[-1]["seq"])}) as answer:
        assert (await answer.json())["events"] == []


async def test_a_watch_tells_the_state_at_once_and_ends_with_the_final_one(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    async with api.get("/v1/runs/hello/watch") as answer:
        first = json.loads(await answer.content.readline())
        controller.pipeline.post(StopRequested(run_id=run["id"], abort=False, by="admin"))
        lines = [json.loads(line) async for line in answer.content]
    assert first == {"run": run, "progress": {}}
    assert lines[-1]["run"]["status"] == "terminated"


async def test_a_watch_whose_lines_are_dear_pauses_after_each_and_still_ends(
    api: TestClient[Any, Any], controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CHEAP_LINE_SECONDS", -1.0)
    run = await submit(api, name="hello")
    async with api.get("/v1/runs/hello/watch") as answer:
        await answer.content.readline()
        controller.pipeline.post(StopRequested(run_id=run["id"], abort=False, by="admin"))
        lines = [json.loads(line) async for line in answer.content]
    assert lines[-1]["run"]["status"] == "terminated"


async def test_a_watch_of_a_finished_run_is_one_line(api: TestClient[Any, Any]) -> None:
    await submit(api, name="hello")
    await api.post("/v1/runs/hello/stop", json={})
    async with api.get("/v1/runs/hello/watch") as answer:
        lines = [json.loads(line) async for line in answer.content]
    assert [line["run"]["status"] for line in lines] == ["terminated"]


async def test_pull_progress_wakes_those_who_watch_its_run(controller: Controller) -> None:
    changed = Flag()
    watch = controller.progress.watch(changed)
    watch.attend(["mine"])
    controller.progress["others"] = PullProgress(downloaded=1, total=2)
    assert not changed.is_set()
    controller.progress["mine"] = PullProgress(downloaded=1, total=2)
    assert changed.is_set()
    watch.attend([])
    changed.clear()
    del controller.progress["mine"]
    assert not changed.is_set()


async def test_the_stored_log_is_read_from_an_offset(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    await write_log(controller, run["jobs"][0]["attempts"][0]["id"], b"hello ", b"world")
    async with api.get("/v1/runs/hello/logs", params={"offset": "3"}) as answer:
        assert payload(await answer.read()) == b"lo world"


@pytest.mark.parametrize(
    "accept", ["text/plain", "text/*;q=0.5", "text/html,application/xhtml+xml,*/*;q=0.8"]
)
async def test_a_reader_that_asks_for_text_gets_the_output_itself(
    api: TestClient[Any, Any], controller: Controller, accept: str
) -> None:
    run = await submit(api, name="hello")
    attempt_id = run["jobs"][0]["attempts"][0]["id"]
    await write_log(controller, attempt_id, b"hello ", b"w\xffrld\n")
    headers = {"Accept": accept}
    for offset, text in ((0, b"hello w\xffrld\n"), (3, b"lo w\xffrld\n"), (99, b"")):
        query = {"offset": str(offset)}
        async with api.get("/v1/runs/hello/logs", params=query, headers=headers) as answer:
            assert await answer.read() == text
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "accept", ["*/*", "application/octet-stream, text/plain", "text/plain;q=0", "text/plain; q=0.0"]
)
async def test_all_other_readers_get_frames(
    api: TestClient[Any, Any], controller: Controller, accept: str
) -> None:
    run = await submit(api, name="hello")
    await write_log(controller, run["jobs"][0]["attempts"][0]["id"], b"hello")
    async with api.get("/v1/runs/hello/logs", headers={"Accept": accept}) as answer:
        assert payload(await answer.read()) == b"hello"
    assert answer.headers["Content-Type"] == "application/octet-stream"


async def test_a_followed_log_comes_whole_and_closes_normally(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    attempt_id = run["jobs"][0]["attempts"][0]["id"]
    await write_log(controller, attempt_id, b"hello ")
    async with api.ws_connect("/v1/runs/hello/logs/ws") as socket:
        header = msgspec.json.decode(await socket.receive_str(), type=LogsHeader)
        received = payload(await socket.receive_bytes())
        await write_log(controller, attempt_id, b"world")
        controller.logs.wake(attempt_id)
        received += payload(await socket.receive_bytes())
        await controller.logs.complete(attempt_id)
        end = await socket.receive()
    assert (header.offset, received) == (0, b"hello world")
    assert (end.type, socket.close_code) == (WSMsgType.CLOSE, 1000)


@pytest.mark.parametrize(("form", "answers"), [("json", ["{}"] * 2), ("text", []), ("frames", [])])
async def test_a_reader_in_a_browser_can_ask_whether_the_controller_is_there(
    api: TestClient[Any, Any], controller: Controller, form: str, answers: list[str]
) -> None:
    run = await submit(api, name="hello")
    attempt_id = run["jobs"][0]["attempts"][0]["id"]
    async with api.ws_connect(f"/v1/runs/hello/logs/ws?format={form}") as socket:
        for _ in range(2):
            await socket.send_str("")
        if form == "frames":
            await socket.receive_str()
        assert [await socket.receive_str() for _ in answers] == answers
        await controller.logs.complete(attempt_id)
        end = await socket.receive()
    assert (end.type, socket.close_code) == (WSMsgType.CLOSE, 1000)


async def test_a_followed_log_whose_copy_is_dropped_does_not_end_as_a_whole_one(
    api: TestClient[Any, Any], controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def follow(attempt_id: str, offset: int, rest: float) -> AsyncIterator[bytes]:
        yield encode(Frame(0, 1, Stream.STDOUT, b"hello "))
        raise BucketError("this disk's copy of the log was older than the bucket's")

    monkeypatch.setattr(controller.logs, "follow", follow)
    await submit(api, name="hello")
    async with api.ws_connect("/v1/runs/hello/logs/ws") as socket:
        await socket.receive_str()
        assert payload(await socket.receive_bytes()) == b"hello "
        end = await socket.receive()
    assert (end.type, socket.close_code) == (WSMsgType.CLOSE, 1013)


async def test_the_log_of_an_attempt_that_never_ran_is_empty_and_ends(
    api: TestClient[Any, Any],
) -> None:
    await submit(api, name="hello")
    await api.post("/v1/runs/hello/stop", json={})
    async with api.ws_connect("/v1/runs/hello/logs/ws") as socket:
        await socket.receive_str()
        await socket.receive()
    assert socket.close_code == 1000


async def test_a_follower_that_comes_while_the_attempt_ends_comes_to_its_end(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    service = controller.service
    attempt_id = run["jobs"][0]["attempts"][0]["id"]
    pieces = follow_log(service.runs.lookup, service.jobs.logs, run["id"], attempt_id, 0)
    await controller.pipeline.report(StopRequested(run_id=run["id"], abort=True, by="admin"))
    assert [piece async for piece in pieces] == []


class QuietLog:
    """One piece, and nothing more."""

    async def read(self, attempt_id: str, offset: int, rest: float = 0.0) -> AsyncIterator[bytes]:
        yield bytes(1024)
        await asyncio.Event().wait()

    follow = read


async def test_who_follows_a_quiet_log_keeps_nothing_of_what_was_sent(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    attempt_id = run["jobs"][0]["attempts"][0]["id"]
    pieces = follow_log(
        controller.service.runs.lookup, cast(Any, QuietLog()), run["id"], attempt_id, 0
    )
    assert await keepers(pieces, [await anext(pieces)]) == 0


LOG_REQUEST = (
    "GET /v1/runs/hello/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class HugeLog:
    """More than any connection takes at once, whoever asks."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def read(self, attempt_id: str, offset: int, rest: float = 0.0) -> AsyncIterator[bytes]:
        self.asked.set()
        yield bytes(64 * 1024 * 1024)

    follow = read


async def test_a_request_that_is_no_websocket_is_told_so(api: TestClient[Any, Any]) -> None:
    run = await submit(api)
    async with api.get(f"/v1/runs/{run['name']}/logs/ws") as answer:
        assert await error_of(answer) == (400, "bad_request", None)
        assert "WebSocket" in await answer.text()


@pytest.mark.parametrize("path", ["logs", "logs/ws"])
async def test_a_reader_that_goes_away_in_the_middle_of_a_log_is_no_failure_of_the_controller(
    api: TestClient[Any, Any],
    controller: Controller,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    await submit(api, name="hello")
    huge = HugeLog()
    monkeypatch.setattr(controller.service.jobs, "logs", huge)
    # Unlike a TestServer, the controller does not cancel whoever answers a caller that has gone.
    runner = web.AppRunner(make_app(controller.service), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        _, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(LOG_REQUEST.format(path=path, token=ADMIN_TOKEN).encode())
        await huge.asked.wait()
        writer.transport.abort()
        await eventually(lambda: not runner.app[STREAMS], what="the stream's end")
    finally:
        await runner.cleanup()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_unknown_job_or_attempt_is_refused_before_the_stream(
    api: TestClient[Any, Any],
) -> None:
    await submit(api, name="hello")
    for field in ("job", "attempt"):
        async with api.get("/v1/runs/hello/logs", params={field: "7"}) as answer:
            assert await error_of(answer) == (404, "not_found", field)
        async with api.get("/v1/runs/hello/logs/ws", params={field: "7"}) as answer:
            assert await error_of(answer) == (404, "not_found", field)


async def test_streams_end_when_the_controller_stops(
    api: TestClient[Any, Any], server: TestServer
) -> None:
    await submit(api, name="hello")
    async with api.get("/v1/runs/hello/watch") as answer:
        await answer.content.readline()
        async with api.ws_connect("/v1/runs/hello/logs/ws") as socket:
            await socket.receive_str()
            closing = asyncio.create_task(server.close())
            await socket.receive()
            await closing
    assert socket.close_code == 1001


async def test_a_browser_follows_a_log_as_json_with_its_token_as_a_subprotocol(
    api: TestClient[Any, Any], controller: Controller, server: TestServer
) -> None:
    await submit(api, name="hello")
    attempt = (await controller.service.runs.lookup.get("hello")).jobs[0].attempts[-1]
    await write_log(controller, attempt.id, b"caf\xc3\xa9\xff\n")
    await controller.logs.complete(attempt.id)
    async with TestClient(server) as browser:
        path = "/v1/runs/hello/logs/ws?format=json&offset=3"
        offered = ("fairlead", f"fairlead.token.{ADMIN_TOKEN}")
        async with browser.ws_connect(path, protocols=offered) as socket:
            assert socket.protocol == "fairlead"
            shown = await socket.receive_json()
        assert (shown["offset"], shown["end"], shown["text"]) == (3, 7, "é\ufffd\n")
        assert shown["stream"] == "stdout"
        with pytest.raises(WSServerHandshakeError):
            await browser.ws_connect(path, protocols=("fairlead", "fairlead.token.none"))


async def test_a_stored_log_is_given_as_text_or_as_lines_of_json(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    await write_log(controller, run["jobs"][0]["attempts"][0]["id"], b"caf\xc3\xa9\n", b"two\n")
    async with api.get("/v1/runs/hello/logs?format=text&offset=3") as answer:
        assert await answer.text() == "é\ntwo\n"
    asked = {"Accept": "application/x-ndjson"}
    async with api.get("/v1/runs/hello/logs?offset=3", headers=asked) as answer:
        lines = [json.loads(line) for line in (await answer.text()).splitlines()]
    assert answer.content_type == "application/x-ndjson"
    assert [(one["offset"], one["end"], one["text"]) for one in lines] == [
        (3, 6, "é\n"),
        (6, 10, "two\n"),
    ]
    async with api.get("/v1/runs/hello/logs?format=frames", headers=asked) as answer:
        assert payload(await answer.read()) == b"caf\xc3\xa9\ntwo\n"
    async with api.get("/v1/runs/hello/logs?format=xml") as answer:
        assert await error_of(answer) == (400, "invalid", "format")


async def test_text_that_is_followed_never_shows_half_a_character(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    run = await submit(api, name="hello")
    attempt_id = run["jobs"][0]["attempts"][0]["id"]
    await write_log(controller, attempt_id, b"caf\xc3", b"\xa9\n", b"\xc3")
    await controller.logs.complete(attempt_id)
    async with api.ws_connect("/v1/runs/hello/logs/ws?format=text") as socket:
        text = "".join([message.data async for message in socket])
    assert (text, socket.close_code) == ("café\n\ufffd", 1000)
