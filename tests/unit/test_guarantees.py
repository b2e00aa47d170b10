"""The page of guarantees names tests: each must exist, or the promise stands on nothing."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]
_PAGE = _CHECKOUT / "docs/guarantees.md"
_QUOTED = re.compile(r"`([^`]+)`")
_FILE = re.compile(r"(?:tests/)?(?:\w+/)*test_\w+\.py|tests(?:/\w+)*")


def _rows() -> list[tuple[str, str]]:
    """Promise and test column of every row."""
    lines = [line for line in _PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(row[0], row[-1]) for row in cells if row[0] != "promise"]


def _files_named(name: str) -> list[Path]:
    if name.startswith("tests"):
        path = _CHECKOUT / name
        return [path] if path.exists() else []
    return list((_CHECKOUT / "tests").rglob(name))


def _missing(tests: str) -> list[str]:
    missing: list[str] = []
    files: list[Path] = []
    for quoted in _QUOTED.findall(tests):
        name, _, function = quoted.partition("::")
        if name:
            if not _FILE.fullmatch(name):
                continue
            files = _files_named(name)
        if function:
            files = [file for file in files if f"def {function}(" in file.read_text()]
        if not files:
            missing.append(quoted)
    return missing


@pytest.mark.parametrize(("promise", "tests"), _rows(), ids=lambda cell: cell[:40])
def test_the_tests_behind_a_promise_exist(promise: str, tests: str) -> None:
    assert _QUOTED.search(tests), f"no test behind: {promise}"
    assert _missing(tests) == [], promise


def _told_twice(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the promises that stand on the same tests and have most of their words in common.

    Two branches that word a row anew leave both rows behind: the page is merged by union.
    """
    pairs = [(one, other) for one, other in combinations(rows, 2) if one[1] == other[1]]
    words = {promise: set(re.findall(r"\w+", promise.lower())) for promise, _ in rows}
    return [
        (one, other)
        for (one, _), (other, _) in pairs
        if len(words[one] & words[other]) > 0.6 * min(len(words[one]), len(words[other]))
    ]


def test_no_promise_is_told_twice() -> None:
    assert _told_twice(_rows()) == []


def test_a_promise_that_is_told_twice_is_found() -> None:
    rows = [
        ("A follower passes requests on as they came, with the address of their client.", "a"),
        ("A follower passes requests on as they came, and with them their client's address.", "a"),
        ("A follower answers questions with the leader's words.", "a"),
        ("A follower passes requests on as they came.", "b"),
    ]
    assert _told_twice(rows) == [(rows[0][0], rows[1][0])]


def test_a_promise_without_its_test_is_found() -> None:
    assert _missing("`tests/unit/test_guarantees.py::test_nobody_wrote`, `test_nowhere.py`") == [
        "tests/unit/test_guarantees.py::test_nobody_wrote",
        "test_nowhere.py",
    ]
