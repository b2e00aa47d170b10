"""A follower answers for logs that are whole in the bucket, with the leader's words and bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType
from aiohttp.test_utils import TestClient

from controller.clock import SystemClock
from controller.forwarding import final_logs, log_reads
from controller.forwarding.final_logs import FinalLogs
from controller.forwarding.log_reads import LogReads
from controller.logs import parts, search, segments, windows
from controller.logs.parts import LogBucket, Part, Parts
from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import MARKER, BucketOfAnother, OwnBucket
from controller.replica.alone import NeedsLeader
from controller.store.reading import StoreReader
from fairlead.wire.frames import Frame, Stream, encode
from tests.support.object_storage import ObjectStorage
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_reads import TO_THE_LEADER, Bed, bearer, opened_bed

RUN = "/v1/runs/ended"


class LogBed:
    """A run that has ended, whose log is in the bucket, at a leader and a follower."""

    def __init__(self, bed: Bed, bucket: LogBucket, logs: FinalLogs, attempt_id: str) -> None:
        self.bed = bed
        self.bucket = bucket
        self.logs = logs
        self.attempt_id = attempt_id

    async def status(self, path: str, token: str = USER_TOKEN, **headers: str) -> int:
        more = {**bearer(token), **headers}
        async with self.bed.follower.get(path, headers=more) as answer:
            await answer.read()
            return answer.status


async def write(bed: Bed, attempt_id: str, lines: int = 400) -> None:
    writer = await bed.controller.logs.writer(attempt_id)
    for number in range(lines):
        stream = Stream.STDERR if number % 7 == 3 else Stream.STDOUT
        text = b"line %d \xff \x1b[31mred\x1b[0m\n" % number
        await writer.append(encode(Frame(writer.end, number * 10**9, stream, text)))
        if number % 100 == 50:
            await writer.sync()
    await writer.sync()
    await writer.close()


async def attempt_of(bed: Bed, run: str) -> str:
    async with bed.leader.get(f"/v1/runs/{run}", headers=bearer(ADMIN_TOKEN)) as answer:
        return str((await answer.json())["jobs"][0]["attempts"][-1]["id"])


@pytest.fixture
async def logged(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LogBed]:
    monkeypatch.setattr(segments, "READ_BYTES", 1000)
    monkeypatch.setattr(parts, "PART_BYTES", 1500)
    # However busy the machine is: both count all lines, and search all of the log.
    monkeypatch.setattr(windows, "COUNT_SECONDS", 3600.0)
    monkeypatch.setattr(search, "SEARCH_SECONDS", 3600.0)
    for name in ("WAIT_SECONDS", "AWAY_SECONDS", "CHECK_SECONDS"):
        monkeypatch.setattr(final_logs, name, 3600.0)
    bucket = LogBucket(storage.bucket, tmp_path.name)
    logs = FinalLogs(tmp_path / "follower", lambda _: LogBucket(storage.bucket, tmp_path.name))
    await logs.start()

    def reads(reader: StoreReader) -> LogReads:
        return LogReads(reader, SystemClock(), logs)

    async with opened_bed(tmp_path, reads, bucket) as bed:
        run = await bed.submit("ended")
        attempt_id = await attempt_of(bed, run)
        await write(bed, attempt_id)
        await bed.stop(run)
        await bed.controller.logs.complete(attempt_id)
        yield LogBed(bed, bucket, logs, attempt_id)
    await logs.close()


async def answered(client: TestClient[Any, Any], path: str, token: str, accept: str) -> object:
    headers = {**bearer(token), "Accept": accept}
    async with client.get(path, headers=headers) as answer:
        skipped = ("Date", "Content-Length", "Server")
        shown = {name: value for name, value in answer.headers.items() if name not in skipped}
        return answer.status, await answer.read(), shown


PATHS = (
    "/logs",
    "/logs?offset=57",
    "/logs?offset=1000000",
    "/logs?offset=13&format=text",
    "/logs?format=ndjson&offset=100",
    "/logs?format=none",
    "/logs?job=none",
    "/logs?job=main/0",
    "/logs?attempt=none",
    "/logs/window",
    "/logs/window?size=500&before=4000",
    "/logs/window?near=2222&size=300",
    "/logs/window?at=1970-01-01T00:01:00Z&size=100",
    "/logs/window?offset=1&near=2",
    "/logs/search?text=line%2037",
    "/logs/search?text=line%20.[05]$&regex=true&limit=3",
    "/logs/search?text=a(b&regex=true&attempt=none",
    "/logs/search",
)


@pytest.mark.parametrize("token", [ADMIN_TOKEN, USER_TOKEN, "unknown"])
async def test_a_follower_answers_for_a_log_as_the_leader_does(logged: LogBed, token: str) -> None:
    bed = logged.bed
    for path in (*(RUN + path for path in PATHS), "/v1/runs/none/logs"):
        for accept in ("*/*", "text/html"):
            there = await answered(bed.leader, path, token, accept)
            assert await answered(bed.follower, path, token, accept) == there, path


async def test_nobody_reads_the_logs_of_others_at_a_follower(logged: LogBed) -> None:
    run = await logged.bed.submit("of-admin", ADMIN_TOKEN)
    attempt_id = await attempt_of(logged.bed, run)
    await write(logged.bed, attempt_id)
    await logged.bed.stop(run)
    await logged.bed.controller.logs.complete(attempt_id)
    for path in ("logs", "logs/window", "logs/search?text=x"):
        assert await logged.status(f"/v1/runs/{run}/{path}", ADMIN_TOKEN) == 200
        assert await logged.status(f"/v1/runs/{run}/{path}") == 404
        # Nor by the name of an attempt, through a run of one's own.
        mixed = f"{RUN}/{path}{'&' if '?' in path else '?'}attempt={attempt_id}"
        assert await logged.status(mixed) == 404


async def received(client: TestClient[Any, Any], path: str) -> tuple[str, bytes, int | None]:
    """Return all text, all bytes and the end."""
    text, data = "", b""
    async with client.ws_connect(path, headers=bearer(USER_TOKEN)) as stream:
        async for message in stream:
            if message.type is WSMsgType.BINARY:
                data += message.data
            else:
                text += message.data
        return text, data, stream.close_code


@pytest.mark.parametrize("form", ["frames", "json", "text"])
async def test_a_stream_of_a_final_log_is_the_leaders(logged: LogBed, form: str) -> None:
    path = f"{RUN}/logs/ws?format={form}&offset=33"
    there = await received(logged.bed.leader, path)
    assert await received(logged.bed.follower, path) == there
    assert there[2] == 1000
    assert len(there[0] + there[1].decode(errors="replace")) > 5000


async def test_an_empty_log_is_answered_too(logged: LogBed) -> None:
    bed = logged.bed
    run = await bed.submit("silent")
    attempt_id = await attempt_of(bed, run)
    await write(bed, attempt_id, 0)
    await bed.stop(run)
    await bed.controller.logs.complete(attempt_id)
    for path in ("logs", "logs/window", "logs/search?text=x"):
        there = await answered(bed.leader, f"/v1/runs/silent/{path}", USER_TOKEN, "*/*")
        assert await answered(bed.follower, f"/v1/runs/silent/{path}", USER_TOKEN, "*/*") == there


async def test_what_is_not_final_or_not_whole_in_the_bucket_is_the_leaders(logged: LogBed) -> None:
    bed = logged.bed
    run = await bed.submit("live")
    attempt_id = await attempt_of(bed, run)
    await write(bed, attempt_id)
    for path in ("logs", "logs/ws", "logs/window", "logs/search?text=x"):
        assert await logged.status(f"/v1/runs/live/{path}") == TO_THE_LEADER
    await bed.controller.logs.complete(attempt_id)
    assert await logged.status("/v1/runs/live/logs") == TO_THE_LEADER, "it is not final"
    await bed.stop(run)
    assert await logged.status("/v1/runs/live/logs") == 200

    without_end = await bed.submit("without-end")
    await write(bed, await attempt_of(bed, without_end))
    await bed.stop(without_end)
    assert await logged.status("/v1/runs/without-end/logs") == TO_THE_LEADER

    assert await logged.status(f"{RUN}/logs", Origin="https://page.example") == TO_THE_LEADER
    bed.forwarder.is_leading = True
    assert await logged.status(f"{RUN}/logs") == TO_THE_LEADER


@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("content", [None, b"", b"damaged"])
async def test_a_log_whose_part_is_missing_or_damaged_is_the_leaders(
    logged: LogBed, which: str, content: bytes | None
) -> None:
    found = sorted(logged.bucket.parts(logged.attempt_id).all)
    part = found[0] if which == "first" else found[-1]
    if content is not None:
        logged.bucket.put(logged.attempt_id, part, content)
    else:
        logged.bucket.remove(logged.attempt_id, [part.name])
    status = await logged.status(f"{RUN}/logs")
    # Of a last part that is gone nothing tells, nor would it the leader that fetches the log.
    assert status == (200 if (which, content) == ("last", None) else TO_THE_LEADER)


async def test_a_log_is_fetched_once_and_nothing_is_written_to_the_bucket(
    logged: LogBed, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, fetched = storage.objects(), list[Part]()
    get = LogBucket.get

    def counted(self: LogBucket, attempt_id: str, part: Part) -> bytes:
        fetched.append(part)
        return get(self, attempt_id, part)

    monkeypatch.setattr(LogBucket, "get", counted)
    paths = [f"{RUN}/logs", f"{RUN}/logs/window", f"{RUN}/logs/search?text=x"] * 3
    assert set(await asyncio.gather(*map(logged.status, paths))) == {200}
    assert len(fetched) == len(set(fetched)) > 4
    assert storage.objects() == before


async def test_parts_that_are_being_joined_give_each_byte_once(
    logged: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = await answered(logged.bed.leader, f"{RUN}/logs", USER_TOKEN, "*/*")
    monkeypatch.setattr(parts, "JOINED_BYTES", 4000)
    folder = logged.bed.controller.logs.folder_of(logged.attempt_id)
    # A leader that died in the middle left both kinds.
    monkeypatch.setattr(LogBucket, "remove", lambda *_: None)
    before = len(logged.bucket.parts(logged.attempt_id).all)
    await asyncio.to_thread(parts.join, logged.bucket, folder, logged.attempt_id)
    assert len(logged.bucket.parts(logged.attempt_id).all) > before
    assert await answered(logged.bed.follower, f"{RUN}/logs", USER_TOKEN, "*/*") == there


async def test_a_bucket_that_is_away_leaves_logs_to_the_leader(
    logged: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def away(_: LogBucket, attempt_id: str) -> Parts:
        asked.append(attempt_id)
        raise BucketError("it is away")

    with monkeypatch.context() as failing:
        failing.setattr(LogBucket, "parts", away)
        assert await logged.status(f"{RUN}/logs") == TO_THE_LEADER
        assert await logged.status(f"{RUN}/logs") == TO_THE_LEADER
    assert len(asked) == 1, "a bucket that has just failed is not asked again"
    assert await logged.status(f"{RUN}/logs") == TO_THE_LEADER
    logged.logs._copies[logged.attempt_id].fresh_until = 0.0
    assert await logged.status(f"{RUN}/logs") == 200


async def test_nobody_waits_for_a_bucket_that_hangs_and_the_copy_still_comes(
    logged: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    listed = LogBucket.parts

    def hangs(self: LogBucket, attempt_id: str) -> Parts:
        go_on.wait(60)
        return listed(self, attempt_id)

    monkeypatch.setattr(LogBucket, "parts", hangs)
    monkeypatch.setattr(final_logs, "WAIT_SECONDS", 0.0)
    assert await logged.status(f"{RUN}/logs") == TO_THE_LEADER
    monkeypatch.setattr(final_logs, "WAIT_SECONDS", 3600.0)
    assert await logged.status(f"{RUN}/logs") == TO_THE_LEADER, "the next one does not wait"
    go_on.set()
    coming = logged.logs._copies[logged.attempt_id].coming
    assert coming is not None
    await coming
    assert await logged.status(f"{RUN}/logs") == 200


async def test_more_fetches_at_once_are_left_to_the_leader(
    logged: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_logs, "MAX_FETCHES", 0)
    assert await logged.status(f"{RUN}/logs") == TO_THE_LEADER


async def test_a_log_that_retention_has_removed_is_the_leaders_again(logged: LogBed) -> None:
    assert await logged.status(f"{RUN}/logs") == 200
    logged.bucket.sweep((), 1e12)
    assert await logged.status(f"{RUN}/logs") == 200, "it was there just now"
    copy = logged.logs._copies[logged.attempt_id]
    assert copy.fresh_until <= asyncio.get_running_loop().time() + final_logs.CHECK_SECONDS
    copy.fresh_until = 0.0
    assert await logged.status(f"{RUN}/logs") == TO_THE_LEADER


@pytest.fixture
async def small(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[FinalLogs, Callable[[str], None]]]:
    """Room for two logs, and a function that puts one into the bucket."""
    bucket = LogBucket(storage.bucket, tmp_path.name)
    data = encode(Frame(0, 1, Stream.STDOUT, b"x" * 1000))
    monkeypatch.setattr(final_logs, "MAX_BYTES", 2 * len(data))
    monkeypatch.setattr(final_logs, "MAX_LOG_BYTES", len(data))
    for name in ("WAIT_SECONDS", "AWAY_SECONDS", "CHECK_SECONDS"):
        monkeypatch.setattr(final_logs, name, 3600.0)
    logs = FinalLogs(tmp_path / "follower", lambda _: bucket)
    (tmp_path / "follower").mkdir()
    (tmp_path / "follower" / "left").touch()
    await logs.start()
    assert not (tmp_path / "follower").exists()

    def put(name: str) -> None:
        bucket.put(name, Part(0, 1000), data)
        bucket.complete(name)

    yield logs, put
    await logs.close()


async def files(folder: Path) -> int:
    return await asyncio.to_thread(lambda: len(list(folder.glob("*/*.seg"))))


async def test_the_folder_is_bounded_and_keeps_what_is_read(
    small: tuple[FinalLogs, Callable[[str], None]], tmp_path: Path
) -> None:
    logs, put = small
    for name in ("aa", "bb", "cc", "dd"):
        put(name)
    async with logs.held("i", "aa") as first:
        for name in ("bb", "cc", "dd"):
            async with logs.held("i", name):
                assert await files(tmp_path / "follower") <= 2
        assert [len(piece) async for piece in first.read(0)]
        async with logs.held("i", "bb"):
            with pytest.raises(NeedsLeader):
                async with logs.held("i", "cc"):
                    raise AssertionError("both places are in use")
    logs._copies["cc"].fresh_until = 0.0
    async with logs.held("i", "cc"):
        assert await files(tmp_path / "follower") <= 2
    await logs.forget_unread(asyncio.get_running_loop().time() + 1)
    assert await files(tmp_path / "follower") == 0
    assert logs._copies == {}


async def test_a_longer_log_is_not_fetched(
    small: tuple[FinalLogs, Callable[[str], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, put = small
    put("aa")
    monkeypatch.setattr(final_logs, "MAX_LOG_BYTES", 999)
    with pytest.raises(NeedsLeader):
        async with logs.held("i", "aa"):
            raise AssertionError("it is too long")
    assert await files(tmp_path / "follower") == 0


async def test_the_rest_of_the_disk_stays_free(
    small: tuple[FinalLogs, Callable[[str], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, put = small
    put("aa")
    monkeypatch.setattr(final_logs, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(NeedsLeader):
        async with logs.held("i", "aa"):
            raise AssertionError("there is no room")
    assert await files(tmp_path / "follower") == 0


def test_a_log_that_is_being_removed_never_counts_as_whole(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = LogBucket(storage.bucket, tmp_path.name)
    for start in (0, 10, 20):
        bucket.put("aa", Part(start, start + 10), b"")
    bucket.complete("aa")
    assert bucket.parts("aa").is_whole
    seen: list[bool] = []
    remove = LogBucket.remove

    def one_by_one(self: LogBucket, attempt_id: str, names: Iterable[str]) -> None:
        for name in names:
            remove(self, attempt_id, [name])
            seen.append(self.parts(attempt_id).is_whole)

    monkeypatch.setattr(LogBucket, "remove", one_by_one)
    assert bucket.sweep((), 1e12) == 1
    assert seen == [False] * 4


async def test_what_is_known_of_logs_that_are_not_there_is_bounded(
    small: tuple[FinalLogs, Callable[[str], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, _ = small
    monkeypatch.setattr(final_logs, "MAX_COPIES", 3)
    for number in range(10):
        with pytest.raises(NeedsLeader):
            async with logs.held("i", f"a{number}"):
                raise AssertionError("it is nowhere")
    assert len(logs._copies) <= 3


async def came_whole(logged: LogBed, path: str) -> bool:
    if path == "logs/ws":
        return (await received(logged.bed.follower, f"{RUN}/{path}"))[2] == 1000
    try:
        async with logged.bed.follower.get(f"{RUN}/{path}", headers=bearer(USER_TOKEN)) as answer:
            await answer.read()
    except aiohttp.ClientError:
        return False
    return True


@pytest.mark.parametrize("path", ["logs", "logs/ws"])
async def test_a_log_is_cut_when_its_reader_may_read_no_more(
    logged: LogBed, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "ALLOWED_SECONDS", 0.0)
    assert await logged.status(f"{RUN}/logs") == 200
    allowed = LogReads._is_allowed
    asked: list[bool | None] = []

    async def revoked(self: LogReads, request: Any, run_id: str) -> bool | None:
        if not asked:
            headers = bearer(ADMIN_TOKEN)
            async with logged.bed.leader.delete("/v1/tokens/t2", headers=headers) as answer:
                assert answer.status == 200
        asked.append(await allowed(self, request, run_id))
        return asked[-1]

    monkeypatch.setattr(LogReads, "_is_allowed", revoked)
    assert not await came_whole(logged, path)
    assert asked == [False]


async def test_a_log_is_sent_on_for_a_while_when_the_database_tells_nothing(
    logged: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object) -> None:
        return None

    monkeypatch.setattr(log_reads, "ALLOWED_SECONDS", 0.0)
    monkeypatch.setattr(LogReads, "_is_allowed", unknown)
    there = await answered(logged.bed.leader, f"{RUN}/logs", USER_TOKEN, "*/*")
    assert await answered(logged.bed.follower, f"{RUN}/logs", USER_TOKEN, "*/*") == there
    monkeypatch.setattr(log_reads, "UNKNOWN_SECONDS", 0.0)
    assert not await came_whole(logged, "logs")


def test_a_follower_takes_no_bucket_and_reads_from_none_of_others(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    bucket = Bucket.parse(f"s3://{storage.bucket.name}/{tmp_path.name}", storage.endpoint)
    with pytest.raises(BucketOfAnother):
        LogBucket(bucket, "mine", OwnBucket(bucket, "mine").require_own).parts("a")
    assert not [key for key in storage.objects() if key.startswith(tmp_path.name)]
    storage.put(f"{tmp_path.name}/{MARKER}", b"another\n")
    with pytest.raises(BucketOfAnother, match="another"):
        LogBucket(bucket, "mine", OwnBucket(bucket, "mine").require_own).parts("a")
    storage.put(f"{tmp_path.name}/{MARKER}", b"mine\n")
    assert LogBucket(bucket, "mine", OwnBucket(bucket, "mine").require_own).parts("a") == Parts()
