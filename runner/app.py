"""The runner's HTTP and WebSocket API on its unix socket; a thin shell over `runner.Runner`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TypeVar

import msgspec

from common.json_bodies import decode_body
from fairlead.wire.errors import Refused
from fairlead.wire.frames import BadFrame
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import (
    AckRequest,
    AgainRequest,
    BatchRequest,
    JobMetrics,
    NoticeRequest,
    SignalRequest,
    StopRequest,
    SuspendRequest,
)
from fairlead.wire.sizes import is_count
from runner.http.messages import (
    Answer,
    Handler,
    Request,
    Response,
    Streamed,
    Upgrade,
    as_json,
)
from runner.http.server import Server
from runner.http.websocket import WebSocket, accept_key
from runner.logs.followers import FOLLOWER_PATIENCE, LogFollower
from runner.logs.reading import LogReader, next_page
from runner.metrics import measure
from runner.relay import Relay
from runner.runner import Runner
from runner.status import HEARTBEAT

MAX_BODY = 64 << 20
CODE_PIECE = 1 << 20
MAX_WAIT = 60.0
MAX_HEARTBEAT = 300.0

_FAILED = "the runner failed on this request; see runner.log"
_KNOWN: dict[type[Exception], Refused] = {
    BadFrame: Refused(500, "log_damaged", "the log's files in the task's folder were changed"),
}
_T = TypeVar("_T")


def make_server(
    runner: Runner,
    relay: Relay,
    *,
    heartbeat: float = HEARTBEAT,
    patience: float = FOLLOWER_PATIENCE,
    measure: Callable[..., JobMetrics] = measure,
) -> Server:
    """Make the server. `heartbeat`: seconds between heartbeats of the status stream. `patience`:
    seconds that a follower may read nothing. `measure` (blocking) returns what the job uses."""
    api = _Api(runner, relay, heartbeat, patience, measure)
    routes: dict[str, dict[str, Handler]] = {
        "/v1/health": {"GET": api.health},
        "/v1/submit": {"POST": api.submit},
        "/v1/code": {"PUT": api.code},
        "/v1/run": {"POST": api.run},
        "/v1/start": {"POST": api.start},
        "/v1/status": {"GET": api.status},
        "/v1/logs": {"GET": api.logs},
        "/v1/logs/ack": {"POST": api.ack},
        "/v1/logs/ws": {"GET": api.follow},
        "/v1/notices": {"POST": api.notice},
        "/v1/stop": {"POST": api.stop},
        "/v1/batch": {"POST": api.batch},
        "/v1/again": {"POST": api.again},
        "/v1/signal": {"POST": api.signal},
        "/v1/suspend": {"POST": api.suspend},
        "/v1/metrics": {"GET": api.metrics},
    }
    return Server(routes, failed=_FAILED, known=_KNOWN)


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

    async def health(self, _: Request) -> Answer:
        return as_json(self._runner.health())

    async def submit(self, request: Request) -> Answer:
        return as_json(self._runner.submit(await _read(request, SubmitRequest)))

    async def code(self, request: Request) -> Answer:
        digest = request.query.get("digest", "")
        return as_json(await self._runner.receive_code(digest, request.body.pieces(CODE_PIECE)))

    async def start(self, request: Request) -> Answer:
        self._runner.submit(await _read(request, SubmitRequest))
        return as_json(self._runner.start())

    async def run(self, _: Request) -> Answer:
        return as_json(self._runner.run())

    async def stop(self, request: Request) -> Answer:
        return as_json(self._runner.stop(await _read(request, StopRequest)))

    async def signal(self, request: Request) -> Answer:
        return as_json(await self._runner.signal(await _read(request, SignalRequest)))

    async def suspend(self, request: Request) -> Answer:
        body = await _read(request, SuspendRequest)
        return as_json(self._runner.suspend(body.suspended))

    async def batch(self, request: Request) -> Answer:
        return as_json(await self._runner.batch.exchange(await _read(request, BatchRequest)))

    async def again(self, request: Request) -> Answer:
        return as_json(await self._runner.start_again(await _read(request, AgainRequest)))

    async def metrics(self, _: Request) -> Answer:
        return as_json(await asyncio.to_thread(self._measure, relayed=dict(self._relay.open)))

    async def ack(self, request: Request) -> Answer:
        body = await _read(request, AckRequest)
        return as_json(AckRequest(offset=self._runner.readers.ack(body.offset)))

    async def notice(self, request: Request) -> Answer:
        body = await _read(request, NoticeRequest)
        return as_json(self._runner.notice(body.id, body.text))

    async def status(self, request: Request) -> Answer:
        after = _number(request, "after")
        heartbeat = min(float(_number(request, "heartbeat")), MAX_HEARTBEAT) or self._heartbeat
        events = self._runner.status.follow(after, heartbeat)
        lines = (msgspec.json.encode(event) + b"\n" async for event in events)
        return Streamed(pieces=lines, content_type="application/x-ndjson")

    async def logs(self, request: Request) -> Answer:
        wait = min(float(_number(request, "wait")), MAX_WAIT)
        log = self._runner.log
        reader = LogReader(log, self._offset(request))
        with self._runner.readers.one(), closing(reader):
            # A long poll: each empty answer would cost a round trip to the controller.
            if wait and reader.offset == log.end and not log.finished:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await log.bell.wait()
            page = next_page(reader)
        return Response(
            body=page.frames, content_type="application/octet-stream", headers=page.headers
        )

    async def follow(self, request: Request) -> Answer:
        offset, accept = self._offset(request), accept_key(request.headers)

        async def serve(ws: WebSocket) -> None:
            with self._runner.readers.one():
                await LogFollower(self._runner.log, offset, self._patience).serve(ws)

        return Upgrade(accept=accept, serve=serve)

    def _offset(self, request: Request) -> int:
        offset = _number(request, "offset")
        end = self._runner.log.end
        if offset > end:
            raise Refused(400, "invalid", f"offset {offset} is after the end {end}", "offset")
        return offset


async def _read(request: Request, kind: type[_T]) -> _T:
    return decode_body(await request.body.read(MAX_BODY), kind)


def _number(request: Request, name: str) -> int:
    text = request.query.get(name, "0")
    if not is_count(text):
        raise Refused(400, "invalid", f"{name} must be a whole number, 0 or more", name)
    return int(text)
