"""The runner's HTTP and WebSocket API on its unix socket; a thin shell over `runner.Runner`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec
from aiohttp import web

from common.errors import Refused
from common.http import errors_as_json, json_response, read_body
from common.sizes import is_count
from runner.logs.followers import FOLLOWER_PATIENCE, LogFollower
from runner.logs.segments import next_page
from runner.metrics import measure
from runner.relay import Relay
from runner.runner import Runner
from runner.schemas import (
    AckRequest,
    JobMetrics,
    NoticeRequest,
    StopRequest,
    SubmitRequest,
    SuspendRequest,
)
from runner.schemas.frames import BadFrame
from runner.status import HEARTBEAT

MAX_BODY = 64 << 20
CODE_PIECE = 1 << 20
MAX_WAIT = 60.0
MAX_HEARTBEAT = 300.0

_FAILED = "the runner failed on this request; see runner.log"
_KNOWN: dict[type[Exception], Refused] = {
    BadFrame: Refused(500, "log_damaged", "the log's files in the task's folder were changed"),
}
_log = logging.getLogger(__name__)


def make_app(
    runner: Runner,
    relay: Relay,
    *,
    heartbeat: float = HEARTBEAT,
    patience: float = FOLLOWER_PATIENCE,
    measure: Callable[..., JobMetrics] = measure,
) -> web.Application:
    """Make the application. `heartbeat`: seconds between heartbeats of the status stream.
    `patience`: seconds that a follower may read nothing. `measure` (blocking) returns what the job
    uses."""
    api = _Api(runner, relay, heartbeat, patience, measure)
    errors = errors_as_json(_log, _FAILED, _KNOWN)
    app = web.Application(middlewares=[errors], client_max_size=MAX_BODY)
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
        return json_response(self._runner.health())

    async def submit(self, request: web.Request) -> web.StreamResponse:
        return json_response(self._runner.submit(await read_body(request, SubmitRequest)))

    async def code(self, request: web.Request) -> web.StreamResponse:
        digest = request.query.get("digest", "")
        pieces = request.content.iter_chunked(CODE_PIECE)
        return json_response(await self._runner.receive_code(digest, pieces))

    async def start(self, request: web.Request) -> web.StreamResponse:
        self._runner.submit(await read_body(request, SubmitRequest))
        return json_response(self._runner.start())

    async def run(self, _: web.Request) -> web.StreamResponse:
        return json_response(self._runner.run())

    async def stop(self, request: web.Request) -> web.StreamResponse:
        return json_response(self._runner.stop(await read_body(request, StopRequest)))

    async def suspend(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, SuspendRequest)
        return json_response(self._runner.suspend(body.suspended))

    async def metrics(self, _: web.Request) -> web.StreamResponse:
        return json_response(await asyncio.to_thread(self._measure, relayed=dict(self._relay.open)))

    async def ack(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, AckRequest)
        return json_response(AckRequest(offset=self._runner.ack(body.offset)))

    async def notice(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, NoticeRequest)
        return json_response(self._runner.notice(body.id, body.text))

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
            raise Refused(400, "not_a_websocket", "this is a WebSocket: request an upgrade")
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
    if not is_count(text):
        raise Refused(400, "invalid", f"{name} must be a whole number, 0 or more", name)
    return int(text)
