"""Replicas on their way to the fast path: one task each, and why it has failed so far."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from common.proxy.view import Replica

log = logging.getLogger(__name__)


class Preparations:
    """Holds the task that makes a replica a server, or waits until it answers again, and what was
    last logged about it."""

    def __init__(self) -> None:
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._logged: dict[str, str] = {}

    def has(self, replica: Replica) -> bool:
        return replica in self._tasks

    def all(self) -> list[Replica]:
        return list(self._tasks)

    def start(self, replica: Replica, doing: Coroutine[None, None, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            # A replica that is suspected gets a second task while the first one still ends.
            if self._tasks.get(replica) is task:
                del self._tasks[replica]

        self._tasks[replica] = asyncio.create_task(doing, name=f"fast path to {replica.id}")
        self._tasks[replica].add_done_callback(ended)

    def worked(self, replica: Replica) -> None:
        self._logged.pop(replica.id, None)

    def failed(self, replica: Replica, error: Exception) -> None:
        """Log why there is no server; the same reason only once."""
        if self._logged.get(replica.id) != str(error):
            self._logged[replica.id] = str(error)
            log.warning("no fast path to replica %s: %s", replica.id, error or "no answer")

    def forget_others(self, ids: set[str]) -> None:
        self._logged = {id: why for id, why in self._logged.items() if id in ids}

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
