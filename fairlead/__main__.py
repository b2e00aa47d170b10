"""The door of the `fairlead` command, also as `python -m fairlead`.

Our other packages have common names, such as `controller` and `runner`. Folders of the user that
Python searches (PYTHONPATH, the working folder) may hold modules of these names; they must not be
taken for ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_OURS = ("common", "controller", "entrypoint", "installer", "runner", "shim")
_HOME = Path(__file__).resolve().parents[1]


def main() -> None:
    sys.path[:] = without_namesakes(sys.path)
    importlib.import_module("controller.cli.main").main()


def without_namesakes(path: Sequence[str]) -> list[str]:
    """Return the search path without the folders, other than our own, that hold a namesake of one
    of our packages."""
    return [folder for folder in path if _is_ours(folder) or not _has_namesake(folder)]


def _is_ours(folder: str) -> bool:
    try:
        return Path(folder or os.curdir).resolve() == _HOME
    except OSError:
        return False


def _has_namesake(folder: str) -> bool:
    at = folder or os.curdir
    if not os.path.isdir(at):
        return False
    return any(
        os.path.isdir(os.path.join(at, name)) or os.path.isfile(os.path.join(at, f"{name}.py"))
        for name in _OURS
    )


if __name__ == "__main__":
    main()
