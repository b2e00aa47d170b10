"""Stored logs of many jobs, fetched ahead of the one that is printed.

A short log is over before its connection is, so one after another would cost a wait for each.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fairlead.cli.log_start import Start
from fairlead.cli.several_logs import next_of
from fairlead.follow import unread
from fairlead.rest import ControllerClient

if TYPE_CHECKING:
    from fairlead.wire.frames import Frame
T = TypeVar("T")

MAX_AT_ONCE = 8
MAX_HELD = 256 << 10
"""Bytes that are held of each log. The rest of a longer log is fetched when it is printed."""
_FRAME_BYTES = 200
"""What a frame costs besides its payload."""


class Fetched(NamedTuple):
    """The frames of a log that are held, and the offset at which the rest begins; None: nothing is
    left to fetch."""

    frames: Iterable[Frame]
    goes_on_at: int | None


_Slot = SimpleQueue[Fetched | BaseException]


def stored_logs(
    client: ControllerClient, run_id: str, start: Start, wanted: Iterable[tuple[T, str]]
) -> Iterator[tuple[T, Iterator[Frame]]]:
    """Yield the frames of each wanted log, from `start` on, in the order of `wanted`. Its items are
    what the caller knows a log by, and the id of its attempt. The frames raise what their fetch
    raised."""
    coming: deque[tuple[T, Iterator[Frame]]] = deque()
    for item, attempt_id in wanted:
        slot: _Slot = SimpleQueue()
        fetch = partial(_fetched, client, run_id, attempt_id, start)
        # A daemon: a log that does not come must not hold up the end of the command.
        threading.Thread(target=_fill, args=(slot, fetch), daemon=True).start()
        coming.append((item, _frames(client, run_id, attempt_id, slot)))
        if len(coming) >= MAX_AT_ONCE:
            yield coming.popleft()
    yield from coming


def _fill(slot: _Slot, fetch: Callable[[], Fetched]) -> None:
    try:
        slot.put(fetch())
    except BaseException as error:
        # The main thread raises it: here it would end this thread alone.
        slot.put(error)


def _frames(client: ControllerClient, run_id: str, attempt_id: str, slot: _Slot) -> Iterator[Frame]:
    found = next_of(slot)
    if isinstance(found, BaseException):
        raise found
    yield from found.frames
    if (at := found.goes_on_at) is not None:
        yield from unread(client.stored_frames(run_id, attempt=attempt_id, offset=at), at)


def _fetched(client: ControllerClient, run_id: str, attempt_id: str, start: Start) -> Fetched:
    with closing(client.stored_frames(run_id, attempt=attempt_id)) as stored:
        return last_of(stored, start) if start.is_given else first_of(stored)


def first_of(stored: Iterable[Frame]) -> Fetched:
    """Return the beginning of a log, as much of it as is held."""
    frames, size = [], 0
    for frame in stored:
        frames.append(frame)
        size += len(frame.payload) + _FRAME_BYTES
        if size > MAX_HELD:
            return Fetched(frames, frame.end)
    return Fetched(frames, None)


def last_of(stored: Iterable[Frame], start: Start) -> Fetched:
    """Return a log from its start on, which is known only at the log's end."""
    held: deque[Frame] = deque()

    def holding() -> Iterator[Frame]:
        size = 0
        for frame in stored:
            held.append(frame)
            size += len(frame.payload) + _FRAME_BYTES
            while size > MAX_HELD and len(held) > 1:
                size -= len(held.popleft().payload) + _FRAME_BYTES
            yield frame

    at = start.offset(holding())
    if held and held[0].offset > at:
        return Fetched((), at)
    return Fetched(unread(iter(held), at), None)
