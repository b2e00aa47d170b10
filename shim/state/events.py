"""The stream of changes, with a cursor that survives a lost connection.

A cursor is `<epoch>.<seq>`; the epoch is one life of the shim. A follower with a cursor of another
life, or one that has fallen out of the ring, is told to read the state again (`resync`). Events are
hints and the state decides, so the ring is in memory only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

import msgspec

from fairlead.wire.shim import Event, EventType, TaskInfo
from fairlead.wire.sizes import is_count

HEARTBEAT_SECONDS = 10.0


class EventLog:
    def __init__(self, epoch: str, capacity: int = 4096) -> None:
        self.epoch = epoch
        self._seq = 0
        self._ring: deque[Event] = deque(maxlen=capacity)
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def cursor(self) -> str:
        return self._cursor(self._seq)

    def task_changed(self, info: TaskInfo) -> None:
        self._publish(Event(cursor="", type=EventType.TASK, task=info, task_id=info.id))

    def task_removed(self, task_id: str) -> None:
        self._publish(Event(cursor="", type=EventType.REMOVED, task_id=task_id))

    def node_changed(self) -> None:
        self._publish(Event(cursor="", type=EventType.NODE))

    def close(self) -> None:
        """End every follower."""
        self._closed = True
        self._wake()

    async def follow(
        self, after: str | None, heartbeat: float = HEARTBEAT_SECONDS
    ) -> AsyncGenerator[Event, None]:
        """Yield events after the cursor, first a heartbeat (or a resync), without an end."""
        at = self._seq if after is None else self._position(after)
        if at is None:
            at = self._seq
            yield Event(cursor=self._cursor(at), type=EventType.RESYNC)
        else:
            yield Event(cursor=self._cursor(at), type=EventType.HEARTBEAT)
        while not self._closed:
            # More came than the ring holds while the follower's connection took nothing.
            if at < self._seq - len(self._ring):
                at = self._seq
                yield Event(cursor=self._cursor(at), type=EventType.RESYNC)
            elif at < self._seq:
                event = self._ring[at - self._seq]
                at += 1
                yield event
            elif not await self._wait(heartbeat):
                yield Event(cursor=self._cursor(at), type=EventType.HEARTBEAT)

    async def _wait(self, seconds: float) -> bool:
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def _publish(self, event: Event) -> None:
        self._seq += 1
        self._ring.append(msgspec.structs.replace(event, cursor=self.cursor))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        # A set one would wake those that wait from now on, although nothing came since.
        self._changed = asyncio.Event()

    def _cursor(self, seq: int) -> str:
        return f"{self.epoch}.{seq}"

    def _position(self, cursor: str) -> int | None:
        epoch, _, text = cursor.rpartition(".")
        if epoch != self.epoch or not is_count(text):
            return None
        seq = int(text)
        return seq if self._seq - len(self._ring) <= seq <= self._seq else None
