"""The job's output on disk: segment files of frames, named by the offset at which they begin.

Files outlive the runner and its container. So whatever happens to either, what was written can be
read: by the runner's followers through `reading`, later by the shim as raw bytes.

Promises: An offset is given out once and never again for other bytes. Appending never blocks on a
reader. Above the quota the oldest segments are removed, and a marker segment at offset 0 counts
what is gone. A tail torn by a crash is cut on open. A file that the job removes is a marker to its
readers; the newest, which is still open, is read anyway and restored at the end.

Writes go to the page cache and are cheap enough for the event loop. Syncing is not: rotated
segments are given to `retire`, and `sync` is for a thread.
"""

from __future__ import annotations

import errno
import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from common.files import log_segments
from common.files.durable import write_all
from fairlead.wire.frames import Decoder, Frame, Stream, encode, whole_frames
from runner.logs.limits import QUOTA, SEGMENT_SIZE
from runner.logs.pacing import MAX_PIECE, Pacing
from runner.status import Bell

MAX_FRAME_PAYLOAD = 64 << 10
"""Bytes of output in one frame. A reader takes whole frames, so a hundred readers that stand still
cost at least this much each."""
_INDEX_STEP = 64 << 10
_SEGMENTS_IN_QUOTA = 8
"""The least number of segments, so that only a small part of a small quota is removed at once."""
_MIN_SEGMENT = 64 << 10
_WARY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""The job may be root in its container and put a link or a pipe in place of a segment."""
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _WARY
LIMIT_REACHED = "the log limit was reached"
FILE_REMOVED = "their file was removed"
DISK_FULL = "the disk was full"


class Segment:
    """One file. `positions[i]` is the position of the frame that starts at `offsets[i]`."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self.start = start
        self.end = start
        self.size = 0
        self.positions = array("Q")
        self.offsets = array("Q")

    def add(self, end: int, size: int) -> None:
        """Add a frame of `size` bytes, after which the output's offset is `end`."""
        if not self.positions or self.size - self.positions[-1] >= _INDEX_STEP:
            self.positions.append(self.size)
            self.offsets.append(self.end)
        self.size += size
        self.end = end


class SegmentLog:
    """The writing side, and what readers need to know. There is one for each folder, with one
    writer.

    `quota` and `segment_size` are bytes of files, frame headers included. `bell` rings whenever
    output was appended or the log was finished.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_size: int = SEGMENT_SIZE,
        quota: int = QUOTA,
        now_ns: Callable[[], int] = time.time_ns,
        retire: Callable[[int], None] = os.close,
        bell: Bell | None = None,
    ) -> None:
        """Open or make `folder` and cut a torn tail. Raises OSError."""
        self.bell = bell or Bell()
        self.pacing = Pacing()
        self.finished = False
        self.at_line_start = True
        """Whether the newest output ends with a newline."""
        self._folder = folder
        self._segment_size = segment_size
        self._quota = quota
        self._now_ns = now_ns
        self._retire = retire
        self._on_limit: Callable[[], None] | None = None
        self._fd = -1
        self._lost = 0
        self._why_lost = ""
        folder.mkdir(parents=True, exist_ok=True, mode=0o2770)
        self._dropped_to, self.why_dropped, self.segments = _load(folder)
        self._total = sum(segment.size for segment in self.segments)
        if self.segments:
            self._fd = os.open(self.segments[-1].path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    @property
    def start(self) -> int:
        """The oldest stored offset."""
        return self.segments[0].start if self.segments else self._dropped_to

    @property
    def end(self) -> int:
        """The offset after the newest byte."""
        return (self.segments[-1].end if self.segments else self._dropped_to) + self._lost

    def limit(self, quota: int, on_reached: Callable[[], None] | None = None) -> None:
        """Keep at most `quota` bytes from now on; `on_reached` is called once, when the first are
        removed."""
        self._quota = quota
        least = max(_MIN_SEGMENT, quota // _SEGMENTS_IN_QUOTA)
        self._segment_size = min(self._segment_size, least)
        self._on_limit = on_reached

    def append(self, stream: Stream, payload: bytes) -> None:
        """Append output. It never raises: if it cannot be written even after the oldest segments
        were removed, a marker in front of the next output counts it."""
        if len(payload) > MAX_FRAME_PAYLOAD:
            for begin in range(0, len(payload), MAX_FRAME_PAYLOAD):
                self.append(stream, payload[begin : begin + MAX_FRAME_PAYLOAD])
            return
        if self._lost:
            written = self.end - self._lost
            failure = self._write(marker_frame(written, self._lost, self._now_ns, self._why_lost))
            if failure is not None:
                self._lose(payload, failure)
                return
        self._lost, self._why_lost = 0, ""
        self.at_line_start = payload.endswith(b"\n")
        failure = self._write(Frame(self.end, self._now_ns(), stream, payload))
        if failure is not None:
            self._lose(payload, failure)
        self.bell.ring()

    def _lose(self, payload: bytes, failure: OSError) -> None:
        self._lost += len(payload)
        self._why_lost = _also(self._why_lost, _why(failure))

    def finish(self) -> None:
        """Finish: no more output comes, and readers may end once they have all."""
        self.finished = True
        self.bell.ring()

    def sync(self) -> None:
        """Make the newest segment durable. Blocking; raises OSError."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def make_whole(self) -> int:
        """Restore the newest segment if it was removed; return how many bytes of output are gone
        with others.

        Call it when nothing is appended any more. Blocking; raises OSError.
        """
        gone = 0
        for segment in self.segments:
            if os.path.lexists(segment.path):
                continue
            if self.is_newest(segment) and self._fd >= 0:
                self._put_back(segment)
            else:
                gone += segment.end - segment.start
        return gone

    def _put_back(self, segment: Segment) -> None:
        import shutil  # hardly ever, and a job's start does not wait for it

        self._folder.mkdir(parents=True, exist_ok=True, mode=0o2770)
        old = self._fd
        with open(self.open_segment(segment), "rb") as source:
            self._fd = os.open(segment.path, _WRITE_FLAGS, 0o640)
            os.close(old)
            with open(self._fd, "wb", closefd=False) as copy:
                shutil.copyfileobj(source, copy)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def open_segment(self, segment: Segment) -> int:
        """Return a descriptor for reading, of the newest segment also when its name is gone. Raises
        OSError."""
        try:
            return os.open(segment.path, os.O_RDONLY | _WARY)
        except FileNotFoundError:
            # The job may have unlinked it: its descriptor still leads to the content (proc(5),
            # /proc/pid/fd).
            if not self.is_newest(segment) or self._fd < 0:
                raise
            return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)

    def lost_from(self, offset: int) -> tuple[int, str]:
        """Return the end of what is lost from `offset` on, and why; `offset` itself when it is
        stored, or its bytes may still come."""
        if offset < self.start:
            return self.start, self.why_dropped
        index = bisect_right(self.segments, offset, key=lambda segment: segment.start)
        if index < len(self.segments) and self.find(offset) is None:
            return self.segments[index].start, FILE_REMOVED
        if self.finished and offset >= self.end - self._lost:
            return self.end, self._why_lost
        return offset, ""

    def find(self, offset: int) -> Segment | None:
        """Return the segment that holds `offset`; None when no stored one does."""
        index = bisect_right(self.segments, offset, key=lambda segment: segment.start) - 1
        if index < 0 or offset >= self.segments[index].end:
            return None
        return self.segments[index]

    def is_newest(self, segment: Segment) -> bool:
        return bool(self.segments) and self.segments[-1] is segment

    def _write(self, frame: Frame) -> OSError | None:
        """Write the frame; return the error if that failed.

        On a full disk the oldest segment makes room, but only one: other programs may be filling
        the disk, and then more would not help.
        """
        data = encode(frame)
        failure = self._put(frame, data)
        if failure is not None and self._drop_oldest(_why(failure)):
            failure = self._put(frame, data)
        if failure is None:
            self._keep_quota()
        return failure

    def _put(self, frame: Frame, data: bytes) -> OSError | None:
        try:
            segment = self._segment_for(frame.offset, len(data))
            try:
                write_all(self._fd, data)
            except OSError:
                # A full disk may take a part of it (write(2)); the next frame must not follow half
                # a frame.
                self._cut_torn(segment)
                raise
        except OSError as error:
            return error
        segment.add(frame.end, len(data))
        self._total += len(data)
        return None

    def _cut_torn(self, segment: Segment) -> None:
        """Cut a torn frame. Raises OSError; then nothing is written after it."""
        try:
            os.ftruncate(self._fd, segment.size)
        except OSError:
            # Nothing may be written after half a frame: a reader could not find the next one.
            fd, self._fd = self._fd, -1
            os.close(fd)
            raise

    def _keep_quota(self) -> None:
        dropped = False
        while self._total > self._quota and self._drop_oldest(LIMIT_REACHED):
            dropped = True
        if dropped and self._on_limit is not None:
            on_limit, self._on_limit = self._on_limit, None
            on_limit()

    def _segment_for(self, offset: int, size: int) -> Segment:
        if self.segments and self._fd >= 0:
            newest = self.segments[-1]
            if not newest.size or newest.size + size <= self._segment_size:
                return newest
        segment = Segment(log_segments.path(self._folder, offset), offset)
        try:
            fd = os.open(segment.path, _WRITE_FLAGS, 0o640)
        except FileNotFoundError:
            # The job may have removed the folder.
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o2770)
            fd = os.open(segment.path, _WRITE_FLAGS, 0o640)
        if self._fd >= 0:
            self._retire(self._fd)
        self._fd = fd
        self.segments.append(segment)
        return segment

    def _drop_oldest(self, why: str) -> bool:
        if len(self.segments) < 2:
            return False
        oldest, keep_from = self.segments[0], self.segments[1].start
        why = _also(self.why_dropped, why)
        marker = log_segments.path(self._folder, 0)
        try:
            # Before the removal: a crash in between must leave no gap that nothing counts.
            try:
                self._put_marker(marker, keep_from, why)
            except OSError:  # no room even for that
                oldest.path.unlink(missing_ok=True)
                with suppress(OSError):
                    self._put_marker(marker, keep_from, why)
            if oldest.path != marker:
                oldest.path.unlink(missing_ok=True)
        except OSError:
            return False
        self._dropped_to, self.why_dropped = keep_from, why
        self._total -= oldest.size
        del self.segments[0]
        return True

    def _put_marker(self, path: Path, keep_from: int, why: str) -> None:
        temporary = self._folder / ".marker.tmp"
        _write_file(temporary, encode(marker_frame(0, keep_from, self._now_ns, why)))
        os.replace(temporary, path)


def _write_file(path: Path, data: bytes) -> None:
    fd = os.open(path, _WRITE_FLAGS, 0o640)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def marker_frame(offset: int, dropped: int, now_ns: Callable[[], int], why: str) -> Frame:
    text = f"[fairlead: {dropped} bytes of output are gone, {why}]\n"
    return Frame(offset, now_ns(), Stream.MARKER, text.encode(), dropped)


def _why_of(marker: Frame) -> str:
    """Return the reason in a marker; for an unknown marker that the limit was reached, as for
    most."""
    _, found, why = marker.payload.decode(errors="replace").partition(" are gone, ")
    return why.removesuffix("]\n") if found else LIMIT_REACHED


def _why(failure: OSError) -> str:
    """Return, for the job's user, why bytes are gone that should have been written."""
    match failure.errno:
        # A full file system is ENOSPC, the used up quota of a user or project EDQUOT (write(2)).
        case errno.ENOSPC | errno.EDQUOT:
            return DISK_FULL
        case int(number):
            return f"they could not be written ({os.strerror(number)})"
        case _:
            return "they could not be written"


def _also(known: str, why: str) -> str:
    """Return both reasons for what one marker stands for."""
    if why in known:
        return known
    return f"{known} and {why}" if known else why


def _load(folder: Path) -> tuple[int, str, list[Segment]]:
    """Return what was dropped and why, and the segments that are left, after a restart."""
    dropped_to, why = 0, ""
    segments: list[Segment] = []
    for start in log_segments.starts_in(folder):
        path = log_segments.path(folder, start)
        if not path.is_file():
            continue
        segment = Segment(path, start)
        frames = _scan(segment)
        first = _first_frame(path) if frames == 1 and segment.start == 0 else None
        if first is not None and first.stream is Stream.MARKER:
            dropped_to, why = segment.end, _why_of(first)
        elif segment.end <= dropped_to or segment.size == 0:
            path.unlink()
        else:
            segments.append(segment)
    if segments and segments[0].start > dropped_to:
        why = _also(why, FILE_REMOVED)
    return dropped_to, why, segments


def _scan(segment: Segment) -> int:
    """Index the frames of a file and cut a partial frame; return how many there are."""
    count = 0
    with segment.path.open("r+b") as file:
        for frame in whole_frames(file, MAX_PIECE):
            segment.add(frame.end, len(encode(frame)))
            count += 1
        file.truncate(segment.size)
    return count


def _first_frame(path: Path) -> Frame:
    return next(Decoder().feed(path.read_bytes()))
