"""Wakes everybody who waits for "something changed", without polling and without queues.

A waiter looks at the state first, takes a ticket *before* it looks if it may miss a change, and
waits; ringing with nobody waiting costs one attribute read.

Whoever only rings may do so before asyncio, which takes long, is loaded (see `early`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Bell:
    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake all who wait now."""
        if self._next is not None:
            waiting, self._next = self._next, None
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self) -> None:
        """Until the next ring. One waiter's cancellation does not disturb the others."""
        import asyncio

        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next)
