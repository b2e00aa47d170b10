"""Copies of logs and traces: whole documents, in order, and never at the cost of the store."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from controller.shipping import sink
from controller.shipping.log_documents import LineCutter, Origin
from controller.shipping.shipper import (
    ReceiverInvalid,
    parse_logs,
    read_headers,
)
from controller.shipping.traces import spans
from fairlead.wire.frames import Frame, Stream
from tests.support.ssh_daemon import free_port
from tests.unit.shipping.parts import ATTEMPT, NS, RUNNING, Log, Receiver, ended, frames, shipper


async def test_loki_gets_whole_lines_of_each_stream(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    copies = await shipper(logs=f"loki={receiver.url}")
    assert copies.logs is not None
    log = Log()
    copies.stored(ATTEMPT, log.add(b"one\ntw", b"o\nthree"))
    copies.stored(ATTEMPT, log.add(b"\xffoops\r\n", stream=Stream.STDERR))
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
    copies = await shipper(logs=f"otlp={receiver.url}/")
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
    copies = await shipper(traces=receiver.url)
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
    copies = await shipper(logs=f"loki={receiver.url}")
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
    copies = await shipper(logs=f"loki={receiver.url}")
    assert copies.logs is not None
    copies.stored(ATTEMPT, frames(b"one\n"))
    receiver.status = 400
    assert await copies.logs.send(session)
    assert (copies.logs.sent, copies.logs.dropped) == (0, 1)
    assert "HTTP 400" in caplog.text
    assert "canary" not in caplog.text


async def test_of_a_batch_that_loki_refuses_only_the_bad_lines_are_dropped(
    receiver: Receiver, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Loki stores the good lines of such a batch, and names one of the others."""
    copies = await shipper(logs=f"loki={receiver.url}")
    assert copies.logs is not None
    texts = [f"line {number}" for number in range(100)]
    receiver.bad = {texts[7], texts[93]}
    receiver.answer = b"entry for stream '{}' has timestamp too old"
    copies.stored(ATTEMPT, frames(*(f"{one}\n".encode() for one in texts)))
    while copies.logs.waiting_bytes:
        assert await copies.logs.send(session)
    assert sorted(receiver.lines) == sorted(set(texts) - receiver.bad)
    assert (copies.logs.sent, copies.logs.dropped) == (98, 2)
    assert "refuses 1 copies, which are dropped: HTTP 400: entry for stream" in caplog.text


async def test_a_receiver_that_takes_nothing_gets_few_pieces(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    copies = await shipper(logs=f"loki={receiver.url}")
    assert copies.logs is not None
    receiver.status = 400
    requests = []
    for _ in range(2):
        copies.stored(ATTEMPT, [])
        log = Log()
        sent = 0
        for frame in log.add(*[b"line\n"] * 1000):
            for line in LineCutter(Origin("r", "u", "j", ATTEMPT)).lines(frame):
                copies.logs.add(line, 10)
        while copies.logs.waiting_bytes:
            await copies.logs.send(session)
            sent += 1
        requests.append(sent)
    assert requests == [2 * sink.MAX_CUTS + 1, 1]
    assert copies.logs.dropped == 2000


async def test_records_that_otlp_refuses_in_part_are_counted(
    receiver: Receiver, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    copies = await shipper(logs=f"otlp={receiver.url}")
    assert copies.logs is not None
    receiver.status, why = 200, "two are too long"
    partial = {"rejectedLogRecords": "2", "errorMessage": why}
    receiver.answer = json.dumps({"partialSuccess": partial}).encode()
    copies.stored(ATTEMPT, frames(b"one\n", b"two\n", b"three\n"))
    assert await copies.logs.send(session)
    receiver.answer = b"\n\x02 protobuf"
    copies.stored(ATTEMPT, [Frame(14, NS, Stream.STDOUT, b"four\n")])
    assert await copies.logs.send(session)
    assert (copies.logs.sent, copies.logs.dropped) == (2, 2)
    assert why in caplog.text


async def test_traces_for_a_receiver_that_is_away_take_a_bounded_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink, "MAX_WAITING_BYTES", 5000)
    copies = await shipper(traces=f"http://127.0.0.1:{free_port()}")
    assert copies.traces is not None
    for number in range(10):
        run = replace(RUNNING.run, id=f"r{number}")
        copies.committed([replace(RUNNING, run=run)])
        copies.committed([ended(replace(RUNNING, run=run))])
    assert copies.traces.waiting_bytes <= 5000
    dropped = next(one for one in copies.families() if one.name == "fairlead_ship_dropped")
    assert copies.traces.dropped > 5
    assert [(one.labels, one.value) for one in dropped.samples] == [
        ({"kind": "traces"}, copies.traces.dropped)
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
