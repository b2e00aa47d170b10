"""The page of the cast (`tests/README.md`) names each double, and nothing that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_TESTS = Path(__file__).parents[2]
_PAGE = (_TESTS / "README.md").read_text()
_QUOTED = re.findall(r"`([^`\n]+)`", _PAGE)
_PATH = re.compile(r"(?:\w+/)+(?:\w+\.py)?|\w+(?:/\w+)+(?:\.py)?|test_\w+\.py")
_BASES = {"_AtOneAct", "_Around", "Crash"}
_PARTS = {
    "MemoryContainer",
    *("AmdSmiException", "AmdSmiTemperatureMetric", "AmdSmiTemperatureType", "Card"),
    *("Method", "WrongRequest"),
}


def _classes(folder: str) -> set[str]:
    trees = [ast.parse(path.read_text()) for path in (_TESTS / folder).glob("*.py")]
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def test_each_double_is_on_the_page() -> None:
    doubles = {name for name in _classes("doubles") if not name.startswith("_")}
    assert doubles - _BASES - _PARTS - set(_QUOTED) == set()


def test_each_path_of_the_page_exists() -> None:
    places = (_TESTS, _TESTS.parent)
    missing = [
        quoted
        for quoted in _QUOTED
        if _PATH.fullmatch(quoted)
        and not any((place / quoted).exists() for place in places)
        and not list(_TESTS.rglob(quoted))
    ]
    assert missing == []
