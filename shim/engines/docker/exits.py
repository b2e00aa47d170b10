"""Which containers run, and how those ended that somebody waits for.

An event is only a hint to inspect a container. When the stream of events ends, anything may have
happened: once it begins again, everything that is waited for is inspected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from shim.engines.base import ContainerState, Exit
from shim.engines.docker import containers, events
from shim.engines.docker.api import Call, NotFound
from shim.engines.docker.dialect import Dialect
from shim.engines.docker.events import Past

Ports = Mapping[int, int]
"""Port of the container → port of the node."""


class Exits:
    """`api` returns the client of the engine."""

    def __init__(self, call: Call, api: Callable[[], Any], dialect: Dialect) -> None:
        self.hints = 0
        """How many hints have come."""
        self._call = call
        self._api = api
        self._dialect = dialect
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._stopped: set[str] = set()
        """Containers with a waiter that got a signal to end."""
        self._seen: set[str] = set()
        """Containers with a waiter whose end was reported as it happened."""
        self._running: dict[str, Ports] = {}
        """Containers that ran at the last listing and had no event since. With many containers, a
        new life of the shim need not ask for each."""

    def hint(self, container_id: str | None) -> None:
        """Handle an event's hint; None: the stream began again."""
        self.hints += 1
        if container_id is None:
            self._running.clear()
        else:
            self._running.pop(container_id, None)
            if container_id in self._waiting:
                self._seen.add(container_id)
        keys = list(self._waiting) if container_id is None else [container_id]
        for key in keys:
            for event in self._waiting.get(key, ()):
                event.set()

    def note_stop(self, container_id: str) -> None:
        if container_id in self._waiting:
            self._stopped.add(container_id)

    def listed(self, running: dict[str, Ports], hints: int) -> None:
        """Take what runs by a listing that began after so many hints."""
        # After an event during the listing, its answer may be older than the event.
        if hints == self.hints:
            self._running = running

    def started(self, container_id: str, hints: int) -> None:
        """Note that the container was seen to run after so many hints."""
        # An end that was told meanwhile may be this one's: then `wait` asks the engine itself.
        if hints == self.hints:
            self._running[container_id] = {}

    def ports(self, container_id: str) -> Ports | None:
        """Return the ports of a container that runs; None: the engine must be asked."""
        return self._running.get(container_id)

    def waits_for(self, container_id: str) -> bool:
        """Return whether a caller waits for the container's end."""
        return container_id in self._waiting

    async def wait(self, container_id: str) -> Exit:
        hint = asyncio.Event()
        self._waiting.setdefault(container_id, set()).add(hint)
        ended: Exit | None = None
        try:
            while ended is None:
                # Cleared before the look: an event during the look must wake the wait after it.
                hint.clear()
                ended = await self._exit_of(container_id)
                if ended is None:
                    await self._wait_for(hint, container_id)
            return ended
        finally:
            self._waiting[container_id].discard(hint)
            if not self._waiting[container_id]:
                del self._waiting[container_id]
                if ended is not None:
                    self.forget(container_id)

    def forget(self, container_id: str) -> None:
        """Forget the container. What was heard is kept until it was reported: the engine may fall
        silent in between."""
        self._stopped.discard(container_id)
        self._seen.discard(container_id)

    async def _wait_for(self, hint: asyncio.Event, container_id: str) -> None:
        """Wait for an event about the container, or until it is time to look again."""
        try:
            async with asyncio.timeout(self._dialect.look_again):
                await hint.wait()
        except TimeoutError:
            # An event may have been lost (`look_again`): without this note, the container is
            # inspected.
            self._running.pop(container_id, None)

    async def _exit_of(self, container_id: str) -> Exit | None:
        if container_id in self._running:
            return None
        try:
            found = await self._call(lambda: self._api().inspect_container(container_id))
        except NotFound:
            # Somebody removed it by hand, and took its exit code along.
            return Exit(exit_code=None, gone=True)
        state = found["State"]
        if containers.state_of(state["Status"]) is not ContainerState.EXITED:
            return None
        past = Past(stopped=container_id in self._stopped)
        # It ended while no stream of events was open: only the engine remembers why.
        if not past.stopped and container_id not in self._seen:
            past = await events.past_of(self._call, self._api(), container_id, self._dialect)
        return Exit(
            exit_code=containers.exit_code_of(state, past),
            oom_killed=bool(state.get("OOMKilled")),
            stopped=past.stopped,
            unseen=past.unseen,
        )
