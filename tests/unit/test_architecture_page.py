"""The page on the architecture names files that are there, and the source keeps its limits."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

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
    names = [one["name"] for one in _linter()["contracts"]]
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_all_that_every_program_loads_of_common_is_kept_light() -> None:
    """A module that joins the lowest layers of `common` joins the contract of what is light."""
    contracts = {one["name"]: one for one in _linter()["contracts"]}
    layers = contracts[
        "only programs with a server load what is shared of HTTP, links and the proxy"
    ]["layers"]
    lowest = [f"common.{name}" for layer in layers[-2:] for name in layer.split(" | ")]
    assert sorted(contracts["what all programs share is light"]["source_modules"]) == sorted(lowest)


def test_no_folder_is_a_long_list() -> None:
    """A reader takes in so many names at once; a larger folder gets rooms that tell a story."""
    modules = Counter(module.rpartition("/")[0] for module in _sources())
    most = _limit("modules in a folder")
    assert {folder: count for folder, count in modules.items() if count > most} == {}


def test_no_module_is_longer_than_its_concept() -> None:
    most = _limit("lines of a module")
    lines = {module: len(text.splitlines()) for module, text in _sources().items()}
    assert {module: count for module, count in lines.items() if count > most} == {}


def test_no_function_is_too_long_to_be_seen_at_once() -> None:
    most = _limit("lines of a function, without its parameters and docstring")
    assert [found for found in _bodies() if found[2] > most] == []


def _limit(what: str) -> float:
    found = re.search(rf"^\| {re.escape(what)} \| at most ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert found is not None, f"the page has no limit for: {what}"
    return float(found[1])


@cache
def _linter() -> dict[str, list[Any]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    linter: dict[str, list[Any]] = project["tool"]["importlinter"]
    return linter


@cache
def _sources() -> dict[str, str]:
    return {
        str(module.relative_to(ROOT)): module.read_text(encoding="utf-8")
        for package in _linter()["root_packages"]
        for module in (ROOT / package).rglob("*.py")
    }


@cache
def _trees() -> dict[str, ast.Module]:
    return {module: ast.parse(text) for module, text in _sources().items()}


def _bodies() -> Iterator[tuple[str, str, int]]:
    for module, tree in _trees().items():
        for node in _statements(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body:
                    yield module, node.name, (body[-1].end_lineno or 0) - body[0].lineno + 1


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements below this node: no expression has a function, and most nodes are of
    expressions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from _statements(child)


def _is_there(path: str) -> bool:
    return (ROOT / "controller" / path).exists() or (ROOT / path).exists()
