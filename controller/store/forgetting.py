"""What retention takes out of the database."""

from __future__ import annotations

import sqlalchemy as sa

from controller.lifecycle.statuses import AllocationState
from controller.store import tables
from controller.store.history import FINAL, last_numbers, older
from controller.store.writing import delete

_RELEASED = AllocationState.RELEASED.value


def runs(connection: sa.Connection, finished_before: float, limit: int) -> list[str]:
    """The ids of the removed runs; what belongs to a run goes with it."""
    run, places = tables.runs.c, tables.allocations.c
    occupied = sa.exists().where(
        places.run_id == run.id, places.state != AllocationState.RELEASED.value
    )
    query = (
        sa.select(run.id)
        .where(
            run.status.in_(FINAL),
            run.finished_at < finished_before,
            ~occupied,
        )
        .order_by(run.finished_at)
        .limit(limit)
    )
    old = list(connection.execute(query).scalars())
    delete(connection, tables.events.c.run_id, old)
    delete(connection, run.id, old)
    return old


def attempts(connection: sa.Connection, finished_before: float, limit: int) -> list[str]:
    """The ids of the removed ones, all of earlier occurrences of live runs."""
    run, attempt, place = tables.runs.c, tables.attempts.c, tables.allocations.c
    last = last_numbers(sa.select(run.id).where(run.status.not_in(FINAL), run.occurrence > 1))
    occupied = sa.exists().where(place.id == attempt.allocation_id, place.state != _RELEASED)
    query = (
        sa.select(attempt.id, attempt.run_id)
        .join(tables.runs, attempt.run_id == run.id)
        .join(last, attempt.job_id == last.c.job_id)
        .where(
            attempt.occurrence < run.occurrence,
            attempt.finished_at < finished_before,
            older(last),
            ~occupied,
        )
        .order_by(attempt.finished_at)
        .limit(limit)
    )
    found = connection.execute(query).all()
    old, runs = [row.id for row in found], list({row.run_id for row in found})
    delete(connection, attempt.id, old)
    _delete_places_without_attempt(connection, runs, finished_before)
    _delete_events(connection, runs, old, finished_before)
    return old


def _delete_places_without_attempt(
    connection: sa.Connection, runs: list[str], released_before: float
) -> None:
    place, attempt = tables.allocations.c, tables.attempts.c
    used = sa.select(attempt.allocation_id).where(
        attempt.run_id.in_(runs), attempt.allocation_id.is_not(None)
    )
    connection.execute(
        sa.delete(tables.allocations).where(
            place.run_id.in_(runs),
            place.state == _RELEASED,
            place.released_at < released_before,
            place.id.not_in(used),
        )
    )


def _delete_events(
    connection: sa.Connection, runs: list[str], attempts: list[str], before: float
) -> None:
    event = tables.events.c
    of_these = event.attempt_id.in_(attempts)
    of_no_attempt = event.attempt_id.is_(None) & (event.at < before)
    connection.execute(
        sa.delete(tables.events).where(event.run_id.in_(runs), of_these | of_no_attempt)
    )
