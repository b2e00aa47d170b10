"""The log's frames: the form of a job's output in segment files and on its way to every reader.

One frame is a header and its payload. The header has the payload's offset in the job's whole
output. So a reader can start at any segment, skip to the wanted offset, and never give out a byte
twice. A marker frame stands for bytes that were dropped (quota): its payload is the text for the
user, and `dropped` says how many offsets it covers.

Layout (little endian, 32 bytes): magic `FLOG`, crc32 of the payload (u32), offset (u64), time in
nanoseconds (i64), payload length (u32), stream (u8), three zero bytes. For a marker the first eight
bytes of the payload are `dropped` (u64).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import BinaryIO

import msgspec

_HEADER = struct.Struct("<4sIQqIB3x")
_DROPPED = struct.Struct("<Q")
_MAGIC = b"FLOG"

HEADER_SIZE = _HEADER.size
_MAX_NOTICE = 1000
"""Characters of one line by Fairlead."""

MAX_PAYLOAD = 1 << 20
"""Bytes; a longer payload is a broken or hostile frame."""


class Stream(IntEnum):
    STDOUT = 1
    STDERR = 2
    SYSTEM = 3
    """A line that Fairlead itself put into the job's log."""
    MARKER = 4
    """It stands for `dropped` bytes that are gone."""


class BadFrame(ValueError):
    """The bytes are not a frame: a torn tail, or a job that wrote into its own log folder."""


class Frame(msgspec.Struct, frozen=True):
    """`offset` counts payload bytes since the start of the attempt; `time_ns` is Unix time."""

    offset: int
    time_ns: int
    stream: Stream
    payload: bytes
    dropped: int = 0

    @property
    def end(self) -> int:
        """The offset after this frame."""
        return self.offset + (self.dropped or len(self.payload))


def notice_line(text: str) -> bytes:
    """Return one whole line by Fairlead from any text; the same text always gives the same line."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable[:_MAX_NOTICE].encode() + b"\n"


def encode(frame: Frame) -> bytes:
    payload = frame.payload
    if frame.stream is Stream.MARKER:
        payload = _DROPPED.pack(frame.dropped) + payload
    header = _HEADER.pack(
        _MAGIC, zlib.crc32(payload), frame.offset, frame.time_ns, len(payload), frame.stream
    )
    return header + payload


def frame_size(header: bytes | bytearray | memoryview, at: int = 0) -> int:
    """Return the whole size, in bytes, of the frame whose header is at byte `at`. Raises
    BadFrame."""
    magic, _, _, _, length, stream = _HEADER.unpack_from(header, at)
    if magic != _MAGIC or length > MAX_PAYLOAD or not 1 <= stream <= 4:
        raise BadFrame("not a log frame")
    return HEADER_SIZE + int(length)


class Span(msgspec.Struct, frozen=True):
    """The content of a header: the offsets that its frame covers, and its whole size in bytes."""

    start: int
    end: int
    size: int


def span_at(data: bytes | memoryview, at: int = 0) -> Span | None:
    """Return the frame at byte `at` without reading or verifying its payload, so that a long log
    can be skipped through.

    None when too little of it is there. Raises BadFrame.
    """
    if len(data) - at < HEADER_SIZE:
        return None
    magic, _, offset, _, length, stream = _HEADER.unpack_from(data, at)
    if magic != _MAGIC or length > MAX_PAYLOAD or not 1 <= stream <= 4:
        raise BadFrame("not a log frame")
    if stream != Stream.MARKER:
        return Span(offset, offset + length, HEADER_SIZE + length)
    if length < _DROPPED.size:
        raise BadFrame("marker without a count")
    if len(data) - at < HEADER_SIZE + _DROPPED.size:
        return None
    (dropped,) = _DROPPED.unpack_from(data, at + HEADER_SIZE)
    covered = dropped or length - _DROPPED.size
    return Span(offset, offset + covered, HEADER_SIZE + length)


class Decoder:
    """Takes byte pieces of any size and yields whole frames. After BadFrame it cannot be used
    again."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes that are not a whole frame yet (a torn tail, when the source has ended)."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        # Most pieces are whole frames: then no byte is copied but into its frame.
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
        start = 0
        try:
            while len(source) - start >= HEADER_SIZE:
                size = frame_size(source, start)
                if len(source) - start < size:
                    break
                yield _decode_one(source, start, size)
                start += size
        finally:
            if source is self._buffer:
                del self._buffer[:start]
            else:
                self._buffer += memoryview(data)[start:]


def whole_frames(file: BinaryIO, piece: int) -> Iterator[Frame]:
    """Yield the frames of a file, of which `piece` bytes are read at once, up to its end or to one
    that a crash left torn."""
    decoder = Decoder()
    while data := file.read(piece):
        try:
            yield from decoder.feed(data)
        except BadFrame:
            return


def is_sound(data: bytes, at: int, span: Span) -> bool:
    """Return whether the payload of this frame, all of which is at byte `at`, has its checksum."""
    crc: int = _HEADER.unpack_from(data, at)[1]
    return crc == zlib.crc32(memoryview(data)[at + HEADER_SIZE : at + span.size])


def _decode_one(source: bytes | bytearray, at: int, size: int) -> Frame:
    _, crc, offset, time_ns, _, stream = _HEADER.unpack_from(source, at)
    payload = bytes(memoryview(source)[at + HEADER_SIZE : at + size])
    if zlib.crc32(payload) != crc:
        raise BadFrame(f"checksum of the frame at offset {offset} does not match")
    if stream != Stream.MARKER:
        return Frame(offset, time_ns, Stream(stream), payload)
    if len(payload) < _DROPPED.size:
        raise BadFrame("marker without a count")
    (dropped,) = _DROPPED.unpack_from(payload)
    return Frame(offset, time_ns, Stream.MARKER, payload[_DROPPED.size :], dropped)


ATTEMPT_HEADER = "Fairlead-Attempt"
"""The attempt whose stored log an answer has."""


def tail_from(frame: Frame, offset: int) -> Frame | None:
    """Return the part of `frame` at or after `offset`; None when all of it lies before."""
    if frame.end <= offset:
        return None
    if frame.offset >= offset or frame.stream is Stream.MARKER:
        return frame
    payload = frame.payload[offset - frame.offset :]
    return Frame(offset, frame.time_ns, frame.stream, payload)
