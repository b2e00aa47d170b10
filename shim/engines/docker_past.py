"""What the Docker engine remembers of a container that ended while nobody listened.

It keeps the latest few hundred events of its own life. An end that it does not remember lies before
that life, and an engine that is stopped takes its containers along, unless live-restore is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from shim.engines.base import EngineError, EngineUnavailable

ENDING_SIGNALS = frozenset({"15", "9", "SIGTERM", "SIGKILL"})
REMEMBERED = 256
"""Events that every engine keeps at least."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """`stopped`: the container was sent a signal to end it. `unseen`: it ended before the engine's
    present life began, maybe together with the one before."""

    stopped: bool = False
    unseen: bool = False


class Call(Protocol):
    """One act of docker-py, its errors in the engine's words."""

    async def __call__(self, act: Callable[[], Any], /) -> Any: ...


async def past_of(call: Call, api: Any, container_id: str) -> Past:
    """Nothing is known when the engine does not tell. Raises EngineUnavailable."""
    try:
        info = await call(api.info)
        now = datetime.fromisoformat(info["SystemTime"]).timestamp()
        span = {"since": 0, "until": f"{now:.6f}"}
        events = await call(lambda: list(api.events(decode=True, **span)))
    except EngineUnavailable:
        raise
    except (EngineError, KeyError, ValueError):
        return Past()
    return judge(events, container_id, live_restore=bool(info.get("LiveRestoreEnabled")))


def judge(events: Iterable[Mapping[str, Any]], container_id: str, *, live_restore: bool) -> Past:
    """From all events of the engine's life, or the latest of them."""
    all_of_them = list(events)
    own = [one for one in all_of_them if subject(one) == container_id]
    is_told = any(one.get("Action") == "die" for one in own)
    return Past(
        stopped=any(ends_it(one) for one in own),
        unseen=not is_told and not live_restore and len(all_of_them) < REMEMBERED,
    )


def subject(event: Mapping[str, Any]) -> str | None:
    """The container that it is about."""
    return (event.get("Actor") or {}).get("ID") or event.get("id")


def ends_it(event: Mapping[str, Any]) -> bool:
    """Whether it is a signal to the container that ends it."""
    attributes = (event.get("Actor") or {}).get("Attributes") or {}
    return event.get("Action") == "kill" and attributes.get("signal") in ENDING_SIGNALS
