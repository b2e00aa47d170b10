"""Long work on the event loop, with pauses in which everybody else has a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

MOST_AT_A_STRETCH = 32
"""Counted and not timed, so that equal runs of a simulation stay equal."""


async def in_stretches(items: Iterable[T]) -> AsyncIterator[T]:
    """`items` must not change meanwhile."""
    for number, item in enumerate(items):
        if number and number % MOST_AT_A_STRETCH == 0:
            await asyncio.sleep(0)
        yield item
