"""What our agents import, also late, and what an interpreter of ours was stripped of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from entrypoint.runtime.base import SOURCES
from entrypoint.runtime.build import NOT_IN_CONTAINERS, NOT_SHIPPED, OUR_SOURCES, sources_below
from tests.support.ssh_daemon import CHECKOUT

IN_CONTAINERS = OUR_SOURCES
ON_NODES = (*IN_CONTAINERS, "shim", "installer")


def imported_by(sources: tuple[str, ...]) -> list[str]:
    """Each module that these files and folders import anywhere, in functions too, by its name."""
    files = [file for file in shipped(sources) if file.suffix == ".py"]
    return sorted({name for file in files for name in _imports(ast.parse(file.read_text()))})


def shipped(sources: tuple[str, ...]) -> set[Path]:
    """The files of IN_CONTAINERS or ON_NODES that are there."""
    left_out = NOT_IN_CONTAINERS if sources == IN_CONTAINERS else (*NOT_SHIPPED, "installer/bundle")
    return set(sources_below(CHECKOUT, sources, left_out))


def _imports(node: ast.AST) -> Iterator[str]:
    """Without those for type checkers alone."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
    elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        for child in ast.iter_child_nodes(node):
            yield from _imports(child)


def stripped_modules() -> list[str]:
    """Patterns of the names of modules that the runtime is built without."""
    patterns = (SOURCES / "unused-modules.txt").read_text().split()
    return [
        pattern.removeprefix("lib-dynload/").removesuffix(".py").replace("/", ".")
        for pattern in patterns
    ]


IMPORT_ALL = """
import fnmatch, importlib, importlib.abc, json, sys

class Stripped(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in stripped):
            raise ModuleNotFoundError(f"{name} is not in the runtime", name=name)

names, stripped = json.load(sys.stdin)
for name in [name for name in sys.modules if any(fnmatch.fnmatchcase(name, p) for p in stripped)]:
    del sys.modules[name]
sys.meta_path.insert(0, Stripped())
failed = {}
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""
"""A program: it reads a list of modules and one of patterns that it must do without, and prints
which modules it could not import, and why."""
