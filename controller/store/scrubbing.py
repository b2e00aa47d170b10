"""What a run's end has made obsolete leaves the database's files, too, while the controller works.

A database first writes down that something is gone; the bytes themselves go later, or never. So
soon after a commit that drops values that may be secret, the files are scrubbed: not after each,
and for a small share of the time only, since the writer waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from controller.store.base import StoreError

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 30.0
PAUSE_SHARE = 20.0
"""How many times as long as a scrub took nothing is scrubbed."""


class Scrubber:
    """`scrub` says whether all of it is done; it may raise StoreError."""

    def __init__(self, scrub: Callable[[], Awaitable[bool]]) -> None:
        self._scrub = scrub
        self._wanted = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="scrubbing")

    def soon(self) -> None:
        self._wanted.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        time, pause = asyncio.get_running_loop().time, FIRST_PAUSE_SECONDS
        while True:
            await self._wanted.wait()
            await asyncio.sleep(pause)
            self._wanted.clear()
            began = time()
            if await self._is_done():
                pause = max(FIRST_PAUSE_SECONDS, PAUSE_SHARE * (time() - began))
            else:
                self._wanted.set()
                pause = 2 * pause
            pause = min(pause, MOST_PAUSE_SECONDS)

    async def _is_done(self) -> bool:
        try:
            return await self._scrub()
        except StoreError as error:
            log.warning("values of ended runs stay in the database's files for now: %s", error)
            return False
