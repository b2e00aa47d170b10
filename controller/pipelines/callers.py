"""How many wait for a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

ANSWERING_SECONDS = 0.03
"""Whoever was told keeps the event loop busy with his answer, and often comes again at once."""


class Callers:
    """`count`: with those who were told a moment ago."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        self.count += 1
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(ANSWERING_SECONDS, self._leave)

    def _leave(self) -> None:
        self.count -= 1
