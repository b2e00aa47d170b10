"""Scrubbing removes values that a run's end made obsolete from the database's files while the
controller works.

A database first records that something is gone; the bytes themselves go later, or never. So the
files are scrubbed soon after a commit that drops values that may be secret. They are not scrubbed
after each such commit, and only for a small share of the time, because the writer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from controller.store.errors import StoreError

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
PAUSE_SHARE = 20.0
"""After a scrub, none follows for this many times its duration."""


class Scrubber:
    """Runs `scrub` soon after it is asked to. `scrub` returns whether it finished; it may raise
    StoreError."""

    def __init__(self, scrub: Callable[[], Awaitable[bool]]) -> None:
        self._scrub = scrub
        self._wanted = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="scrubbing")

    def soon(self) -> None:
        """Ask for a scrub."""
        self._wanted.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        time, pause = asyncio.get_running_loop().time, FIRST_PAUSE_SECONDS
        while True:
            await self._wanted.wait()
            await asyncio.sleep(pause)
            # Cleared before the scrub: what is dropped during it asks for another one.
            self._wanted.clear()
            began = time()
            if await self._is_done():
                pause = max(FIRST_PAUSE_SECONDS, PAUSE_SHARE * (time() - began))
            else:
                self._wanted.set()
                pause = 2 * pause
            pause = min(pause, MAX_PAUSE_SECONDS)

    async def _is_done(self) -> bool:
        try:
            return await self._scrub()
        except StoreError as error:
            log.warning("values of ended runs stay in the database's files for now: %s", error)
            return False
