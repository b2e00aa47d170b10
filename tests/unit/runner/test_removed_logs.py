"""A job that clears folders which are not its own: its log is saved, or what went is told."""

from __future__ import annotations

import shutil
from pathlib import Path

from fairlead.wire.frames import Stream
from runner.logs.reading import LogReader
from runner.logs.segments import SegmentLog
from tests.unit.runner.harness import a_job, a_runner, followed, frames_of, payload, run_job

KIB = 1 << 10


def read(log: SegmentLog, offset: int = 0) -> list[tuple[Stream, bytes]]:
    reader = LogReader(log, offset)
    try:
        pieces = list(iter(reader.read, b""))
        return [(f.stream, f.payload) for piece in pieces for f in frames_of(piece)]
    finally:
        reader.close()


def test_the_newest_segment_is_read_and_put_back_although_its_name_is_gone(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path / "logs")
    log.append(Stream.STDOUT, b"before\n")
    shutil.rmtree(tmp_path / "logs")
    log.append(Stream.STDOUT, b"after\n")
    assert [text for _, text in read(log)] == [b"before\n", b"after\n"]
    log.finish()
    assert log.make_whole() == 0
    log.sync()
    log.close()
    again = SegmentLog(tmp_path / "logs")
    assert [text for _, text in read(again)] == [b"before\n", b"after\n"]
    again.close()


def test_older_segments_that_are_gone_are_counted_and_shown_as_a_marker(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path / "logs", segment_size=4 * KIB)
    for number in range(100):
        log.append(Stream.STDOUT, b"%099d\n" % number)
    first, kept = log.segments[0], log.segments[1].start
    shutil.rmtree(tmp_path / "logs")
    for number in range(100, 200):
        log.append(Stream.STDOUT, b"%099d\n" % number)
    log.finish()
    shown = read(log)
    size = first.end - first.start
    gone = b"[fairlead: %d bytes of output are gone, their file was removed]\n" % size
    assert shown[0] == (Stream.MARKER, gone)
    assert shown[-1] == (Stream.STDOUT, b"%099d\n" % 199)
    assert log.make_whole() >= kept
    log.close()


async def test_a_job_that_removes_all_it_finds_has_its_log_and_ends_at_once(
    tmp_path: Path,
) -> None:
    script = f"echo before; rm -rf {tmp_path}/task/*; echo after"
    async with a_runner(tmp_path) as (_, client):
        record = await run_job(client, a_job(script))
        frames = await followed(client)
    assert payload(frames) == b"before\nafter\n"
    assert (record.exit_code, record.message) == (0, None)
    assert sorted(path.name for path in (tmp_path / "task").iterdir()) == ["exit.json", "logs"]
