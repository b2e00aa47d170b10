"""What a job is seen to have left where the next one begins (docs/rules.md 11.14)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.job import surroundings


def left(folder: Path, *names: str) -> str | None:
    before = surroundings.look(str(folder), alone=False)
    for name in names:
        (folder / name).touch()
    return surroundings.difference(before, surroundings.look(str(folder), alone=False))


def test_a_folder_that_stayed_as_it_was_is_clean(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert left(tmp_path) is None


def test_a_name_like_ours_in_the_working_folder_is_the_jobs(tmp_path: Path) -> None:
    assert left(tmp_path, "fairlead-results.json") == f"{tmp_path} changed"


def test_a_change_that_keeps_a_files_time_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"as it was")
    at = file.stat().st_mtime_ns
    before = surroundings.look(str(tmp_path), alone=False)
    file.write_bytes(b"changed")
    os.utime(file, ns=(at, at))
    changed = surroundings.look(str(tmp_path), alone=False)
    assert surroundings.difference(before, changed) == f"{tmp_path} changed"
    file.chmod(0o600)
    chmodded = surroundings.look(str(tmp_path), alone=False)
    assert surroundings.difference(changed, chmodded) == f"{tmp_path} changed"


def test_a_folder_with_too_many_entries_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "_MOST", 2)
    assert left(tmp_path, "a", "b") == f"{tmp_path} changed"
    assert left(tmp_path, "c") == f"{tmp_path} has more than 2 entries"
