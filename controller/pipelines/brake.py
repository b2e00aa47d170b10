"""A guard of the turn loop: a run that asks to be decided on at a time that has come, though the
decision changes nothing, would take the loop from all other runs.

That is a mistake of ours. It is logged as an error, and the run is looked at less and less often
until something changes it; reports about it are decided on at once, as always.
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
        """When to decide on the run again, given what its decision at `now` asks for."""
        if changed or wake_at is None or wake_at > now:
            self._waits.pop(run.id, None)
            return wake_at
        wait = min(MOST_WAIT_SECONDS, 2 * self._waits.get(run.id, FIRST_WAIT_SECONDS / 2))
        self._waits[run.id] = wait
        log.error(
            "internal error: run %s (%s) asks to be looked at now, and nothing comes of it; it is "
            "looked at again in %g s",
            run.name,
            run.id,
            wait,
        )
        return now + wait
