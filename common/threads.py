"""Work that is awaited to its end: in a thread, also when its task is cancelled, or several at
once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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


async def together(*works: Awaitable[object]) -> None:
    """Wait until all works have ended; then raise the error of the first one that failed.

    `asyncio.gather` alone would let the others go on after an error, and a TaskGroup would cancel
    them halfway.
    """
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
