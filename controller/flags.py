"""Events of which there are a dozen for each of thousands of nodes and jobs.

asyncio's has room for 64 waiters from the start, three quarters of a KiB; these have one or two.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast


class Flag(asyncio.Event):
    """An `asyncio.Event` that is small while few wait for it."""

    def __init__(self) -> None:
        super().__init__()
        make_small(self)


def make_small(event: asyncio.Event) -> None:
    """Without effect while somebody waits."""
    inside = cast(Any, event)
    if not inside._waiters:
        inside._waiters = []
