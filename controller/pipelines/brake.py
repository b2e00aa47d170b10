"""The brake protects the turn loop from a run that asks to be decided at once, again and again,
without a change.

Such a run would take the loop from all other runs. It is a bug of this program: it is logged as an
error, and the run is looked at less and less often until something changes it. Reports about it are
decided at once, as always.
"""

from __future__ import annotations

import logging

from controller.lifecycle.model import Run

log = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 1.0
MOST_WAIT_SECONDS = 60.0


class Brake:
    def __init__(self) -> None:
        self._waits: dict[str, float] = {}

    def next_look(
        self, run: Run, wake_at: float | None, now: float, *, changed: bool
    ) -> float | None:
        """Return when to decide the run again, given the time that its decision at `now` asks
        for."""
        if changed or wake_at is None or wake_at > now:
            self._waits.pop(run.id, None)
            return wake_at
        wait = min(MOST_WAIT_SECONDS, 2 * self._waits.get(run.id, FIRST_WAIT_SECONDS / 2))
        self._waits[run.id] = wait
        log.error(
            "internal error: run %s (%s) asks for a decision now, and nothing changes; it is "
            "decided again in %g s",
            run.name,
            run.id,
            wait,
        )
        return now + wait
