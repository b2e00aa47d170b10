"""The page on the architecture names files that are there; folders stay short."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_MODULES = 18
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CHANGES = PAGE.partition("## Where a change goes\n")[2].partition("\n## ")[0]
ROWS = [row for row in CHANGES.splitlines() if row.startswith("| ") and "`" in row]


def test_the_table_of_changes_has_rows() -> None:
    assert len(ROWS) > 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_file_that_a_change_touches_is_there(row: str) -> None:
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py)?)`", row)
    assert [one for one in named if not _is_there(one)] == []


def test_each_file_that_the_page_names_is_there() -> None:
    """Below the root, below `controller` or one of its rooms, or in the folder that begins its
    row."""
    missing = []
    for line in PAGE.splitlines():
        folders = re.findall(r"`([a-z_]+(?:/\w+)*)`", line)
        for path in re.findall(r"`([\w/]+\.py)`", line):
            beside = any(_is_there(f"{folder}/{path}") for folder in folders)
            if "NAME" in path:
                continue
            if not (
                beside
                or _is_there(path)
                or any(list(ROOT.glob(f"{room}/{path}")) for room in ("*", "*/*"))
            ):
                missing.append(path)
    assert missing == []


def test_each_contract_of_imports_is_on_the_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = [one["name"] for one in project["tool"]["importlinter"]["contracts"]]
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_no_folder_is_a_long_list() -> None:
    """A reader takes in so many names at once; a larger folder gets rooms that tell a story."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    modules = Counter(
        str(module.parent.relative_to(ROOT))
        for package in project["tool"]["importlinter"]["root_packages"]
        for module in (ROOT / package).rglob("*.py")
    )
    assert {folder: count for folder, count in modules.items() if count > MAX_MODULES} == {}


def _is_there(path: str) -> bool:
    return (ROOT / "controller" / path).exists() or (ROOT / path).exists()
