"""How much of the runner the followers of a log may use: the job comes first.

Whoever follows takes time of the event loop that also empties the job's pipes, and memory for what
is on its way. Who came first (the controller, as a rule) is served as fast as it reads. All others
share a number of turns per second, fewer while the job waits for us, and the pieces that they get
become smaller as they become more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TURN = 0.0005
"""Seconds between two turns of all the others together."""
PRESSED_TURN = 0.016
PRESSURE_LASTS = 0.25
"""Seconds for which the job counts as waiting for us after its pipe was last found full."""
PIECES = 8 << 20
"""Bytes that all pieces on their way may have together but for the first's, down to `LEAST_PIECE`
each."""
MOST_PIECE = 1 << 20
LEAST_PIECE = 64 << 10


class Pacing:
    """One for each log. `now` gives seconds that only grow."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seats: list[Seat] = []
        self._pressed_until = 0.0
        self._next_turn = 0.0

    def press(self) -> None:
        """The job has more to say than was taken from it at once."""
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
            return MOST_PIECE
        return max(LEAST_PIECE, min(MOST_PIECE, PIECES // len(self._seats)))

    def is_first(self, seat: Seat) -> bool:
        return bool(self._seats) and self._seats[0] is seat

    def reserve(self) -> float:
        """Seconds until the next free turn, which is then taken."""
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
        """Bytes to take at once."""
        return self._pacing.piece_size(self)

    async def turn(self) -> None:
        """Until this follower may take a piece."""
        if not self._pacing.is_first(self):
            await asyncio.sleep(self._pacing.reserve())
