"""What demand was found last, and when it is looked at again."""

from __future__ import annotations

from controller.lifecycle.machines.model import Machine
from controller.scheduling.renting.demand import Demand

DEMAND_EVERY_SECONDS = 0.5
"""Demand looks at the whole queue, and turns can be many in a second."""
_ANYWAY_SECONDS = 60.0
"""After this time demand is looked at although nothing changed."""


class LastDemand:
    def __init__(self) -> None:
        self.at = float("-inf")
        self._next = 0.0
        self._is_dirty = True
        """Something changed since."""
        self._month = float("-inf")
        """When the month began of the last turn."""
        self._awaiting: frozenset[str] | None = None
        """Machines that a gang needs with others that are not there yet; None: nobody has looked
        since this controller began."""
        self._wanted: frozenset[str] | None = None
        """Machines on order that something waits for; None: as above."""

    def note_change(self) -> None:
        self._is_dirty = True

    def note_time(self, now: float) -> None:
        """Wait for no time that is far away because the clock was put back."""
        if now < self.at:
            self.at = self._next = now
            self._is_dirty = True

    def note_month(self, began: float) -> None:
        """Look at demand again in a new month: each budget of a month is whole then."""
        if began != self._month:
            self._month, self._is_dirty = began, True

    def is_due(self, now: float, penalty_ends: float | None) -> bool:
        """Return whether another look could find something else. `penalty_ends`: when the first
        penalty ends that held at the last one."""
        if now < self._next:
            return False
        has_ended = penalty_ends is not None and penalty_ends <= now
        return self._is_dirty or self._anyway_at <= now or has_ended

    def begin(self, now: float) -> None:
        """Note that all that is known by now is looked at."""
        self._next, self._is_dirty = now + DEMAND_EVERY_SECONDS, False
        self.at = now

    def found(self, demand: Demand) -> None:
        self._awaiting, self._wanted = demand.awaiting, demand.wanted

    def next_at(self, *, has_units: bool) -> float | None:
        """Return when it is looked at again without any further change. `has_units`: something
        waits for nodes."""
        if self._is_dirty:
            return self._next
        return self._anyway_at if has_units else None

    @property
    def _anyway_at(self) -> float:
        return self.at + _ANYWAY_SECONDS

    def is_awaited(self, machine: Machine) -> bool:
        """Return whether a machine that nothing uses is kept."""
        # What changed since the last look may need it: only the next look can tell.
        if self._awaiting is None or self._is_dirty:
            return True
        # One that just became a node was on order at the last look.
        return machine.id in self._awaiting or self.is_wanted(machine) is True

    def is_wanted(self, machine: Machine) -> bool | None:
        """Return whether something waited for the machine, which was on order at the last look;
        None: nobody has looked."""
        if self._wanted is None:
            return None
        # The look that ordered it did not know it.
        return machine.id in self._wanted or machine.ordered_at >= self.at
