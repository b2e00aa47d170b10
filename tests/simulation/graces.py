"""The time that a job has between its end and its kill (docs/rules.md 2.9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.model import Attempt, RunState
from fairlead.model.reasons import ROWS, GraceClass, Reason, RunReason
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from tests.simulation.orders import NEARLY

_SHORTENS_NOTHING = {Reason.TERMINATED_BY_SERVER}


class Graces:
    """From when on the job of each attempt that has ended has its grace, by the clock of the
    controller that ended it, or that heard its node again. Another controller's may differ."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._unheard: set[str] = set()
        """What ended while its node was silent, and was not heard since."""

    def forget(self) -> None:
        """The database was restored: nothing is known of what it says has ended."""
        self._since.clear()
        self._unheard.clear()

    def cut_short(
        self,
        before: RunState | None,
        after: RunState,
        events: Iterable[Event],
        *,
        clock_jumped: bool = False,
        recalls: Mapping[str, float] = {},
    ) -> Iterator[str]:
        """Yield a job that ran and ended for a reason with the grace `stop_duration`, and that has
        less of it, although only its run's end followed. `recalls`: when providers take nodes back,
        by the nodes' ids."""
        heard = {
            event.attempt_id: event.at
            for event in events
            if event.kind is EventKind.CONNECTION and event.to_status == "connected"
        }
        known = {one.id: one for one in _attempts(before)}
        for one in _attempts(after):
            old = known.get(one.id)
            self._follow(old, one, heard)
            if clock_jumped and old is not None and old.drains_until and not one.drains_until:
                # Its grace begins now, and nothing tells when that is by the present clock.
                self._since.pop(one.id, None)
            if old is not None and old.status in FINAL_ATTEMPT_STATUSES:
                continue  # its node, and with it what is known of its recall, may be gone
            since = self._since.get(one.id)
            if since is None or not _has_whole_grace(after, one):
                continue
            # Without a grace (0 s), a kill that was due before the node was heard is no earlier.
            given = max(0.0, (one.remove_at or 0.0) - since)
            grace = _whole(after.run.policy.stop_duration, one, recalls)
            if given < grace - NEARLY:
                yield f"{one.id} has {given:.0f} s to end as {one.reason}, not {grace:g} s"

    def _follow(self, old: Attempt | None, new: Attempt, heard: Mapping[str | None, float]) -> None:
        if new.reason is None or new.terminating_at is None:
            self._since.pop(new.id, None)
            return
        if old is None or old.reason is None:
            self._since[new.id] = new.terminating_at
            (self._unheard.add if new.disconnected else self._unheard.discard)(new.id)
        elif new.id in heard:
            self._heard(old, new, heard[new.id])

    def _heard(self, old: Attempt, new: Attempt, at: float) -> None:
        over = new.seen.runner_exited or new.seen.container_gone
        # A controller that has just begun does not know whether the job was asked to stop.
        if (new.id in self._unheard or new.remove_at != old.remove_at) and not over:
            self._since[new.id] = at
        self._unheard.discard(new.id)


def _has_whole_grace(state: RunState, one: Attempt) -> bool:
    if state.run.reason is RunReason.COMPLETED_BY_USER:
        return False
    if one.reason is None or one.running_at is None or one.remove_at is None:
        return False
    if ROWS[one.reason].grace is not GraceClass.STOP_DURATION:
        return False
    # A job that did not end within its interruption had its time already.
    return one.interruption is None and not set(one.later_reasons) - _SHORTENS_NOTHING


def _whole(stop_duration: float, one: Attempt, recalls: Mapping[str, float]) -> float:
    """Return the grace that the attempt must have; a recall leaves it until 10 s before its time,
    or half of a short one (12.18)."""
    at, ended_at = recalls.get(one.node_id or ""), one.terminating_at
    if one.reason is not Reason.INTERRUPTED_BY_NO_CAPACITY or at is None or ended_at is None:
        return stop_duration
    left = at - ended_at
    return min(stop_duration, max(0.0, left / 2, left - 10.0))


def _attempts(state: RunState | None) -> Iterator[Attempt]:
    for job in () if state is None else state.jobs:
        yield from job.attempts
