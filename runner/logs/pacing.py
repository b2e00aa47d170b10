"""Limits how much of the runner the followers of a log may use: the job comes first.

A follower uses time of the event loop that also empties the job's pipes, and memory for its pieces.
The first follower (usually the controller) is served as fast as it reads. All others share a number
of turns each second, fewer while the job waits for the runner, and with more followers their pieces
become smaller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TURN = 0.0005
"""Seconds between two turns of all other followers together."""
PRESSED_TURN = 0.016
PRESSURE_LASTS = 0.25
"""Seconds for which the job counts as waiting after its pipe, as large as it may be, last had
much."""
PIECES = 8 << 20
"""Bytes of all pieces on their way together, without the first follower's; each has at least
`MIN_PIECE`."""
MAX_PIECE = 1 << 20
MIN_PIECE = 64 << 10


class Pacing:
    """The pacing of one log. `now` gives seconds that only grow."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seats: list[Seat] = []
        self._pressed_until = 0.0
        self._next_turn = 0.0

    def press(self) -> None:
        """Note that the job may soon have to wait, for it fills its pipe."""
        self._pressed_until = self._now() + PRESSURE_LASTS

    @contextmanager
    def seat(self) -> Iterator[Seat]:
        seat = Seat(self)
        self._seats.append(seat)
        try:
            yield seat
        finally:
            self._seats.remove(seat)

    def piece_size(self, seat: Seat) -> int:
        if self.is_first(seat):
            return MAX_PIECE
        return max(MIN_PIECE, min(MAX_PIECE, PIECES // len(self._seats)))

    def is_first(self, seat: Seat) -> bool:
        return bool(self._seats) and self._seats[0] is seat

    def reserve(self) -> float:
        """Take the next free turn; return the seconds until then."""
        now = self._now()
        begin = max(now, self._next_turn)
        self._next_turn = begin + (PRESSED_TURN if now < self._pressed_until else TURN)
        return begin - now


class Seat:
    """One follower's place."""

    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing

    @property
    def piece_size(self) -> int:
        """Return how many bytes to take at once."""
        return self._pacing.piece_size(self)

    async def turn(self) -> None:
        """Wait until this follower may take a piece."""
        if not self._pacing.is_first(self):
            await asyncio.sleep(self._pacing.reserve())
