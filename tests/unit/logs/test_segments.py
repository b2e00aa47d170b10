"""Segments on a real disk, also on one that is full or was torn by a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.files import log_segments
from controller.logs import segments
from controller.logs.segments import Position, SegmentWriter, cut, locate, read_frames
from fairlead.wire.frames import BadFrame, Decoder, Frame, Stream, encode, span_at


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 200)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], SegmentWriter]]:
    writers: list[SegmentWriter] = []

    def open_one() -> SegmentWriter:
        for writer in writers:
            writer.close()
        writers.append(SegmentWriter(tmp_path))
        writers[-1].open()
        return writers[-1]

    yield open_one
    for writer in writers:
        writer.close()


def out(offset: int, payload: bytes, stream: Stream = Stream.STDOUT) -> Frame:
    return Frame(offset, 1_000 + offset, stream, payload)


def lines(count: int, first: int = 0) -> list[Frame]:
    return [out(10 * number, b"line %04d\n" % number) for number in range(first, count)]


def stored(folder: Path, offset: int = 0) -> list[Frame]:
    position, decoder = locate(folder, offset), Decoder()
    frames: list[Frame] = []
    while True:
        data, position = read_frames(folder, position)
        if not data:
            return frames
        frames.extend(decoder.feed(cut(data, offset)))


def output(folder: Path, offset: int = 0) -> bytes:
    return b"".join(frame.payload for frame in stored(folder, offset))


def newest(folder: Path) -> Path:
    return log_segments.path(folder, log_segments.starts_in(folder)[-1])


Opened = Callable[[], SegmentWriter]

# -- writing --------------------------------------------------------------------------------


def test_appended_frames_are_stored_byte_for_byte(opened: Opened, tmp_path: Path) -> None:
    frames = [out(0, bytes(range(256))), out(256, b"\n", Stream.STDERR), out(257, b"end")]
    writer = opened()
    writer.append(frames)
    assert stored(tmp_path) == frames
    assert writer.sync() == writer.end == 260


@pytest.mark.parametrize(
    "frames",
    [
        lines(3),
        lines(3, first=1),
        [*lines(2), *lines(3)],
        [*lines(1), out(10, b""), *lines(2, first=1)],
        [out(0, b"line 0000\nline"), *lines(3, first=1)],
    ],
    ids=["in a row", "after a gap", "twice", "an empty one", "overlapping"],
)
def test_frames_are_stored_the_same_whether_they_came_encoded_or_not(
    tmp_path: Path, frames: list[Frame]
) -> None:
    for name, encoded in (("one", None), ("two", b"".join(map(encode, frames)))):
        writer = SegmentWriter(tmp_path / name)
        writer.open()
        writer.append(frames, encoded)
        writer.close()

    assert newest(tmp_path / "one").read_bytes() == newest(tmp_path / "two").read_bytes()


def test_a_frame_that_comes_twice_is_stored_once(opened: Opened, tmp_path: Path) -> None:
    writer = opened()
    writer.append([out(0, b"abc"), out(0, b"abc"), out(3, b"def")])
    writer.append([out(0, b"abc"), out(3, b"def")])
    assert stored(tmp_path) == [out(0, b"abc"), out(3, b"def")]


def test_the_unknown_half_of_a_frame_is_stored(opened: Opened, tmp_path: Path) -> None:
    writer = opened()
    writer.append([out(0, b"abcd")])
    writer.append([out(2, b"cdef")])
    assert output(tmp_path) == b"abcdef"
    assert writer.end == 6


def test_a_gap_becomes_a_marker_that_counts_it(opened: Opened, tmp_path: Path) -> None:
    opened().append([out(0, b"abc"), out(10, b"xyz")])
    before, marker, after = stored(tmp_path)
    assert (before.payload, after.payload) == (b"abc", b"xyz")
    assert (marker.stream, marker.offset, marker.dropped) == (Stream.MARKER, 3, 7)
    assert b"7 bytes" in marker.payload


def test_a_log_whose_beginning_is_gone_begins_with_a_marker(opened: Opened, tmp_path: Path) -> None:
    opened().append([out(1000, b"late")])
    marker, frame = stored(tmp_path)
    assert (marker.offset, marker.end, frame) == (0, 1000, out(1000, b"late"))


def test_a_marker_over_bytes_that_are_stored_counts_only_the_others(
    opened: Opened, tmp_path: Path
) -> None:
    writer = opened()
    writer.append([out(0, b"abcd")])
    writer.append([Frame(0, 7, Stream.MARKER, b"gone\n", 10), out(10, b"k")])
    _, marker, last = stored(tmp_path)
    assert (marker.offset, marker.end, marker.dropped) == (4, 10, 6)
    assert last == out(10, b"k")


def test_full_segments_are_followed_by_new_ones(
    opened: Opened, tmp_path: Path, small_segments: None
) -> None:
    writer = opened()
    for frame in lines(50):
        writer.append([frame])
    assert log_segments.starts_in(tmp_path) == list(range(0, 501, 50))
    assert stored(tmp_path) == lines(50)


def test_the_next_writer_goes_on_where_the_last_one_stopped(
    opened: Opened, tmp_path: Path, small_segments: None
) -> None:
    opened().append(lines(7))
    writer = opened()
    assert writer.end == 70
    writer.append(lines(12, first=5))
    assert stored(tmp_path) == lines(12)


@pytest.mark.parametrize("kept", [1, 31, 32, 41])
@pytest.mark.parametrize("filler", [0, 100])
def test_a_tail_torn_by_a_crash_is_cut_and_continued(
    opened: Opened, tmp_path: Path, kept: int, filler: int
) -> None:
    writer = opened()
    writer.append(lines(4))
    writer.close()
    whole = newest(tmp_path).read_bytes()
    newest(tmp_path).write_bytes(whole + encode(out(40, b"line 0004\n"))[:kept] + bytes(filler))
    assert stored(tmp_path) == lines(4)
    writer = opened()
    assert writer.end == 40
    assert newest(tmp_path).read_bytes() == whole
    writer.append(lines(6, first=4))
    assert stored(tmp_path) == lines(6)


def test_a_torn_tail_whose_payload_was_lost_is_cut(opened: Opened, tmp_path: Path) -> None:
    writer = opened()
    writer.append(lines(4))
    writer.close()
    damaged = bytearray(newest(tmp_path).read_bytes())
    damaged[-5:] = b"\0" * 5
    newest(tmp_path).write_bytes(damaged)
    assert stored(tmp_path) == lines(3)
    assert opened().end == 30


@pytest.mark.parametrize("written", [0, 1, 40, 83])
def test_a_full_disk_loses_and_doubles_nothing(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    writer = opened()
    writer.append(lines(3))
    real_write, calls = os.write, 0

    def full(fd: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 1 and written:
            return real_write(fd, data[:written])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        writer.append(lines(6, first=3))
    monkeypatch.setattr(os, "write", real_write)
    assert writer.end == 30
    assert stored(tmp_path) == lines(3)
    writer.append(lines(6, first=2))
    assert stored(tmp_path) == lines(6)
    assert opened().end == 60


def test_a_disk_too_full_for_the_next_segment_stops_nothing_that_was_written(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_segments: None
) -> None:
    writer = opened()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "_open", full)
        with pytest.raises(OSError, match="No space left"):
            writer.append(lines(6))
    assert writer.end == 60
    writer.append(lines(8, first=5))
    assert stored(tmp_path) == lines(8)


def test_a_log_that_waits_for_its_sync_holds_no_file(
    opened: Opened, tmp_path: Path, small_segments: None
) -> None:
    writer = opened()
    writer.append(lines(2))
    assert files_open_in(tmp_path) == []
    writer.append(lines(20, first=2))
    assert files_open_in(tmp_path) == []
    assert writer.sync() == 200
    assert stored(tmp_path) == lines(20)


def files_open_in(folder: Path) -> list[str]:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [to for to in map(os.path.realpath, links) if to.startswith(f"{folder}/")]


def test_calls_after_the_close_do_nothing(opened: Opened, tmp_path: Path) -> None:
    writer = opened()
    writer.append(lines(2))
    writer.close()
    writer.append(lines(3))
    writer.open()
    assert writer.sync() == 20
    assert stored(tmp_path) == lines(2)


# -- reading --------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_yet_is_an_empty_log(tmp_path: Path) -> None:
    assert stored(tmp_path / "missing") == []
    assert locate(tmp_path / "missing", 5) == Position(0, 0)


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 49, 50, 51, 255, 499])
def test_reading_begins_at_the_very_byte_that_was_asked_for(
    opened: Opened, tmp_path: Path, small_segments: None, offset: int
) -> None:
    writer = opened()
    for frame in lines(50):
        writer.append([frame])
    everything = b"".join(frame.payload for frame in lines(50))
    assert output(tmp_path, offset) == everything[offset:]
    assert stored(tmp_path, offset)[0].offset == offset


def test_reading_from_behind_the_end_waits_for_that_byte(opened: Opened, tmp_path: Path) -> None:
    writer = opened()
    writer.append([out(0, b"abc")])
    position = locate(tmp_path, 5)
    assert read_frames(tmp_path, position) == (b"", position)
    writer.append([out(3, b"defghi")])
    data, _ = read_frames(tmp_path, position)
    assert list(Decoder().feed(cut(data, 5))) == [Frame(5, 1_003, Stream.STDOUT, b"fghi")]


def test_frames_added_before_a_rotation_are_not_skipped(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_segments: None
) -> None:
    writer = opened()
    writer.append(lines(2))
    _, end = read_frames(tmp_path, locate(tmp_path, 0))
    real, late = log_segments.starts_in, [lines(6, first=2), lines(7, first=6)]

    def written_meanwhile(folder: Path) -> list[int]:
        while late:
            frames = late.pop(0)
            writer.append(frames)
        return real(folder)

    monkeypatch.setattr(log_segments, "starts_in", written_meanwhile)
    data, position = read_frames(tmp_path, end)
    assert list(Decoder().feed(data)) == lines(6, first=2)
    data, _ = read_frames(tmp_path, position)
    assert list(Decoder().feed(data)) == lines(7, first=6)


def test_a_frame_longer_than_one_read_is_given_whole(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().append([out(0, b"x" * 500), out(500, b"y")])
    monkeypatch.setattr(segments, "READ_BYTES", 64)
    assert output(tmp_path) == b"x" * 500 + b"y"


def test_headers_alone_lead_to_an_offset_deep_in_a_segment(opened: Opened, tmp_path: Path) -> None:
    payload = b"z" * 50_000
    opened().append([out(number * 50_000, payload) for number in range(20)])
    first = span_at(newest(tmp_path).read_bytes())
    assert first is not None
    assert locate(tmp_path, 777_777) == Position(0, 15 * first.size)


def test_a_cut_at_a_boundary_copies_nothing_that_it_keeps() -> None:
    data = b"".join(encode(frame) for frame in lines(5))
    assert cut(data, 0) is data
    assert list(Decoder().feed(cut(data, 20))) == lines(5, first=2)
    assert cut(data, 50) == b""


# -- headers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame", [out(7, b"abc"), out(0, b""), Frame(5, 1, Stream.MARKER, b"gone", 90)]
)
def test_a_header_alone_tells_what_its_frame_covers(frame: Frame) -> None:
    raw = encode(frame)
    span = span_at(b"--" + raw, 2)
    assert span is not None
    assert (span.start, span.end, span.size) == (frame.offset, frame.end, len(raw))
    assert span_at(raw[:31]) is None


def test_bytes_that_are_no_header_are_a_bad_frame() -> None:
    with pytest.raises(BadFrame):
        span_at(b"\0" * 32)
    with pytest.raises(BadFrame):
        span_at(encode(out(0, b"abc")).replace(b"FLOG", b"GOLF"))


# -- everything at once ---------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    payloads=st.lists(st.binary(min_size=1, max_size=90), max_size=30),
    batches=st.lists(st.integers(1, 6), min_size=30, max_size=30),
    repeats=st.lists(st.integers(0, 4), min_size=30, max_size=30),
    restarts=st.sets(st.integers(0, 30)),
    data=st.data(),
)
def test_repeated_frames_and_restarts_leave_the_output_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    payloads: list[bytes],
    batches: list[int],
    repeats: list[int],
    restarts: set[int],
    data: st.DataObject,
) -> None:
    folder, offset, frames = tmp_path_factory.mktemp("log"), 0, []
    for payload in payloads:
        frames.append(out(offset, payload))
        offset += len(payload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_BYTES", 150)
        writer, at = SegmentWriter(folder), 0
        writer.open()
        for number, batch in enumerate(batches):
            if number in restarts:
                writer.close()
                writer = SegmentWriter(folder)
                writer.open()
            writer.append(frames[max(0, at - repeats[number]) : at + batch])
            at = min(at + batch, len(frames))
        writer.append(frames[at:])
        writer.close()
        start = data.draw(st.integers(0, offset))
        assert output(folder, start) == b"".join(payloads)[start:]
        assert writer.end == offset


def test_a_log_that_is_swept_while_a_reader_looks_for_its_place_has_no_more(
    opened: Callable[[], SegmentWriter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().append(lines(3))
    (segment,) = log_segments.starts_in(tmp_path)
    monkeypatch.setattr(log_segments, "starts_in", lambda folder: [segment])
    log_segments.path(tmp_path, segment).unlink()
    assert read_frames(tmp_path, locate(tmp_path, 10)) == (b"", Position(segment, 0))
