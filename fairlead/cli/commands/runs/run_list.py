"""`ps`: asks for the list of runs.

The command is in `show`; see `applying` for why this is apart. What shows the list is loaded while
the controller works.
"""

from __future__ import annotations

from functools import partial

from fairlead import settings
from fairlead.cli import quick

_TABLE = "fairlead.cli.commands.runs.run_table"
_USUAL_LIMIT = 100


def ps(
    name: str | None = None,
    *,
    all_: bool = False,
    status: tuple[str, ...] = (),
    user: str | None = None,
    watch: bool = False,
    limit: int = _USUAL_LIMIT,
    json: bool = False,
) -> int:
    """Print the runs. Return the exit status."""
    client = settings.client()
    client.meanwhile(partial(quick.load, _TABLE))
    ask = partial(client.get, "/v1/runs", **parameters(name, all_, status, user, limit))
    answer = None if watch else ask()
    quick.load(_TABLE)
    from fairlead.cli.commands.runs import run_table

    if answer is None:
        run_table.repeat(ask, json=json)
    run_table.show(answer, json=json)
    return 0


def parameters(
    name: str | None, all_: bool, status: tuple[str, ...], user: str | None, limit: int
) -> dict[str, object]:
    """Return what `RunQuery.parameters` does, before its library is loaded."""
    return {
        "name": name,
        "all": all_ or None,
        "status": ",".join(status) or None,
        "user": user,
        "limit": None if limit == _USUAL_LIMIT else limit,
    }
