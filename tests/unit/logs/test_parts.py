"""Logs in a bucket: what is stored there is all that a controller with another disk needs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.files import log_segments
from controller.logs import copies, parts, segments
from controller.logs.parts import LogBucket, Part, Parts, cover
from controller.logs.store import LogStore, LogWriter
from controller.outputs.bucket import Bucket, BucketError
from fairlead.queries import WindowQuery
from fairlead.wire.frames import Decoder
from tests.support.object_storage import ObjectStorage
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, eventually
from tests.unit.logs.test_store import ATTEMPT, collect, frame, numbers

_Lab = Callable[[str], Awaitable[LogStore]]


@pytest.fixture
def bucket(storage: ObjectStorage, tmp_path: Path) -> LogBucket:
    return LogBucket(storage.bucket, tmp_path.name)


@pytest.fixture
async def machine(bucket: LogBucket, tmp_path: Path) -> AsyncIterator[_Lab]:
    """A controller's logs, by the name of its disk."""
    async with contextlib.AsyncExitStack() as closing:

        async def made(name: str) -> LogStore:
            logs = LogStore(tmp_path / name, bucket)
            closing.push_async_callback(asyncio.to_thread, logs.close)
            return logs

        yield made


@contextlib.asynccontextmanager
async def writing(logs: LogStore, *which: int) -> AsyncIterator[LogWriter]:
    writer = await logs.writer(ATTEMPT)
    for number in which:
        await writer.append(frame(number))
    try:
        yield writer
    finally:
        await writer.close()


async def test_a_controller_with_another_disk_goes_on_where_the_bucket_ends(machine: _Lab) -> None:
    first, second = await machine("a"), await machine("b")
    async with writing(first, 0, 1, 2) as writer:
        assert await writer.sync() == 30
        await writer.append(frame(3))
        assert (writer.waiting, first.waiting) == (10, 10)

    async with writing(second) as writer:
        assert writer.end == 30, "what was never acknowledged comes from the node again"
        await writer.append(frame(3) + frame(4))
        assert await collect(second.read(ATTEMPT, 0)) == numbers(0, 1, 2, 3, 4)
        assert await collect(second.read(ATTEMPT, 25)) == numbers(0, 1, 2, 3, 4)[25:]
        assert await writer.sync() == 50
    await second.complete(ATTEMPT)

    third = await machine("c")
    assert await third.is_kept(ATTEMPT)
    assert await third.is_complete(ATTEMPT)
    assert await collect(third.follow(ATTEMPT, 0)) == numbers(*range(5))
    window = await third.window(ATTEMPT, WindowQuery(offset=0))
    assert (len(window.rows), window.log_end) == (5, 50)


async def test_a_copy_that_another_controller_has_passed_is_dropped(machine: _Lab) -> None:
    async with writing(await machine("a"), 0, 1) as writer:
        await writer.sync()
        await writer.append(frame(2))
    async with writing(await machine("b"), 2, 3, 4) as writer:
        await writer.sync()
    again = await machine("a")
    async with writing(again) as writer:
        assert writer.end == 50
    assert await collect(again.read(ATTEMPT, 0)) == numbers(*range(5))


async def test_a_controller_that_starts_again_keeps_what_no_part_has(machine: _Lab) -> None:
    async with writing(await machine("a"), 0) as writer:
        await writer.sync()
        await writer.append(frame(1))
    async with writing(await machine("a")) as writer:
        assert (writer.end, writer.waiting) == (20, 10)
        assert await writer.sync() == 20


async def test_an_attempt_that_nobody_has_seen_is_not_kept(machine: _Lab) -> None:
    logs = await machine("a")
    assert not await logs.is_kept(ATTEMPT)
    assert not await logs.is_complete(ATTEMPT)
    assert await collect(logs.read(ATTEMPT, 0)) == b""


async def test_the_parts_of_an_ended_log_are_joined(
    machine: _Lab, bucket: LogBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 100)
    monkeypatch.setattr(parts, "JOINED_BYTES", 400)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 300)
    logs = await machine("a")
    async with writing(logs, *range(40)) as writer:
        await writer.sync()
    before = bucket.parts(ATTEMPT).all
    joining = asyncio.create_task(logs.join_ended())
    await logs.complete(ATTEMPT)
    await eventually(lambda: len(bucket.parts(ATTEMPT).all) < len(before))
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    after = bucket.parts(ATTEMPT)
    assert after.end == 400
    assert await collect((await machine("b")).read(ATTEMPT, 0)) == numbers(*range(40))


async def test_a_bucket_that_is_away_keeps_nobody_from_what_is_here(
    machine: _Lab, tmp_path: Path
) -> None:
    logs = await machine("a")
    async with writing(logs, 0) as writer:
        await writer.sync()
    nowhere = Bucket.parse("s3://away", f"http://127.0.0.1:{free_port()}")
    cut = LogStore(tmp_path / "a", LogBucket(nowhere, "x"))
    assert await collect(cut.read(ATTEMPT, 0)) == numbers(0)
    with pytest.raises(BucketError):
        await cut.writer(ATTEMPT)
    with pytest.raises(BucketError):
        await cut.window("another0attempt1", WindowQuery(offset=0))
    await asyncio.to_thread(cut.close)


async def test_no_reader_goes_on_in_a_copy_that_another_controller_has_passed(
    machine: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He began while the bucket was away; his bytes end before those that come to this disk."""
    async with writing(await machine("a"), 0, 1) as writer:
        await writer.sync()
    async with writing(await machine("b"), 2, 3, 4) as writer:
        await writer.sync()
    again = await machine("a")
    with monkeypatch.context() as away:
        away.setattr(LogBucket, "parts", refused)
        followed, read = again.follow(ATTEMPT, 0), again.read(ATTEMPT, 0)
        for pieces in (followed, read):
            assert payloads(await anext(pieces)) == numbers(0, 1)
        waiting = asyncio.ensure_future(anext(followed))
    async with writing(again) as writer:
        # At once: nothing need come for that.
        with pytest.raises(BucketError, match="older than the bucket"):
            await asyncio.wait_for(waiting, LONG)
        with pytest.raises(BucketError, match="older than the bucket"):
            await anext(read)
        await writer.append(frame(5))
        assert payloads(await anext(again.follow(ATTEMPT, 20))) == numbers(2, 3, 4)
        assert await collect(again.read(ATTEMPT, 20)) == numbers(2, 3, 4, 5)


async def test_what_was_learnt_of_a_copy_is_forgotten_with_it(
    machine: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(await machine("a"), 0, 1) as writer:
        await writer.sync()
        await writer.append(frame(2))
    async with writing(await machine("b"), 2, 3, 4) as writer:
        await writer.sync()
    again = await machine("a")
    with monkeypatch.context() as away:
        away.setattr(LogBucket, "parts", refused)
        assert (await again.window(ATTEMPT, WindowQuery(offset=30))).first_line == 4
    window = await again.window(ATTEMPT, WindowQuery(offset=40))
    assert (window.first_line, [row.text for row in window.rows]) == (5, ["line 0004"])


def refused(*_: object) -> Parts:
    raise BucketError("s3://away: connection refused")


def payloads(piece: bytes) -> bytes:
    return b"".join(bytes(one.payload) for one in Decoder().feed(piece))


async def test_nothing_is_stored_that_is_not_in_the_bucket(
    machine: _Lab, bucket: LogBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away = True
    put = LogBucket.put

    def refused(self: LogBucket, attempt_id: str, part: Part, data: bytes) -> None:
        if is_away:
            raise BucketError("503 Slow Down")
        put(self, attempt_id, part, data)

    monkeypatch.setattr(LogBucket, "put", refused)
    logs = await machine("a")
    async with writing(logs, 0, 1) as writer:
        with pytest.raises(BucketError):
            await writer.sync()
        assert (logs.waiting, logs.refused) == (20, 1)
        assert bucket.parts(ATTEMPT).end == 0
        is_away = False
        assert await writer.sync() == 20
        assert (logs.waiting, logs.refused) == (0, 0)


async def test_the_bytes_of_an_ended_job_wait_also_between_two_tries(
    machine: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise BucketError("503 Slow Down")

    logs = await machine("a")
    with monkeypatch.context() as patch:
        patch.setattr(LogBucket, "put", refused)
        async with writing(logs, 0, 1) as writer:
            with pytest.raises(BucketError):
                await writer.sync()
        assert logs.waiting == 20, "nobody writes, and the bucket has nothing"
        patch.setattr(LogBucket, "parts", refused)
        with pytest.raises(BucketError):
            await logs.writer(ATTEMPT)
        assert logs.waiting == 20
    async with writing(logs, 0, 1) as writer:
        assert logs.waiting == 20
        await writer.sync()
    assert logs.waiting == 0


async def test_a_log_that_cannot_begin_without_its_bucket_is_counted_until_it_begins_or_is_final(
    machine: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Parts:
        raise BucketError("it does not answer")

    logs = await machine("a")
    with monkeypatch.context() as patch:
        patch.setattr(LogBucket, "parts", away)
        for _ in range(2):
            with pytest.raises(BucketError):
                await logs.writer(ATTEMPT)
        with pytest.raises(BucketError):
            await logs.is_complete("another0attempt1")
        assert (logs.waiting, logs.refused) == (0, 2)
    async with writing(logs):
        assert logs.refused == 1
    logs.finish("another0attempt1")
    assert logs.refused == 0


async def test_a_bucket_that_hangs_holds_up_neither_other_logs_nor_the_end(
    machine: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        held.set()
        go_on.wait(60)

    monkeypatch.setattr(LogBucket, "put", hangs)
    logs = await machine("a")
    async with writing(logs, 0) as writer:
        putting = asyncio.create_task(writer.sync())
        await eventually(held.is_set)
        await writer.append(frame(1))
        assert await collect(logs.read(ATTEMPT, 0)) == numbers(0, 1)
    await asyncio.to_thread(logs.close)
    assert not putting.done()
    go_on.set()
    await putting


async def test_what_is_complete_here_needs_no_bucket_and_anything_else_is_refused_before_an_answer(
    machine: _Lab, tmp_path: Path
) -> None:
    logs = await machine("a")
    async with writing(logs, 0) as writer:
        await writer.sync()
    nowhere = Bucket.parse("s3://away", f"http://127.0.0.1:{free_port()}")
    cut = LogStore(tmp_path / "a", LogBucket(nowhere, "x"))
    await cut.reach(ATTEMPT)
    with pytest.raises(BucketError):
        await cut.is_complete(ATTEMPT)
    await logs.complete(ATTEMPT)
    assert await cut.is_complete(ATTEMPT)
    assert await collect(cut.follow(ATTEMPT, 0)) == numbers(0)
    with pytest.raises(BucketError):
        await cut.reach("another0attempt1")
    await asyncio.to_thread(cut.close)


async def test_readers_are_refused_at_once_after_one_has_waited_for_a_bucket_that_hangs(
    machine: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def away(_: LogBucket, attempt_id: str) -> Parts:
        asked.append(attempt_id)
        raise BucketError("it does not answer")

    monkeypatch.setattr(LogBucket, "parts", away)
    logs = await machine("a")
    monkeypatch.setattr(copies, "SLOW_SECONDS", 3600.0)
    for _ in range(2):
        with pytest.raises(BucketError):
            await logs.reach(ATTEMPT)
    assert len(asked) == 2, "a refusal that comes soon keeps nobody waiting"
    monkeypatch.setattr(copies, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(copies, "AWAY_SECONDS", 3600.0)
    for _ in range(3):
        with pytest.raises(BucketError, match="it does not answer"):
            await logs.reach(ATTEMPT)
    assert len(asked) == 3


async def test_the_fetch_of_a_reader_that_left_ends_before_the_next_one_begins(
    machine: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(await machine("a"), 0, 1) as writer:
        await writer.sync()
    began, go_on = threading.Event(), threading.Event()
    fetching: list[int] = []
    get = LogBucket.get

    def slow(self: LogBucket, attempt_id: str, part: Part) -> bytes:
        fetching.append(part.start)
        began.set()
        go_on.wait(60)
        return get(self, attempt_id, part)

    monkeypatch.setattr(LogBucket, "get", slow)
    logs = await machine("b")
    left = asyncio.create_task(collect(logs.read(ATTEMPT, 0)))
    await eventually(began.is_set)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    stays = asyncio.create_task(collect(logs.read(ATTEMPT, 0)))
    await logs.is_kept("another0attempt1")  # it goes the same way, and ends
    go_on.set()
    assert await stays == numbers(0, 1)
    assert fetching == [0]


async def test_a_log_that_another_bucket_lacks_stays_here_and_goes_there(
    machine: _Lab, storage: ObjectStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The wrong bucket was named, or it was emptied."""
    logs = await machine("a")
    async with writing(logs, 0, 1) as writer:
        await writer.sync()
    other = LogBucket(storage.bucket, f"{tmp_path.name}-other")
    changed = LogStore(tmp_path / "a", other)
    assert await collect(changed.read(ATTEMPT, 0)) == numbers(0, 1)
    assert "is that the right bucket?" in caplog.text
    async with writing(changed, 2) as writer:
        assert (writer.end, writer.waiting) == (30, 30)
        assert await writer.sync() == 30
    assert other.parts(ATTEMPT).end == 30
    back = await machine("a")
    assert await collect(back.read(ATTEMPT, 0)) == numbers(0, 1, 2)
    await asyncio.to_thread(changed.close)


async def test_no_part_is_put_after_the_end(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 10)
    monkeypatch.setattr(segments, "READ_BYTES", 40)
    began, go_on = threading.Event(), threading.Event()
    put = LogBucket.put

    def slow(self: LogBucket, attempt_id: str, part: Part, data: bytes) -> None:
        put(self, attempt_id, part, data)
        began.set()
        go_on.wait(60)

    monkeypatch.setattr(LogBucket, "put", slow)
    logs = LogStore(tmp_path / "logs", LogBucket(storage.bucket, tmp_path.name))
    async with writing(logs, *range(20)) as writer:
        putting = asyncio.create_task(writer.sync())
        await eventually(began.is_set)
    await asyncio.to_thread(logs.close)
    go_on.set()
    with pytest.raises(BucketError, match="the controller ends"):
        await putting
    assert len(LogBucket(storage.bucket, tmp_path.name).parts(ATTEMPT).all) == 1


async def test_only_expired_logs_of_this_installation_leave_the_bucket(
    machine: _Lab, bucket: LogBucket, storage: ObjectStorage
) -> None:
    logs = await machine("a")
    async with writing(logs, 0) as writer:
        await writer.sync()
    other = LogBucket(storage.bucket, "another-installation")
    other.put(ATTEMPT, Part(0, 10), frame(0))
    later = time.time() + 60
    await logs.sweep({ATTEMPT}, later)
    assert bucket.parts(ATTEMPT).end == 10
    await logs.sweep((), later - 3600)
    assert bucket.parts(ATTEMPT).end == 10
    await logs.sweep((), later)
    assert bucket.parts(ATTEMPT).all == ()
    assert other.parts(ATTEMPT).end == 10


@pytest.mark.parametrize(("begun_at", "files"), [(None, [0, 30, 50]), (45, [0, 30, 45])])
def test_parts_that_overlap_give_each_byte_once(
    bucket: LogBucket, tmp_path: Path, begun_at: int | None, files: list[int]
) -> None:
    """One that was paused puts what its successor has put, cut at other places."""
    for first, last in ((0, 3), (2, 4), (2, 5), (5, 6), (8, 9)):
        data = b"".join(frame(number) for number in range(first, last))
        bucket.put(ATTEMPT, Part(10 * first, 10 * last), data)
    assert bucket.parts(ATTEMPT).end == 60
    if begun_at is not None:
        parts.begin_at(tmp_path, begun_at)
    parts.fill(bucket, tmp_path, ATTEMPT)
    assert log_segments.starts_in(tmp_path) == files
    data = b"".join(log_segments.path(tmp_path, at).read_bytes() for at in files)
    whole = b"".join(one.payload for one in Decoder().feed(data))
    assert whole == numbers(*range(6))[:begun_at]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=20))
def test_the_chosen_parts_reach_as_far_as_any_could(lengths: list[tuple[int, int]]) -> None:
    given_parts = [Part(start, start + length) for start, length in lengths]
    chosen = cover(given_parts)
    covered = {byte for part in given_parts for byte in range(part.start, part.end)}
    reach = next(byte for byte in itertools.count() if byte not in covered)
    assert (chosen[-1][0].end if chosen else 0) == reach
    at = 0
    for part, begins in chosen:
        assert begins == at
        assert part.start <= at < part.end
        at = part.end
