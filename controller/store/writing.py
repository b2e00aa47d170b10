"""One turn's changes as statements: only rows that changed, parents before children."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from controller.lifecycle.model import RunState
from controller.store import codecs, tables
from controller.store.base import Changes
from controller.store.rows import RowCodec

T = TypeVar("T", bound=msgspec.Struct)


def drops_values(changes: Changes) -> bool:
    """Whether something that may be secret is overwritten: what a job needs for its start."""
    return any(
        new_job.spec is not old_job.spec
        for old, new in changes.runs.values()
        if old is not None
        for old_job, new_job in zip(old.jobs, new.jobs, strict=False)
    )


class _Batch:
    """The rows of one table that a transaction adds and changes."""

    def __init__(self, codec: RowCodec[Any]) -> None:
        self._codec = codec
        self._added: list[dict[str, Any]] = []
        self._changed: list[dict[str, Any]] = []

    def put(self, old: T | None, new: T, **keys: object) -> None:
        if old is new:
            return
        if old is None:
            self._added.append(self._codec.row(new, **keys))
        elif not self._codec.same(old, new):
            self._changed.append(self._codec.row(new, **keys))

    def write(self, connection: sa.Connection) -> None:
        table = self._codec.table
        if self._added:
            connection.execute(table.insert(), self._added)
        if self._changed:
            _update(connection, table.c.id, self._changed)


def _update(connection: sa.Connection, key: sa.Column[Any], rows: Sequence[dict[str, Any]]) -> None:
    """All rows by one statement; each names every column."""
    columns = [name for name in rows[0] if name != key.name]
    statement = (
        sa.update(key.table)
        .where(key == sa.bindparam("key_value"))
        .values({name: sa.bindparam(f"new_{name}") for name in columns})
    )
    bound = [
        {"key_value": row[key.name], **{f"new_{name}": row[name] for name in columns}}
        for row in rows
    ]
    connection.execute(statement, bound)


def write(connection: sa.Connection, changes: Changes) -> None:
    _write_runs(connection, changes.runs.values())
    _upsert(connection, codecs.FLEET, "name", changes.fleets.values())
    delete(connection, tables.fleets.c.name, changes.removed_fleets)
    _upsert(connection, codecs.NODE, "id", changes.nodes.values())
    delete(connection, tables.nodes.c.id, changes.removed_nodes)
    _upsert(connection, codecs.USER, "name", changes.users)
    delete(connection, tables.users.c.name, changes.removed_users)
    _upsert(connection, codecs.TOKEN, "id", changes.tokens)
    delete(connection, tables.tokens.c.id, changes.removed_tokens)
    if changes.events:
        rows = [codecs.EVENT.row(event) for event in changes.events]
        connection.execute(tables.events.insert(), rows)


def _write_runs(
    connection: sa.Connection, changed: Iterable[tuple[RunState | None, RunState]]
) -> None:
    runs, jobs = _Batch(codecs.RUN), _Batch(codecs.JOB)
    attempts, allocations = _Batch(codecs.ATTEMPT), _Batch(codecs.ALLOCATION)
    for old, new in changed:
        runs.put(old.run if old else None, new.run)
        old_jobs = {job.id: job for job in old.jobs} if old else {}
        for job in new.jobs:
            old_job = old_jobs.get(job.id)
            if job is old_job:
                continue
            jobs.put(old_job, job, run_id=new.run.id)
            old_attempts = {attempt.id: attempt for attempt in old_job.attempts} if old_job else {}
            for attempt in job.attempts:
                attempts.put(old_attempts.get(attempt.id), attempt, run_id=new.run.id)
        old_places = {place.id: place for place in old.allocations} if old else {}
        for place in new.allocations:
            allocations.put(old_places.get(place.id), place)
    for batch in (runs, jobs, attempts, allocations):
        batch.write(connection)


def delete(connection: sa.Connection, key: sa.Column[Any], values: Sequence[str]) -> None:
    if values:
        connection.execute(sa.delete(key.table).where(key.in_(values)))


def _upsert(connection: sa.Connection, codec: RowCodec[T], key: str, values: Iterable[T]) -> None:
    """Asking which exist is what every database understands."""
    rows = {row[key]: row for row in map(codec.row, values)}
    if not rows:
        return
    column = codec.table.c[key]
    existing = set(connection.execute(sa.select(column).where(column.in_(rows))).scalars())
    changed = [row for value, row in rows.items() if value in existing]
    added = [row for value, row in rows.items() if value not in existing]
    if changed:
        _update(connection, column, changed)
    if added:
        connection.execute(codec.table.insert(), added)
