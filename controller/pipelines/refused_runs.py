"""Runs whose changes the database refuses are set aside, and all other runs go on.

Such a run stays as it was committed last, with its jobs; reports about it are kept for the next
try. They are lost only when all tries have failed: then the run ends as `server_error`, which needs
less space in the database.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import msgspec

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.reports import Report, ServerFault, Tick

log = logging.getLogger(__name__)
WAITS = (1.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds before each next try; the last is repeated."""
TIME_TO_RECOVER = sum(WAITS)
"""Seconds after which the run is ended."""


class _Waiting(msgspec.Struct):
    since: float
    until: float
    why: str
    refusals: int = 0
    reports: list[Report] = []

    @property
    def wait(self) -> float:
        return WAITS[min(self.refusals, len(WAITS)) - 1]

    def reports_for(self, run_id: str, now: float) -> list[Report]:
        reports, self.reports = self.reports, []
        if now - self.since >= TIME_TO_RECOVER:
            message = f"the run's new state could not be stored: {self.why}"
            return [ServerFault(run_id=run_id, message=message)]
        return reports or [Tick(run_id=run_id)]


class RefusedRuns:
    """The runs that are set aside, with their waiting reports."""

    def __init__(self) -> None:
        self._runs: dict[str, _Waiting] = {}
        self.events: list[Event] = []
        """Events to commit with the next turn; the database may refuse them too."""

    def next_try(self) -> float | None:
        return min((one.until for one in self._runs.values()), default=None)

    def hold(self, inbox: dict[str, list[Report]], now: float) -> frozenset[str]:
        """Keep the reports of runs that stay aside, and return to the inbox those of runs whose
        next try is due.

        Return the runs that stay aside in this turn.
        """
        waiting = set()
        for run_id, one in self._runs.items():
            one.reports += inbox.pop(run_id, ())
            if one.until > now:
                waiting.add(run_id)
                continue
            # Also if this try has no outcome: a time in the past would keep the loop awake.
            one.until = now + one.wait
            inbox[run_id] = one.reports_for(run_id, now)
        return frozenset(waiting)

    def hurry(self, run_id: str) -> None:
        """Try the run again in the next turn: a user waits for it."""
        if run_id in self._runs:
            self._runs[run_id].until = 0.0

    def refused(
        self, run_id: str, name: str, reports: Sequence[Report], why: str, now: float
    ) -> None:
        """Set the run aside, or lengthen its wait."""
        if run_id not in self._runs:
            self._runs[run_id] = _Waiting(since=now, until=now, why=why)
            self.events.append(_refusal(run_id, why, now))
        one = self._runs[run_id]
        one.refusals += 1
        one.until, one.why = now + one.wait, why
        one.reports[:0] = reports
        log.error("run %s (%s) is set aside for %g s: %s", name, run_id, one.wait, why)

    def drop_events(self, run_ids: Collection[str]) -> None:
        """Drop the events of these runs: the database refuses them too."""
        self.events = [event for event in self.events if event.run_id not in run_ids]

    def stored(self, run_ids: Collection[str]) -> None:
        """Take back runs that could be stored again."""
        for run_id in self._runs.keys() & run_ids:
            del self._runs[run_id]
            log.info("run %s could be stored again", run_id)


def _refusal(run_id: str, why: str, now: float) -> Event:
    return Event(
        run_id=run_id,
        at=now,
        kind=EventKind.STORING,
        from_status="stored",
        to_status="refused",
        message=f"{why}; the controller tries again and ends the run if that fails for minutes",
        cause="the database",
    )
