"""The Python client of Fairlead; the `fairlead` command is built on it.

    from fairlead import Client, Task
    run = Client().submit(Task(commands=["echo hello"])).wait()

`Client` and `AsyncClient` are the doors; `rest` has one method for each kind of request,
`submission` makes a run of a YAML file, `follow` reads streams over connections that break.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
        RunFailed,
        SettingsError,
        UnexpectedAnswer,
        UsageError,
    )
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
    "NotAllowed",
    "NotFound",
    "NotLoggedIn",
    "Output",
    "OutputsMissing",
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
    "Output": "client",
    "Run": "client",
    "Task": "task",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is used first: the command needs few of them, and soon."""
    if name not in __all__:
        raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
    module = importlib.import_module(f"fairlead.{_HOMES.get(name, 'errors')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
