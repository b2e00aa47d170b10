"""Of aiohttp only what a server needs: it is never a client here, which is the larger half of what
the library loads by itself. Import this before anything that imports aiohttp."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package of which only those parts are loaded that somebody imports. Who asks for anything
    else of it gets the whole."""

    __version__ = ""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(name)
        if PathFinder.find_spec(f"{self.__name__}.{name}", self.__path__) is not None:
            raise AttributeError(name)  # a part, which the import that asks loads next
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def _in_parts(name: str) -> None:
    spec = PathFinder.find_spec(name)
    if spec is None or name in sys.modules:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _Package
    sys.modules[name] = package


_in_parts("aiohttp")
