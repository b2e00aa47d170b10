"""Copies of logs and traces: whole documents, in order, and never at the cost of the store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from controller.lifecycle.model import RunState
from controller.shipping import sink
from controller.shipping.shipper import (
    ReceiverInvalid,
    Receivers,
    Shipper,
    parse_logs,
    parse_traces,
    read_headers,
)
from controller.shipping.traces import spans
from fairlead.model.statuses import AttemptStatus, RunStatus
from fairlead.wire.frames import Frame, Stream
from tests.support.ssh_daemon import free_port
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
        self.got: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        if self.status < 300:
            body = json.loads(await request.read())
            self.got.append((request.path, body, dict(request.headers)))
        return web.Response(status=self.status)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made, app = Receiver(), web.Application()
    app.router.add_post("/{path:.*}", made.take)
    async with TestServer(app) as server:
        made.url = str(server.make_url("")).rstrip("/")
        yield made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


def shipper(*, logs: str | None = None, traces: str | None = None) -> Shipper:
    receivers = Receivers(
        logs=None if logs is None else parse_logs(logs),
        traces=None if traces is None else parse_traces(traces),
        headers={"Authorization": "Bearer canary"},
    )
    return Shipper(receivers, [RUNNING], lambda: 0.0, lambda: NS / 1e9)


def frames(*payloads: bytes, stream: Stream = Stream.STDOUT) -> list[Frame]:
    return [Frame(0, NS + number, stream, payload) for number, payload in enumerate(payloads)]


async def test_loki_gets_whole_lines_of_each_stream(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    copies = shipper(logs=f"loki={receiver.url}")
    assert copies.logs is not None
    copies.stored(ATTEMPT, frames(b"one\ntw", b"o\nthree"))
    copies.stored(ATTEMPT, frames(b"\xffoops\r\n", stream=Stream.STDERR))
    copies.stored("an attempt that nobody knows", frames(b"lost\n"))
    assert await copies.logs.send(session)
    copies.committed([ended(RUNNING)])
    assert await copies.logs.send(session)
    (path, first, headers), (_, last, _) = receiver.got
    assert path == "/loki/api/v1/push"
    assert headers["Authorization"] == "Bearer canary"
    out, err = first["streams"]
    name, user = RUNNING.run.name, RUNNING.run.user
    labels = {"service_name": "fairlead", "run": name, "user": user}
    assert out["stream"] == {**labels, "stream": "stdout"}
    assert err["stream"] == {**labels, "stream": "stderr"}
    assert [(ns, line) for ns, line, _ in out["values"]] == [
        (str(NS), "one"),
        (str(NS + 1), "two"),
    ]
    assert out["values"][0][2]["attempt"] == ATTEMPT
    assert [line for _, line, _ in err["values"]] == ["\ufffdoops"]
    assert [line for _, line, _ in last["streams"][0]["values"]] == ["three"]
    assert (copies.logs.sent, copies.logs.dropped, copies.logs.waiting_bytes) == (4, 0, 0)


async def test_otlp_gets_a_record_for_each_line(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    copies = shipper(logs=f"otlp={receiver.url}/")
    assert copies.logs is not None
    copies.stored(ATTEMPT, frames(b"one\n\ntwo\n"))
    assert await copies.logs.send(session)
    ((path, body, _),) = receiver.got
    assert path == "/v1/logs"
    ((scope,),) = [one["scopeLogs"] for one in body["resourceLogs"]]
    assert [one["body"]["stringValue"] for one in scope["logRecords"]] == ["one", "", "two"]
    record = scope["logRecords"][0]
    assert record["timeUnixNano"] == str(NS)
    found = {one["key"]: one["value"]["stringValue"] for one in record["attributes"]}
    assert found["fairlead.attempt"] == ATTEMPT
    assert found["log.iostream"] == "stdout"


async def test_a_run_is_a_trace_when_it_has_ended(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    copies = shipper(traces=receiver.url)
    assert copies.traces is not None
    copies.committed([RUNNING])
    assert copies.traces.waiting_bytes == 0
    copies.committed([ended(RUNNING)])
    copies.committed([ended(RUNNING)])
    assert await copies.traces.send(session)
    ((path, body, _),) = receiver.got
    assert path == "/v1/traces"
    ((scope,),) = [one["scopeSpans"] for one in body["resourceSpans"]]
    by_name = {span["name"].partition(" ")[0]: span for span in scope["spans"]}
    assert set(by_name) == {"run", "attempt", "queue", "place", "pull", "start", "end"}
    for span in scope["spans"]:
        assert (len(span["traceId"]), len(span["spanId"])) == (32, 16)
        assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"])
        assert span["kind"] == 1
    assert len({span["traceId"] for span in scope["spans"]}) == 1
    root = next(span for span in scope["spans"] if not span["parentSpanId"])
    assert root["status"] == {"code": 2}
    assert by_name["attempt"]["parentSpanId"] == root["spanId"]
    assert by_name["pull"]["parentSpanId"] == by_name["attempt"]["spanId"]
    seconds = {
        name: (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9
        for name, span in by_name.items()
        if name in ("queue", "place", "pull", "start", "end")
    }
    assert seconds == pytest.approx({"queue": 1, "place": 1, "pull": 3, "start": 1, "end": 1})
    exit_code = {"key": "fairlead.exit_code", "value": {"intValue": "3"}}
    assert exit_code in by_name["attempt"]["attributes"]


def test_a_trace_that_is_made_again_has_the_same_ids() -> None:
    assert spans(ended(RUNNING)) == spans(ended(RUNNING))


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_that_is_busy_gets_the_same_again(
    receiver: Receiver, session: aiohttp.ClientSession, status: int
) -> None:
    copies = shipper(logs=f"loki={receiver.url}")
    assert copies.logs is not None
    copies.stored(ATTEMPT, frames(b"one\n"))
    receiver.status = status
    assert not await copies.logs.send(session)
    receiver.status = 204
    assert await copies.logs.send(session)
    assert (copies.logs.sent, copies.logs.dropped) == (1, 0)


async def test_what_a_receiver_refuses_is_dropped_and_counted(
    receiver: Receiver, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    copies = shipper(logs=f"loki={receiver.url}")
    assert copies.logs is not None
    copies.stored(ATTEMPT, frames(b"one\n"))
    receiver.status = 400
    assert await copies.logs.send(session)
    assert (copies.logs.sent, copies.logs.dropped) == (0, 1)
    assert "HTTP 400" in caplog.text
    assert "canary" not in caplog.text


async def test_a_receiver_that_is_away_takes_a_bounded_room(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "MAX_WAITING_BYTES", 1000)
    copies = shipper(logs=f"loki=http://127.0.0.1:{free_port()}")
    assert copies.logs is not None
    copies.stored(ATTEMPT, frames(*[b"line\n"] * 100))
    assert not await copies.logs.send(session)
    assert copies.logs.waiting_bytes <= 1000
    assert copies.logs.dropped > 90
    dropped = next(one for one in copies.families() if one.name == "fairlead_ship_dropped")
    assert [(one.labels, one.value) for one in dropped.samples] == [
        ({"kind": "logs"}, copies.logs.dropped)
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://h", "is neither loki=URL nor otlp=URL"),
        ("loki=h:3100", "is no URL"),
        ("otlp=http://me:canary@h", "--ship-headers-file"),
        ("otlp=http://h?token=canary", "--ship-headers-file"),
    ],
)
def test_a_receiver_that_is_none_is_refused_without_its_secret(text: str, why: str) -> None:
    with pytest.raises(ReceiverInvalid, match=why) as refused:
        parse_logs(text)
    assert "canary" not in str(refused.value)


def test_headers_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# of Loki\nAuthorization: Bearer a:b\n\nX-Scope-OrgID: lab\n")
    assert read_headers(file) == {"Authorization": "Bearer a:b", "X-Scope-OrgID": "lab"}
    file.write_text("canary")
    with pytest.raises(ReceiverInvalid, match="line 1: write NAME: VALUE") as refused:
        read_headers(file)
    assert "canary" not in str(refused.value)
    with pytest.raises(ReceiverInvalid, match="No such file"):
        read_headers(tmp_path / "missing")
