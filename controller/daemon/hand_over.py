"""A leader whose disk is full hands over to a controller whose disk has room, and follows it."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from controller.disk import LOOK_SECONDS, Disk
from controller.store.base import Sight, Store
from controller.store.errors import StoreUnavailable
from controller.store.peers import Peers

log = logging.getLogger(__name__)


class HandOver:
    """`is_due`: this controller leads, its disk is full, and another one has room. `peers`: None if
    no other one can take its place."""

    def __init__(self, disk: Disk, peers: Peers | None) -> None:
        self.disk = disk
        self.is_due = asyncio.Event()
        self._peers = peers

    async def watch(self, store: Store) -> None:
        """Look until it is due, while this controller leads."""
        self.is_due.clear()
        before: Sight | None = None
        while self._peers is not None and not self.is_due.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            # Without the database no other controller can lead.
            with contextlib.suppress(StoreUnavailable):
                sight = await store.peers() if self.disk.is_full else None
                if sight is None:
                    continue
                if before and sight.gives_lead_away(self._peers.id, self.disk.free, before):
                    log.warning("this controller hands over: another one's disk has room")
                    self.is_due.set()
                before = before or sight
