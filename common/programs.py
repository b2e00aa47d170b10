"""The console scripts of a node's daemons.

An environment may have the daemons without a node's libraries: then they say which extra brings
them.
"""

from __future__ import annotations

import importlib
import sys

from fairlead.daemons import is_of_an_extra, missing


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
