"""The commands and programs that come with the daemons' distribution and not with the client.

They are found by their entry points or their names, so nothing here imports a daemon. Without them,
or without the libraries of their extra, each says what to install.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from fairlead.errors import FairleadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import Distribution
    from typing import Any

DISTRIBUTION = "fairlead-daemons"
GROUP = "fairlead.commands"
"""The entry points of that distribution: a command's words, joined by dots, and its function."""
EXTRAS = {
    "controller": "controller",
    "node.install": "controller",
    "node.upgrade": "controller",
    "apply.fleet": "controller",
    "gateway.run": "gateway",
    "gateway.setup": "gateway",
}
"""The extra of that distribution that brings a command's libraries."""


class DaemonsMissing(FairleadError):
    """A command needs the daemons' distribution, which is not installed."""


def entry_point_of(command: str) -> str:
    """Return MODULE:FUNCTION of a command of the daemons. Raises DaemonsMissing."""
    found = _distribution()
    for entry in found.entry_points if found else ():
        if entry.group == GROUP and entry.name == command:
            sys.path[:] = without_namesakes(sys.path, packages())
            return entry.value
    raise DaemonsMissing(missing(f"fairlead {command.replace('.', ' ')}", EXTRAS[command]))


def load(command: str) -> Callable[..., Any]:
    """Import a command of the daemons and return its function. Raises DaemonsMissing."""
    import importlib

    module, _, function = entry_point_of(command).partition(":")
    made: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return made


def shim() -> None:
    """Run the console script of the shim."""
    _run("fairlead-shim", "shim.main")


def runner() -> None:
    """Run the console script of the runner."""
    _run("fairlead-runner", "runner.main")


def entrypoint() -> None:
    """Run the console script of the entrypoint."""
    _run("fairlead-entrypoint", "entrypoint.main")


def _run(program: str, module: str) -> None:
    import importlib

    try:
        importlib.import_module(module).main()
    except ModuleNotFoundError as error:
        if not is_of_an_extra(error):
            raise
        sys.exit(f"{program}: {missing(program, 'node')}")


def missing(command: str, extra: str) -> str:
    """Return the sentence for a command whose program or libraries are not installed."""
    return (
        f"`{command}` needs more than the client brings: "
        f"run `pip install . './daemons[{extra}]'` in a checkout of Fairlead"
    )


def is_of_an_extra(error: BaseException | None) -> bool:
    """Return whether a library is missing that only an extra brings."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            top = error.name.partition(".")[0]
            return top not in ("fairlead", *packages()) and top not in sys.stdlib_module_names
        error = error.__cause__ or error.__context__
    return False


def packages() -> tuple[str, ...]:
    """Return the top-level packages of the daemons; none: they are not installed."""
    found = _distribution()
    return tuple((found.read_text("top_level.txt") or "").split()) if found else ()


def without_namesakes(path: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the search path without the folders, other than our own, that hold a namesake of one
    of these packages.

    The daemons' packages have common names, such as `controller` and `runner`. Folders of the user
    that Python searches (PYTHONPATH, the working folder) may hold modules of these names.
    """
    return [folder for folder in path if _is_ours(folder) or not _has_namesake(folder, names)]


def _is_ours(folder: str) -> bool:
    from pathlib import Path

    try:
        # An empty entry of sys.path is the working folder.
        return Path(folder or os.curdir).resolve() == Path(__file__).resolve().parents[1]
    # resolve() asks for the working folder, which may have been removed (getcwd(3), ENOENT).
    except OSError:
        return False


def _has_namesake(folder: str, names: Sequence[str]) -> bool:
    at = folder or os.curdir
    if not os.path.isdir(at):
        return False
    return any(
        os.path.isdir(os.path.join(at, name)) or os.path.isfile(os.path.join(at, f"{name}.py"))
        for name in names
    )


def _distribution() -> Distribution | None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(DISTRIBUTION)
    # A user's environment has the client alone.
    except PackageNotFoundError:
        return None
