"""Finds the runs that client keys made before; the lookups of one moment share a query."""

from __future__ import annotations

import asyncio

from controller.lifecycle.model import RunState
from controller.store.base import Store

Key = tuple[str, str]
"""A user and a client key."""


class EarlierRuns:
    """Most keys are new, and a query for each is a tenth of a submission: so a query asks for all
    keys that came while the last one was under way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted: dict[Key, asyncio.Future[RunState | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def of(self, user: str, client_key: str) -> RunState | None:
        """Return the newest run that this user submitted with this key. Raises StoreUnavailable."""
        key = (user, client_key)
        if key not in self._wanted:
            self._wanted[key] = asyncio.get_running_loop().create_future()
        wanted = self._wanted[key]
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        # Another request may wait for the same key, so this one's end must not cancel it.
        return await asyncio.shield(wanted)

    async def _ask(self) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, {}
                await self._answer(wanted)
        finally:
            self._asking = None

    async def _answer(self, wanted: dict[Key, asyncio.Future[RunState | None]]) -> None:
        try:
            found = await self._store.find_submissions(wanted.keys())
        except Exception as error:
            for future in wanted.values():
                future.set_exception(error)
                # Its request may have been cancelled: then nobody looks.
                future.exception()
            return
        for key, future in wanted.items():
            future.set_result(found.get(key))
