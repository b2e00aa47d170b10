"""What those who print several logs at once share. Apart from `follow`: who prints what is stored
needs no more of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from fairlead.errors import ApiError

if TYPE_CHECKING:
    from fairlead.wire.frames import Frame
MAX_DEAFNESS_SECONDS = 0.5
_GONE = 410
T = TypeVar("T")


def next_of(queue: SimpleQueue[T]) -> T:
    """Return the next item of other threads, for the main thread.

    A Ctrl-C at the moment when a wait begins is seen only when that wait ends, so each wait is
    short.
    """
    while True:
        with suppress(Empty):
            return queue.get(timeout=MAX_DEAFNESS_SECONDS)


def of_what_is_kept(frames: Iterator[Frame], tell: Callable[[str], None]) -> Iterator[Frame]:
    """Yield the frames of one of several logs. If it was removed, report that and let the other
    logs go on."""
    try:
        yield from frames
    except ApiError as error:
        if error.status != _GONE:
            raise
        tell(str(error))
