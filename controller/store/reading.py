"""Queries: rows put together to the values that were committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from controller.lifecycle.model import Allocation, Attempt, Job, RunState, Use
from controller.lifecycle.statuses import FINAL_RUN_STATUSES, AllocationState
from controller.lifecycle.using import use_of
from controller.store import codecs, tables
from controller.store.base import Snapshot, StoredEvent
from controller.store.rows import storable

IDS_PER_QUERY = 500
"""Databases limit the number of parameters of a statement."""

_FINAL = [status.value for status in FINAL_RUN_STATUSES]
_runs = tables.runs.c


def snapshot(connection: sa.Connection, *, used_since: float) -> Snapshot:
    live = sa.select(tables.runs).where(_runs.status.not_in(_FINAL))
    return Snapshot(
        runs=tuple(_assemble(connection, live.order_by(_runs.submitted_at, _runs.id))),
        nodes=tuple(
            codecs.NODE.value(row)
            for row in _rows(connection, sa.select(tables.nodes).order_by(tables.nodes.c.name))
        ),
        users=tuple(map(codecs.USER.value, _rows(connection, sa.select(tables.users)))),
        tokens=tuple(map(codecs.TOKEN.value, _rows(connection, sa.select(tables.tokens)))),
        leftover_allocations=_leftovers(connection),
        fleets=tuple(
            codecs.FLEET.value(row)
            for row in _rows(connection, sa.select(tables.fleets).order_by(tables.fleets.c.name))
        ),
        past_use=tuple(_past_use(connection, used_since)),
    )


def _leftovers(connection: sa.Connection) -> tuple[Allocation, ...]:
    places = tables.allocations
    query = (
        sa.select(places)
        .join(tables.runs, places.c.run_id == _runs.id)
        .where(_runs.status.in_(_FINAL), places.c.state != AllocationState.RELEASED.value)
        .order_by(places.c.id)
    )
    return tuple(map(codecs.ALLOCATION.value, _rows(connection, query)))


def _past_use(connection: sa.Connection, since: float) -> Iterator[Use]:
    places = tables.allocations
    query = (
        sa.select(places, _runs.user)
        .join(tables.runs, places.c.run_id == _runs.id)
        .where(
            _runs.status.in_(_FINAL),
            places.c.state != AllocationState.NOMINATED.value,
            places.c.released_at.is_(None) | (places.c.released_at > since),
        )
        .order_by(places.c.created_at, places.c.id)
    )
    for row in connection.execute(query).mappings():
        yield use_of(codecs.ALLOCATION.value(row), row["user"])


def find_run(connection: sa.Connection, key: str, user: str | None) -> RunState | None:
    key = storable(key)
    allowed = sa.true() if user is None else _runs.user == user
    by_id = sa.select(tables.runs).where(_runs.id == key, allowed)
    return _first(connection, by_id) or _newest(connection, sa.and_(_runs.name == key, allowed))


def find_submission(connection: sa.Connection, user: str, client_key: str) -> RunState | None:
    mine = sa.and_(_runs.user == user, _runs.client_key == storable(client_key))
    return _newest(connection, mine)


def _newest(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> RunState | None:
    newest = sa.select(tables.runs).where(condition)
    return _first(connection, newest.order_by(_runs.submitted_at.desc(), _runs.id.desc()).limit(1))


def _first(connection: sa.Connection, query: sa.Select[Any]) -> RunState | None:
    return next(iter(_assemble(connection, query)), None)


def list_runs(
    connection: sa.Connection,
    *,
    include_finished: bool,
    limit: int,
    before: str | None,
    user: str | None,
) -> list[RunState]:
    query = sa.select(tables.runs).order_by(_runs.submitted_at.desc(), _runs.id.desc())
    if not include_finished:
        query = query.where(_runs.status.not_in(_FINAL))
    if user is not None:
        query = query.where(_runs.user == user)
    if before is not None:
        before = storable(before)
        last = connection.execute(sa.select(_runs.submitted_at).where(_runs.id == before)).scalar()
        if last is None:
            return []
        earlier = _runs.submitted_at < last
        query = query.where(earlier | ((_runs.submitted_at == last) & (_runs.id < before)))
    return _assemble(connection, query.limit(limit))


def events(
    connection: sa.Connection, *, run_id: str | None, after: int, limit: int, user: str | None
) -> list[StoredEvent]:
    columns = tables.events.c
    query = sa.select(tables.events).where(columns.seq > after).order_by(columns.seq).limit(limit)
    if run_id is not None:
        query = query.where(columns.run_id == run_id)
    if user is not None:
        own = sa.select(_runs.id).where(_runs.user == user)
        query = query.where(columns.run_id.in_(own))
    return [
        StoredEvent(seq=row["seq"], event=codecs.EVENT.value(row))
        for row in _rows(connection, query)
    ]


def _assemble(connection: sa.Connection, query: sa.Select[Any]) -> list[RunState]:
    """The whole states of the runs that the query gives, in its order."""
    rows = _rows(connection, query)
    ids = [row["id"] for row in rows]
    places = defaultdict(list)
    for row in _owned(connection, tables.allocations, ids, "created_at", "id"):
        places[row["run_id"]].append(codecs.ALLOCATION.value(row))
    jobs = _jobs(connection, ids)
    return [
        RunState(
            run=codecs.RUN.value(row),
            jobs=tuple(jobs[row["id"]]),
            allocations=tuple(places[row["id"]]),
        )
        for row in rows
    ]


def _jobs(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, list[Job]]:
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    for row in _owned(connection, tables.attempts, run_ids, "number"):
        attempts[row["job_id"]].append(codecs.ATTEMPT.value(row))
    jobs: dict[str, list[Job]] = defaultdict(list)
    for row in _owned(connection, tables.jobs, run_ids, "index"):
        job = codecs.JOB.value(row, attempts=tuple(attempts[row["id"]]))
        jobs[row["run_id"]].append(job)
    return jobs


def _owned(
    connection: sa.Connection, table: sa.Table, run_ids: Sequence[str], *order: str
) -> list[sa.RowMapping]:
    rows: list[sa.RowMapping] = []
    for start in range(0, len(run_ids), IDS_PER_QUERY):
        chunk = run_ids[start : start + IDS_PER_QUERY]
        query = sa.select(table).where(table.c.run_id.in_(chunk))
        rows += _rows(connection, query.order_by(*(table.c[name] for name in order)))
    return rows


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> list[sa.RowMapping]:
    return list(connection.execute(query).mappings().all())
