"""Common parts of requests that stay open: a stopping controller ends them at once.

Each is registered in the application. Its reader reconnects and continues at its offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from aiohttp import web

from controller.aio import Flag

# Reverse proxies cut quiet streams: nginx after 60 s (proxy_read_timeout).
HEARTBEAT_SECONDS = 10.0
# A reader that answers no close must not hold up the controller's end.
CLOSE_SECONDS = 1.0
PROTOCOL = "fairlead"
TOKEN_PROTOCOL = "fairlead.token."
"""A browser offers `fairlead` and `fairlead.token.TOKEN` as subprotocols; the first is chosen."""
Ending = Callable[[], Awaitable[object]]
STREAMS: web.AppKey[set[Ending]] = web.AppKey("streams", set)


END_SECONDS: web.AppKey[float] = web.AppKey("end_seconds", float)
"""So long readers have for their part of an end. Without it: CLOSE_SECONDS each, and as long as a
reader that stalls takes no byte."""


async def end_streams(app: web.Application) -> None:
    """End all streams; for `on_shutdown`."""
    endings = app[STREAMS]
    # A copy: each stream that ends takes itself out of the set.
    ending = [asyncio.ensure_future(end()) for end in tuple(endings)]
    if not ending:
        return
    await asyncio.wait(ending, timeout=app.get(END_SECONDS))
    for one in ending:
        one.cancel()
    for outcome in await asyncio.gather(*ending, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


class Heartbeat:
    """When a line is due on a stream that has sent nothing, however often its writer was woken."""

    def __init__(self, seconds: float = HEARTBEAT_SECONDS) -> None:
        self._seconds = seconds
        self._now = asyncio.get_running_loop().time
        self._due = self._now() + seconds

    def sent(self) -> None:
        self._due = self._now() + self._seconds

    @property
    def is_due(self) -> bool:
        return self._now() >= self._due

    async def wait(self, changed: Flag) -> bool:
        """Return when `changed` is set; False: a line is due."""
        if self.is_due:
            return False
        try:
            async with asyncio.timeout_at(self._due):
                await changed.wait()
        except TimeoutError:
            return False
        return True


@contextmanager
def registered(request: web.Request, end: Ending) -> Iterator[None]:
    request.app[STREAMS].add(end)
    try:
        yield
    finally:
        request.app[STREAMS].discard(end)


def cancel_this() -> Ending:
    """Return a function that ends the present task."""
    task = asyncio.current_task()
    assert task is not None

    async def cancel() -> None:
        task.cancel()

    return cancel


def reader_may_leave() -> suppress:
    """Suppress aiohttp's errors about a reader that goes away before, in or after a write."""
    # aiohttp raises ClientConnectionResetError on a write to a closing transport.
    return suppress(ConnectionError)
