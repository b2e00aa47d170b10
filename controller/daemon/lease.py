"""Keeps the lease, without which no change of this controller is stored."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable

from controller.daemon.options import Options
from controller.store.base import Store
from controller.store.errors import LeaseLost, StoreUnavailable

log = logging.getLogger(__name__)

# A sixth of the lease's time: a slow disk or a database that restarts costs no lease.
LEASE_RENEWAL_SECONDS = 5.0
SHARED_RENEWAL_SECONDS = 1.0
SURE_SECONDS = 1.0
"""A change that comes later than this before the lease's end is held until the lease is renewed."""


class Leading:
    """Whether this controller surely leads: its lease, of these seconds, is not about to end."""

    def __init__(self, lease_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._seconds = lease_seconds - SURE_SECONDS
        self._renewed_at = -math.inf
        self._is_over = False
        self._known: asyncio.Future[None] | None = None
        """Of those who wait for the next word about the lease."""

    def renewed(self, at: float) -> None:
        self._renewed_at = at
        if self.is_sure():
            self._tell()

    def end(self) -> None:
        """End the waits for a renewal, because none comes: this controller lets its lease run out.

        It still leads surely until the lease's sure time is over.
        """
        self._is_over = True
        self._tell()

    def has_left(self) -> bool:
        """Return whether it waits for no renewal any more."""
        return self._is_over

    def _tell(self) -> None:
        if self._known is not None and not self._known.done():
            self._known.set_result(None)
        self._known = None

    def is_sure(self) -> bool:
        return self.now() - self._renewed_at < self._seconds

    def has_ended(self) -> bool:
        return self.lasts_for() <= 0

    def lasts_for(self) -> float:
        """Return the seconds until the lease runs out without another renewal; below 0: it has."""
        return self._renewed_at + self._seconds + SURE_SECONDS - self.now()

    async def until_ended(self) -> None:
        """Return when the lease has run out: another controller may lead."""
        # A renewal may come during each sleep.
        while not self.has_ended():  # noqa: ASYNC110
            await asyncio.sleep(self.lasts_for())

    async def until_known(self, seconds: float) -> bool:
        """Return whether it surely leads, as soon as that is known, or after so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.is_sure() and not self._is_over:
            if self._known is None:
                self._known = loop.create_future()
            # Not wait_for(), which would cancel the future of all others.
            await asyncio.wait((self._known,), timeout=until - loop.time())
            if loop.time() >= until:
                break
        return self.is_sure()


async def keep_lease(store: Store, every: float, leading: Leading) -> None:
    while True:
        await asyncio.sleep(every)
        # Before the request: the lease counts from when the database renews it, at the earliest.
        began = leading.now()
        try:
            await store.renew_lease()
            leading.renewed(began)
        except LeaseLost:
            raise
        # No reason to stop: each write verifies the lease, so one that was lost meanwhile is found.
        except StoreUnavailable as error:
            log.warning("the lease could not be renewed: %s", error)


@contextlib.asynccontextmanager
async def lease_kept(options: Options, store: Store, leading: Leading) -> AsyncIterator[None]:
    """Renew the lease while this block goes on. One that is lost is noticed by the first write."""
    keeping = asyncio.create_task(keep_lease(store, renewal_seconds(options), leading))
    try:
        yield
    finally:
        await end(keeping)


def renewal_seconds(options: Options) -> float:
    return LEASE_RENEWAL_SECONDS if options.peers is None else SHARED_RENEWAL_SECONDS


async def end(work: asyncio.Task[None]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
