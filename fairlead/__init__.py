"""The Python client of Fairlead; the `fairlead` command is built on it.

    from fairlead import Client, Task
    run = Client().submit(Task(commands=["echo hello"])).wait()

`Client` and `AsyncClient` are the doors; `views` has the types of what they return. `rest` has one
method for each kind of request, `submission` makes a run of a YAML file, `follow` reads streams
over connections that break.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.asynchronous import AsyncClient, AsyncRun
    from fairlead.client import Client, Output, Run
    from fairlead.errors import (
        ApiError,
        ClientClosed,
        Conflict,
        ConnectionLost,
        Expired,
        FairleadError,
        InvalidConfiguration,
        NotAllowed,
        NotFound,
        NotLoggedIn,
        OutputsMissing,
        PortTaken,
        RunFailed,
        SettingsError,
        UnexpectedAnswer,
        UsageError,
    )
    from fairlead.forward import LocalPort
    from fairlead.offers import Offer
    from fairlead.task import Task

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncRun",
    "Client",
    "ClientClosed",
    "Conflict",
    "ConnectionLost",
    "Expired",
    "FairleadError",
    "InvalidConfiguration",
    "LocalPort",
    "NotAllowed",
    "NotFound",
    "NotLoggedIn",
    "Offer",
    "Output",
    "OutputsMissing",
    "PortTaken",
    "Run",
    "RunFailed",
    "SettingsError",
    "Task",
    "UnexpectedAnswer",
    "UsageError",
]

_HOMES = {
    "AsyncClient": "asynchronous",
    "AsyncRun": "asynchronous",
    "Client": "client",
    "LocalPort": "forward",
    "Offer": "offers",
    "Output": "client",
    "Run": "client",
    "Task": "task",
}


if not TYPE_CHECKING:  # for a type checker, every name would be there

    def __getattr__(name: str) -> object:
        """Import a name when it is used first: the command needs few of them, and soon."""
        if name not in __all__:
            raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
        _refuse_other_modules()
        module = importlib.import_module(f"fairlead.{_HOMES.get(name, 'errors')}")
        return getattr(module, name)


def _refuse_other_modules() -> None:
    """Raise ImportError when a module of the user's has the name of a package that this one needs.

    A program's own folder comes first on the path: `controller.py` beside it hides ours.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in ("common", "controller", "runner", "shim"):
        found = importlib.util.find_spec(name)
        places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
        places = [place for place in places if place is not None]
        if places and not any(Path(one).resolve().is_relative_to(ours / name) for one in places):
            raise ImportError(
                f"fairlead needs its own package {name!r}, but {places[0]} has that name and comes "
                f"first on the path: rename it, or import fairlead from another folder",
                name=name,
            )


def __dir__() -> list[str]:
    return __all__
