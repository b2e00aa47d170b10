"""A controller removes the copies of controllers that are gone, and no others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.daemon.own_folders import UNUSED_SECONDS, OwnFolders

KIND = "followed-uploads"


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


def started(running: ExitStack, data: Path, url: str) -> tuple[OwnFolders, Path]:
    """Return what a controller has, with a copy."""
    own = OwnFolders(data, url)
    running.callback(own.close)
    folder = own.take(KIND)
    folder.mkdir(exist_ok=True)
    (folder / "copy").write_bytes(b"a copy")
    return own, folder


def test_the_folder_of_an_earlier_url_is_removed(running: ExitStack, tmp_path: Path) -> None:
    before, old = started(running, tmp_path, "https://one:8700")
    before.close()
    _, new = started(running, tmp_path, "https://two:8700")
    assert not old.exists()
    assert sorted(path.name for path in (tmp_path / KIND).iterdir()) == [
        new.name,
        f"{new.name}.lock",
    ]


def test_the_folder_of_a_controller_that_runs_stays(running: ExitStack, tmp_path: Path) -> None:
    other, folder = started(running, tmp_path, "https://one:8700")
    own, _ = started(running, tmp_path, "https://two:8700")
    assert (folder / "copy").read_bytes() == b"a copy"
    # The same controller again, as after it has led.
    own.close()
    started(running, tmp_path, "https://two:8700")
    assert folder.exists()
    other.close()
    started(running, tmp_path, "https://three:8700")
    assert not folder.exists()


def test_a_controller_that_begins_while_another_with_its_url_ends_keeps_the_folder(
    running: ExitStack, tmp_path: Path
) -> None:
    ending, folder = started(running, tmp_path, "https://one:8700")
    began, _ = started(running, tmp_path, "https://one:8700")
    ending.close()
    started(running, tmp_path, "https://two:8700")
    assert folder.exists()
    began.close()
    started(running, tmp_path, "https://three:8700")
    assert not folder.exists()


def test_a_folder_without_a_lock_stays_while_something_changes_there(
    running: ExitStack, tmp_path: Path
) -> None:
    """It is of a controller of an earlier version, which may run."""
    folder = tmp_path / KIND / ("a" * 16)
    of_attempt = folder / "attempt"
    of_attempt.mkdir(parents=True)
    coming = of_attempt / "coming"
    coming.touch()
    old = time.time() - UNUSED_SECONDS - 60.0
    os.utime(of_attempt, (old, old))
    os.utime(folder, (old, old))
    own, _ = started(running, tmp_path, "https://one:8700")
    assert folder.exists()
    os.utime(coming, (old, old))
    own.take(KIND)
    assert not folder.exists()


def test_nothing_else_is_removed(running: ExitStack, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    others = tmp_path / KIND
    others.mkdir()
    (others / "notes").mkdir()
    (others / ("b" * 16)).symlink_to(elsewhere)
    old = time.time() - 2 * UNUSED_SECONDS
    os.utime(others / ("b" * 16), (old, old), follow_symlinks=False)
    os.utime(elsewhere / "file", (old, old))
    started(running, tmp_path, "https://one:8700")
    assert (others / "notes").exists()
    assert (elsewhere / "file").exists()


def test_a_folder_that_cannot_be_read_keeps_no_controller_from_starting(
    running: ExitStack, tmp_path: Path
) -> None:
    (tmp_path / KIND).touch()
    own = OwnFolders(tmp_path, "https://one:8700")
    running.callback(own.close)
    assert own.take(KIND).parent == tmp_path / KIND
