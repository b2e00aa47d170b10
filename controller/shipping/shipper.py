"""Hears of each turn and of each frame that is stored, and gives copies to the receivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.lifecycle.model import Job, RunState
from controller.shipping import log_documents, traces
from controller.shipping.at_least_once import LogShipper, Read
from controller.shipping.log_documents import Line, Origin
from controller.shipping.positions import Positions
from controller.shipping.sink import Sink
from controller.shipping.traces import Span
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from fairlead.wire.frames import Frame

_TRACE_PATH = "/v1/traces"
_SPAN_BYTES = 400


class ReceiverInvalid(Exception):
    """An option names no receiver; the message says what to give."""


class LogProtocol(StrEnum):
    """The protocol of a receiver of logs, as `--ship-logs` names it."""

    LOKI = "loki"
    OTLP = "otlp"


class LogReceiver(msgspec.Struct, frozen=True, kw_only=True):
    """How receivers of one protocol take logs; `is_cut` and `read` are those of `Sink`."""

    path: str
    encode: log_documents.Encode
    is_cut: bool
    read: Callable[[bytes], None]


def _receiver_of(protocol: LogProtocol) -> LogReceiver:
    match protocol:
        case LogProtocol.LOKI:
            return LogReceiver(
                path="/loki/api/v1/push",
                encode=log_documents.loki,
                is_cut=True,
                read=log_documents.read_loki,
            )
        case LogProtocol.OTLP:
            return LogReceiver(
                path="/v1/logs",
                encode=log_documents.otlp,
                is_cut=False,
                read=log_documents.read_otlp,
            )
        case _:
            assert_never(protocol)


class Receivers(msgspec.Struct, frozen=True, kw_only=True):
    """Where copies go. `logs`: the protocol and the URL; `headers` may have secrets."""

    logs: tuple[LogProtocol, str] | None = None
    traces: str | None = None
    headers: Mapping[str, str] = {}


def parse_logs(text: str) -> tuple[LogProtocol, str]:
    """Read loki=URL or otlp=URL. Raises ReceiverInvalid."""
    name, _, url = text.partition("=")
    try:
        protocol = LogProtocol(name)
    except ValueError:
        forms = " nor ".join(f"{one}=URL" for one in LogProtocol)
        raise ReceiverInvalid(f"{text!r} is neither {forms}") from None
    return protocol, _with_path(url, _receiver_of(protocol).path)


def parse_traces(text: str) -> str:
    """Read the URL of an OTLP/HTTP receiver. Raises ReceiverInvalid."""
    return _with_path(text.removeprefix("otlp="), _TRACE_PATH)


def read_headers(file: Path) -> dict[str, str]:
    """Read a file with a header on each line. Blocking. Raises ReceiverInvalid, without content."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise ReceiverInvalid(f"{file}: {why}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or not name.strip().replace("-", "").isalnum():
            raise ReceiverInvalid(f"{file}, line {number}: write NAME: VALUE")
        found[name.strip()] = value.strip()
    return found


def _with_path(url: str, path: str) -> str:
    split = urlsplit(url)
    if split.scheme not in ("http", "https") or not split.hostname:
        raise ReceiverInvalid(f"{url!r} is no URL, such as http://127.0.0.1:4318")
    if split.username is not None or split.password is not None or split.query:
        # Addresses are in the list of processes and in logs.
        raise ReceiverInvalid("put a password or token into --ship-headers-file, not into the URL")
    return url if split.path.endswith(path) else url.rstrip("/") + path


class Shipper:
    """`now` tells Unix time. Begin with the runs that are live; then it hears of each turn."""

    def __init__(
        self,
        receivers: Receivers,
        live: Iterable[RunState],
        positions: Positions,
        jitter: Callable[[], float],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.logs: Sink[Line] | None = None
        self.traces: Sink[Sequence[Span]] | None = None
        self.log_shipper: LogShipper | None = None
        if receivers.logs is not None:
            protocol, url = receivers.logs
            receiver = _receiver_of(protocol)
            self.logs = Sink(
                url,
                receivers.headers,
                receiver.encode,
                jitter,
                is_cut=receiver.is_cut,
                read=receiver.read,
                done=self._done,
            )
            self.log_shipper = LogShipper(self.logs, positions, jitter, now)
        if receivers.traces is not None:
            self.traces = Sink(
                receivers.traces,
                receivers.headers,
                traces.document,
                jitter,
                read=log_documents.read_otlp,
            )
        self._live: set[str] = set()
        self._jobs: dict[str, tuple[Job, ...]] = {}
        self.committed(tuple(live))

    async def run(self, read: Read) -> None:
        """Send until cancelled. `read` gives what is stored of a log."""
        async with asyncio.TaskGroup() as group:
            for one in (self.logs, self.traces):
                if one is not None:
                    group.create_task(one.run())
            if self.log_shipper is not None:
                group.create_task(self.log_shipper.run(read))

    def committed(self, touched: Sequence[RunState]) -> None:
        """Hear of a turn (TurnListener)."""
        for state in touched:
            if state.run.finished_at is None:
                self._live.add(state.run.id)
            elif state.run.id in self._live:
                self._live.discard(state.run.id)
                self._trace(state)
            if self.log_shipper is not None:
                self._note_attempts(state, self.log_shipper)

    def stored(self, attempt_id: str, frames: Iterable[Frame]) -> None:
        """Hear of frames that were stored, in their order."""
        if self.log_shipper is not None:
            self.log_shipper.stored(attempt_id, frames)

    def families(self) -> Iterable[Metric]:
        """Yield the figures for Prometheus."""
        sent = CounterMetricFamily(
            "fairlead_shipped", "Lines and traces that a receiver took", labels=["kind"]
        )
        dropped = CounterMetricFamily(
            "fairlead_ship_dropped", "Lines and traces that no receiver got", labels=["kind"]
        )
        waiting = GaugeMetricFamily(
            "fairlead_ship_waiting_bytes", "Copies that wait for their receiver", labels=["kind"]
        )
        for kind, sink in (("logs", self.logs), ("traces", self.traces)):
            if sink is not None:
                sent.add_metric([kind], sink.sent)
                dropped.add_metric([kind], sink.dropped)
                waiting.add_metric([kind], sink.waiting_bytes)
        return (sent, dropped, waiting)

    def _trace(self, state: RunState) -> None:
        if self.traces is not None:
            found = traces.spans(state)
            self.traces.offer(found, _SPAN_BYTES * len(found))

    def _done(self, lines: Sequence[Line]) -> None:
        if self.log_shipper is not None:
            self.log_shipper.acknowledged(lines)

    def _note_attempts(self, state: RunState, logs: LogShipper) -> None:
        run = state.run
        before = self._jobs.get(run.id, ())
        for number, job in enumerate(state.jobs):
            # A sweep has many jobs, and a turn changes few.
            if number < len(before) and before[number] is job:
                continue
            for attempt in job.attempts[-2:]:
                if attempt.status in FINAL_ATTEMPT_STATUSES:
                    logs.ended(attempt.id)
                else:
                    job_name = f"{job.group}/{job.cookie}"
                    logs.began(Origin(run.name, run.user, job_name, attempt.id))
        if run.finished_at is None:
            self._jobs[run.id] = state.jobs
        else:
            self._jobs.pop(run.id, None)
