"""The lock of a data folder proves that a life is over, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.store.lease import LOCK_NAME, FolderLock, Life

LIFE = Life(installation_id="inst", token=7)


@pytest.fixture
def boot_id(tmp_path: Path) -> Path:
    file = tmp_path / "boot_id"
    file.write_text("this-boot\n")
    return file


@pytest.fixture
def dead(tmp_path: Path, boot_id: Path) -> Path:
    """The folder of a controller that began a life and was killed."""
    before = FolderLock(tmp_path, boot_id)
    assert before.take("process 1") is None
    before.note(LIFE)
    before.leave()
    return tmp_path


def test_the_holder_of_the_lock_knows_that_the_life_before_is_over(
    dead: Path, boot_id: Path
) -> None:
    lock = FolderLock(dead, boot_id)
    assert lock.take("process 2") is None
    assert lock.past_life == LIFE
    lock.leave()


def test_the_lock_of_a_living_one_is_not_given_and_proves_nothing(
    tmp_path: Path, boot_id: Path
) -> None:
    living, other = FolderLock(tmp_path, boot_id), FolderLock(tmp_path, boot_id)
    assert living.take("process 1") is None
    living.note(LIFE)
    assert other.take("process 2") == "process 1"
    other.note(Life(installation_id="inst", token=8))
    assert other.past_life is None
    living.leave()

    third = FolderLock(tmp_path, boot_id)
    assert third.take("process 3") is None
    assert third.past_life == LIFE
    third.leave()


def test_another_machine_with_the_same_folder_knows_nothing(dead: Path, boot_id: Path) -> None:
    boot_id.write_text("another-boot\n")
    lock = FolderLock(dead, boot_id)
    assert lock.take("process 2") is None
    assert lock.past_life is None
    lock.leave()


def test_a_start_that_failed_does_not_lose_the_proof(dead: Path, boot_id: Path) -> None:
    for _ in range(2):
        lock = FolderLock(dead, boot_id)
        assert lock.take("process 2") is None
        assert lock.past_life == LIFE
        lock.leave()


def test_a_machine_that_does_not_know_its_boot_proves_nothing(dead: Path, tmp_path: Path) -> None:
    lock = FolderLock(dead, tmp_path / "missing")
    assert lock.take("process 2") is None
    assert lock.past_life is None
    lock.leave()


@pytest.mark.parametrize("content", ["process 7 on host", "", '{"holder": 3}'])
def test_a_lock_file_of_an_earlier_version_proves_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_NAME).write_text(content)
    lock = FolderLock(tmp_path)
    assert lock.take("process 2") is None
    assert lock.past_life is None
    lock.leave()
