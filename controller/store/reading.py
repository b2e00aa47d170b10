"""Queries: rows put together to the values that were committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from controller.lifecycle.model import Allocation, Attempt, Job, RunState, Use
from controller.lifecycle.recent import recent
from controller.lifecycle.statuses import AllocationState
from controller.lifecycle.using import use_of
from controller.store import codecs, history, tables
from controller.store.base import Snapshot, StoredEvent
from controller.store.history import FINAL
from controller.store.rows import storable

IDS_PER_QUERY = 500
"""Databases limit the number of parameters of a statement."""

_runs = tables.runs.c


def snapshot(connection: sa.Connection, *, used_since: float) -> Snapshot:
    live = sa.select(tables.runs).where(_runs.status.not_in(FINAL))
    in_order = live.order_by(_runs.submitted_at, _runs.id)
    runs = tuple(map(recent, _assemble(connection, in_order, present=True)))
    return Snapshot(
        runs=runs,
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
        past_use=tuple(_past_use(connection, used_since, runs)),
    )


def _leftovers(connection: sa.Connection) -> tuple[Allocation, ...]:
    places = tables.allocations
    query = (
        sa.select(places)
        .join(tables.runs, places.c.run_id == _runs.id)
        .where(_runs.status.in_(FINAL), places.c.state != AllocationState.RELEASED.value)
        .order_by(places.c.id)
    )
    return tuple(map(codecs.ALLOCATION.value, _rows(connection, query)))


def _past_use(connection: sa.Connection, since: float, runs: Iterable[RunState]) -> Iterator[Use]:
    at_hand = {place.id for state in runs for place in state.allocations}
    places = tables.allocations
    query = (
        sa.select(places, _runs.user)
        .join(tables.runs, places.c.run_id == _runs.id)
        .where(
            places.c.state != AllocationState.NOMINATED.value,
            places.c.released_at.is_(None) | (places.c.released_at > since),
        )
        .order_by(places.c.created_at, places.c.id)
    )
    for row in connection.execute(query).mappings():
        place = codecs.ALLOCATION.value(row)
        if place.id not in at_hand and not place.victims:
            yield use_of(place, row["user"])


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
    parent_id: str | None = None,
) -> list[RunState]:
    query = sa.select(tables.runs).order_by(_runs.submitted_at.desc(), _runs.id.desc())
    if not include_finished:
        query = query.where(_runs.status.not_in(FINAL))
    if user is not None:
        query = query.where(_runs.user == user)
    if parent_id is not None:
        query = query.where(_runs.parent_id == parent_id)
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


def _assemble(
    connection: sa.Connection, query: sa.Select[Any], *, present: bool = False
) -> list[RunState]:
    """The states of the runs that the query gives, in its order, with what is recent of them;
    `present`: and with all of the present occurrence."""
    rows = _rows(connection, query)
    ids = [row["id"] for row in rows]
    places = defaultdict(list)
    order = (tables.allocations.c.created_at, tables.allocations.c.id)
    for chunk in _chunks(ids):
        recent_places = history.recent_places(chunk, present=present)
        for row in _rows(connection, recent_places.order_by(*order)):
            places[row["run_id"]].append(codecs.ALLOCATION.value(row))
    jobs = _jobs(connection, ids, present=present)
    return [
        RunState(
            run=codecs.RUN.value(row),
            jobs=tuple(jobs[row["id"]]),
            allocations=tuple(places[row["id"]]),
        )
        for row in rows
    ]


def _jobs(
    connection: sa.Connection, run_ids: Sequence[str], *, present: bool
) -> dict[str, list[Job]]:
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    jobs: dict[str, list[Job]] = defaultdict(list)
    for chunk in _chunks(run_ids):
        of_these = history.recent_attempts(chunk, present=present)
        for row in _rows(connection, of_these.order_by(tables.attempts.c.number)):
            attempts[row["job_id"]].append(codecs.ATTEMPT.value(row))
        slots = sa.select(tables.jobs).where(tables.jobs.c.run_id.in_(chunk))
        for row in _rows(connection, slots.order_by(tables.jobs.c.index)):
            job = codecs.JOB.value(row, attempts=tuple(attempts[row["id"]]))
            jobs[row["run_id"]].append(job)
    return jobs


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), IDS_PER_QUERY):
        yield list(ids[start : start + IDS_PER_QUERY])


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> list[sa.RowMapping]:
    return list(connection.execute(query).mappings().all())
