"""The events of orphans: one when a list first has an orphan, one when it is kept instead, one when
an admin has it ended, and one when the provider lists it no longer (docs/rules.md 12.9). They
belong to no run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from controller.lifecycle.events import NO_RUN, Event, EventKind
from controller.lifecycle.machines.reconcile import ORPHAN_GRACE_SECONDS, Orphan

FOUND, KEPT, ENDING, GONE = "found", "kept", "ending", "gone"
_CAUSE: Final = "the provider lists a machine that no record knows"
_GONE_CAUSE: Final = "the provider lists it no longer"


class OrphanBook:
    """What the committed events tell of orphans. A controller that starts gets those of its
    predecessors, so it tells nothing twice."""

    def __init__(self, stored: Iterable[Event] = ()) -> None:
        """`stored`: the committed events, oldest first."""
        self._statuses: dict[str, str] = {}
        self._found_at: dict[str, float] = {}
        self._listed: dict[str, Sequence[Orphan]] = {}
        self._asked: dict[str, str] = {}
        """The user who wants an orphan ended, by the name of the orphan; not committed yet."""
        self._offered: tuple[Event, ...] = ()
        for event in stored:
            self._take(event)

    def listed(self, provider: str, orphans: Sequence[Orphan]) -> bool:
        """Take the orphans of a whole list; return whether there is something to tell."""
        self._listed[provider] = orphans
        there = {_name(provider, one) for one in orphans}
        # An id that the provider gives again later is another machine.
        self._asked = {
            name: by
            for name, by in self._asked.items()
            if name.partition("/")[0] != provider or name in there
        }
        return bool(self._changes(0.0))

    def ask_for_end(self, provider: str, instance_ids: Iterable[str], by: str) -> None:
        """Note that `by` has these orphans ended."""
        for instance_id in instance_ids:
            if not self.is_to_end(provider, instance_id):
                self._asked[f"{provider}/{instance_id}"] = by

    def is_to_end(self, provider: str, instance_id: str) -> bool:
        """Return whether an admin had this orphan ended, as far as that is committed."""
        return self._statuses.get(f"{provider}/{instance_id}") == ENDING

    def found_at(self, provider: str, instance_id: str) -> float | None:
        """Return when a list first had this orphan (Unix time), as far as that is committed."""
        return self._found_at.get(f"{provider}/{instance_id}")

    def offer(self, now: float) -> tuple[Event, ...]:
        """Return the events to commit now. They are offered again until `committed`."""
        self._offered = self._changes(now)
        return self._offered

    def committed(self) -> None:
        """The offered events are stored."""
        offered, self._offered = self._offered, ()
        for event in offered:
            self._take(event)

    def refused(self) -> None:
        """The offered events can never be stored. They are not offered again; nothing is ended that
        another controller would not know of."""
        offered, self._offered = self._offered, ()
        for event in offered:
            if event.to_status == ENDING and event.reason is not None:
                self._asked.pop(event.reason, None)
            else:
                self._take(event)

    def _take(self, event: Event) -> None:
        if event.kind is not EventKind.ORPHAN or event.reason is None or event.to_status is None:
            return
        if event.to_status == GONE:
            self._statuses.pop(event.reason, None)
            self._found_at.pop(event.reason, None)
        else:
            self._statuses[event.reason] = event.to_status
            self._found_at.setdefault(event.reason, event.at)
        self._asked.pop(event.reason, None)

    def _changes(self, now: float) -> tuple[Event, ...]:
        found: list[Event] = []
        for provider, orphans in self._listed.items():
            there = {_name(provider, one): one for one in orphans}
            for name, orphan in there.items():
                before = self._statuses.get(name)
                # What an admin had ended stays so, whatever the orphan counts as later.
                if (by := self._asked.get(name)) is not None and before != ENDING:
                    found.append(_event(name, before, ENDING, None, f"{by} had it ended", now))
                    continue
                status = KEPT if orphan.quarantined else FOUND
                if before not in (status, ENDING):
                    found.append(_event(name, before, status, _becomes(orphan), _CAUSE, now))
            found += [
                _event(name, before, GONE, None, _GONE_CAUSE, now)
                for name, before in self._statuses.items()
                if name.partition("/")[0] == provider and name not in there
            ]
        return tuple(found)


def _name(provider: str, orphan: Orphan) -> str:
    return f"{provider}/{orphan.instance_id}"


def _event(
    name: str, before: str | None, after: str, message: str | None, cause: str, now: float
) -> Event:
    return Event(
        run_id=NO_RUN,
        at=now,
        kind=EventKind.ORPHAN,
        from_status=before,
        to_status=after,
        reason=name,
        message=message,
        cause=cause,
    )


def _becomes(orphan: Orphan) -> str:
    if orphan.quarantined:
        return "it is older than the restore from a backup, so it is kept until an admin ends it"
    if orphan.is_duplicate:
        return "its record has another machine, so it is ended"
    return f"it is ended after {ORPHAN_GRACE_SECONDS / 60:.0f} min"
