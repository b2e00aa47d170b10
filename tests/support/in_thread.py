"""Serves an asynchronous double beside a test that waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def served_in_thread(double: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Serve a double in a thread: it must answer while its user waits."""
    made: list[T] = []
    is_up, is_over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with double as served:
            made.append(served)
            is_up.set()
            await is_over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    is_up.wait()
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
        loop.close()
