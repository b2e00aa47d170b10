"""Frees what a lead that is over has left in memory.

All that was live in it hangs together in circles, which only Python's collector frees. It comes by
itself once the number of objects has grown by a quarter: with 200 live runs, 2.9 MiB for each of
20 lost leads were still there.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time

log = logging.getLogger(__name__)

COLLECT_SECONDS = 10.0
"""So long after the end of a lead, or the begin of the next one: until then requests that waited
are passed on, or done. A collection stops all of this process meanwhile."""
MAX_SECONDS = 60.0
"""A process that leads again and again collects so long after the first end at the latest, unless
it is about to lead then."""


class Garbage:
    """Collects after leads that are over; for the event loop's thread."""

    def __init__(self) -> None:
        self._collecting: asyncio.TimerHandle | None = None
        self._ended_at: float | None = None
        """When the first of the leads ended whose garbage is there, by the loop's clock."""

    def lead_ended(self) -> None:
        """Note that a lead is over, or that a try to lead has failed."""
        now = asyncio.get_running_loop().time()
        if self._ended_at is None:
            self._ended_at = now
        self._collect_at(min(now + COLLECT_SECONDS, self._ended_at + MAX_SECONDS))

    def lead_begins(self) -> None:
        """Note that this process tries to lead: until that has begun or failed, nothing is
        collected."""
        self.close()

    def lead_began(self) -> None:
        if self._ended_at is not None:
            self._collect_at(asyncio.get_running_loop().time() + COLLECT_SECONDS)

    def close(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            self._collecting = None

    def _collect_at(self, at: float) -> None:
        self.close()
        self._collecting = asyncio.get_running_loop().call_at(at, self._collect)

    def _collect(self) -> None:
        self._collecting = self._ended_at = None
        began = time.monotonic()
        gc.collect()
        log.debug("garbage was collected in %.0f ms", (time.monotonic() - began) * 1000)
