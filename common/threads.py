"""Work in a thread that is awaited to its end, also when its task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(working: asyncio.Future[T], abandon: Callable[[], None] | None = None) -> T:
    """Return the result of work in a thread, and raise its errors.

    A thread cannot be cancelled. A cancelled task that went on at once would leave a side effect
    that comes late: a file after its removal, a mount after its release. So it first waits for the
    end. `abandon` asks the work to end soon.
    """
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if abandon is not None:
            abandon()
        await asyncio.wait((working,))
        if not working.cancelled():
            working.exception()  # asyncio logs an error that nobody took
        raise
