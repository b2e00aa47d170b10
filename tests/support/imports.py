"""What our agents import, also late, and what an interpreter of ours was stripped of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from entrypoint.runtime.base import SOURCES
from installer.bundle.build import BUILD_ONLY
from tests.support.ssh_daemon import CHECKOUT

IN_CONTAINERS = ("common", "runner", "entrypoint")
ON_NODES = (*IN_CONTAINERS, "shim", "installer")


def imported_by(packages: tuple[str, ...]) -> list[str]:
    """Each module that the packages import anywhere, in functions too, by its name."""
    left_out = [CHECKOUT / folder for folder in BUILD_ONLY]
    files = [
        file
        for package in packages
        for file in (CHECKOUT / package).rglob("*.py")
        if not any(file.is_relative_to(folder) for folder in left_out)
    ]
    return sorted({name for file in files for name in _imports(ast.parse(file.read_text()))})


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


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
