"""The history of the runner's states, which can be repeated from any point and followed to the
end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from fairlead.wire.runner import ExitRecord, RunnerState, StartEnd, StatusEvent


class Bell:
    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake all waiting tasks."""
        if self._next is not None:
            waiting, self._next = self._next, None
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self) -> None:
        """Wait for the next ring. If one waiter is cancelled, the others still wait."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next)


HEARTBEAT = 10.0


class StatusLog:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._bell = Bell()
        self._closed = False
        self._events: list[StatusEvent] = []
        self.add(RunnerState.WAITING_FOR_JOB)

    @property
    def latest(self) -> StatusEvent:
        return self._events[-1]

    def add(
        self,
        state: RunnerState,
        *,
        pid: int | None = None,
        exit: ExitRecord | None = None,
        start_end: StartEnd | None = None,
    ) -> None:
        event = StatusEvent(
            seq=len(self._events) + 1,
            at=self._now(),
            state=state,
            pid=pid,
            exit=exit,
            start_end=start_end,
        )
        self._events.append(event)
        self._bell.ring()

    def close(self) -> None:
        """End all followers once they have every event."""
        self._closed = True
        self._bell.ring()

    async def follow(self, after: int, heartbeat: float = HEARTBEAT) -> AsyncIterator[StatusEvent]:
        """Yield events with `seq` above `after`; repeat the last one after `heartbeat` quiet
        seconds."""
        seen = max(0, after)
        while True:
            for event in self._events[seen:]:
                seen = event.seq
                yield event
            if len(self._events) > seen:
                continue
            if self._closed:
                return
            try:
                async with asyncio.timeout(heartbeat):
                    await self._bell.wait()
            except TimeoutError:
                yield self.latest
