"""Waiting for what has no event to wait for, with a deadline. Only tests may poll."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
_PAUSE = 0.01
LONG = 120.0
"""Seconds; what takes so long on the slowest and busiest machine is broken. It is the limit of all
that must happen, since only a test that fails pays it."""


def wait_until(condition: Callable[[], T], timeout: float = LONG, what: str = "") -> T:
    """The first true value of `condition`. Raises TimeoutError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what or condition}")
        pause.wait(_PAUSE)
    return value


async def eventually(
    condition: Callable[[], Awaitable[T] | T],
    timeout: float = LONG,  # noqa: ASYNC109 (it ends a poll; nothing is cancelled)
    what: str = "",
) -> T:
    """The same inside an event loop; `condition` may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        value = await answer if isinstance(answer, Awaitable) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what or condition}")
        await asyncio.sleep(_PAUSE)
