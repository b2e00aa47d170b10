"""Write the file of `entrypoint.module_file`: `PYTHON write_module_file.py ROOT HOME`.

The runtime's own interpreter runs it, because marshalled code is of one version of Python. ROOT is
where the runtime lies, HOME where it will be mounted.
"""

from __future__ import annotations

import ast
import importlib
import marshal
import sys
from pathlib import Path

from entrypoint import main, module_file

_LATER = ("concurrent.futures.thread",)
"""What every job loads after its process has begun."""


def write(root: str, home: str) -> None:
    before = set(sys.modules)
    main.leave_out()
    for name in ("entrypoint.life", *_LATER):
        importlib.import_module(name)
    # Two builds give the same bytes: modules stand in the order in which they are imported.
    found = dict.fromkeys([*(name for name in sys.modules if name not in before), *sorted(before)])
    modules = {}
    for name in found:
        module = sys.modules[name]
        spec = getattr(module, "__spec__", None)
        if spec is None or name == "__main__" or not str(spec.origin).endswith(".py"):
            continue
        source = Path(spec.origin)
        home_path = f"{home}/{source.relative_to(root)}"
        code = compile(_without_docstrings(source), home_path, "exec", dont_inherit=True)
        is_package = spec.submodule_search_locations is not None
        modules[name] = (home_path, is_package, marshal.dumps(code))
    (Path(sys.path[0]) / module_file.PATH).write_bytes(module_file.content(modules))


def _without_docstrings(source: Path) -> ast.Module:
    """Return the module's tree without what nobody reads there: 0.7 MiB of each runner."""
    tree = ast.parse(source.read_bytes(), source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is None:
            continue
        del node.body[0]
        if not node.body and not isinstance(node, ast.Module):
            node.body.append(ast.Pass(lineno=node.lineno, col_offset=node.col_offset))
    return ast.fix_missing_locations(tree)


if __name__ == "__main__":
    write(*sys.argv[1:])
