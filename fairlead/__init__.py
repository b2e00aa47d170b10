"""The Python client of Fairlead; the `fairlead` command is built on it.

    from fairlead import Client, Task
    run = Client().submit(Task(commands=["echo hello"])).wait()

Begin with `Client` or `AsyncClient`; `views` has the types of what they return. `rest` has one
method for each kind of request, `submission` makes a run of a YAML file, `follow` reads streams
over connections that break. `files`, `connections` and `summaries` are rooms behind them. The
daemons build on `wire`, `model`, `documents` and `configuration`, so an import of this package
alone must load nothing.
"""

from __future__ import annotations

import importlib

# Not of `typing`, which takes 3 ms to load: a type checker knows the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.asynchronous import AsyncClient, AsyncRun
    from fairlead.client import Client
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
    from fairlead.run import Output, Result, Run
    from fairlead.summaries.offers import Offer
    from fairlead.task import Task
    from fairlead.version import __version__ as __version__

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
    "Result",
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
    "Offer": "summaries.offers",
    "Output": "run",
    "Result": "run",
    "Run": "run",
    "Task": "task",
    "__version__": "version",
}


if not TYPE_CHECKING:  # for a type checker, every name would be there

    def __getattr__(name: str) -> object:
        """Import a name when it is used first: the command needs few of them, and soon."""
        if name not in __all__ and name not in _HOMES:
            raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
        module = importlib.import_module(f"fairlead.{_HOMES.get(name, 'errors')}")
        return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
