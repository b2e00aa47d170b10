"""The files of one attempt's log: segments of whole frames, named by the offset at which they
begin.

These are plain blocking functions; `store.LogStore` calls them in its own threads. If a crash left
bytes after a segment's last whole frame, they are cut when the log is opened for writing, and no
reader gets them before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from common.files import log_segments, shared_folders
from common.files.durable import sync_folder, write_all
from fairlead.wire.frames import (
    BadFrame,
    Decoder,
    Frame,
    Span,
    Stream,
    encode,
    is_sound,
    span_at,
    tail_from,
    whole_frames,
)

SEGMENT_BYTES = 64 << 20
READ_BYTES = 1 << 20
COMPLETE_NAME = "complete"

_WALK_BYTES = 16 << 10
"""Bytes read at once while only headers matter: many short frames, or a part of a long one."""


class Position(msgspec.Struct, frozen=True):
    """A position between two frames: byte `at` of the segment that starts at offset `segment`."""

    segment: int
    at: int


class Written(msgspec.Struct, frozen=True):
    """Whole frames that were written at `position`; the next ones come at `after`."""

    position: Position
    data: bytes
    after: Position


# -- writing --------------------------------------------------------------------------------


class SegmentWriter:
    """Appends frames in offset order; a repeated frame is written once.

    It has a file open only while it writes or syncs. Otherwise thousands of jobs that write little
    and wait a minute for their sync would use up the controller's files. Its methods are called
    from any thread, one at a time. A call that arrives after `close` does nothing: its caller is
    gone, and another writer may have begun.
    """

    def __init__(self, folder: Path) -> None:
        self.end = 0
        self._folder = folder
        self._start = 0
        self._size = 0
        self._fd = -1
        self._closed = False
        self._one_at_a_time = threading.Lock()

    def open(self) -> bool:
        """Continue where the last writer stopped; return whether the log is complete. Raises
        OSError."""
        with self._one_at_a_time:
            if self._closed:
                return False
            if self._begin():
                return False
            starts = log_segments.starts_in(self._folder)
            self._start = starts[-1] if starts else 0
            path = log_segments.path(self._folder, self._start)
            self.end, self._size = _verified(path, self._start) if starts else (0, 0)
            self._fd = _open(path)
            # A crash in a write leaves half a frame, and the next one would follow it.
            self._cut_back()
            self._let_go()
            return (self._folder / COMPLETE_NAME).exists()

    def _begin(self) -> bool:
        """Make the folder; return whether there was none, and its first segment is made too."""
        try:
            self._folder.mkdir(mode=0o700)
        except FileExistsError:
            return False
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return False
        os.close(_open(log_segments.path(self._folder, 0)))
        return True

    def append(self, frames: Sequence[Frame], encoded: bytes | None = None) -> Written | None:
        """Write the frames that are not stored yet, and return them; `encoded` are all of them, if
        they came so. Raises OSError; `end` tells what was written."""
        with self._one_at_a_time:
            if self._closed:
                return None
            data, end = encoded, frames[-1].end if frames else self.end
            if data is None or not _follow(frames, self.end):
                data, end = _fresh(frames, self.end)
            if not data:
                return None
            position = Position(self._start, self._size)
            self._write(data)
            self.end = end
            if self._size >= SEGMENT_BYTES:
                self._rotate()
            self._let_go()
            return Written(position, data, Position(self._start, self._size))

    def sync(self) -> int:
        """Write everything before the returned offset to the disk. Raises OSError."""
        with self._one_at_a_time:
            if not self._closed:
                self._take_up()
                os.fsync(self._fd)
                # A file survives a power cut only with its entry in the folder (fsync(2)).
                sync_folder(self._folder)
                self._let_go()
            return self.end

    def close(self) -> None:
        with self._one_at_a_time:
            self._closed = True
            self._let_go()

    def _take_up(self) -> None:
        """Open the segment; a file that is gone is not made again, because its content would be
        missing."""
        if self._fd < 0:
            path = log_segments.path(self._folder, self._start)
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.lseek(self._fd, self._size, os.SEEK_SET)

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        self._take_up()
        try:
            write_all(self._fd, data)
        except OSError:
            # A full disk may have taken a part of the data.
            self._cut_back()
            raise
        self._size += len(data)

    def _cut_back(self) -> None:
        os.ftruncate(self._fd, self._size)
        os.lseek(self._fd, self._size, os.SEEK_SET)

    def _rotate(self) -> None:
        """Begin the next segment. The full one is on disk first, so a power cut leaves no hole."""
        os.fsync(self._fd)
        # Opened before the full one is closed: if the disk takes no file, the writer stays whole.
        fd = _open(log_segments.path(self._folder, self.end))
        os.close(self._fd)
        self._fd, self._start, self._size = fd, self.end, 0


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _verified(path: Path, start: int) -> tuple[int, int]:
    """Return the offset after the last whole frame, and the bytes up to there."""
    end, size = start, 0
    with path.open("rb") as file:
        for frame in whole_frames(file, READ_BYTES):
            end, size = frame.end, size + len(encode(frame))
    return end, size


def _follow(frames: Sequence[Frame], end: int) -> bool:
    """Return whether each frame begins where the one before it ends, and none is empty."""
    for frame in frames:
        if frame.offset != end or frame.end == end:
            return False
        end = frame.end
    return True


def _fresh(frames: Sequence[Frame], end: int) -> tuple[bytes, int]:
    """Return the part of the frames that is not stored yet, and where it ends."""
    pieces: list[bytes] = []
    for frame in frames:
        fresh = _fresh_part(frame, end)
        if fresh is None:
            continue
        if fresh.offset > end:
            pieces.append(encode(_gap(end, fresh)))
        pieces.append(encode(fresh))
        end = fresh.end
    return b"".join(pieces), end


def _fresh_part(frame: Frame, end: int) -> Frame | None:
    """Return the part of the frame that is not stored yet.

    A marker has no bytes to cut: its number of missing bytes is reduced.
    """
    fresh = tail_from(frame, end)
    if fresh is None or fresh.offset >= end:
        return fresh
    return msgspec.structs.replace(fresh, offset=end, dropped=fresh.end - end)


def _gap(end: int, frame: Frame) -> Frame:
    missing = frame.offset - end
    text = f"[fairlead] {missing} bytes of output are missing here\n".encode()
    return Frame(end, frame.time_ns, Stream.MARKER, text, missing)


def mark_complete(folder: Path) -> None:
    """Mark the log complete, durably. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / COMPLETE_NAME).touch()
    sync_folder(folder)


# -- reading --------------------------------------------------------------------------------


def locate(folder: Path, offset: int) -> Position:
    """Return where the frame that holds `offset` begins; the end if there is none yet."""
    starts = log_segments.starts_in(folder)
    if not starts:
        return Position(0, 0)
    segment = max((start for start in starts if start <= offset), default=starts[0])
    try:
        file = log_segments.path(folder, segment).open("rb", buffering=0)
    # Retention may have removed the log since the folder was listed.
    except FileNotFoundError:
        return Position(segment, 0)
    with file:
        return Position(segment, _walk_to(file.fileno(), offset))


def _walk_to(fd: int, offset: int) -> int:
    size, at = os.fstat(fd).st_size, 0
    while True:
        data = os.pread(fd, _WALK_BYTES, at)
        passed = 0
        while (span := _span_or_end(data, passed)) is not None:
            # The last frame may be torn, or be written at this moment: it is not passed.
            if span.end > offset or at + passed + span.size > size:
                return at + passed
            passed += span.size
        if not passed:
            return at
        at += passed


def _span_or_end(data: bytes | memoryview, at: int) -> Span | None:
    """Return the next span. A torn tail that a power cut filled with zeros counts as the end."""
    try:
        return span_at(data, at)
    except BadFrame:
        return None


def read_frames(folder: Path, position: Position) -> tuple[bytes, Position]:
    """Return whole frames from `position`, at most READ_BYTES or one frame, and the position after
    them.

    The bytes are empty when there is nothing more yet.
    """
    data = _read_segment(folder, position)
    while not data:
        later = [start for start in log_segments.starts_in(folder) if start > position.segment]
        if not later:
            return b"", position
        # The next segment was begun after the last byte of this one, but perhaps after our read.
        data = _read_segment(folder, position)
        if not data:
            position = Position(later[0], 0)
            data = _read_segment(folder, position)
    return data, Position(position.segment, position.at + len(data))


def _read_segment(folder: Path, position: Position) -> bytes:
    try:
        file = log_segments.path(folder, position.segment).open("rb", buffering=0)
    # Retention may have removed the log since the reader began.
    except FileNotFoundError:
        return b""
    with file:
        data = os.pread(file.fileno(), READ_BYTES, position.at)
        whole = _whole_bytes(data, is_tail=len(data) < READ_BYTES)
        first = None if whole else _span_or_end(data, 0)
        if first is not None and first.size > READ_BYTES:
            data = os.pread(file.fileno(), first.size, position.at)
            whole = _whole_bytes(data, is_tail=True)
    return data if whole == len(data) else data[:whole]


def _whole_bytes(data: bytes, *, is_tail: bool) -> int:
    """Return the length of the whole frames. Only a segment's tail can be torn, so only there each
    checksum is verified."""
    at = 0
    while (span := _span_or_end(data, at)) is not None and at + span.size <= len(data):
        if is_tail and not is_sound(data, at, span):
            break
        at += span.size
    return at


def cut(data: bytes, offset: int) -> bytes:
    """Return the part of these whole frames at or after `offset`."""
    at = 0
    while (span := span_at(data, at)) is not None and span.start < offset:
        if span.end > offset:
            (frame,) = Decoder().feed(data[at : at + span.size])
            tail = tail_from(frame, offset)
            return (b"" if tail is None else encode(tail)) + data[at + span.size :]
        at += span.size
    return data[at:] if at else data


# -- removing -------------------------------------------------------------------------------


def sweep(folder: Path, needed: Collection[str], written_before: float) -> int:
    """See `LogStore.sweep`. `folder` has the attempts' folders two levels below."""
    removed = 0
    for attempt in shared_folders.entries_below(folder):
        if attempt.name in needed:
            continue
        written = _last_written(attempt)
        if written is not None and written < written_before:
            removed += shared_folders.remove(attempt)
    return removed


def _last_written(folder: Path) -> float | None:
    """Return the Unix time of the last change of the log; None when it is gone."""
    paths = (folder, *shared_folders.entries(folder))
    times = [shared_folders.written_at(path) for path in paths]
    return max((time for time in times if time is not None), default=None)
