"""Sends items to a receiver over HTTP, in batches and in order, and loses them rather than wait."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import aiohttp

from controller.aio import Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAITING_BYTES = 16 << 20
"""What waits while the receiver is away or slow."""
BATCH_BYTES = 1 << 20
EVERY_SECONDS = 1.0
_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 1.0, 30.0


class Sink(Generic[T]):
    """One receiver. `encode` writes the document of a batch; `headers` may have secrets."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        encode: Callable[[Sequence[T]], bytes],
        jitter: Callable[[], float],
    ) -> None:
        self.sent = 0
        self.dropped = 0
        """Items that the receiver refused, or for which there was no room."""
        self._url = url
        self._headers = {**headers, "Content-Type": "application/json"}
        self._encode = encode
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS, jitter)
        self._is_away = False

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def add(self, item: T, size: int) -> None:
        """Take an item of about so many bytes, or drop it."""
        if self._bytes + size > MAX_WAITING_BYTES:
            self.dropped += 1
            return
        self._items.append((item, size))
        self._bytes += size

    async def run(self) -> None:
        """Send until cancelled."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while True:
                if await self._send_safely(session):
                    self._backoff.reset()
                    if not self._items:
                        await asyncio.sleep(EVERY_SECONDS)
                else:
                    await self._backoff.wait()

    async def _send_safely(self, session: aiohttp.ClientSession) -> bool:
        try:
            return await self.send(session)
        # A fault in copies must not end the controller.
        except Exception:
            log.exception("copies for %s", self._url)
            return False

    async def send(self, session: aiohttp.ClientSession) -> bool:
        """Send one batch; return False if it is to be sent again later."""
        count = size = 0
        for _, each in self._items:
            count, size = count + 1, size + each
            if size >= BATCH_BYTES:
                break
        if not count:
            return True
        document = self._encode([self._items[index][0] for index in range(count)])
        try:
            # A redirect could carry the headers' secrets elsewhere.
            async with session.post(
                self._url, data=document, headers=self._headers, allow_redirects=False
            ) as answer:
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._note(f"{type(error).__name__}")
            return False
        if status == 429 or status >= 500:
            self._note(f"HTTP {status}")
            return False
        if status >= 300:
            self._note(f"it refuses what it gets: HTTP {status}")
            self.dropped += count
        else:
            self.sent += count
            if self._is_away:
                log.info("%s takes copies again", self._url)
            self._is_away = False
        for _ in range(count):
            self._items.popleft()
        self._bytes -= size
        return True

    def _note(self, why: str) -> None:
        """Say it once for each time that the receiver is away."""
        if not self._is_away:
            self._is_away = True
            log.warning(
                "copies for %s wait, and are dropped when there is no room: %s", self._url, why
            )
