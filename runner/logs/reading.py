"""Reading the output that `segments` writes: by offset, in order, while it grows."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from contextlib import suppress
from typing import NamedTuple

from fairlead.wire.frames import (
    HEADER_SIZE,
    BadFrame,
    Decoder,
    encode,
    frame_size,
    span_at,
    tail_from,
)
from fairlead.wire.runner import LOG_COMPLETE_HEADER, LOG_END_HEADER
from runner.logs.pacing import MAX_PIECE
from runner.logs.segments import FILE_REMOVED, Segment, SegmentLog, marker_frame


class LogReader:
    """Reads frames from an offset on, in pieces of limited size, each with whole frames.

    A dropped segment stays readable while the reader is in it. Close it after use.
    """

    def __init__(self, log: SegmentLog, offset: int) -> None:
        self.offset = offset
        """The next offset to read."""
        self._log = log
        self._segment: Segment | None = None
        self._fd = -1
        self._position = 0

    @property
    def at_end(self) -> bool:
        return self._log.finished and self.offset >= self._log.end

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._segment = None

    def read(self, size: int = MAX_PIECE) -> bytes:
        """Return about `size` bytes, at least one frame; b"" when there is nothing (yet).

        Raises BadFrame when the files were changed by others, OSError when they are gone.
        """
        while True:
            if self._segment is None:
                first = self._seek()
                if first or self._segment is None:
                    return first
            segment = self._segment
            if self._position < segment.size:
                return self._piece(segment, size)
            if self._log.is_newest(segment):
                return self._skip_lost()
            self.close()

    def _piece(self, segment: Segment, size: int) -> bytes:
        stop, end = segment.size, segment.end
        if stop - self._position > size:
            index = bisect_right(segment.positions, self._position + size) - 1
            if segment.positions[index] <= self._position:
                index += 1
            if index < len(segment.positions):
                stop, end = segment.positions[index], segment.offsets[index]
        data = os.pread(self._fd, stop - self._position, self._position)
        if len(data) < stop - self._position:
            data, end = _sound(data, self.offset)
            if not data:
                raise BadFrame(f"segment {segment.path.name} is shorter than what was written")
            stop = self._position + len(data)
        self._position, self.offset = stop, end
        return data

    def _seek(self) -> bytes:
        """Go to `offset`; return what must come first, a marker or the rest of a frame."""
        log = self._log
        segment = log.find(self.offset)
        if segment is None:
            return self._skip_lost()
        try:
            self._fd = log.open_segment(segment)
        except FileNotFoundError:
            # The job may have removed the file: the folder is shared with its container.
            return self._skip_to(segment.end, FILE_REMOVED)
        self._segment = segment
        index = bisect_right(segment.offsets, self.offset) - 1
        self._position = segment.positions[index]
        return self._skip_to_offset(segment)

    def _skip_lost(self) -> bytes:
        end, why = self._log.lost_from(self.offset)
        return self._skip_to(end, why) if end > self.offset else b""

    def _skip_to(self, end: int, why: str) -> bytes:
        marker = marker_frame(self.offset, end - self.offset, time.time_ns, why)
        self.offset = end
        return encode(marker)

    def _skip_to_offset(self, segment: Segment) -> bytes:
        while self._position < segment.size:
            header = os.pread(self._fd, HEADER_SIZE, self._position)
            if len(header) < HEADER_SIZE:
                raise BadFrame(f"segment {segment.path.name} is shorter than what was written")
            raw = os.pread(self._fd, frame_size(header), self._position)
            frame = next(Decoder().feed(raw), None)
            if frame is None:
                raise BadFrame(f"segment {segment.path.name} is shorter than what was written")
            if frame.offset >= self.offset:
                return b""
            self._position += len(raw)
            rest = tail_from(frame, self.offset)
            if rest is not None:
                self.offset = frame.end
                return encode(rest)
        return b""


def _sound(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return the whole frames at the beginning of these bytes of a file that was cut, and where
    they end; `offset` if there is none."""
    at, end = 0, offset
    with suppress(BadFrame):
        while (span := span_at(data, at)) is not None and at + span.size <= len(data):
            at, end = at + span.size, span.end
    return data[:at], end


PAGE_SIZE = 4 << 20
"""The most that one page has, about; the reader asks again from its end."""


class Page(NamedTuple):
    """One page. `complete`: the job has ended and the page reaches the end of its output. `end`:
    where the next page begins."""

    frames: bytes
    complete: bool
    end: int

    @property
    def headers(self) -> dict[str, str]:
        complete = "true" if self.complete else "false"
        return {
            "Content-Type": "application/octet-stream",
            LOG_COMPLETE_HEADER: complete,
            LOG_END_HEADER: str(self.end),
        }


def next_page(reader: LogReader, size: int = PAGE_SIZE) -> Page:
    """Return the next page, which ends before a damage. Raises BadFrame and OSError as
    `LogReader.read` does when the damage is at its beginning."""
    frames = bytearray()
    try:
        while len(frames) < size and (piece := reader.read(size)):
            frames += piece
    except (BadFrame, OSError):
        if not frames:
            raise
        return Page(bytes(frames), False, reader.offset)
    return Page(bytes(frames), reader.at_end, reader.offset)
