"""Readers and the writer of one log, side by side."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.files.durable import write_all
from controller.logs import newest, segments, store
from controller.logs.parts import LogBucket
from controller.logs.store import LogStore, LogWriter
from fairlead.wire.frames import BadFrame, Decoder, Frame, Stream, encode
from tests.support.object_storage import ObjectStorage
from tests.support.waiting import LONG, eventually

ATTEMPT = "a1b2c3d4e5f60718"


@pytest.fixture(params=["disk", "bucket"])
async def logs(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LogStore]:
    """On the disk alone, and with a bucket: a reader and a writer notice no difference."""
    bucket = None
    if request.param == "bucket":
        storage: ObjectStorage = request.getfixturevalue("storage")
        bucket = LogBucket(storage.bucket, tmp_path.name)
    store = LogStore(tmp_path, bucket)
    yield store
    await asyncio.to_thread(store.close)


@contextlib.asynccontextmanager
async def writing(logs: LogStore) -> AsyncIterator[LogWriter]:
    writer = await logs.writer(ATTEMPT)
    try:
        yield writer
    finally:
        await writer.close()


def frame(number: int) -> bytes:
    return encode(Frame(10 * number, number, Stream.STDOUT, b"line %04d\n" % number))


def numbers(*which: int) -> bytes:
    return b"".join(b"line %04d\n" % number for number in which)


async def collect(pieces: AsyncIterator[bytes]) -> bytes:
    decoder = Decoder()
    return b"".join([f.payload async for piece in pieces for f in decoder.feed(piece)])


async def test_pieces_cut_anywhere_are_stored_as_the_frames_they_are(logs: LogStore) -> None:
    stream = b"".join(frame(number) for number in range(20))
    async with writing(logs) as writer:
        for at in range(0, len(stream), 7):
            await writer.append(stream[at : at + 7])
        assert (writer.end, writer.torn) == (200, 0)
    assert await collect(logs.read(ATTEMPT, 0)) == numbers(*range(20))
    assert await collect(logs.read(ATTEMPT, 195)) == numbers(19)[5:]


async def test_a_frame_that_came_in_part_is_not_stored(logs: LogStore) -> None:
    async with writing(logs) as writer:
        await writer.append(frame(0) + frame(1)[:20])
        assert (writer.end, writer.torn) == (10, 20)
    async with writing(logs) as writer:
        await writer.append(frame(1))
    assert await collect(logs.read(ATTEMPT, 0)) == numbers(0, 1)


async def test_frames_before_a_damaged_one_are_kept(logs: LogStore) -> None:
    async with writing(logs) as writer:
        with pytest.raises(BadFrame):
            await writer.append(frame(0) + frame(1) + b"\0" * 64)
        assert writer.end == 20
    assert await collect(logs.read(ATTEMPT, 0)) == numbers(0, 1)


async def test_a_follower_gets_what_is_there_and_what_comes(logs: LogStore) -> None:
    async with writing(logs) as writer:
        await writer.append(frame(0))
        follower = logs.follow(ATTEMPT, 0)
        assert await anext(follower) == frame(0)
        coming = asyncio.create_task(anext(follower))
        await writer.append(frame(1))
        assert await coming == frame(1)
        await follower.aclose()


async def test_many_followers_of_a_log_being_written_all_get_every_byte_once(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 300)
    followers = [
        asyncio.create_task(collect(logs.follow(ATTEMPT, offset))) for offset in (0, 5, 500, 1990)
    ]
    async with writing(logs) as writer:
        for number in range(200):
            await writer.append(frame(number))
        await writer.sync()
    await logs.complete(ATTEMPT)
    everything = numbers(*range(200))
    assert await asyncio.gather(*followers) == [
        everything,
        everything[5:],
        everything[500:],
        everything[1990:],
    ]


async def test_a_follower_at_the_end_does_not_ask_the_disk_for_what_is_written(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 300)
    async with writing(logs) as writer:
        await writer.append(frame(0))
        follower = logs.follow(ATTEMPT, 0)
        assert await anext(follower) == frame(0)
        await writer.append(frame(1))
        monkeypatch.delattr(segments, "read_frames")
        for number in range(1, 50):
            assert await anext(follower) == frame(number)
            await writer.append(frame(number + 1))
        await follower.aclose()


async def test_a_follower_that_rests_gathers_small_pieces_and_rests_at_no_end(
    logs: LogStore,
) -> None:
    follower = logs.follow(ATTEMPT, 0, 3600.0)
    async with writing(logs) as writer:
        await writer.append(frame(0))
        assert await anext(follower) == frame(0)
        resting = asyncio.create_task(anext(follower))
        for number in range(1, 20):
            await writer.append(frame(number))
            assert not resting.done()
    await logs.complete(ATTEMPT)
    assert await resting == b"".join(frame(number) for number in range(1, 20))
    assert await collect(follower) == b""


async def test_a_large_piece_is_followed_by_the_next_one_at_once(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SMALL_BYTES", len(frame(0)))
    follower = logs.follow(ATTEMPT, 0, 3600.0)
    async with writing(logs) as writer:
        for number in range(3):
            await writer.append(frame(number))
            assert await anext(follower) == frame(number)
    await follower.aclose()


@pytest.mark.parametrize("most", [0, 3 * 4096], ids=["none", "three"])
async def test_a_follower_that_fell_behind_gets_the_rest_from_the_disk(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(newest, "MAX_BYTES", most)
    async with writing(logs) as writer:
        await writer.append(frame(0))
        follower = logs.follow(ATTEMPT, 0)
        assert await anext(follower) == frame(0)
        for number in range(1, 50):
            await writer.append(frame(number))
    async with writing(logs) as writer:
        await writer.append(frame(50))
    await logs.complete(ATTEMPT)
    assert await collect(follower) == numbers(*range(1, 51))


async def test_completing_a_log_ends_its_followers_for_good(logs: LogStore) -> None:
    following = asyncio.create_task(collect(logs.follow(ATTEMPT, 0)))
    async with writing(logs) as writer:
        await writer.append(frame(0))
    await logs.complete(ATTEMPT)
    assert await following == numbers(0)
    assert await logs.is_complete(ATTEMPT)
    assert await collect(logs.follow(ATTEMPT, 0)) == numbers(0)


async def test_a_complete_log_ends_its_followers_after_a_restart_too(
    logs: LogStore, tmp_path: Path
) -> None:
    async with writing(logs) as writer:
        await writer.append(frame(0))
    await logs.complete(ATTEMPT)
    later = LogStore(tmp_path)
    assert await collect(later.follow(ATTEMPT, 0)) == numbers(0)
    await asyncio.to_thread(later.close)


async def test_a_final_attempt_ends_its_followers_though_the_log_is_not_complete(
    logs: LogStore,
) -> None:
    follower = logs.follow(ATTEMPT, 0)
    async with writing(logs) as writer:
        await writer.append(frame(0))
        assert await anext(follower) == frame(0)
    logs.finish(ATTEMPT)
    assert await collect(follower) == b""
    assert not await logs.is_complete(ATTEMPT)
    assert await collect(logs.follow(ATTEMPT, 0)) == numbers(0)


async def test_a_complete_log_has_no_writer_of_the_rest_and_the_next_writer_comes(
    logs: LogStore,
) -> None:
    writer = await logs.writer_of_rest(ATTEMPT)
    assert writer is not None
    await writer.append(frame(0))
    await writer.close()
    again = await logs.writer_of_rest(ATTEMPT)
    assert again is not None
    assert again.end == 10
    await again.close()
    await logs.complete(ATTEMPT)
    assert await logs.writer_of_rest(ATTEMPT) is None
    async with writing(logs) as later:
        assert (later.is_complete, later.end) == (True, 10)


async def test_the_next_writer_waits_until_the_last_one_is_closed(logs: LogStore) -> None:
    first = await logs.writer(ATTEMPT)
    opening = asyncio.create_task(logs.writer(ATTEMPT))
    await first.append(frame(0))
    assert not opening.done()
    await first.close()
    second = await opening
    assert second.end == 10
    await second.close()


async def test_a_cancelled_append_is_over_before_the_next_writer_begins(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Event(), threading.Event()
    real = write_all

    def slow(fd: int, data: bytes) -> None:
        held.set()
        go_on.wait(LONG)
        real(fd, data)

    monkeypatch.setattr(segments, "write_all", slow)

    async def write_and_close() -> None:
        async with writing(logs) as writer:
            await writer.append(frame(0))

    cancelled = asyncio.create_task(write_and_close())
    await eventually(held.is_set)
    cancelled.cancel()
    opening = asyncio.create_task(logs.writer(ATTEMPT))
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    writer = await opening
    assert writer.end == 10
    await writer.append(frame(0) + frame(1))
    await writer.close()
    assert await collect(logs.read(ATTEMPT, 0)) == numbers(0, 1)


async def test_a_sync_never_answers_with_what_is_still_being_written(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Event(), threading.Event()
    real = write_all
    written: list[int] = []

    def slow(fd: int, data: bytes) -> None:
        held.set()
        go_on.wait(LONG)
        real(fd, data)
        written.append(len(data))

    monkeypatch.setattr(segments, "write_all", slow)
    async with writing(logs) as writer:
        appending = asyncio.create_task(writer.append(frame(0)))
        await eventually(held.is_set)
        assert writer.end == 0
        syncing = asyncio.create_task(writer.sync())
        go_on.set()
        assert await syncing == 10
        assert written == [len(frame(0))]
        await appending


async def test_a_writer_that_cannot_be_opened_leaves_the_way_free(
    logs: LogStore, tmp_path: Path
) -> None:
    (tmp_path / ATTEMPT[:2]).write_bytes(b"not a folder")
    with pytest.raises(OSError, match=r"director|exists"):
        await logs.writer(ATTEMPT)
    (tmp_path / ATTEMPT[:2]).unlink()
    async with writing(logs) as writer:
        await writer.append(frame(0))
    assert await collect(logs.read(ATTEMPT, 0)) == numbers(0)
