"""Cuts those who follow a log when they lose the right to it, however quiet the log is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import msgspec
from aiohttp import web

from controller.forwarding.reads import Proof

LOOK_SECONDS = 5.0
"""Between two looks at the rights of all readers."""
UNKNOWN_SECONDS = 60.0
"""A log or a watch does not go on when the database has told nothing about rights for so long."""

IsAllowed = Callable[[web.Request, str], Awaitable[bool | None]]
"""Returns whether the request's user may see the run with this id; None: nobody knows now."""


async def _pause() -> None:
    await asyncio.sleep(LOOK_SECONDS)


class _Readers(msgspec.Struct):
    """Those who follow logs of one run with one proof: their right is looked up once."""

    run_id: str
    known_at: float
    requests: list[web.Request]

    def cut(self) -> None:
        for request in self.requests:
            # They must not take what they have for the whole log.
            if request.transport is not None:
                request.transport.abort()


class ReaderRights:
    """Looks at the rights of all that are watched, while there are any."""

    def __init__(self, is_allowed: IsAllowed) -> None:
        self._is_allowed = is_allowed
        self._readers: dict[tuple[Proof, str], _Readers] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watched(self, request: web.Request, proof: Proof, run_id: str) -> Iterator[None]:
        """Cut the request's connection within some seconds of the loss of its right."""
        key = (proof, run_id)
        readers = self._readers.get(key)
        if readers is None:
            now = asyncio.get_running_loop().time()
            readers = self._readers[key] = _Readers(run_id, now, [])
        readers.requests.append(request)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            readers.requests.remove(request)
            if not readers.requests:
                del self._readers[key]
            if not self._readers:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        """Until cancelled."""
        while True:
            await _pause()
            # A copy: readers come and go meanwhile.
            for readers in tuple(self._readers.values()):
                if readers.requests:
                    await self._look_at(readers)

    async def _look_at(self, readers: _Readers) -> None:
        asked_at = asyncio.get_running_loop().time()
        # All of these requests have the same proof.
        is_allowed = await self._is_allowed(readers.requests[0], readers.run_id)
        if is_allowed:
            readers.known_at = asked_at
        elif is_allowed is False or asked_at - readers.known_at >= UNKNOWN_SECONDS:
            readers.cut()
