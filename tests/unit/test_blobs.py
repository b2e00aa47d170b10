"""Uploads: whole and checked or not at all, there after a restart, gone when nobody needs them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncGenerator, Collection
from pathlib import Path

import pytest

from controller.blob_bucket import KEPT_SECONDS
from controller.blobs import (
    BlobDamaged,
    BlobStore,
    BlobTooLarge,
    PartsMissing,
    TooManyBlobs,
)
from fairlead.wire.blobs import Part

CONTENT = b"x" * 3000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


async def pieces(
    content: bytes = CONTENT, error: Exception | None = None
) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(content), 1000):
        yield content[start : start + 1000]
    if error is not None:
        raise error


def blobs_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def marks_in(folder: Path, user: str = "ada") -> list[str]:
    return sorted(os.listdir(folder / "users" / user))


def named(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def swept(store: BlobStore, needed: Collection[str]) -> int:
    async def still_leads() -> None:
        return

    return await store.sweep(lambda: needed, still_leads)


async def read(store: BlobStore, digest: str) -> bytes:
    return b"".join([piece async for piece in store.read(digest)])


async def test_a_stored_blob_comes_back_also_from_another_controller(tmp_path: Path) -> None:
    assert await BlobStore(tmp_path).put(DIGEST, pieces(), user="ada") == len(CONTENT)
    restarted = BlobStore(tmp_path)
    assert await restarted.size(DIGEST) == len(CONTENT)
    assert await read(restarted, DIGEST) == CONTENT


async def test_it_may_come_twice(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await store.put(DIGEST, pieces(), user="ada")
    await store.put(DIGEST, pieces(), user="ada")
    assert (blobs_in(tmp_path), marks_in(tmp_path)) == ([DIGEST], [DIGEST])


async def test_bytes_that_are_not_what_they_say_leave_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with pytest.raises(BlobDamaged):
        await store.put(DIGEST, pieces(CONTENT + b"!"), user="ada")
    assert (await store.size(DIGEST), blobs_in(tmp_path), marks_in(tmp_path)) == (None, [], [])


async def test_a_blob_that_is_too_large_is_refused_while_it_comes(tmp_path: Path) -> None:
    async with contextlib.aclosing(pieces()) as coming:
        with pytest.raises(BlobTooLarge, match="may have 0 MiB"):
            await BlobStore(tmp_path, max_bytes=2999).put(DIGEST, coming, user="ada")
    assert (blobs_in(tmp_path), marks_in(tmp_path)) == ([], [])


async def test_a_connection_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        await BlobStore(tmp_path).put(DIGEST, pieces(error=ConnectionError()), user="ada")
    assert (blobs_in(tmp_path), marks_in(tmp_path)) == ([], [])


async def test_blobs_that_no_run_needs_any_more_are_removed(tmp_path: Path) -> None:
    now = 1_000_000.0
    store = BlobStore(tmp_path, now=lambda: now)
    others = [named(bytes([n])) for n in range(3)]
    for number, digest in enumerate(others):
        await store.put(digest, pieces(bytes([number])), user="ada")
        for path in (tmp_path / digest, tmp_path / "users" / "ada" / digest):
            os.utime(path, (now, now - KEPT_SECONDS - 1))
    os.utime(tmp_path / others[2], (now, now - KEPT_SECONDS + 1))
    (tmp_path / "0123.arriving").touch()
    os.utime(tmp_path / "0123.arriving", (now, now - KEPT_SECONDS - 1))
    assert await swept(store, {others[0]}) == 2
    assert blobs_in(tmp_path) == sorted([others[0], others[2]])
    assert marks_in(tmp_path) == [others[0]]


async def test_what_a_run_needed_stays_a_day_after_its_end(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await store.put(DIGEST, pieces(), user="ada")
    for path in (tmp_path / DIGEST, tmp_path / "users" / "ada" / DIGEST):
        os.utime(path, (0, 0))
    assert await swept(store, {DIGEST}) == 0
    assert await swept(store, ()) == 0
    assert await store.size_for(DIGEST, "ada") == len(CONTENT)


async def test_asking_for_it_keeps_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await store.put(DIGEST, pieces(), user="ada")
    os.utime(tmp_path / DIGEST, (0, 0))
    await store.size(DIGEST)
    assert await swept(store, ()) == 0


async def test_nothing_uploaded_yet_is_no_error(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "none")
    assert (await store.size(DIGEST), await swept(store, ())) == (None, 0)


async def test_it_is_there_for_those_who_sent_its_bytes_and_for_nobody_else(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await store.put(DIGEST, pieces(), user="ada")
    assert await store.size_for(DIGEST, "ada") == len(CONTENT)
    assert await store.size_for(DIGEST, "bob") is None
    with pytest.raises(BlobDamaged):
        await store.put(DIGEST, pieces(b"a guess"), user="bob")
    assert await store.size_for(DIGEST, "bob") is None
    await store.put(DIGEST, pieces(), user="bob")
    assert await BlobStore(tmp_path).size_for(DIGEST, "bob") == len(CONTENT)
    assert blobs_in(tmp_path) == [DIGEST]


async def test_a_blob_that_one_user_asks_for_is_not_kept_for_another(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for user in ("ada", "bob"):
        await store.put(DIGEST, pieces(), user=user)
    os.utime(tmp_path / "users" / "bob" / DIGEST, (0, 0))
    assert await store.size_for(DIGEST, "ada") == len(CONTENT)
    await swept(store, ())
    assert await store.size_for(DIGEST, "bob") is None
    assert await store.size_for(DIGEST, "ada") == len(CONTENT)


async def test_a_mark_without_its_blob_says_nothing_and_goes(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await store.put(DIGEST, pieces(), user="ada")
    (tmp_path / DIGEST).unlink()
    assert await store.size_for(DIGEST, "ada") is None
    await swept(store, {DIGEST})
    assert marks_in(tmp_path) == []


def cut(content: bytes, size: int = 5000) -> list[Part]:
    places = range(0, len(content), size)
    return [
        Part(sha256=named(content[at : at + size]), size=len(content[at : at + size]))
        for at in places
    ]


OLD = bytes(range(200)) * 100
NEW = OLD[:5000] + b"n" * 5000 + OLD[10_000:]


async def sent_in_parts(
    store: BlobStore, content: bytes, *, user: str = "ada", sends: bytes | None = None
) -> list[str]:
    """Send what is missing, or these bytes for it; return what was missing."""
    parts = cut(content)
    missing = await store.missing(parts, user=user)
    if sends is None:
        sends = b"".join(
            content[5000 * at : 5000 * at + part.size]
            for at, part in enumerate(parts)
            if part.sha256 in missing
        )
    async with contextlib.aclosing(pieces(sends)) as coming:
        await store.put_parts(named(content), parts, missing, coming, user=user)
    return missing


async def test_of_a_new_upload_only_the_parts_come_that_no_earlier_one_has(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await sent_in_parts(store, OLD)
    assert await sent_in_parts(BlobStore(tmp_path), NEW) == [named(b"n" * 5000)]
    assert await read(store, named(NEW)) == NEW
    assert await store.missing(cut(NEW) + cut(b"other"), user="ada") == [named(b"other")]


async def test_parts_of_other_users_are_not_there(tmp_path: Path) -> None:
    """To know the name of a part is no right to its content."""
    store = BlobStore(tmp_path)
    await sent_in_parts(store, OLD)
    parts = cut(OLD)
    assert len(await store.missing(parts, user="bob")) == len({part.sha256 for part in parts})
    async with contextlib.aclosing(pieces(b"")) as coming:
        with pytest.raises(PartsMissing, match="send all of it"):
            await store.put_parts(named(OLD), parts, (), coming, user="bob")
    assert await store.size_for(named(OLD), "bob") is None


@pytest.mark.parametrize("sends", [b"", b"n" * 4999, b"x" * 5000, b"n" * 5001], ids=len)
async def test_parts_that_are_not_what_they_say_leave_nothing(tmp_path: Path, sends: bytes) -> None:
    store = BlobStore(tmp_path)
    await sent_in_parts(store, OLD)
    with pytest.raises(BlobDamaged):
        await sent_in_parts(store, NEW, sends=sends)
    assert (blobs_in(tmp_path), marks_in(tmp_path)) == ([named(OLD)], [named(OLD)])


async def test_parts_whose_blob_was_removed_are_missing_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await sent_in_parts(store, OLD)
    (tmp_path / named(OLD)).unlink()
    assert await store.missing(cut(OLD), user="ada") == [part.sha256 for part in cut(OLD)[:1]]


async def test_a_mark_that_a_crash_cut_short_names_no_parts(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await sent_in_parts(store, OLD)
    mark = tmp_path / "users" / "ada" / named(OLD)
    mark.write_bytes(mark.read_bytes()[:-1])
    assert await store.missing(cut(NEW)[1:2], user="ada") == [named(b"n" * 5000)]
    assert await store.size_for(named(OLD), "ada") == len(OLD)


async def test_names_of_many_small_parts_are_not_kept(tmp_path: Path) -> None:
    """Nobody is charged for them."""
    store = BlobStore(tmp_path)
    parts = cut(OLD, 100)
    async with contextlib.aclosing(pieces(OLD)) as coming:
        sent = {part.sha256 for part in parts}
        await store.put_parts(named(OLD), parts, sent, coming, user="ada")
    assert (tmp_path / "users" / "ada" / named(OLD)).read_bytes() == b""


async def test_the_limits_hold_for_what_is_joined(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_bytes=12_000, max_of_user=31_000)
    with pytest.raises(BlobTooLarge):
        await sent_in_parts(store, OLD)
    await sent_in_parts(store, OLD[:10_000])
    await sent_in_parts(store, NEW[:10_000])
    with pytest.raises(TooManyBlobs):
        await sent_in_parts(store, OLD[:5000] + b"3" * 7000)
    assert len(blobs_in(tmp_path)) == 2


async def test_a_user_has_room_for_so_much_together_and_others_have_their_own(
    tmp_path: Path,
) -> None:
    store = BlobStore(tmp_path, max_of_user=10_000)
    first, second = b"1" * 6000, b"2" * 6000
    await store.put(named(first), pieces(first), user="ada")
    async with contextlib.aclosing(pieces(second)) as coming:
        with pytest.raises(TooManyBlobs, match="your uploads may have 0 MiB together"):
            await store.put(named(second), coming, user="ada")
    assert blobs_in(tmp_path) == [named(first)]
    await store.put(named(second), pieces(second), user="bob")
    await store.put(named(first), pieces(first), user="ada")


async def test_a_refused_upload_takes_no_room(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_of_user=10_000)
    first = b"1" * 9000
    for _ in range(3):
        with pytest.raises(ConnectionError):
            await store.put(named(first), pieces(first, ConnectionError()), user="ada")
    await store.put(named(first), pieces(first), user="ada")


async def test_many_small_uploads_are_charged_what_files_take(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_of_user=10_000)
    for content in (b"1", b"2"):
        await store.put(named(content), pieces(content), user="ada")
    with pytest.raises(TooManyBlobs):
        await store.put(named(b"3"), pieces(b"3"), user="ada")


class Slow:
    """The first `before` bytes come at once, the others once it may go on."""

    def __init__(self, content: bytes, before: int) -> None:
        self._parts = (content[:before], content[before:])
        self.began = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        yield self._parts[0]
        self.began.set()
        await self.may_go_on.wait()
        yield self._parts[1]


async def test_uploads_at_the_same_time_share_the_room_of_their_user(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_of_user=10_000)
    first, second = b"1" * 6000, b"2" * 6000
    slow = Slow(first, before=5000)
    going = asyncio.create_task(store.put(named(first), slow.pieces(), user="ada"))
    await slow.began.wait()
    async with contextlib.aclosing(pieces(second)) as coming:
        with pytest.raises(TooManyBlobs):
            await store.put(named(second), coming, user="ada")
    slow.may_go_on.set()
    assert await going == 6000
    assert marks_in(tmp_path) == [named(first)]


async def test_the_size_of_another_upload_meanwhile_is_counted_at_the_end(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, max_of_user=10_000)
    first, second = b"1" * 6000, b"2" * 6000
    slow = Slow(first, before=1000)
    going = asyncio.create_task(store.put(named(first), slow.pieces(), user="ada"))
    await slow.began.wait()
    await store.put(named(second), pieces(second), user="ada")
    slow.may_go_on.set()
    with pytest.raises(TooManyBlobs):
        await going
    assert (blobs_in(tmp_path), marks_in(tmp_path)) == ([named(second)], [named(second)])


async def test_a_blob_of_a_controller_before_belongs_to_nobody_and_is_still_read(
    tmp_path: Path,
) -> None:
    (tmp_path / DIGEST).write_bytes(CONTENT)
    store = BlobStore(tmp_path)
    assert await store.size_for(DIGEST, "ada") is None
    assert await read(store, DIGEST) == CONTENT
    await store.put(DIGEST, pieces(), user="ada")
    assert await store.size_for(DIGEST, "ada") == len(CONTENT)
