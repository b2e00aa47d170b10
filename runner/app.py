"""The runner's HTTP and WebSocket API on its unix socket; a thin shell over `runner.Runner`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
from aiohttp import web

from runner.errors import Refused
from runner.logs.followers import FOLLOWER_PATIENCE, LogFollower
from runner.logs.segments import next_page
from runner.metrics import measure
from runner.relay import Relay
from runner.runner import Runner
from runner.schemas import (
    AckRequest,
    ErrorBody,
    ErrorDetail,
    JobMetrics,
    NoticeRequest,
    StopRequest,
    SubmitRequest,
    SuspendRequest,
)
from runner.schemas.frames import BadFrame
from runner.status import HEARTBEAT
from runner.validation import field_of

MAX_BODY = 64 << 20
CODE_PIECE = 1 << 20
MAX_WAIT = 60.0
MAX_HEARTBEAT = 300.0
_MOST_DIGITS = 18

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_T = TypeVar("_T")


def make_app(
    runner: Runner,
    relay: Relay,
    *,
    heartbeat: float = HEARTBEAT,
    patience: float = FOLLOWER_PATIENCE,
    measure: Callable[..., JobMetrics] = measure,
) -> web.Application:
    """Seconds: `heartbeat` of the status stream, `patience` with a follower that takes nothing.
    `measure` (blocking) tells what the job uses."""
    api = _Api(runner, relay, heartbeat, patience, measure)
    app = web.Application(middlewares=[_errors_as_json], client_max_size=MAX_BODY)
    app.add_routes(
        [
            web.get("/v1/health", api.health),
            web.post("/v1/submit", api.submit),
            web.put("/v1/code", api.code),
            web.post("/v1/run", api.run),
            web.post("/v1/start", api.start),
            web.get("/v1/status", api.status),
            web.get("/v1/logs", api.logs),
            web.post("/v1/logs/ack", api.ack),
            web.get("/v1/logs/ws", api.follow),
            web.post("/v1/notices", api.notice),
            web.post("/v1/stop", api.stop),
            web.post("/v1/suspend", api.suspend),
            web.get("/v1/metrics", api.metrics),
        ]
    )
    return app


class _Api:
    def __init__(
        self,
        runner: Runner,
        relay: Relay,
        heartbeat: float,
        patience: float,
        measure: Callable[..., JobMetrics],
    ) -> None:
        self._runner = runner
        self._relay = relay
        self._heartbeat = heartbeat
        self._patience = patience
        self._measure = measure

    async def health(self, _: web.Request) -> web.StreamResponse:
        return _json(self._runner.health())

    async def submit(self, request: web.Request) -> web.StreamResponse:
        return _json(self._runner.submit(await _body(request, SubmitRequest)))

    async def code(self, request: web.Request) -> web.StreamResponse:
        digest = request.query.get("digest", "")
        pieces = request.content.iter_chunked(CODE_PIECE)
        return _json(await self._runner.receive_code(digest, pieces))

    async def start(self, request: web.Request) -> web.StreamResponse:
        self._runner.submit(await _body(request, SubmitRequest))
        return _json(self._runner.start())

    async def run(self, _: web.Request) -> web.StreamResponse:
        return _json(self._runner.run())

    async def stop(self, request: web.Request) -> web.StreamResponse:
        return _json(self._runner.stop(await _body(request, StopRequest)))

    async def suspend(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request, SuspendRequest)
        return _json(self._runner.suspend(body.suspended))

    async def metrics(self, _: web.Request) -> web.StreamResponse:
        return _json(await asyncio.to_thread(self._measure, relayed=self._relay.open))

    async def ack(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request, AckRequest)
        return _json(AckRequest(offset=self._runner.ack(body.offset)))

    async def notice(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request, NoticeRequest)
        return _json(self._runner.notice(body.id, body.text))

    async def status(self, request: web.Request) -> web.StreamResponse:
        after = _number(request, "after")
        heartbeat = min(float(_number(request, "heartbeat")), MAX_HEARTBEAT) or self._heartbeat
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async for event in self._runner.status.follow(after, heartbeat):
            await response.write(msgspec.json.encode(event) + b"\n")
        await response.write_eof()
        return response

    async def logs(self, request: web.Request) -> web.StreamResponse:
        wait = min(float(_number(request, "wait")), MAX_WAIT)
        log = self._runner.log
        reader = log.reader(self._offset(request))
        self._runner.follower_came()
        try:
            if wait and reader.offset == log.end and not log.finished:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await log.bell.wait()
            page = next_page(reader)
        finally:
            reader.close()
            self._runner.follower_left()
        return web.Response(body=page.frames, headers=page.headers)

    async def follow(self, request: web.Request) -> web.StreamResponse:
        offset = self._offset(request)
        if not web.WebSocketResponse().can_prepare(request):
            raise Refused(400, "not_a_websocket", "this is a WebSocket: ask for an upgrade")
        self._runner.follower_came()
        try:
            return await LogFollower(self._runner.log, offset, self._patience).serve(request)
        finally:
            self._runner.follower_left()

    def _offset(self, request: web.Request) -> int:
        offset = _number(request, "offset")
        end = self._runner.log.end
        if offset > end:
            raise Refused(400, "invalid", f"offset {offset} is after the end {end}", "offset")
        return offset


def _number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise Refused(400, "invalid", f"{name} must be a whole number, 0 or more", name)
    return int(text)


async def _body(request: web.Request, kind: type[_T]) -> _T:
    raw = await request.read()
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Refused(400, "invalid", str(error), field_of(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, "invalid", f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise Refused(400, "invalid", "the body is nested too deeply") from error


def _json(value: msgspec.Struct, status: int = 200) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json")


def _error(status: int, code: str, message: str, field: str | None = None) -> web.Response:
    return _json(ErrorBody(error=ErrorDetail(code=code, message=message, field=field)), status)


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refused:
        return _error(refused.status, refused.code, refused.message, refused.field)
    except web.HTTPException as error:
        code = (error.reason or "error").lower().replace(" ", "_")
        message = f"{request.method} {request.path}: {error.reason}"
        answer = _error(error.status, code, message)
        if allowed := error.headers.get("Allow"):
            answer.headers["Allow"] = allowed
        return answer
    except BadFrame:
        return _error(500, "log_damaged", "the log's files in the task's folder were changed")
    except ConnectionError:
        raise
    except web.RequestPayloadError:
        text = "the body does not match its Content-Length or Transfer-Encoding"
        return _error(400, "invalid", text, "body")
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return _error(500, "internal", "the runner failed at this request; runner.log says why")
