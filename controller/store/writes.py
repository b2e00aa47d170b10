"""Writes store a turn's changes in one transaction, and remove what retention ends.

When the database refuses a value, `culprits` finds the runs, nodes or fleets that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec
import sqlalchemy as sa

from controller.lifecycle.events import NO_RUN, Event
from controller.lifecycle.model import Job, RunState
from controller.store import schema
from controller.store.base import MACHINES_SECONDS, Changes
from controller.store.queries import FINAL, is_older, select_last_numbers
from controller.store.rows import (
    ALLOCATION,
    ATTEMPT,
    CATALOG,
    COSTS,
    EVENT,
    FLEET,
    GATEWAY,
    JOB,
    MACHINE,
    NODE,
    ORPHAN,
    RUN,
    SECRET,
    SERVICE_KEY,
    TOKEN,
    USER,
    RowCodec,
    sweep_row,
)
from controller.store.sql_errors import is_about_values
from fairlead.model.statuses import AllocationState

T = TypeVar("T", bound=msgspec.Struct)


def drops_values(changes: Changes) -> bool:
    """Return whether the changes overwrite or remove values that may be secret: those that a job
    needs to start, and stored secrets."""
    if changes.secrets or changes.removed_secrets or changes.removed_users:
        return True
    if any(old is not None and old.sweep is not new.sweep for old, new in changes.runs.values()):
        return True
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
            connection.execute(_insert_into(table), self._added)
        if self._changed:
            _update(connection, table, "id", self._changed)


def _update(
    connection: sa.Connection, table: sa.Table, key: str, rows: Sequence[dict[str, Any]]
) -> None:
    """Update all rows with one statement; each row names every column."""
    statement, names = _update_of(table, key, tuple(rows[0]))
    bound = [{parameter: row[name] for name, parameter in names} for row in rows]
    connection.execute(statement, bound)


# A statement remembers its key in SQLAlchemy's cache of compiled ones. To make a statement and its
# key anew costs more than to run it.


@cache
def _insert_into(table: sa.Table) -> sa.Insert:
    return table.insert()


@cache
def _update_of(
    table: sa.Table, key: str, names: tuple[str, ...]
) -> tuple[sa.Update, tuple[tuple[str, str], ...]]:
    """Return the statement, and the parameter of each column."""
    # SQLAlchemy reserves the columns' own names for the SET clause of an update.
    parameters = {name: f"new_{name}" for name in names if name != key}
    statement = (
        sa.update(table)
        .where(table.c[key] == sa.bindparam("key_value"))
        .values({name: sa.bindparam(parameter) for name, parameter in parameters.items()})
    )
    return statement, ((key, "key_value"), *parameters.items())


def write(connection: sa.Connection, changes: Changes) -> None:
    """Write all changes of a turn."""
    _write_runs(connection, changes.runs.values())
    _upsert(connection, FLEET, "name", changes.fleets.values())
    delete(connection, schema.fleets.c.name, changes.removed_fleets)
    _upsert(connection, NODE, "id", changes.nodes.values())
    delete(connection, schema.nodes.c.id, changes.removed_nodes)
    _upsert(connection, MACHINE, "id", changes.machines.values())
    _upsert(connection, ORPHAN, "id", changes.orphans.values())
    # Users first: their tokens, keys and secrets refer to them by foreign keys.
    _upsert(connection, USER, "name", changes.users)
    delete(connection, schema.users.c.name, changes.removed_users)
    _upsert(connection, TOKEN, "id", changes.tokens)
    delete(connection, schema.tokens.c.id, changes.removed_tokens)
    _upsert(connection, SERVICE_KEY, "id", changes.service_keys)
    delete(connection, schema.service_keys.c.id, changes.removed_service_keys)
    _upsert(connection, SECRET, "id", changes.secrets)
    delete(connection, schema.secrets.c.id, changes.removed_secrets)
    _upsert(connection, GATEWAY, "name", changes.gateways)
    delete(connection, schema.gateways.c.name, changes.removed_gateways)
    _upsert(connection, CATALOG, "name", changes.catalogs)
    _upsert(connection, COSTS, "day", changes.costs)
    if changes.costs_before is not None:
        old = schema.cost_days.c.day < changes.costs_before
        connection.execute(sa.delete(schema.cost_days).where(old))
    if changes.events:
        rows = [EVENT.row(event) for event in changes.events]
        connection.execute(_insert_into(schema.events), rows)


def _write_runs(
    connection: sa.Connection, changed: Iterable[tuple[RunState | None, RunState]]
) -> None:
    runs, jobs = _Batch(RUN), _Batch(JOB)
    attempts, allocations = _Batch(ATTEMPT), _Batch(ALLOCATION)
    sweeps: list[tuple[bool, dict[str, Any]]] = []
    for old, new in changed:
        runs.put(old.run if old else None, new.run, band=new.run.policy.band.value)
        if new.sweep is not None and (old is None or old.sweep is not new.sweep):
            _write_sweep(sweeps, old, new)
        old_jobs = {job.id: job for job in _to_compare(old, new)} if old else {}
        for job in _to_compare(new, old):
            old_job = old_jobs.get(job.id)
            if job is old_job:
                continue
            jobs.put(old_job, job, run_id=new.run.id)
            old_attempts = {attempt.id: attempt for attempt in old_job.attempts} if old_job else {}
            for attempt in job.attempts:
                attempts.put(old_attempts.get(attempt.id), attempt, run_id=new.run.id)
        old_allocations = (
            {allocation.id: allocation for allocation in old.allocations} if old else {}
        )
        for allocation in new.allocations:
            allocations.put(old_allocations.get(allocation.id), allocation)
    # Owners first: both databases check foreign keys at the end of each statement.
    runs.write(connection)
    for is_new, row in sweeps:
        if is_new:
            connection.execute(schema.sweeps.insert(), [row])
        else:
            _update(connection, schema.sweeps, "run_id", [row])
    for batch in (jobs, attempts, allocations):
        batch.write(connection)


def _write_sweep(
    rows: list[tuple[bool, dict[str, Any]]], old: RunState | None, new: RunState
) -> None:
    rows.append((old is None, sweep_row(new)))


def _to_compare(state: RunState, other: RunState | None) -> Iterable[Job]:
    """Yield the jobs that may differ from those of the other state of the same run; the ended sets
    of a sweep differ only if a user retried one, or the run has ended."""
    if other is not None and other.ended is state.ended:
        return state.jobs
    return (*state.ended.jobs, *state.jobs)


def delete(connection: sa.Connection, key: sa.Column[Any], values: Sequence[str]) -> None:
    if values:
        connection.execute(sa.delete(key.table).where(key.in_(values)))


def _upsert(connection: sa.Connection, codec: RowCodec[T], key: str, values: Iterable[T]) -> None:
    """Insert or update these values. It first asks which exist, because every database can do
    that."""
    rows = {row[key]: row for row in map(codec.row, values)}
    if not rows:
        return
    column = codec.table.c[key]
    existing = set(connection.execute(sa.select(column).where(column.in_(rows))).scalars())
    changed = [row for value, row in rows.items() if value in existing]
    added = [row for value, row in rows.items() if value not in existing]
    if changed:
        _update(connection, codec.table, key, changed)
    if added:
        connection.execute(codec.table.insert(), added)


_RELEASED = AllocationState.RELEASED.value


def forget_runs(connection: sa.Connection, finished_before: float, limit: int) -> list[str]:
    """Remove ended runs with all that belongs to them; return their ids."""
    run, allocation = schema.runs.c, schema.allocations.c
    occupied = sa.exists().where(
        allocation.run_id == run.id, allocation.state != AllocationState.RELEASED.value
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
    # No cascade reaches the events: they refer to runs without a foreign key.
    delete(connection, schema.events.c.run_id, old)
    delete(connection, run.id, old)
    _delete_events_of_no_run(connection, finished_before)
    return old


def _delete_events_of_no_run(connection: sa.Connection, before: float) -> None:
    event = schema.events.c
    connection.execute(sa.delete(schema.events).where(event.run_id == NO_RUN, event.at < before))
    # The month in which it was there still counts it.
    long_gone = schema.orphans.c.gone_at < before - MACHINES_SECONDS
    connection.execute(sa.delete(schema.orphans).where(long_gone))


def forget_attempts(connection: sa.Connection, finished_before: float, limit: int) -> list[str]:
    """Remove attempts of earlier occurrences of live runs; return their ids."""
    run, attempt, allocation = schema.runs.c, schema.attempts.c, schema.allocations.c
    last = select_last_numbers(
        sa.select(run.id).where(run.status.not_in(FINAL), run.occurrence > 1)
    )
    occupied = sa.exists().where(
        allocation.id == attempt.allocation_id, allocation.state != _RELEASED
    )
    query = (
        sa.select(attempt.id, attempt.run_id)
        .join(schema.runs, attempt.run_id == run.id)
        .join(last, attempt.job_id == last.c.job_id)
        .where(
            attempt.occurrence < run.occurrence,
            attempt.finished_at < finished_before,
            is_older(last),
            ~occupied,
        )
        .order_by(attempt.finished_at)
        .limit(limit)
    )
    found = connection.execute(query).all()
    old, runs = [row.id for row in found], list({row.run_id for row in found})
    # First the attempts: an allocation goes only when no attempt refers to it any more.
    delete(connection, attempt.id, old)
    _delete_allocations_without_attempt(connection, runs, finished_before)
    _delete_events(connection, runs, old, finished_before)
    return old


def _delete_allocations_without_attempt(
    connection: sa.Connection, runs: list[str], released_before: float
) -> None:
    allocation, attempt = schema.allocations.c, schema.attempts.c
    # A NULL among them would make NOT IN true for no row.
    used = sa.select(attempt.allocation_id).where(
        attempt.run_id.in_(runs), attempt.allocation_id.is_not(None)
    )
    connection.execute(
        sa.delete(schema.allocations).where(
            allocation.run_id.in_(runs),
            allocation.state == _RELEASED,
            allocation.released_at < released_before,
            allocation.id.not_in(used),
        )
    )


def _delete_events(
    connection: sa.Connection, runs: list[str], attempts: list[str], before: float
) -> None:
    event = schema.events.c
    of_these = event.attempt_id.in_(attempts)
    of_no_attempt = event.attempt_id.is_(None) & (event.at < before)
    connection.execute(
        sa.delete(schema.events).where(event.run_id.in_(runs), of_these | of_no_attempt)
    )


Kind = Literal["runs", "nodes", "fleets"]


def culprits(connection: sa.Connection, changes: Changes) -> dict[Kind, set[str]]:
    """Return the ids and names that the database refuses after the others were written.

    The caller's transaction then has the rest and must be rolled back.
    """
    refused: dict[Kind, set[str]] = {"runs": set(), "nodes": set(), "fleets": set()}
    for kind, key, part in _parts(changes):
        try:
            # A savepoint: after an error PostgreSQL refuses the rest of a transaction (25P02).
            with connection.begin_nested():
                write(connection, part)
        except Exception as error:
            if not is_about_values(error):
                raise
            refused[kind].add(key)
    return refused


def _parts(changes: Changes) -> Iterator[tuple[Kind, str, Changes]]:
    events: dict[str, list[Event]] = {run_id: [] for run_id in changes.runs}
    if changes.orphans:
        events[NO_RUN] = []
    for event in changes.events:
        events.setdefault(event.run_id, []).append(event)
    for run_id, of_run in events.items():
        states = {run_id: changes.runs[run_id]} if run_id in changes.runs else {}
        # They are stored with their events or not at all.
        orphans = changes.orphans if run_id == NO_RUN else {}
        yield "runs", run_id, Changes(runs=states, orphans=orphans, events=tuple(of_run))
    for name, fleet in changes.fleets.items():
        yield "fleets", name, Changes(fleets={name: fleet})
    for name in changes.removed_fleets:
        yield "fleets", name, Changes(removed_fleets=(name,))
    for node_id, node in changes.nodes.items():
        yield "nodes", node_id, Changes(nodes={node_id: node})
    for node_id in changes.removed_nodes:
        yield "nodes", node_id, Changes(removed_nodes=(node_id,))
