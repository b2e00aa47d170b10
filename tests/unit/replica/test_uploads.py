"""A follower takes uploads into the bucket, in the leader's words, or leaves them to it."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import io
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
import sqlalchemy as sa
from aiohttp.test_utils import TestClient

from controller.api.runs import blobs
from controller.blob_bucket import BlobBucket
from controller.blobs import BlobStore
from controller.clock import SystemClock
from controller.forwarding.reads import Reads
from controller.outputs.bucket import BucketError
from controller.outputs.own_bucket import OwnBucket
from controller.replica import uploads as following
from controller.replica.answers import Answers
from controller.replica.uploads import Uploads
from controller.store import schema
from controller.store.reading import StoreReader
from controller.store.sqlite import SqliteDatabase
from fairlead.wire.blobs import Part
from tests.support.object_storage import ObjectStorage
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_reads import TO_THE_LEADER, Bed, bearer, opened_bed
from tests.unit.replica.test_answers import NoFeed, make_answers

LIMIT = 50_000
OF_USER = 120_000
CONTENT = b"an archive"
FILES = [{"local_path": "a", "path": "/a"}]
Api = TestClient[Any, Any]


class Controllers(NamedTuple):
    bed: Bed
    uploads: Uploads
    folder: Path
    """That of the follower's copies."""

    @property
    def copies(self) -> list[str]:
        """What the follower has on its disk, also of what is still coming."""
        return sorted(one.name for one in self.folder.glob("*") if one.is_file())


@pytest.fixture
async def both(tmp_path: Path, storage: ObjectStorage) -> AsyncIterator[Controllers]:
    place = msgspec.structs.replace(storage.bucket, prefix=tmp_path.name)
    folder = tmp_path / "followed"
    uploads = Uploads(folder, place, LIMIT, OF_USER)
    await uploads.start()
    owned: list[OwnBucket] = []

    def answers(reader: StoreReader, database: SqliteDatabase) -> Answers:
        return make_answers(reader, database, NoFeed(), uploads=uploads)

    def of_leader(installation_id: str) -> BlobStore:
        owned.append(own := OwnBucket(place, installation_id))
        own.verify()
        bucket = BlobBucket(own)
        return BlobStore(tmp_path / "blobs", max_bytes=LIMIT, max_of_user=OF_USER, bucket=bucket)

    async with opened_bed(
        tmp_path, lambda reader: Reads(reader, SystemClock()), answers=answers, blobs=of_leader
    ) as bed:
        yield Controllers(bed, uploads, folder)
    await uploads.close()
    for one in owned:
        one.close()


def named(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def place(content: bytes, rest: str = "") -> str:
    return f"/v1/blobs/{named(content)}{rest}"


async def said(
    client: Api, method: str, path: str, token: str = USER_TOKEN, **more: Any
) -> tuple[int, Any]:
    async with client.request(method, path, headers=bearer(token), **more) as answer:
        return answer.status, None if answer.status == TO_THE_LEADER else await answer.json()


async def submitted(bed: Bed, content: bytes, token: str = USER_TOKEN) -> tuple[int, Any]:
    files = [{**one, "uploaded": [named(content), "/"]} for one in FILES]
    task = {"type": "task", "commands": ["true"], "files": files}
    return await said(bed.leader, "POST", "/v1/runs", token, json={"configuration": task})


async def test_the_leader_finds_what_a_follower_took(both: Controllers) -> None:
    bed = both.bed
    stored = (200, {"sha256": named(CONTENT), "size": len(CONTENT)})
    assert (await submitted(bed, CONTENT))[0] == 409
    assert await said(bed.follower, "PUT", place(CONTENT), data=CONTENT) == stored
    assert await said(bed.follower, "GET", place(CONTENT)) == stored
    assert (await submitted(bed, CONTENT))[0] == 201
    assert (await submitted(bed, CONTENT, ADMIN_TOKEN))[0] == 409, "another user's"
    read = [piece async for piece in bed.controller.blobs.read(named(CONTENT))]
    assert b"".join(read) == CONTENT


BIG, BIGGER = b"x" * LIMIT, b"y" * (LIMIT + 1)
OLD = bytes(range(200)) * 200
NEW = OLD[:10_000] + b"n" * 10_000 + OLD[20_000:]


def in_cuts(content: bytes) -> list[bytes]:
    return [content[at : at + 10_000] for at in range(0, len(content), 10_000)]


def cut(content: bytes) -> list[Part]:
    return [Part(sha256=named(one), size=len(one)) for one in in_cuts(content)]


def in_parts(content: bytes, *sent: bytes) -> bytes:
    manifest = {"parts": cut(content), "sent": [named(one) for one in sent]}
    return msgspec.json.encode(manifest) + b"\n" + b"".join(sent)


def listed(content: bytes) -> bytes:
    return msgspec.json.encode({"parts": cut(content)})


REQUESTS: tuple[tuple[str, str, bytes], ...] = (
    ("GET", place(CONTENT), b""),
    ("PUT", place(CONTENT), b"other bytes"),
    ("PUT", place(CONTENT), b""),
    ("GET", place(CONTENT), b""),
    ("PUT", place(b""), b""),
    ("GET", place(b""), b""),
    ("PUT", place(BIG), BIG),
    ("PUT", place(BIGGER), BIGGER),
    ("PUT", "/v1/blobs/short", CONTENT),
    ("GET", "/v1/blobs/..%2f..%2fetc", b""),
    ("POST", place(OLD, "/missing"), listed(OLD)),
    ("PUT", place(OLD, "/parts"), in_parts(OLD)),
    ("PUT", place(OLD, "/parts"), b"no json"),
    (
        "PUT",
        place(OLD, "/parts"),
        in_parts(OLD, *in_cuts(OLD)),
    ),
    ("POST", place(NEW, "/missing"), listed(NEW)),
    ("POST", place(NEW, "/missing"), b"{}"),
    ("POST", place(NEW, "/missing"), b" " * (3 << 20)),
    ("PUT", place(NEW, "/parts"), in_parts(NEW, b"m" * 10_000)),
    ("PUT", place(b"too many"), b"z" * 49_000),
    ("GET", place(BIG), b""),
)


@pytest.mark.parametrize("token", [USER_TOKEN, "unknown"])
async def test_a_follower_answers_about_uploads_as_the_leader_does(
    both: Controllers, token: str
) -> None:
    told = set()
    for method, path, body in REQUESTS:
        there = await said(both.bed.leader, method, path, token, data=io.BytesIO(body))
        here = await said(both.bed.follower, method, path, token, data=io.BytesIO(body))
        assert here == there, path
        told.add(there[1]["error"]["code"] if "error" in there[1] else there[0])
    assert told == (KNOWN if token == USER_TOKEN else {"unauthenticated"})


KNOWN = {
    200,
    "not_found",
    "damaged",
    "too_large",
    "too_many_uploads",
    "parts_missing",
    "not_json",
    "invalid",
}


async def test_parts_come_from_what_another_controller_took(both: Controllers) -> None:
    bed, changed = both.bed, b"n" * 10_000
    whole = in_parts(OLD, *in_cuts(OLD))
    status, _ = await said(bed.leader, "PUT", place(OLD, "/parts"), data=whole)
    assert status == 200
    missing = await said(bed.follower, "POST", place(NEW, "/missing"), data=listed(NEW))
    assert missing == (200, {"missing": [named(changed)]})
    status, _ = await said(bed.follower, "PUT", place(NEW, "/parts"), data=in_parts(NEW, changed))
    assert status == 200
    assert b"".join([one async for one in bed.controller.blobs.read(named(NEW))]) == NEW


async def test_two_users_may_send_the_same_to_two_controllers_at_once(both: Controllers) -> None:
    bed = both.bed
    answers = await asyncio.gather(
        said(bed.leader, "PUT", place(BIG), ADMIN_TOKEN, data=BIG),
        said(bed.follower, "PUT", place(BIG), USER_TOKEN, data=BIG),
    )
    assert [status for status, _ in answers] == [200, 200]
    for token in (ADMIN_TOKEN, USER_TOKEN):
        assert (await submitted(bed, BIG, token))[0] == 201


async def test_a_token_that_was_revoked_uploads_nothing(both: Controllers) -> None:
    bed = both.bed
    assert (await said(bed.follower, "GET", place(CONTENT)))[0] == 404
    assert (await said(bed.leader, "DELETE", "/v1/tokens/t2", ADMIN_TOKEN))[0] == 200
    assert (await said(bed.follower, "PUT", place(CONTENT), data=CONTENT))[0] == 401
    assert both.copies == []


async def test_a_body_that_is_cut_leaves_nothing(both: Controllers) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield BIG[:1000]
        await eventually(lambda: both.copies != [])
        raise ConnectionError

    with pytest.raises(aiohttp.ClientError):
        await said(both.bed.follower, "PUT", place(BIG), data=half())
    await eventually(lambda: both.copies == [] and both.uploads._coming.total() == 0)
    assert (await said(both.bed.follower, "GET", place(BIG)))[0] == 404


@pytest.mark.parametrize("where", ["leader", "follower"])
@pytest.mark.parametrize("rest", ["", "/parts"])
async def test_an_upload_that_hardly_comes_is_refused_with_a_sentence(
    both: Controllers, monkeypatch: pytest.MonkeyPatch, where: str, rest: str
) -> None:
    """It would keep room from others; and a machine that vanished says nothing."""
    over = asyncio.Event()

    async def drops() -> AsyncIterator[bytes]:
        yield in_parts(OLD, *in_cuts(OLD))[:2000]
        # It always comes in time for the next look, and never brings enough.
        while not over.is_set():
            yield b"x"
            await asyncio.wait((waits,), timeout=0.05)

    waits = asyncio.create_task(over.wait())
    monkeypatch.setattr(blobs, "PACE_SECONDS", 0.5)
    client = both.bed.leader if where == "leader" else both.bed.follower
    status, answer = await said(client, "PUT", place(OLD, rest), data=drops())
    over.set()
    await waits
    assert (status, answer["error"]["code"]) == (408, "upload_too_slow")
    assert "at least 256 KiB must" in answer["error"]["message"]
    await eventually(lambda: both.copies == [] and both.uploads._coming.total() == 0)


async def test_an_upload_that_comes_slowly_and_fast_enough_is_taken(
    both: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "PACE_SECONDS", 3600.0)
    monkeypatch.setattr(blobs, "MIN_BYTES", 100)
    paces = []
    timeout = asyncio.timeout

    async def slow() -> AsyncIterator[bytes]:
        for at in range(0, len(BIG), 10_000):
            yield BIG[at : at + 10_000]
            await eventually(lambda: both.copies != [])

    def noted(delay: float | None) -> asyncio.Timeout:
        if delay is not None and delay > 1000:
            paces.append(delay)
        return timeout(delay)

    monkeypatch.setattr(asyncio, "timeout", noted)
    assert (await said(both.bed.follower, "PUT", place(BIG), data=slow()))[0] == 200
    # Each piece begins the time again.
    assert set(paces) == {3600.0}


async def test_a_controller_that_stood_still_blames_no_upload_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Paused:
        """Its first wait is over long after its time."""

        def __init__(self) -> None:
            self.asked = 0

        def __aiter__(self) -> Paused:
            return self

        async def __anext__(self) -> bytes:
            self.asked += 1
            if self.asked == 1:
                await asyncio.Event().wait()
            if self.asked == 2:
                return b"a"
            raise StopAsyncIteration

    monkeypatch.setattr(blobs, "PACE_SECONDS", 0.01)
    # Any time is late.
    monkeypatch.setattr(blobs, "_LATE_SECONDS", -1.0)
    assert [piece async for piece in blobs._paced(Paused())] == [b"a"]


async def test_one_user_leaves_as_much_room_to_others_as_his_uploads_take(
    both: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, over = both.bed.follower, asyncio.Event()
    # Of three uploads, and nearly a fourth one.
    free = following.MIN_FREE_BYTES + 4 * LIMIT - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))

    async def idle(content: bytes) -> AsyncIterator[bytes]:
        yield content[:1000]
        await over.wait()
        yield content[1000:]

    first = asyncio.create_task(said(follower, "PUT", place(BIG), data=idle(BIG)))
    await eventually(lambda: both.uploads._coming.total() == LIMIT)
    # With a second one, he would have more than what is left to others.
    assert (await said(follower, "PUT", place(CONTENT), data=CONTENT))[0] == 200
    assert (await said(follower, "PUT", place(BIG), data=BIG))[0] == TO_THE_LEADER
    assert (await said(follower, "PUT", place(BIG), ADMIN_TOKEN, data=BIG))[0] == 200
    over.set()
    assert (await first)[0] == 200
    assert (both.uploads._coming, both.uploads._begun) == ({}, {})
    assert (await said(follower, "PUT", place(BIG), data=BIG))[0] == 200


async def test_what_an_upload_is_joined_with_counts_to_its_users_share_alone(
    both: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, over, changed = both.bed.follower, asyncio.Event(), b"n" * 10_000
    whole, joined = in_parts(OLD, *in_cuts(OLD)), in_parts(NEW, changed)
    assert (await said(follower, "PUT", place(OLD, "/parts"), data=whole))[0] == 200

    async def idle() -> AsyncIterator[bytes]:
        yield BIG[:1000]
        await over.wait()
        yield BIG[1000:]

    free = following.MIN_FREE_BYTES + 3 * LIMIT
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
    first = asyncio.create_task(said(follower, "PUT", place(BIG), data=idle()))
    await eventually(lambda: both.uploads._coming.total() == LIMIT)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await said(follower, "PUT", place(NEW, "/parts"), data=joined)
    # He gets to the leader, and the others here.
    assert (await said(follower, "PUT", place(NEW, "/parts"), data=joined))[0] == TO_THE_LEADER
    assert (await said(follower, "PUT", place(CONTENT), ADMIN_TOKEN, data=CONTENT))[0] == 200
    over.set()
    assert (await first)[0] == 200


@pytest.mark.parametrize("how", ["leads", "other origin", "compressed", "database"])
async def test_what_the_follower_cannot_judge_goes_to_the_leader(
    both: Controllers, how: str
) -> None:
    headers, body = bearer(USER_TOKEN), CONTENT
    if how == "leads":
        both.bed.forwarder.is_leading = True
    elif how == "other origin":
        headers["Origin"] = "https://elsewhere.example"
    elif how == "compressed":
        headers["Content-Encoding"], body = "gzip", gzip.compress(CONTENT)
    else:
        engine = both.bed.database.writer()
        with engine.begin() as connection:
            schema.metadata.drop_all(connection, [sa.Table("users", schema.metadata)])
        engine.dispose()
    for method, path in (("PUT", place(CONTENT)), ("PUT", place(CONTENT, "/parts"))):
        async with both.bed.follower.request(method, path, data=body, headers=headers) as answer:
            assert answer.status == TO_THE_LEADER
    assert both.copies == []


async def test_uploads_go_to_the_leader_for_a_while_after_the_bucket_has_failed(
    both: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise BucketError("the bucket is away")

    follower = both.bed.follower
    assert (await said(follower, "GET", place(CONTENT)))[0] == 404
    with monkeypatch.context() as patch:
        patch.setattr(OwnBucket, "list", away)
        status, answer = await said(follower, "PUT", place(CONTENT), data=CONTENT)
        assert (status, answer["error"]["code"]) == (503, "uploads_unreachable")
        assert (status, answer) == await said(both.bed.leader, "PUT", place(CONTENT), data=CONTENT)
        both.uploads._away_until = 0.0
        assert (await said(follower, "GET", place(CONTENT)))[0] == TO_THE_LEADER
    assert (await said(follower, "PUT", place(CONTENT), data=CONTENT))[0] == TO_THE_LEADER
    both.uploads._away_until = 0.0
    assert (await said(follower, "PUT", place(CONTENT), data=CONTENT))[0] == 200


async def test_a_bucket_that_is_silent_leaves_the_question_to_the_leader(
    both: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = both.bed.follower
    assert (await said(follower, "GET", place(CONTENT)))[0] == 404

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(following, "ANSWER_SECONDS", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(BlobBucket, "size_for", silent)
        assert (await said(follower, "GET", place(CONTENT)))[0] == TO_THE_LEADER
    # It may be slow, and the leader has the same one.
    assert (await said(follower, "PUT", place(CONTENT), data=CONTENT))[0] == 200


async def test_a_bucket_that_is_nobodys_yet_is_not_taken(
    both: Controllers, storage: ObjectStorage
) -> None:
    storage.empty()
    answer = await said(both.bed.follower, "PUT", place(CONTENT), data=CONTENT)
    assert (answer[0], storage.objects()) == (TO_THE_LEADER, [])


async def test_an_upload_for_which_there_may_be_no_room_goes_to_the_leader(
    both: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies go first."""
    follower, free = both.bed.follower, 0
    assert (await said(follower, "PUT", place(CONTENT), data=CONTENT))[0] == 200
    assert both.copies == [named(CONTENT)]

    def usage(_: object) -> Any:
        return shutil._ntuple_diskusage(0, 0, free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    free = following.MIN_FREE_BYTES + len(CONTENT)
    assert (await said(follower, "PUT", place(CONTENT), data=CONTENT))[0] == 200
    # Who may not upload takes no room from others.
    assert (await said(follower, "PUT", place(BIG), "unknown", data=BIG))[0] == 401
    assert both.copies == [named(CONTENT)]
    free -= 1
    assert (await said(follower, "PUT", place(CONTENT), data=CONTENT))[0] == TO_THE_LEADER
    assert both.copies == []
    assert (await said(follower, "GET", place(CONTENT)))[0] == 200


async def test_one_in_parts_takes_the_room_of_what_it_is_joined_with(
    both: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, changed = both.bed.follower, b"n" * 10_000
    whole, joined = in_parts(OLD, *in_cuts(OLD)), in_parts(NEW, changed)
    status, _ = await said(both.bed.leader, "PUT", place(OLD, "/parts"), data=whole)
    assert status == 200
    # What comes, the other upload, which only the bucket has, and its parts once more.
    needed = len(joined) + len(OLD) + len(NEW) - len(changed)
    free = following.MIN_FREE_BYTES + needed - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await said(follower, "PUT", place(NEW, "/parts"), data=joined)
    # Its client begins again.
    assert (await said(follower, "PUT", place(NEW, "/parts"), data=joined))[0] == TO_THE_LEADER
    assert (both.copies, both.uploads._coming.total()) == ([], 0)
    both.uploads._away_until, free = 0.0, free + 1
    assert (await said(follower, "PUT", place(NEW, "/parts"), data=joined))[0] == 200
    # The next one fetches nothing.
    again = in_parts(NEW)
    free = following.MIN_FREE_BYTES + len(again) + len(NEW)
    assert (await said(follower, "PUT", place(NEW, "/parts"), data=again))[0] == 200


async def test_a_disk_that_is_full_in_the_middle_cuts_the_upload(
    both: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client begins again, and the leader may have room."""
    follower = both.bed.follower

    async def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BlobStore, "_receive", full)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await said(follower, "PUT", place(CONTENT), data=CONTENT)
    assert (await said(follower, "PUT", place(CONTENT), data=CONTENT))[0] == TO_THE_LEADER
    assert both.copies == []


async def test_copies_of_an_earlier_process_are_removed(both: Controllers) -> None:
    assert (await said(both.bed.follower, "PUT", place(CONTENT), data=CONTENT))[0] == 200
    again = Uploads(both.folder, both.uploads._bucket, LIMIT, OF_USER)
    await again.start()
    await again.close()
    assert both.copies == []
    assert (await submitted(both.bed, CONTENT))[0] == 201
