"""The console scripts of a node's daemons, which pip installs with the client too.

A client's environment lacks their libraries: then they say which extra brings them.
"""

from __future__ import annotations

import importlib
import sys


def shim() -> None:
    _start("fairlead-shim", "shim.main")


def runner() -> None:
    _start("fairlead-runner", "runner.main")


def entrypoint() -> None:
    _start("fairlead-entrypoint", "entrypoint.main")


def _start(program: str, module: str) -> None:
    try:
        importlib.import_module(module).main()
    except ModuleNotFoundError as error:
        if not is_of_an_extra(error):
            raise
        sys.exit(f"{program}: {missing(program, 'node')}")


def missing(command: str, extra: str) -> str:
    """Return the sentence for a command whose libraries are not installed."""
    return (
        f"`{command}` needs more than the client brings: "
        f"install it with `pip install 'fairlead[{extra}]'`"
    )


def is_of_an_extra(error: BaseException | None) -> bool:
    """Return whether a library is missing that only an extra of the package brings."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            top = error.name.partition(".")[0]
            return top not in _OURS and top not in sys.stdlib_module_names
        error = error.__cause__ or error.__context__
    return False


_OURS = frozenset(
    ("common", "controller", "entrypoint", "fairlead", "gateway", "installer", "runner", "shim")
)
