"""Which attempts are recent and which are history, as SQL; and all of them, in pages."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from controller.lifecycle.model import Attempt
from controller.lifecycle.recent import KEPT_ATTEMPTS
from controller.lifecycle.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
)
from controller.store import codecs, tables
from controller.store.rows import storable

FINAL = [status.value for status in FINAL_RUN_STATUSES]
_ENDED = [status.value for status in FINAL_ATTEMPT_STATUSES]
_attempts = tables.attempts.c
_places = tables.allocations.c


def is_number(key: str) -> bool:
    """Such as a database can hold."""
    return key.isascii() and key.isdecimal() and len(key) < 19


def last_numbers(run_ids: Any) -> sa.Subquery:
    """Per job of these runs (a list or a query of ids) the number of its latest attempt."""
    return (
        sa.select(_attempts.job_id, sa.func.max(_attempts.number).label("last"))
        .where(_attempts.run_id.in_(run_ids))
        .group_by(_attempts.job_id)
        .subquery()
    )


def older(last: sa.Subquery) -> sa.ColumnElement[bool]:
    return _attempts.number <= last.c.last - KEPT_ATTEMPTS


def recent_attempts(run_ids: list[str], *, present: bool) -> sa.Select[Any]:
    """No fewer than `lifecycle.recent` keeps; `present`: and all of the present occurrence."""
    last = last_numbers(run_ids)
    occupied = sa.select(_places.id).where(
        _places.run_id.in_(run_ids), _places.state != AllocationState.RELEASED.value
    )
    wanted = [
        ~older(last),
        _attempts.status.not_in(_ENDED),
        _attempts.allocation_id.in_(occupied),
    ]
    if present:
        wanted.append(_attempts.occurrence >= tables.runs.c.occurrence)
    return (
        sa.select(tables.attempts)
        .join(last, _attempts.job_id == last.c.job_id)
        .join(tables.runs, _attempts.run_id == tables.runs.c.id)
        .where(_attempts.run_id.in_(run_ids), sa.or_(*wanted))
    )


def recent_places(run_ids: list[str], *, present: bool) -> sa.Select[Any]:
    """Those that are occupied, that these attempts had, or that none had."""
    attempts = recent_attempts(run_ids, present=present)
    kept = attempts.with_only_columns(_attempts.allocation_id)
    had = sa.select(_attempts.allocation_id).where(_attempts.run_id.in_(run_ids))
    return sa.select(tables.allocations).where(
        _places.run_id.in_(run_ids),
        (_places.state != AllocationState.RELEASED.value)
        | _places.id.in_(kept.where(_attempts.allocation_id.is_not(None)))
        | _places.id.not_in(had.where(_attempts.allocation_id.is_not(None))),
    )


def of(
    run_id: str, *, job_id: str | None, occurrence: int | None, key: str | None
) -> sa.ColumnElement[bool]:
    wanted = [_attempts.run_id == run_id]
    if job_id is not None:
        wanted.append(_attempts.job_id == job_id)
    if occurrence is not None:
        wanted.append(_attempts.occurrence == occurrence)
    if key is not None:
        by_id = _attempts.id == storable(key)
        wanted.append(by_id | (_attempts.number == int(key)) if is_number(key) else by_id)
    return sa.and_(*wanted)


def of_incarnation(key: str, dialect: str) -> sa.ColumnElement[bool]:
    """`key`: its number or id. No index: the attempts of one run are few enough to look at."""
    by_id = _of_its_incarnation("id", dialect) == storable(key)
    if not is_number(key):
        return by_id
    return by_id | (_of_its_incarnation("number", dialect) == str(int(key)))


def _of_its_incarnation(name: str, dialect: str) -> sa.ColumnElement[str]:
    """As text, since it is in `rest`; NULL for an attempt without one."""
    rest = _attempts.rest
    if dialect == "postgresql":
        return sa.func.json_extract_path_text(sa.cast(rest, sa.JSON), "incarnation", name)
    return sa.cast(sa.func.json_extract(rest, f"$.incarnation.{name}"), sa.Text)


def page(
    connection: sa.Connection, wanted: sa.ColumnElement[bool], after: str | None, limit: int
) -> list[Attempt]:
    query = sa.select(tables.attempts).where(wanted)
    if after is not None:
        known = sa.select(_attempts.submitted_at).where(_attempts.id == storable(after))
        at = connection.execute(known).scalar()
        if at is None:
            return []
        later = (_attempts.submitted_at == at) & (_attempts.id > storable(after))
        query = query.where((_attempts.submitted_at > at) | later)
    query = query.order_by(_attempts.submitted_at, _attempts.id).limit(limit)
    return [codecs.ATTEMPT.value(row) for row in connection.execute(query).mappings()]
