import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.wire.frames import HEADER_SIZE, BadFrame, Decoder, Frame, Stream
from runner.logs.reading import LogReader, next_page
from runner.logs.segments import MAX_FRAME_PAYLOAD, SegmentLog
from tests.unit.runner.harness import frames_of, payload

KIB = 1 << 10
Open = Callable[..., SegmentLog]


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Open]:
    logs: list[SegmentLog] = []

    def make(**options: int) -> SegmentLog:
        logs.append(SegmentLog(tmp_path / "logs", **options))  # type: ignore[arg-type]
        return logs[-1]

    yield make
    for log in logs:
        log.close()


def read_all(reader: LogReader) -> list[Frame]:
    try:
        return [frame for piece in iter(reader.read, b"") for frame in frames_of(piece)]
    finally:
        reader.close()


def written(log: SegmentLog, count: int, size: int) -> bytes:
    text = b"".join(str(i).zfill(size).encode() for i in range(count))
    for begin in range(0, len(text), size):
        log.append(Stream.STDOUT, text[begin : begin + size])
    return text


def test_a_reader_gets_what_was_written_across_segments(open_log: Open) -> None:
    log = open_log(segment_size=4 * KIB)
    text = written(log, 300, 100)
    assert len(log.segments) > 5
    frames = read_all(LogReader(log, 0))
    assert payload(frames) == text
    assert [frame.offset for frame in frames] == list(range(0, len(text), 100))


def test_a_reader_starts_in_the_middle_of_a_frame(open_log: Open) -> None:
    log = open_log(segment_size=4 * KIB)
    text = written(log, 100, 100)
    frames = read_all(LogReader(log, 1234))
    assert frames[0].offset == 1234
    assert payload(frames) == text[1234:]


def test_segments_are_named_by_the_offset_they_start_at(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_size=4 * KIB)
    written(log, 300, 100)
    for path in (tmp_path / "logs").glob("*.seg"):
        first = next(Decoder().feed(path.read_bytes()))
        assert path.stem == f"{first.offset:020d}"


def test_a_waiting_reader_finds_what_comes_later(open_log: Open) -> None:
    log = open_log()
    reader = LogReader(log, 0)
    assert reader.read() == b""
    log.append(Stream.STDERR, b"late")
    assert payload(frames_of(reader.read())) == b"late"
    at_end_before_the_end = reader.at_end
    log.finish()
    assert (at_end_before_the_end, reader.at_end) == (False, True)
    reader.close()


def test_a_long_output_is_split_into_frames(open_log: Open) -> None:
    log = open_log()
    text = bytes(range(256)) * 4096
    log.append(Stream.STDOUT, text)
    frames = read_all(LogReader(log, 0))
    assert len(frames) == len(text) // MAX_FRAME_PAYLOAD
    assert payload(frames) == text


def test_above_the_quota_the_oldest_go_and_a_marker_counts_them(open_log: Open) -> None:
    log = open_log(segment_size=4 * KIB, quota=16 * KIB)
    text = written(log, 1000, 100)
    assert 0 < log.start < log.end == len(text)
    frames = read_all(LogReader(log, 50))
    assert frames[0].stream is Stream.MARKER
    assert (frames[0].offset, frames[0].end) == (50, log.start)
    assert payload(frames[1:]) == text[log.start :]


def test_the_files_alone_tell_what_was_dropped(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_size=4 * KIB, quota=16 * KIB)
    text = written(log, 1000, 100)
    files = sorted((tmp_path / "logs").glob("*.seg"))
    frames = frames_of(b"".join(file.read_bytes() for file in files))
    assert frames[0].stream is Stream.MARKER
    assert (frames[0].offset, frames[0].end) == (0, log.start)
    assert payload(frames[1:]) == text[log.start :]


def test_a_reader_within_a_dropped_segment_finishes_it(open_log: Open) -> None:
    log = open_log(segment_size=4 * KIB, quota=16 * KIB)
    log.append(Stream.STDOUT, b"first")
    reader = LogReader(log, 0)
    first = frames_of(reader.read())
    written(log, 1000, 100)
    frames = first + read_all(reader)
    assert frames[0].payload == b"first"
    assert all(a.end == b.offset for a, b in pairwise(frames))
    assert frames[-1].end == log.end


def test_a_torn_tail_is_cut_and_writing_goes_on(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    log.append(Stream.STDOUT, b"whole")
    log.append(Stream.STDOUT, b"torn")
    log.close()
    path = tmp_path / "logs" / f"{0:020d}.seg"
    path.write_bytes(path.read_bytes()[:-2])
    again = open_log()
    assert again.end == len(b"whole")
    again.append(Stream.STDOUT, b"-next")
    assert payload(read_all(LogReader(again, 0))) == b"whole-next"


def test_reopening_keeps_start_end_and_marker(open_log: Open) -> None:
    log = open_log(segment_size=4 * KIB, quota=16 * KIB)
    text = written(log, 1000, 100)
    log.close()
    again = open_log(segment_size=4 * KIB, quota=16 * KIB)
    assert (again.start, again.end) == (log.start, log.end)
    assert payload(read_all(LogReader(again, again.start))) == text[log.start :]


def test_a_kill_between_the_marker_and_what_it_replaces_doubles_nothing(open_log: Open) -> None:
    log = open_log(segment_size=4 * KIB, quota=16 * KIB)
    while not log.start:
        written(log, 1, 100)
    oldest = log.segments[0]
    replaced = oldest.path.read_bytes()
    while log.start < oldest.end:
        written(log, 1, 100)
    log.close()
    assert log.start == oldest.end
    oldest.path.write_bytes(replaced)
    again = open_log(segment_size=4 * KIB, quota=16 * KIB)
    assert (again.start, again.end, oldest.path.exists()) == (log.start, log.end, False)


def test_a_marker_that_is_alone_in_its_segment_is_kept_when_reopened(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes what is small, and the runner is killed before it takes more."""
    log = open_log(segment_size=4 * KIB)
    written(log, 5, 4 * KIB)

    def nearly_full(fd: int, data: bytes) -> None:
        if len(data) > KIB:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr("runner.logs.segments.write_all", nearly_full)
        log.append(Stream.STDOUT, b"x" * 2 * KIB)
        log.append(Stream.STDOUT, b"y" * 2 * KIB)
    log.close()
    again = open_log(segment_size=4 * KIB)
    again.append(Stream.STDOUT, b"after")
    frames = read_all(LogReader(again, 0))
    assert all(a.end == b.offset for a, b in pairwise(frames))
    assert [(f.offset, f.end, f.stream) for f in frames[-2:]] == [
        (20 * KIB, 22 * KIB, Stream.MARKER),
        (22 * KIB, 22 * KIB + 5, Stream.STDOUT),
    ]


def test_output_that_cannot_be_written_is_counted_by_a_marker(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append(Stream.STDOUT, b"before")

    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("runner.logs.segments.write_all", full)
        log.append(Stream.STDOUT, b"lost1")
        log.append(Stream.STDOUT, b"lost2")
    assert log.end == 16
    log.append(Stream.STDOUT, b"after")
    frames = read_all(LogReader(log, 0))
    assert [(f.offset, f.end, f.stream) for f in frames] == [
        (0, 6, Stream.STDOUT),
        (6, 16, Stream.MARKER),
        (16, 21, Stream.STDOUT),
    ]


def test_bytes_lost_at_the_very_end_are_told_to_readers(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append(Stream.STDOUT, b"before")

    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runner.logs.segments.write_all", full)
    log.append(Stream.STDOUT, b"lost")
    log.finish()
    reader = LogReader(log, 0)
    frames = [*frames_of(reader.read()), *frames_of(reader.read())]
    assert [(f.end, f.stream) for f in frames] == [(6, Stream.STDOUT), (10, Stream.MARKER)]
    assert reader.at_end
    reader.close()


def test_a_segment_that_the_job_shortened_is_an_error_not_a_hang(
    open_log: Open, tmp_path: Path
) -> None:
    log = open_log()
    log.append(Stream.STDOUT, b"output")
    (tmp_path / "logs" / f"{0:020d}.seg").write_bytes(b"")
    reader = LogReader(log, 0)
    with pytest.raises(BadFrame, match="shorter"):
        reader.read()
    reader.close()


def test_what_lies_before_a_damage_is_served_and_then_the_damage_is_an_error(
    open_log: Open, tmp_path: Path
) -> None:
    log = open_log()
    for word in (b"sound", b"cut off"):
        log.append(Stream.STDOUT, word)
    path = tmp_path / "logs" / f"{0:020d}.seg"
    path.write_bytes(path.read_bytes()[:-3])
    reader = LogReader(log, 0)
    assert [one.payload for one in frames_of(reader.read())] == [b"sound"]
    with pytest.raises(BadFrame, match="shorter"):
        reader.read()
    reader.close()


def test_a_page_ends_before_a_damage_in_a_later_segment(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_size=64 << 10)
    for _ in range(4):
        log.append(Stream.STDOUT, bytes(40 << 10))
    second = sorted((tmp_path / "logs").iterdir())[1]
    second.write_bytes(b"")
    reader = LogReader(log, 0)
    page = next_page(reader)
    assert (page.end, page.complete) == (int(second.stem), False)
    assert sum(len(one.payload) for one in frames_of(page.frames)) == page.end > 0
    with pytest.raises(BadFrame, match="shorter"):
        next_page(reader)
    reader.close()


ON_A_SMALL_DISK = """
import pathlib, subprocess, sys
from fairlead.wire.frames import Stream
from runner.logs.segments import SegmentLog

disk = pathlib.Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
log = SegmentLog(disk / "logs", segment_size=65536)
for number in range(40_000):
    log.append(Stream.STDOUT, b"%099d\\n" % number)
filler = disk / "filler"
try:
    filler.write_bytes(bytes(1 << 20))
except OSError:
    pass
for number in range(40_000, 50_000):
    log.append(Stream.STDOUT, b"%099d\\n" % number)
filler.unlink()
log.append(Stream.STDOUT, b"the end\\n")
for path in sorted((disk / "logs").glob("*.seg")):
    sys.stdout.buffer.write(path.read_bytes())
"""


def test_a_disk_that_is_full_in_earnest_tears_nothing_and_keeps_the_newest(tmp_path: Path) -> None:
    """In a mount namespace of its own."""
    raw = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", ON_A_SMALL_DISK, tmp_path],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    frames = frames_of(raw)
    end = len(b"the end\n")
    assert (frames[-1].payload, frames[-1].end) == (b"the end\n", 50_000 * 100 + end)
    assert all(a.end <= b.offset for a, b in pairwise(frames))
    assert sum(frame.dropped for frame in frames) >= 50_000 * 100 - (1 << 20)
    for frame in frames[:-1]:
        text = b"%099d\n" % (frame.offset // 100)
        assert frame.stream is Stream.MARKER or frame.payload == text
    markers = [frame.payload for frame in frames if frame.stream is Stream.MARKER]
    assert {text.partition(b" are gone, ")[2] for text in markers} == {b"the disk was full]\n"}


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    share=st.floats(0, 1),
    segment_size=st.integers(HEADER_SIZE + 1, 8000),
)
def test_any_offset_of_any_log_reads_the_rest_exactly(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], share: float, segment_size: int
) -> None:
    log = SegmentLog(tmp_path_factory.mktemp("log") / "logs", segment_size=segment_size)
    text = b""
    for number, size in enumerate(sizes):
        piece = bytes([number % 256]) * size
        text += piece
        log.append(Stream.STDOUT, piece)
    offset = int(share * len(text))
    assert payload(read_all(LogReader(log, offset))) == text[offset:]
    log.close()


def test_a_reader_takes_no_more_at_once_than_it_asked_for(open_log: Open) -> None:
    log = open_log()
    text = bytes(range(256)) * (16 * KIB)
    log.append(Stream.STDOUT, text)
    log.append(Stream.STDOUT, b"end")
    reader = LogReader(log, 0)
    pieces = list(iter(lambda: reader.read(100 * KIB), b""))
    reader.close()
    assert max(map(len, pieces)) <= 100 * KIB + HEADER_SIZE
    assert payload(frames_of(b"".join(pieces))) == text + b"end"


def test_reaching_the_limit_is_told_once_and_when_bytes_have_gone(open_log: Open) -> None:
    log, told = open_log(), []
    log.limit(1 << 20, lambda: told.append(log.start))
    log.append(Stream.STDOUT, bytes(64 * KIB))
    assert told == []
    for _ in range(39):
        log.append(Stream.STDOUT, bytes(64 * KIB))
    (start,) = told
    assert start > 0
    assert log.end - log.start <= 1 << 20


def test_a_small_limit_lets_only_a_small_part_go_at_once(open_log: Open) -> None:
    log = open_log()
    log.limit(1 << 20)
    for _ in range(400):
        log.append(Stream.STDOUT, bytes(KIB * 10))
    assert log.end - log.start >= 3 << 18


@pytest.mark.parametrize("can_cut", [True, False])
def test_a_disk_that_fills_up_in_the_middle_of_a_frame_tears_nothing(
    open_log: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_cut: bool
) -> None:
    log = open_log()
    log.append(Stream.STDOUT, b"before")

    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("runner.logs.segments.write_all", half)
        if not can_cut:
            patch.setattr("os.ftruncate", refuse)
        log.append(Stream.STDOUT, b"lost")
    log.append(Stream.STDOUT, b"after")
    frames = read_all(LogReader(log, 0))
    assert [(f.offset, f.end, f.stream) for f in frames] == [
        (0, 6, Stream.STDOUT),
        (6, 10, Stream.MARKER),
        (10, 15, Stream.STDOUT),
    ]


def test_a_disk_that_stays_full_takes_only_one_segment_of_the_log_for_each_try(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(segment_size=4 * KIB)
    written(log, 300, 100)
    segments = len(log.segments)

    def full(fd: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("runner.logs.segments.write_all", full)
        log.append(Stream.STDOUT, b"lost")
    assert len(log.segments) >= segments - 1


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, b"the disk was full"),
        (errno.EDQUOT, b"the disk was full"),
        (errno.EIO, b"they could not be written (Input/output error)"),
    ],
)
def test_a_marker_says_why_bytes_could_not_be_written(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, number: int, why: bytes
) -> None:
    log = open_log()
    with monkeypatch.context() as patch:
        patch.setattr("runner.logs.segments.write_all", failing(number))
        log.append(Stream.STDOUT, b"lost")
    log.append(Stream.STDOUT, b"after")
    with monkeypatch.context() as patch:
        patch.setattr("runner.logs.segments.write_all", failing(number))
        log.append(Stream.STDOUT, b"at the end")
    log.finish()
    assert [frame.payload for frame in read_all(LogReader(log, 0))] == [
        b"[fairlead: 4 bytes of output are gone, %b]\n" % why,
        b"after",
        b"[fairlead: 10 bytes of output are gone, %b]\n" % why,
    ]


def test_a_marker_of_the_oldest_output_says_why_it_had_to_go_after_a_restart_too(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(segment_size=4 * KIB)
    written(log, 300, 100)
    with monkeypatch.context() as patch:
        patch.setattr("runner.logs.segments.write_all", failing(errno.ENOSPC, from_size=KIB))
        log.append(Stream.STDOUT, b"x" * KIB)
    full = first_marker(log)
    log.limit(16 * KIB)
    log.append(Stream.STDOUT, b"x")
    both = first_marker(log)
    log.close()
    again = open_log(segment_size=4 * KIB)
    assert full == b"the disk was full]\n"
    assert both == b"the disk was full and the log limit was reached]\n"
    assert first_marker(again) == both


@pytest.mark.parametrize("number", [0, 2])
def test_a_segment_that_is_gone_at_a_restart_is_told_and_the_rest_is_read(
    open_log: Open, number: int
) -> None:
    log = open_log(segment_size=4 * KIB)
    text = written(log, 300, 100)
    log.close()
    gone = log.segments[number]
    gone.path.unlink()
    frames = read_all(LogReader(open_log(segment_size=4 * KIB), 0))
    size = gone.end - gone.start
    told = b"[fairlead: %d bytes of output are gone, their file was removed]\n" % size
    assert [f.payload for f in frames if f.stream is Stream.MARKER] == [told]
    kept = [frame for frame in frames if frame.stream is Stream.STDOUT]
    assert payload(kept) == text[: gone.start] + text[gone.end :]


def first_marker(log: SegmentLog) -> bytes:
    """Why the oldest output is gone."""
    frame = read_all(LogReader(log, 0))[0]
    assert frame.stream is Stream.MARKER
    return frame.payload.partition(b" are gone, ")[2]


def failing(number: int, from_size: int = 0) -> Callable[[int, bytes], None]:
    """In place of `write_all`: fails for what is at least so large."""

    def write(fd: int, data: bytes) -> None:
        if len(data) >= from_size:
            raise OSError(number, os.strerror(number))
        os.write(fd, data)

    return write
