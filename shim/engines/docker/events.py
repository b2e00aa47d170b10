"""A thread reads the Docker engine's events; the engine's own memory fills the gaps.

docker-py's stream ends without an exception when the engine dies. So an end is a loss: the thread
connects again with growing pauses and reports that events were missed. The engine remembers a few
hundred events of its own life; an end that it does not remember lies before that life.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import docker.errors
import msgspec

from shim.engines.base import EngineUnavailable
from shim.engines.docker.api import Call
from shim.engines.docker.dialect import DOCKER, Dialect
from shim.errors import EngineError

ENDING_SIGNALS = frozenset({"15", "9", "SIGTERM", "SIGKILL"})
REMEMBERED = 256
"""The number of events that every engine keeps at least."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's memory of a container's end.

    `stopped`: the container got a signal to end. `unseen`: it ended before the engine's present
    life, perhaps together with the previous one. Not `remembered`: no event of the present life
    tells of the end, so the exit code may not be the container's own.
    """

    stopped: bool = False
    unseen: bool = False
    remembered: bool = True


async def past_of(call: Call, api: Any, container_id: str, dialect: Dialect = DOCKER) -> Past:
    """Return what the engine remembers; nothing when it does not answer that. Raises
    EngineUnavailable."""
    try:
        info = await call(api.info)
        now = datetime.fromisoformat(info["SystemTime"]).timestamp()
        # Without `until` the stream never ends. The time is the engine's: our clock may be ahead.
        asked: dict[str, Any] = {"since": 0, "until": f"{now:.6f}"}
        if dialect.filters_past:
            asked["filters"] = {"container": container_id}
        events = await call(lambda: list(api.events(decode=True, **asked)))
    # Before its base EngineError: the driver waits for the engine and asks again.
    except EngineUnavailable:
        raise
    except (EngineError, KeyError, ValueError):
        return Past()
    return judge(
        events,
        container_id,
        live_restore=bool(info.get("LiveRestoreEnabled")),
        names_signals=dialect.names_signals,
    )


def judge(
    events: Iterable[Mapping[str, Any]],
    container_id: str,
    *,
    live_restore: bool,
    names_signals: bool = True,
) -> Past:
    """Return the past from all events of the engine's life, or the latest of them."""
    all_of_them = list(events)
    own = [one for one in all_of_them if subject(one) == container_id]
    has_died = any(one.get("Action") == "die" for one in own)
    # With fewer events than it keeps, the engine has forgotten none of its present life.
    remembered = has_died or len(all_of_them) >= REMEMBERED
    return Past(
        stopped=any(ends_it(one, names_signals=names_signals) for one in own),
        unseen=not remembered and not live_restore,
        remembered=remembered,
    )


def subject(event: Mapping[str, Any]) -> str | None:
    """Return the container that the event is about."""
    return (event.get("Actor") or {}).get("ID") or event.get("id")


def ends_it(event: Mapping[str, Any], *, names_signals: bool = True) -> bool:
    """Return whether the event is a signal to the container that ends it; without a name, each
    signal counts."""
    attributes = (event.get("Actor") or {}).get("Attributes") or {}
    if event.get("Action") != "kill":
        return False
    return not names_signals or attributes.get("signal") in ENDING_SIGNALS


log = logging.getLogger(__name__)
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 5.0


class EventFollower:
    """Follows the engine's events.

    `on_hint(container_id)` is called in the loop for each event, `on_hint(None)` after each
    (re)connection, and before them `on_stop(container_id)` for a signal that ends a container.
    """

    def __init__(
        self,
        subscribe: Callable[[], Any],
        on_hint: Callable[[str | None], None],
        on_stop: Callable[[str], None],
        lost: tuple[type[Exception], ...],
        dialect: Dialect = DOCKER,
    ) -> None:
        self._dialect = dialect
        self._subscribe = subscribe
        self._on_hint = on_hint
        self._on_stop = on_stop
        engine: type[Exception] = docker.errors.DockerException
        self._lost: tuple[type[Exception], ...] = (*lost, engine, OSError, ValueError)
        self._stop = threading.Event()
        self._stream: Any = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_connected = asyncio.Event()

    async def open(self) -> None:
        """Start; return once the first subscription works."""
        self._loop = asyncio.get_running_loop()
        # A daemon: a read that never returns must not hold up the end of the process.
        self._thread = threading.Thread(target=self._follow, name="shim-docker-events", daemon=True)
        self._thread.start()
        await self._is_connected.wait()

    async def connected(self) -> None:
        await self._is_connected.wait()

    async def close(self) -> None:
        self._stop.set()
        self._cut()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._stream = self._subscribe()
                # `close` came during the subscription, and found no stream that it could cut.
                if self._stop.is_set():
                    self._cut()
                    return
                self._tell(self._came)
                pause = _FIRST_PAUSE
                for event in self._stream:
                    container_id = subject(event)
                    if event.get("Action") != "kill":
                        self._tell(self._on_hint, container_id)
                    elif ends_it(event, names_signals=self._dialect.names_signals):
                        self._tell(self._on_stop, container_id)
            except self._lost as error:
                log.debug("events: %s", error)
            self._cut()
            self._tell(self._is_connected.clear)
            if not self._stop.is_set():
                log.warning("the %s engine's events ended: connecting again", self._dialect.name)
            self._stop.wait(pause)
            pause = min(pause * 2, _MAX_PAUSE)

    def _came(self) -> None:
        self._is_connected.set()
        self._on_hint(None)

    def _cut(self) -> None:
        stream = self._stream
        if stream is not None:
            # docker-py reaches for the socket below the response, which the reading thread may
            # close.
            with contextlib.suppress(Exception):
                stream.close()

    def _tell(self, act: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        # The loop may have ended, and with it everybody who would hear of this.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *args)
