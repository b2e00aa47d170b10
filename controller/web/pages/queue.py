"""The page of the queue: who is next and why, per band and user share, and preemptions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.refusals import Invalid
from controller.clock import iso
from controller.lifecycle.model import Band
from controller.service.runs.queue import MAX_ENTRIES, QueueEntry
from controller.web.page import Page, PageRoute, Visit

_MAX_JOBS = 3


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    run_id: str | None
    name: str
    user: str
    jobs: str
    wants: str
    priority: int
    submitted_at: str
    why: str


class BandRows(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    rows: tuple[QueueRow, ...]


def queue_row(entry: QueueEntry) -> QueueRow:
    more = len(entry.jobs) - _MAX_JOBS
    jobs = ", ".join(entry.jobs[:_MAX_JOBS]) + (f" and {more} more" if more > 0 else "")
    gpus = f"{entry.gpus} GPU{'' if entry.gpus == 1 else 's'}, " if entry.gpus else ""
    leaving = f"it waits until others have left {', '.join(entry.nominated)}"
    return QueueRow(
        position=entry.position,
        run_id=entry.run_id,
        name=entry.name,
        user=entry.user,
        jobs=f"{jobs} (gang)" if entry.gang and jobs else jobs,
        wants=f"{gpus}{entry.cpu:g} CPU",
        priority=entry.priority,
        submitted_at=iso(entry.submitted_at),
        why=leaving if entry.nominated else entry.why,
    )


def by_band(entries: Sequence[QueueEntry]) -> tuple[BandRows, ...]:
    """Return the bands that have waiting jobs, the first to place first."""
    return tuple(
        BandRows(name=band.value, rows=rows)
        for band in (Band.PRODUCTION, Band.INTERACTIVE, Band.BATCH)
        if (rows := tuple(queue_row(one) for one in entries if one.band is band))
    )


async def show_queue(visit: Visit) -> Page:
    after = _number(visit.query("after"))
    found = visit.service.runs.queue.view(visit.user, skip=after)
    last = after + len(found.entries)
    return Page(
        template="queue.html",
        title="Queue",
        section="Queue",
        context={
            "bands": by_band(found.entries),
            "preempting": [queue_row(one) for one in found.entries if one.nominated],
            "shares": found.shares,
            "before": None if not after else max(after - MAX_ENTRIES, 0),
            "after": last if found.entries and last < found.length else None,
            "left_out": max(found.length - last, 0),
        },
    )


def _number(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Invalid(f"{text!r} is not a place in the queue", field="after")
    return int(text)


PAGES: tuple[PageRoute, ...] = (PageRoute(path="/queue", handler=show_queue),)
