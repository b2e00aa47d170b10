"""A node keeps its runners while its controller is renewed: it does without what they lack."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from fairlead.wire.frames import Frame, Stream, encode
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import LogsHeader, RunnerState, StatusEvent
from runner.client import RunnerClient, RunnerError
from tests.support.dialling import dial_to
from tests.unit.runner.harness import a_job, a_session, followed, payload

HELLO = encode(Frame(0, 1, Stream.STDOUT, b"hello\n"))


class Older:
    """Knows neither `POST /v1/start` nor where a page ends."""

    def __init__(self, submitted: RunnerState) -> None:
        self.asked: list[str] = []
        self._submitted = submitted

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.post("/v1/submit", self.submit),
                web.post("/v1/run", self.run),
                web.get("/v1/logs", self.page),
                web.get("/v1/logs/ws", self.follow),
            ]
        )
        return app

    async def submit(self, request: web.Request) -> web.Response:
        msgspec.json.decode(await request.read(), type=SubmitRequest)
        self.asked.append("submit")
        return _state(self._submitted)

    async def run(self, _: web.Request) -> web.Response:
        self.asked.append("run")
        return _state(RunnerState.PREPARING)

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(body=HELLO, headers={"Fairlead-Log-Complete": "true"})

    async def follow(self, request: web.Request) -> web.WebSocketResponse:
        self.asked.append(f"follow {request.query['offset']}")
        answer = web.WebSocketResponse()
        await answer.prepare(request)
        await answer.send_str(msgspec.json.encode(LogsHeader(offset=0)).decode())
        await answer.send_bytes(HELLO)
        await answer.close(code=1000)
        return answer


def _state(state: RunnerState) -> web.Response:
    return web.Response(body=msgspec.json.encode(StatusEvent(seq=1, at=1.0, state=state)))


@contextlib.asynccontextmanager
async def served(older: Older, folder: Path) -> AsyncIterator[RunnerClient]:
    runner = web.AppRunner(older.app())
    await runner.setup()
    await web.UnixSite(runner, str(folder / "runner.sock")).start()
    try:
        socket = folder / "runner.sock"
        async with a_session(socket) as session:
            yield RunnerClient(session, dial_answer=dial_to(socket))
    finally:
        await runner.cleanup()


async def test_a_job_is_submitted_and_then_run(tmp_path: Path) -> None:
    older = Older(RunnerState.READY)
    async with served(older, tmp_path) as client:
        assert (await client.start(a_job("true"))).state is RunnerState.PREPARING
    assert older.asked == ["submit", "run"]


async def test_a_job_that_waits_for_its_code_is_not_run(tmp_path: Path) -> None:
    older = Older(RunnerState.WAITING_FOR_CODE)
    async with served(older, tmp_path) as client:
        assert (await client.start(a_job("true"))).state is RunnerState.WAITING_FOR_CODE
    assert older.asked == ["submit"]


async def test_its_log_is_given_once(tmp_path: Path) -> None:
    older = Older(RunnerState.READY)
    async with served(older, tmp_path) as client:
        assert payload(await followed(client)) == b"hello\n"
    assert older.asked == ["follow 0"]


async def test_a_refusal_is_no_sign_of_age(tmp_path: Path) -> None:
    older = Older(RunnerState.READY)
    app = older.app()
    app.router.add_post("/v1/start", _refuse)
    older.app = lambda: app  # type: ignore[method-assign]
    async with served(older, tmp_path) as client:
        with pytest.raises(RunnerError, match="no such user"):
            await client.start(a_job("true"))
    assert older.asked == []


async def _refuse(_: web.Request) -> web.Response:
    body = b'{"error": {"code": "bad_user", "message": "no such user"}}'
    return web.Response(body=body, status=422)
