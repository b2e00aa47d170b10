"""Sends items to a receiver over HTTP, in batches and in order, and waits for nobody else."""

from __future__ import annotations

import asyncio
import logging
import time
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
MAX_CUTS = 40
"""Cuts of one refused batch. A bad line among 5000 takes 13."""
TELL_SECONDS = 60.0
_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 1.0, 30.0
_MAX_ANSWER = 64 << 10


class Refused(Exception):
    """An answer says that the receiver took all but `count` items; the message is its reason."""

    def __init__(self, count: int, why: str) -> None:
        super().__init__(why)
        self.count = count


class Sink(Generic[T]):
    """One receiver. `encode` writes the document of a batch; `headers` may have secrets.

    `is_cut`: a refused batch (400) is sent again in halves, so that only its bad items are dropped.
    `read`: raises Refused for an answer that tells of refused items. `done`: hears of the items
    that the receiver got or refused, in their order.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        encode: Callable[[Sequence[T]], bytes],
        jitter: Callable[[], float],
        *,
        is_cut: bool = False,
        read: Callable[[bytes], None] = lambda _: None,
        done: Callable[[Sequence[T]], None] = lambda _: None,
    ) -> None:
        self.sent = 0
        self.dropped = 0
        """Items that the receiver refused, or for which there was no room."""
        self.room = asyncio.Event()
        """Set while more is to be added."""
        self.room.set()
        self._url = url
        self._headers = {**headers, "Content-Type": "application/json"}
        self._encode = encode
        self._is_cut = is_cut
        self._read = read
        self._done = done
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._pieces: list[int] = []
        """The counts of the pieces of a batch that was refused."""
        self._cuts = 0
        self._takes_some = True
        """Whether the receiver took any piece of the last batch that was cut. One that takes
        nothing gets no pieces until it takes something."""
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS, jitter)
        self._is_away = False
        self._unreported = 0
        self._reported_at = float("-inf")

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def add(self, item: T, size: int) -> None:
        """Take an item of about so many bytes. Wait for `room` first where items can wait."""
        self._items.append((item, size))
        self._bytes += size
        if self._bytes >= MAX_WAITING_BYTES:
            self.room.clear()

    def offer(self, item: T, size: int) -> None:
        """Take an item, or drop it if there is no room."""
        if self._bytes + size > MAX_WAITING_BYTES:
            self.dropped += 1
        else:
            self.add(item, size)

    async def run(self) -> None:
        """Send until cancelled."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while True:
                if await self._send_safely(session):
                    self._backoff.reset()
                    if not self._items:
                        # Lines that come together go together: receivers count requests, and some
                        # charge for them.
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
        count = self._pieces[0] if self._pieces else self._batch()
        if not count:
            return True
        items = [self._items[index][0] for index in range(count)]
        document = self._encode(items)
        try:
            # A redirect could carry the headers' secrets elsewhere.
            async with session.post(
                self._url, data=document, headers=self._headers, allow_redirects=False
            ) as answer:
                status, body = answer.status, await answer.content.read(_MAX_ANSWER)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._note(f"{type(error).__name__}")
            return False
        # These are worth another try (RFC 6585, 4; RFC 9110, 15.6); another refusal would come
        # again.
        if status == 429 or status >= 500:
            self._note(f"HTTP {status}")
            return False
        if status < 300:
            self._accepted(count, body)
        elif status == 400 and self._may_cut(count):
            self._cut(count)
            return True
        else:
            self._refused(count, f"HTTP {status}: {_first_line(body)}")
        self._forget(count)
        self._done(items)
        return True

    def _batch(self) -> int:
        """Return how many items the next batch has."""
        count = size = 0
        for _, each in self._items:
            count, size = count + 1, size + each
            if size >= BATCH_BYTES:
                break
        self._cuts = 0
        return count

    def _may_cut(self, count: int) -> bool:
        return (
            self._is_cut
            and count > 1
            and self._cuts < MAX_CUTS
            and (self._takes_some or bool(self._pieces))
        )

    def _cut(self, count: int) -> None:
        """Let the next batches be its halves. Loki has stored the good lines of a refused batch,
        names one of the bad ones alone, and ignores a line that it has (same stream, time and
        text)."""
        if not self._pieces:
            self._pieces, self._takes_some = [count], False
        self._pieces[0:1] = [count // 2, count - count // 2]
        self._cuts += 1

    def _accepted(self, count: int, body: bytes) -> None:
        refused = 0
        try:
            self._read(body)
        except Refused as error:
            refused = min(count, error.count)
            self._refused(refused, str(error))
        self.sent += count - refused
        self._takes_some = True
        if self._is_away:
            log.info("%s takes copies again", self._url)
        self._is_away = False

    def _refused(self, count: int, why: str) -> None:
        self.dropped += count
        self._unreported += count
        now = time.monotonic()
        if now - self._reported_at >= TELL_SECONDS:
            log.warning(
                "%s refuses %d copies, which are dropped: %s", self._url, self._unreported, why
            )
            self._reported_at, self._unreported = now, 0

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self._bytes -= self._items.popleft()[1]
        if self._pieces:
            self._pieces.pop(0)
        if self._bytes < MAX_WAITING_BYTES // 2:
            self.room.set()

    def _note(self, why: str) -> None:
        """Say it once for each time that the receiver is away."""
        if not self._is_away:
            self._is_away = True
            log.warning("copies for %s wait: %s", self._url, why)


def _first_line(body: bytes) -> str:
    return body.decode(errors="replace").strip().partition("\n")[0][:200]
