"""The page on the architecture names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CHANGES = PAGE.partition("## Where a change goes\n")[2].partition("\n## ")[0]
ROWS = [row for row in CHANGES.splitlines() if row.startswith("| ") and "`" in row]


def test_the_table_of_changes_has_rows() -> None:
    assert len(ROWS) > 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_file_that_a_change_touches_is_there(row: str) -> None:
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py)?)`", row)
    assert [one for one in named if not _is_there(one)] == []


def _is_there(path: str) -> bool:
    return (ROOT / "controller" / path).exists() or (ROOT / path).exists()
