"""How long a client waits for a controller that is away, and what it tells of that.

A lost connection is reported once, then tried again with growing, jittered waits, until the
controller has been away for a quarter of an hour.
Apart from `follow`: a submission waits too, and loads nothing that only the answer needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from fairlead.errors import ApiError, ConnectionLost, FairleadError

FIRST_WAIT_SECONDS = 0.2
MAX_WAIT_SECONDS = 10.0
GIVE_UP_SECONDS = 15 * 60.0
_FIRST_OF_SERVER_ERRORS = 500
Tell = Callable[[str], None]


class Outages:
    """Reports once that the controller is away and once that it is back, however many threads wait
    for it."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._away = False
        self._lock = threading.Lock()

    def lost(self, error: Exception) -> None:
        with self._lock:
            if not self._away:
                self._away = True
                self._tell(f"{error}; trying again")

    def found(self) -> None:
        with self._lock:
            if self._away:
                self._away = False
                self._tell("the controller is back")


class Patience:
    """Growing, jittered waits between tries; short again once the controller answered.

    As a context manager it waits when the controller is lost within the block, so that a loop
    around it tries again. If the controller was away for too long, it raises ConnectionLost.
    """

    def __init__(
        self,
        outages: Outages,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outages = outages
        self._sleep = sleep
        self._clock = clock
        self._wait = FIRST_WAIT_SECONDS
        self._away_since: float | None = None

    def lost(self, error: FairleadError) -> None:
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= GIVE_UP_SECONDS:
            minutes = round(GIVE_UP_SECONDS / 60)
            raise ConnectionLost(f"{error}; gave up after {minutes} minutes, but jobs go on")
        self._outages.lost(error)
        import random  # 1 ms, which a submission that is answered saves

        # Spread, so that all who lost a controller do not come back to it in the same moment.
        self._sleep(self._wait * random.uniform(0.8, 1.2))
        self._wait = min(MAX_WAIT_SECONDS, self._wait * 2)

    def found(self) -> None:
        self._outages.found()
        self._wait = FIRST_WAIT_SECONDS
        self._away_since = None

    def answered(self) -> None:
        """Note that the controller is there, though not what it was asked for: waits stay long."""
        self._away_since = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, FairleadError) and is_away(error):
            self.lost(error)
            return True
        return False


def is_away(error: FairleadError) -> bool:
    """Return whether the controller, or what it needs, may be back in a moment."""
    if isinstance(error, ApiError):
        return error.status >= _FIRST_OF_SERVER_ERRORS
    return isinstance(error, ConnectionLost)
