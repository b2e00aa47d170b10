"""The page of all events that a user may see, the newest first."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.api.documents import EventView
from controller.api.events import event_view
from controller.service.errors import Invalid
from controller.web.pages import Page, PageRoute, Visit

ROWS = 100
AFTER_ALL = 1 << 62
"""More than the number of any event."""


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """`what`: the change; `said`: its reason and message."""

    seq: int
    at: str
    run_id: str
    run: str
    what: str
    cause: str
    said: str


def event_row(event: EventView, names: Mapping[str, str]) -> EventRow:
    change = " → ".join(one for one in (event.from_status, event.to_status) if one)
    words = event.kind.replace("_", " ")
    return EventRow(
        seq=event.seq,
        at=event.at,
        run_id=event.run_id,
        run=names.get(event.run_id, event.run_id),
        what=f"{words}: {change}" if change else words,
        cause=event.cause or "",
        said=": ".join(one for one in (event.reason, event.message) if one),
    )


async def list_events(visit: Visit) -> Page:
    before = _before(visit.query("before"))
    run = visit.query("run") or None
    stored = await visit.service.runs.events(run, before=before, limit=ROWS + 1, user=visit.user)
    shown = [event_view(one) for one in reversed(stored)][:ROWS]
    names = await visit.service.runs.names(event.run_id for event in shown)
    older = shown[-1].seq if len(stored) > ROWS else None
    return Page(
        template="events.html",
        title="Events",
        section="Events",
        context={
            "rows": [event_row(event, names) for event in shown],
            "older": older,
            "run": run or "",
            "is_newest": before == AFTER_ALL,
        },
    )


def _before(text: str) -> int:
    if not text:
        return AFTER_ALL
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Invalid(f"{text!r} is not the number of an event", field="before")
    return int(text)


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/events/all", handler=list_events),)
