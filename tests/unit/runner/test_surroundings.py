"""What a job is seen to have left where the next one begins (docs/rules.md 11.14)."""

from __future__ import annotations

import os
import resource
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
    monkeypatch.setattr(surroundings, "_MAX_ENTRIES", 2)
    assert left(tmp_path, "a", "b") == f"{tmp_path} changed"
    assert left(tmp_path, "c") == f"{tmp_path} has more than 2 entries"


def test_a_changed_mode_of_the_folder_itself_is_seen(tmp_path: Path) -> None:
    before = surroundings.look(str(tmp_path), alone=False)
    tmp_path.chmod(0o711)
    after = surroundings.look(str(tmp_path), alone=False)
    assert surroundings.difference(before, after) == f"{tmp_path} changed"


def test_a_file_that_was_made_and_removed_is_no_change(tmp_path: Path) -> None:
    before = surroundings.look(str(tmp_path), alone=False)
    (tmp_path / "gone").touch()
    (tmp_path / "gone").unlink()
    assert surroundings.difference(before, surroundings.look(str(tmp_path), alone=False)) is None


@pytest.mark.parametrize("change", ["write", "add", "mode"])
def test_code_is_looked_at_to_its_depth(tmp_path: Path, change: str) -> None:
    deep = tmp_path / "code/a/b"
    deep.mkdir(parents=True)
    (deep / "main.py").write_text("pass")
    code = (str(tmp_path / "code"),)
    before = surroundings.look(str(tmp_path), code, alone=False)
    match change:
        case "write":
            (deep / "main.py").write_text("exit(1)")
        case "add":
            (deep / "more.py").touch()
        case _:
            deep.chmod(0o700)
    after = surroundings.look(str(tmp_path), code, alone=False)
    assert surroundings.difference(before, after) == f"{tmp_path}/code changed"


def test_compiled_python_is_no_change(tmp_path: Path) -> None:
    package = tmp_path / "code/package"
    package.mkdir(parents=True)
    code = (str(tmp_path / "code"),)
    before = surroundings.look(str(tmp_path), code, alone=False)
    for folder in (tmp_path, package):
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__/main.pyc").touch()
    after = surroundings.look(str(tmp_path), code, alone=False)
    assert surroundings.difference(before, after) is None


def test_a_changed_limit_of_the_runner_is_seen(tmp_path: Path) -> None:
    before = surroundings.look(str(tmp_path), alone=False)
    kind = resource.RLIMIT_NOFILE
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft - 1, hard))
    try:
        after = surroundings.look(str(tmp_path), alone=False)
    finally:
        resource.setrlimit(kind, (soft, hard))
    assert "limits" in (surroundings.difference(before, after) or "")
