"""Uploads: whole and checked or not at all, there after a restart, gone when nobody needs them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from controller.blobs import KEPT_SECONDS, BlobDamaged, BlobStore, BlobTooLarge

CONTENT = b"x" * 3000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


async def pieces(
    content: bytes = CONTENT, error: Exception | None = None
) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(content), 1000):
        yield content[start : start + 1000]
    if error is not None:
        raise error


async def read(store: BlobStore, digest: str) -> bytes:
    return b"".join([piece async for piece in store.read(digest)])


async def test_what_was_put_comes_back_also_from_another_controller(tmp_path: Path) -> None:
    assert await BlobStore(tmp_path).put(DIGEST, pieces()) == len(CONTENT)
    restarted = BlobStore(tmp_path)
    assert await restarted.size(DIGEST) == len(CONTENT)
    assert await read(restarted, DIGEST) == CONTENT


async def test_it_may_come_twice(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await store.put(DIGEST, pieces())
    await store.put(DIGEST, pieces())
    assert os.listdir(tmp_path) == [DIGEST]


async def test_bytes_that_are_not_what_they_say_leave_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with pytest.raises(BlobDamaged):
        await store.put(DIGEST, pieces(CONTENT + b"!"))
    assert (await store.size(DIGEST), os.listdir(tmp_path)) == (None, [])


async def test_what_is_too_large_is_refused_while_it_comes(tmp_path: Path) -> None:
    async with contextlib.aclosing(pieces()) as coming:
        with pytest.raises(BlobTooLarge, match="may have 0 MiB"):
            await BlobStore(tmp_path, most_bytes=2999).put(DIGEST, coming)
    assert os.listdir(tmp_path) == []


async def test_a_connection_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        await BlobStore(tmp_path).put(DIGEST, pieces(error=ConnectionError()))
    assert os.listdir(tmp_path) == []


async def test_what_nobody_needs_any_more_is_removed(tmp_path: Path) -> None:
    now = 1_000_000.0
    store = BlobStore(tmp_path, now=lambda: now)
    others = [hashlib.sha256(bytes([n])).hexdigest() for n in range(3)]
    for number, digest in enumerate(others):
        await store.put(digest, pieces(bytes([number])))
        os.utime(tmp_path / digest, (now, now - KEPT_SECONDS - 1))
    os.utime(tmp_path / others[2], (now, now - KEPT_SECONDS + 1))
    (tmp_path / "0123.arriving").touch()
    os.utime(tmp_path / "0123.arriving", (now, now - KEPT_SECONDS - 1))
    assert await store.sweep({others[0]}) == 2
    assert sorted(os.listdir(tmp_path)) == sorted([others[0], others[2]])


async def test_asking_for_it_keeps_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    await store.put(DIGEST, pieces())
    os.utime(tmp_path / DIGEST, (0, 0))
    await store.size(DIGEST)
    assert await store.sweep(()) == 0


async def test_nothing_uploaded_yet_is_no_error(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "none")
    assert (await store.size(DIGEST), await store.sweep(())) == (None, 0)
