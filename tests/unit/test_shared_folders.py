"""Folders in which others replace and remove files between a listing and the next call."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from common.files import shared_folders
from controller.blob_bucket import KEPT_SECONDS
from controller.blobs import BlobStore
from controller.logs import segments
from controller.outputs.store import OutputStore

LATER = float("inf")


class Meanwhile(Protocol):
    def __call__(self, listed: Path, act: Callable[[], object]) -> None: ...


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Act once, after this folder was listed and before anybody looks at what is in it."""
    acts: dict[Path, Callable[[], object]] = {}
    iterdir = Path.iterdir

    def listed(folder: Path) -> Iterator[Path]:
        found = list(iterdir(folder))
        acts.pop(folder, lambda: None)()
        return iter(found)

    def add(listed: Path, act: Callable[[], object]) -> None:
        acts[listed] = act

    monkeypatch.setattr(Path, "iterdir", listed)
    return add


def a_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_sweep_of_logs_goes_on_when_a_file_or_a_log_goes_meanwhile(
    tmp_path: Path, meanwhile: Meanwhile
) -> None:
    replaced = a_file(tmp_path / "ab" / "ab1" / segments.COMPLETE_NAME)
    gone = a_file(tmp_path / "ab" / "ab2" / segments.COMPLETE_NAME).parent
    meanwhile(replaced.parent, replaced.unlink)
    meanwhile(tmp_path / "ab", lambda: shutil.rmtree(gone))
    assert segments.sweep(tmp_path, (), LATER) == 1
    assert not replaced.parent.exists()


def test_a_folder_that_fills_while_it_is_removed_is_removed_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_file(tmp_path / "ab" / "ab1" / "00000000000000000000.seg").parent
    late = iter(["one", "two"])
    rmdir = os.rmdir

    def filled(path: str, *, dir_fd: int | None = None) -> None:
        if (name := next(late, None)) is not None:
            a_file(log / name)
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", filled)
    assert segments.sweep(tmp_path, (), LATER) == 1
    assert not log.exists()


def test_a_folder_that_never_stops_filling_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled(_path: str, *, dir_fd: int | None = None) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(os, "rmdir", filled)
    assert not shared_folders.remove(a_file(tmp_path / "log" / "file").parent)


def test_what_may_not_be_removed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "rmdir", refused)
    with pytest.raises(PermissionError):
        shared_folders.remove(a_file(tmp_path / "log" / "file").parent)


async def test_outputs_that_go_while_they_are_listed_are_passed_over(
    tmp_path: Path, meanwhile: Meanwhile
) -> None:
    outputs = OutputStore(tmp_path)
    reads: list[Callable[[], Awaitable[object]]] = [
        partial(outputs.larger_than, 0),
        outputs.drop_moved,
        partial(outputs.sweep, (), LATER),
    ]
    try:
        gone = tmp_path / "ab" / "ab1"
        for _ in range(3):
            a_file(gone / "outputs.tar")
            meanwhile(gone.parent, lambda: shutil.rmtree(gone))
            assert not await reads.pop()()
    finally:
        await asyncio.to_thread(outputs.close)


async def swept(store: BlobStore) -> int:
    async def still_leads() -> None:
        return

    return await store.sweep(set, still_leads)


async def test_uploads_that_go_while_they_are_counted_and_swept_are_passed_over(
    tmp_path: Path, meanwhile: Meanwhile
) -> None:
    store = BlobStore(tmp_path, now=lambda: 4 * KEPT_SECONDS)
    marks = tmp_path / "users" / "ada"
    blob, mark = a_file(tmp_path / "0123"), a_file(marks / "0123")
    meanwhile(tmp_path, blob.unlink)
    meanwhile(marks, mark.unlink)
    assert await swept(store) == 0
    meanwhile(tmp_path / "users", lambda: shutil.rmtree(marks))
    assert await swept(store) == 0
