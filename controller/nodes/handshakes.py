"""How many nodes are being connected to at once.

A handshake, and reading what the node has, costs the event loop some milliseconds; a thousand of
them together, after a cut of the network, would hold up everything else. Who waits for the network
holds nobody up, though: a slot is lent for a short time only, so that dead hosts don't keep the
living from coming back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 12
LENT_SECONDS = 2.0


class Handshakes:
    def __init__(self, at_once: int = AT_ONCE, lent: float = LENT_SECONDS) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._lent = lent

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """First come, first served."""
        await self._free.acquire()
        lent = True

        def give_back() -> None:
            nonlocal lent
            if lent:
                lent = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._lent, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()
