"""A receiver of copies, a log, and what outlives a controller."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from controller.lifecycle.model import RunState
from controller.outputs.bucket import BucketError
from controller.shipping.positions import Position, Positions
from controller.shipping.shipper import Receivers, Shipper, parse_logs, parse_traces
from fairlead.model.statuses import AttemptStatus, RunStatus
from fairlead.wire.frames import Frame, Stream, encode, tail_from
from tests.unit.pipelines.parts import attempt_of, placed

RUNNING = placed(AttemptStatus.RUNNING)
ATTEMPT = attempt_of(RUNNING).id
NS = 1_800_000_000_000_000_000


def ended(state: RunState) -> RunState:
    began = state.run.submitted_at
    (job,) = state.jobs
    attempt = replace(
        attempt_of(state),
        status=AttemptStatus.FAILED,
        exit_code=3,
        submitted_at=began,
        provisioned_at=began + 1,
        pulling_at=began + 2,
        pull=replace(attempt_of(state).pull, progressed_at=began + 5),
        running_at=began + 6,
        terminating_at=began + 60,
        finished_at=began + 61,
    )
    run = replace(state.run, status=RunStatus.FAILED, finished_at=began + 61)
    return replace(state, run=run, jobs=(replace(job, attempts=(attempt,)),))


class Receiver:
    """Takes what is sent to any path, and answers as it is told."""

    def __init__(self) -> None:
        self.status = 204
        self.answer = b""
        self.bad: set[str] = set()
        """Lines that it refuses, as Loki does: it takes the others, and answers 400."""
        self.got: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        status, body = self.status, json.loads(await request.read())
        if status < 300 and self.bad & set(lines_of(body)):
            status = 400
            for stream in body["streams"]:
                stream["values"] = [one for one in stream["values"] if one[1] not in self.bad]
        if self.status < 300:
            self.got.append((request.path, body, dict(request.headers)))
        return web.Response(status=status, body=self.answer)

    def lines_of_stream(self, name: str) -> list[str]:
        return [
            value[1]
            for _, body, _ in self.got
            for stream in body["streams"]
            if stream["stream"]["stream"] == name
            for value in stream["values"]
        ]

    @property
    def lines(self) -> list[str]:
        """The lines that it has: it ignores one with stream, time and text of an earlier one."""
        found = {
            (json.dumps(stream["stream"]), *value[:2]): value[1]
            for _, body, _ in self.got
            for stream in body["streams"]
            for value in stream["values"]
        }
        return list(found.values())


def lines_of(body: dict[str, Any]) -> Iterable[str]:
    for stream in body.get("streams", ()):
        yield from (value[1] for value in stream["values"])


class Log:
    """The log of one attempt, as it is stored."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.is_away = False

    def add(self, *payloads: bytes, stream: Stream = Stream.STDOUT) -> list[Frame]:
        added = []
        for payload in payloads:
            at = self.frames[-1].end if self.frames else 0
            added.append(Frame(at, NS + len(self.frames), stream, payload))
            self.frames += added[-1:]
        return added

    async def read(self, attempt_id: str, offset: int) -> AsyncGenerator[bytes, None]:
        if self.is_away:
            raise BucketError("the bucket is away")
        for frame in list(self.frames) if attempt_id == ATTEMPT else ():
            if (tail := tail_from(frame, offset)) is not None:
                yield encode(tail)


class Saved(Positions):
    """What outlives a controller."""

    def __init__(self) -> None:
        self.positions: dict[str, Position] = {}

    async def load(self) -> dict[str, Position]:
        return self.positions

    async def save(self, positions: Mapping[str, Position], now: float) -> None:
        self.positions = dict(positions)


async def shipper(
    *,
    logs: str | None = None,
    traces: str | None = None,
    saved: Saved | None = None,
    live: Iterable[RunState] = (RUNNING,),
) -> Shipper:
    receivers = Receivers(
        logs=None if logs is None else parse_logs(logs),
        traces=None if traces is None else parse_traces(traces),
        headers={"Authorization": "Bearer canary"},
    )
    made = Shipper(receivers, live, saved or Saved(), lambda: 0.0, lambda: NS / 1e9)
    if made.log_shipper is not None:
        await made.log_shipper.load()
    return made


def frames(*payloads: bytes) -> list[Frame]:
    return Log().add(*payloads)
