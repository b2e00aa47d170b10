"""Lines of logs as documents of Loki and of OTLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from controller.shipping.sink import Refused
from fairlead.wire.frames import Frame, Stream

MAX_LINE = 16 << 10
"""Bytes of a line; a longer one comes in pieces."""


class Origin(msgspec.Struct, frozen=True):
    """What a line is found by."""

    run: str
    user: str
    job: str
    attempt: str


class Line(msgspec.Struct, frozen=True):
    """`safe`: the offset from which on the log has all lines that come after this one."""

    origin: Origin
    stream: str
    time_ns: int
    text: str
    safe: int = 0


class LineCutter:
    """Cuts the frames of one attempt into lines, for each stream. `at`: where its log begins."""

    def __init__(self, origin: Origin, at: int = 0) -> None:
        self._origin = origin
        self._at = at
        self._rest: dict[Stream, bytes] = {}
        self._rest_begins: dict[Stream, int] = {}

    def lines(self, frame: Frame) -> list[Line]:
        before = self._safe()
        began = self._rest_begins.pop(frame.stream, frame.offset)
        pieces = (self._rest.pop(frame.stream, b"") + frame.payload).split(b"\n")
        rest = pieces.pop()
        if len(rest) > MAX_LINE:
            pieces.append(rest)
        elif rest:
            self._rest[frame.stream] = rest
            # The text of a marker stands for other bytes.
            after = frame.offset if frame.dropped else frame.end - len(rest)
            self._rest_begins[frame.stream] = after if pieces else began
        self._at = frame.end
        found = [
            self._line(frame.stream, frame.time_ns, piece[at : at + MAX_LINE], before)
            for piece in pieces
            for at in range(0, max(1, len(piece)), MAX_LINE)
        ]
        if found:
            found[-1] = msgspec.structs.replace(found[-1], safe=self._safe())
        return found

    def end(self, time_ns: int) -> list[Line]:
        """Return the lines that no newline ended."""
        rest, self._rest, self._rest_begins = self._rest, {}, {}
        return [self._line(stream, time_ns, piece, self._at) for stream, piece in rest.items()]

    def _safe(self) -> int:
        return min(self._rest_begins.values(), default=self._at)

    def _line(self, stream: Stream, time_ns: int, piece: bytes, safe: int) -> Line:
        text = piece.rstrip(b"\r").decode(errors="replace")
        return Line(self._origin, stream.name.lower(), time_ns, text, safe)


def loki(lines: Sequence[Line]) -> bytes:
    """Return the body of /loki/api/v1/push. Few labels, as Loki wants it: job and attempt are
    structured metadata (Loki 3)."""
    streams: dict[tuple[str, str, str], list[object]] = {}
    for line in lines:
        origin = line.origin
        values = streams.setdefault((origin.run, origin.user, line.stream), [])
        about = {"job": origin.job, "attempt": origin.attempt}
        values.append([str(line.time_ns), line.text, about])
    return msgspec.json.encode(
        {
            "streams": [
                {
                    "stream": {
                        "service_name": "fairlead",
                        "run": run,
                        "user": user,
                        "stream": stream,
                    },
                    "values": values,
                }
                for (run, user, stream), values in streams.items()
            ]
        }
    )


def otlp(lines: Sequence[Line]) -> bytes:
    """Return the body of /v1/logs (ExportLogsServiceRequest in JSON)."""
    records = [
        {
            "timeUnixNano": str(line.time_ns),
            "observedTimeUnixNano": str(line.time_ns),
            "body": {"stringValue": line.text},
            "attributes": attributes(
                {
                    "fairlead.run": line.origin.run,
                    "fairlead.user": line.origin.user,
                    "fairlead.job": line.origin.job,
                    "fairlead.attempt": line.origin.attempt,
                    "log.iostream": line.stream,
                }
            ),
        }
        for line in lines
    ]
    scope = {"scope": {"name": "fairlead"}, "logRecords": records}
    return msgspec.json.encode({"resourceLogs": [{"resource": RESOURCE, "scopeLogs": [scope]}]})


def attributes(values: Mapping[str, str | int | None]) -> list[object]:
    """Return the attributes of OTLP in JSON; what is None is left out."""
    return [
        # A 64-bit number is a string there, as protobuf writes it in JSON.
        {"key": key, "value": {"intValue": str(value)}}
        if isinstance(value, int)
        else {"key": key, "value": {"stringValue": value}}
        for key, value in values.items()
        if value is not None
    ]


def read_loki(_: bytes) -> None:
    """Do nothing: Loki tells of refused lines by the status 400, never in an answer of 204."""


class _Partial(msgspec.Struct, frozen=True, rename="camel"):
    """A 64-bit number is a string in protobuf's JSON, or a number."""

    rejected_log_records: str | int = 0
    rejected_spans: str | int = 0
    error_message: str = ""


class _OtlpAnswer(msgspec.Struct, frozen=True, rename="camel"):
    partial_success: _Partial = _Partial()


_OTLP = msgspec.json.Decoder(_OtlpAnswer)


def read_otlp(body: bytes) -> None:
    """Raises Refused for a partial success of OTLP/HTTP, whose status is 200."""
    try:
        partial = _OTLP.decode(body).partial_success
        count = int(partial.rejected_log_records or partial.rejected_spans)
    except ValueError:
        return  # protobuf, or another form of success
    if count > 0:
        raise Refused(count, partial.error_message[:200])


RESOURCE = {"attributes": attributes({"service.name": "fairlead"})}
Encode = Callable[[Sequence[Line]], bytes]
