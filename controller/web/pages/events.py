"""The page of all events that a user may see, the newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.refusals import Invalid
from controller.api.machines.nodes import get_node
from controller.api.runs.events import event_view
from controller.store.base import StoredEvent
from controller.web.page import Page, PageRoute, Visit
from fairlead.documents.nodes import NodeView
from fairlead.documents.runs import EventView
from fairlead.queries import EventQuery

ROWS = 100
AFTER_ALL = 1 << 62
"""More than the number of any event."""


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """`what`: the change; `because`: its cause; `reason` includes the message. `run`: the name, or
    the id of a run that is no longer stored; `run_id` None: an event of a node, or of no run."""

    at: str
    what: str
    because: str
    reason: str
    seq: int = 0
    run_id: str | None = None
    run: str = ""


async def event_rows(visit: Visit, stored: Sequence[StoredEvent]) -> list[EventRow]:
    """Return the events, the newest first. Raises StoreUnavailable."""
    names = await visit.service.runs.lookup.names(one.event for one in stored)
    newest = sorted(stored, key=lambda one: one.seq, reverse=True)
    return [event_row(event_view(one), names) for one in newest]


def event_row(event: EventView, names: Mapping[str, str]) -> EventRow:
    """`names`: of runs, jobs and attempts by id."""
    subject = names.get(event.attempt_id or "") or names.get(event.job_id or "")
    about = " ".join(one for one in (event.kind.replace("_", " "), subject) if one)
    change = " → ".join(one for one in (event.from_status, event.to_status) if one)
    return EventRow(
        seq=event.seq,
        at=event.at,
        run_id=event.run_id or None,
        run=names.get(event.run_id, event.run_id),
        what=f"{about}: {change}" if change else about,
        because=event.because,
        reason=": ".join(one for one in (event.reason, event.message) if one),
    )


def with_own_events(rows: Sequence[EventRow], node: NodeView) -> list[EventRow]:
    """Return the events of a node's jobs and its own, the newest first."""
    own = [
        EventRow(
            at=event.at,
            what=event.what,
            because=f"{event.by} asked for it" if event.by else "",
            reason=event.why or "",
        )
        for event in reversed(node.events)  # of one instant the later one comes first
    ]
    return sorted([*own, *rows], key=lambda row: row.at, reverse=True)


async def list_events(visit: Visit) -> Page:
    before = _before(visit.query("before"))
    run, name = visit.query("run") or None, visit.query("node")
    node = await get_node(visit.as_call(node=name)) if name else None
    query = EventQuery(
        run=run,
        before=before,
        limit=ROWS + 1,
        node_id=None if node is None else node.id,
    )
    stored = await visit.service.runs.lookup.events(query, user=visit.user)
    shown = stored[-ROWS:]
    rows = await event_rows(visit, shown)
    if node is not None and run is None and before == AFTER_ALL:
        rows = with_own_events(rows, node)
    return Page(
        template="events.html",
        title="Events",
        section="Events",
        context={
            "rows": rows,
            "older": shown[0].seq if len(stored) > ROWS else None,
            "run": run or "",
            "node": name,
            "nodes": sorted(visit.service.machines.nodes.names().values()),
            "is_newest": before == AFTER_ALL,
        },
    )


def _before(text: str) -> int:
    if not text:
        return AFTER_ALL
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Invalid(f"{text!r} is not the number of an event", field="before")
    return int(text)


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/events", handler=list_events),)
