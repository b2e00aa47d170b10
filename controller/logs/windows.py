"""Windows of one stored log: the rows near an offset or a time, never the whole log.

These are plain blocking functions for `store.LogStore`. Each reads a bounded number of bytes, so a
log of many GiB costs a reader no more than a short one. A damaged log ends at the damage.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from common.files import log_segments
from controller.clock import iso_of_job
from controller.logs.segments import Position, locate, read_frames
from fairlead.queries import MAX_ROWS, WindowQuery
from fairlead.wire.frames import HEADER_SIZE, BadFrame, Decoder, Frame, Stream, span_at, tail_from

ROW_BYTES = 8 << 10
"""A longer line is cut into several rows."""
COUNT_SECONDS = 0.2
"""So long lines are counted for one window; its rows have no numbers when that is not enough."""
STYLE_BYTES = 64 << 10
"""So far before a window, colours are looked for that go on in it."""
_MAX_SEQUENCES = 64
_SGR = re.compile(rb"\x1b\[([0-9;:]*)m")
_PIECES = re.compile(rb"[^\n]*\n|[^\n]+")


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one line, of one stream. `starts` and `ends`: whether the line begins and ends with
    it. Bytes that are not UTF-8 become marks."""

    offset: int
    end: int
    at: str
    stream: str
    text: str
    starts: bool
    ends: bool


class LogWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Rows without a gap from `start` to `end`. `first_line`: the number of the first row's line;
    null: not counted yet, ask again. `style`: the terminal's sequences (SGR) that set the colours
    in which the window begins. `log_end`: the end of what is stored."""

    start: int
    end: int
    log_end: int
    first_line: int | None
    style: str
    rows: tuple[LogRow, ...]


EMPTY = LogWindow(start=0, end=0, log_end=0, first_line=1, style="", rows=())
"""The window of a log that has not begun."""


class _Mark(msgspec.Struct, frozen=True):
    """So many lines end before this offset, whose frame begins at this position."""

    offset: int
    lines: int
    position: Position


class KnownLog:
    """An index of one log: where it ends and which line is where. It learns a little more
    with each question, so no question waits for the whole log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._marks = [_Mark(0, 0, Position(0, 0))]
        self._end = 0
        self._tail = Position(0, 0)
        # Requests about the same log are answered in several threads of the store's pool.
        self._one_at_a_time = threading.Lock()

    def end(self) -> int:
        """Return the offset after the last stored byte."""
        with self._one_at_a_time:
            last = (log_segments.starts_in(self._folder) or [0])[-1]
            if last > self._tail.segment:
                self._tail, self._end = Position(last, 0), last
            while True:
                data, self._tail = read_frames(self._folder, self._tail)
                if not data:
                    return self._end
                for _, self._end in _spans(data):
                    pass

    def lines_before(self, offset: int) -> int | None:
        """Return how many lines end before `offset`; None: not counted within COUNT_SECONDS."""
        give_up_at = time.monotonic() + COUNT_SECONDS
        with self._one_at_a_time:
            while self._marks[-1].offset < offset:
                if time.monotonic() >= give_up_at:
                    return None
                mark = self._marks[-1]
                data, position = read_frames(self._folder, mark.position)
                if not data:
                    break
                counted = _count(data, mark.offset, 1 << 62)
                self._marks.append(_Mark(counted[0], mark.lines + counted[1], position))
            at = bisect_right(self._marks, offset, key=lambda mark: mark.offset) - 1
            mark = self._marks[at]
        data, _ = read_frames(self._folder, mark.position)
        return mark.lines + _count(data, mark.offset, offset)[1]


def _spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each of these whole frames begins, and the offset after it."""
    at = 0
    with suppress(BadFrame):
        while (span := span_at(data, at)) is not None:
            yield at, span.end
            at += span.size


def _count(data: bytes, start: int, before: int) -> tuple[int, int]:
    """Return the offset after these frames, and how many lines in them end before `before`."""
    at, lines, end = 0, 0, start
    with suppress(BadFrame):
        while (span := span_at(data, at)) is not None and span.start < before:
            first, last = at + HEADER_SIZE, at + span.size
            is_plain = span.end - span.start == span.size - HEADER_SIZE
            if is_plain and span.end > before:
                last = first + before - span.start
            # A marker's payload begins with a number, whose bytes may include that of a newline.
            lines += data.count(b"\n", first if is_plain else first + 8, last)
            end, at = span.end, at + span.size
    return end, lines


# -- windows --------------------------------------------------------------------------------


def window(known: KnownLog, folder: Path, query: WindowQuery) -> LogWindow:
    """Return the window at the query's place."""
    size, rows = query.size, query.rows
    if query.offset is not None:
        return window_from(known, folder, query.offset, size, rows)
    near = query.near
    if query.time_ns is not None:
        near = offset_at(known, folder, query.time_ns)
    if near is not None:
        return window_near(known, folder, near, size, rows)
    before = known.end() if query.before is None else query.before
    return window_before(known, folder, before, size, rows)


def window_from(
    known: KnownLog, folder: Path, start: int, size: int, most: int = MAX_ROWS
) -> LogWindow:
    """Return at most `most` rows from exactly `start` on, until they have `size` bytes."""
    chosen: list[LogRow] = []
    for row in islice(split(frames(folder, start), begins=_begins(folder, start)), most):
        chosen.append(row)
        if row.end - start >= size:
            break
    return _window(known, folder, chosen, start)


def window_before(
    known: KnownLog, folder: Path, end: int, size: int, most: int = MAX_ROWS
) -> LogWindow:
    """Return at most `most` rows that end exactly at `end`. The first one begins a line, unless a
    line is longer than the window."""
    start = max(0, end - size)
    rows = split(_until(frames(folder, start), end), begins=_begins(folder, start))
    found = list(deque(rows, most))
    begun = next((at for at, row in enumerate(found) if row.starts), 0)
    return _window(known, folder, found[begun:], min(start, end))


def window_near(
    known: KnownLog, folder: Path, offset: int, size: int, most: int = MAX_ROWS
) -> LogWindow:
    """Return the rows from the beginning of the line that holds `offset`, if it is near."""
    before = window_before(known, folder, offset, ROW_BYTES)
    start = offset
    if before.rows and not before.rows[-1].ends:
        begun = [row.offset for row in before.rows if row.starts]
        start = begun[-1] if begun else before.start
    return window_from(known, folder, start, size, most)


def offset_at(known: KnownLog, folder: Path, time_ns: int) -> int:
    """Return the offset of the first frame that was written at this time or later; the log's end
    if there is none. A log whose times go backwards is searched as if they did not."""
    starts = log_segments.starts_in(folder)
    begin = 0
    for start in starts:
        first = next(frames(folder, start), None)
        if first is None or first.time_ns >= time_ns:
            break
        begin = start
    found = (frame.offset for frame in frames(folder, begin) if frame.time_ns >= time_ns)
    return next(found, known.end())


def _window(known: KnownLog, folder: Path, rows: list[LogRow], start: int) -> LogWindow:
    begin = rows[0].offset if rows else start
    lines = known.lines_before(begin)
    text = (frame.payload for frame in _until(frames(folder, max(0, begin - STYLE_BYTES)), begin))
    return LogWindow(
        start=begin,
        end=rows[-1].end if rows else start,
        log_end=known.end(),
        first_line=None if lines is None else lines + 1,
        style=_style_after(b"".join(text)),
        rows=tuple(rows),
    )


def _style_after(text: bytes) -> str:
    """Return the SGR sequences since the last reset, each at its last place: they lead to the same
    style as all of them."""
    found: list[bytes] = []
    for sequence in _SGR.finditer(text):
        if sequence.group(1) in (b"", b"0"):
            found.clear()
        else:
            found.append(sequence.group())
    # A job may print any number of different sequences: the answer stays small.
    latest = [*dict.fromkeys(reversed(found))][:_MAX_SEQUENCES]
    return b"".join(reversed(latest)).decode()


def _begins(folder: Path, offset: int) -> bool:
    """Return whether a line begins at the offset."""
    if offset == 0:
        return True
    frame = next(frames(folder, offset - 1), None)
    return frame is not None and (frame.stream is Stream.MARKER or frame.payload.startswith(b"\n"))


def frames(folder: Path, offset: int) -> Iterator[Frame]:
    """Yield the stored frames, from the part at `offset` on."""
    position = locate(folder, offset)
    decoder = Decoder()
    # A power cut can tear the last frame: what lies before it is whole.
    with suppress(BadFrame):
        while True:
            data, position = read_frames(folder, position)
            if not data:
                return
            for frame in decoder.feed(data):
                tail = tail_from(frame, offset)
                if tail is not None:
                    yield tail


def _until(stored: Iterable[Frame], end: int) -> Iterator[Frame]:
    for frame in stored:
        if frame.offset >= end:
            return
        if frame.end > end and frame.stream is not Stream.MARKER:
            payload = frame.payload[: end - frame.offset]
            frame = msgspec.structs.replace(frame, payload=payload)
        yield frame


def split(stored: Iterable[Frame], *, begins: bool) -> Iterator[LogRow]:
    """Yield the rows of these frames: a row ends with its line, when the stream changes, and when
    it is too long. `begins`: whether a line begins with the first frame."""
    held: Frame | None = None
    text = bytearray()
    at = 0
    for frame in stored:
        if held is not None and text and held.stream is not frame.stream:
            yield _row(held, at, text, starts=begins, ends=False)
            begins, text = False, bytearray()
        if frame.stream is Stream.MARKER:
            yield _marker_row(frame)
            begins = True
            continue
        if not text:
            at, held = frame.offset, frame
        for piece in _pieces(frame.payload):
            text += piece
            ends = piece.endswith(b"\n")
            if ends or len(text) >= ROW_BYTES:
                assert held is not None
                yield _row(held, at, text, starts=begins, ends=ends)
                at, held, begins, text = at + len(text), frame, ends, bytearray()
    if held is not None and text:
        yield _row(held, at, text, starts=begins, ends=False)


def _row(frame: Frame, at: int, text: bytearray, *, starts: bool, ends: bool) -> LogRow:
    """`frame`: the one in which the row begins, whose time it has."""
    return LogRow(
        offset=at,
        end=at + len(text),
        at=iso_of_job(frame.time_ns),
        stream=frame.stream.name.lower(),
        text=(text[:-1] if ends else text).decode(errors="replace"),
        starts=starts,
        ends=ends,
    )


def _marker_row(frame: Frame) -> LogRow:
    """Return the row of what is missing: a line of its own, of as many bytes."""
    return LogRow(
        offset=frame.offset,
        end=frame.end,
        at=iso_of_job(frame.time_ns),
        stream=frame.stream.name.lower(),
        text=frame.payload.decode(errors="replace").rstrip("\n"),
        starts=True,
        ends=True,
    )


def _pieces(payload: bytes) -> Iterator[bytes]:
    """Yield the lines of these bytes; longer ones in pieces of ROW_BYTES."""
    for found in _PIECES.finditer(payload):
        line = found.group()
        for start in range(0, len(line), ROW_BYTES):
            yield line[start : start + ROW_BYTES]
