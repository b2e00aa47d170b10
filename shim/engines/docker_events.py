"""The one thread that reads the Docker engine's events.

docker-py's stream *ends without an exception* when the engine dies, so an end is a loss: the thread
connects again, with growing pauses, and says so, since events were missed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import docker.errors

from shim.engines import docker_past

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class EventFollower:
    """`on_hint(container_id)` is called in the loop for each event, `on_hint(None)` after each
    (re)connection, `on_stop(container_id)` before it for a signal that ends a container."""

    def __init__(
        self,
        subscribe: Callable[[], Any],
        on_hint: Callable[[str | None], None],
        on_stop: Callable[[str], None],
        lost: tuple[type[Exception], ...],
    ) -> None:
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
        """Returns once the first subscription stands."""
        self._loop = asyncio.get_running_loop()
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
                if self._stop.is_set():
                    self._cut()
                    return
                self._tell(self._came)
                pause = _FIRST_PAUSE
                for event in self._stream:
                    container_id = docker_past.subject(event)
                    if event.get("Action") != "kill":
                        self._tell(self._on_hint, container_id)
                    elif docker_past.ends_it(event):
                        self._tell(self._on_stop, container_id)
            except self._lost as error:
                log.debug("events: %s", error)
            self._cut()
            self._tell(self._is_connected.clear)
            if not self._stop.is_set():
                log.warning("the Docker engine's events ended: connecting again")
            self._stop.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _came(self) -> None:
        self._is_connected.set()
        self._on_hint(None)

    def _cut(self) -> None:
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(Exception):
                stream.close()

    def _tell(self, act: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *args)
