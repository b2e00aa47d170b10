"""Queries read runs, attempts and events from the database, the recent ones or all."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from controller.lifecycle.attempts.allocations import use_of
from controller.lifecycle.machines.cost import DayCosts
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.model import (
    Allocation,
    Attempt,
    Job,
    JobSpec,
    RunState,
    SweepContent,
    Use,
)
from controller.lifecycle.runs.compaction import KEPT_ATTEMPTS, recent
from controller.store import schema
from controller.store.accounts import ServiceKey, StoredToken, User
from controller.store.base import (
    MACHINES_SECONDS,
    USE_SECONDS,
    Snapshot,
    StoredEvent,
)
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
    storable,
    submission_mark,
    sweep_content,
)
from fairlead.model.statuses import (
    FINAL_ATTEMPT_STATUSES,
    FINAL_RUN_STATUSES,
    AllocationState,
)
from fairlead.queries import AttemptQuery, EventQuery, RunQuery

IDS_PER_QUERY = 500
"""Databases limit the number of parameters of a statement: SQLite to 32,766 (999 before 3.32),
PostgreSQL's protocol to 65,535."""
_ROWS_AT_ONCE = 1000
_runs = schema.runs.c


def snapshot(connection: sa.Connection, *, used_since: float) -> Snapshot:
    live = sa.select(schema.runs).where(_runs.status.not_in(FINAL))
    in_order = live.order_by(_runs.submitted_at, _runs.id)
    runs = tuple(map(recent, _assemble(connection, in_order, present=True)))
    return Snapshot(
        runs=runs,
        nodes=tuple(
            NODE.value(row)
            for row in _rows(connection, sa.select(schema.nodes).order_by(schema.nodes.c.name))
        ),
        users=tuple(map(USER.value, _rows(connection, sa.select(schema.users)))),
        tokens=tuple(map(TOKEN.value, _rows(connection, sa.select(schema.tokens)))),
        service_keys=tuple(
            map(SERVICE_KEY.value, _rows(connection, sa.select(schema.service_keys)))
        ),
        leftover_allocations=_leftovers(connection),
        fleets=tuple(
            FLEET.value(row)
            for row in _rows(connection, sa.select(schema.fleets).order_by(schema.fleets.c.name))
        ),
        past_use=tuple(_past_use(connection, used_since, runs)),
        gateways=tuple(map(GATEWAY.value, _rows(connection, sa.select(schema.gateways)))),
        catalogs=tuple(map(CATALOG.value, _rows(connection, sa.select(schema.catalogs)))),
        machines=_machines(connection, used_since + USE_SECONDS - MACHINES_SECONDS),
        orphans=_orphans(connection, used_since + USE_SECONDS - MACHINES_SECONDS),
        secrets=tuple(map(SECRET.value, _rows(connection, sa.select(schema.secrets)))),
    )


def _machines(connection: sa.Connection, ended_after: float) -> tuple[Machine, ...]:
    machine = schema.machines.c
    query = (
        sa.select(schema.machines)
        .where(machine.terminated_at.is_(None) | (machine.terminated_at > ended_after))
        .order_by(machine.ordered_at, machine.id)
    )
    return tuple(map(MACHINE.value, _rows(connection, query)))


def _orphans(connection: sa.Connection, gone_after: float) -> tuple[KnownOrphan, ...]:
    gone_at = schema.orphans.c.gone_at
    query = sa.select(schema.orphans).where(gone_at.is_(None) | (gone_at > gone_after))
    return tuple(map(ORPHAN.value, _rows(connection, query.order_by(schema.orphans.c.id))))


def _leftovers(connection: sa.Connection) -> tuple[Allocation, ...]:
    allocations = schema.allocations
    query = (
        sa.select(allocations)
        .join(schema.runs, allocations.c.run_id == _runs.id)
        .where(_runs.status.in_(FINAL), allocations.c.state != AllocationState.RELEASED.value)
        .order_by(allocations.c.id)
    )
    return tuple(map(ALLOCATION.value, _rows(connection, query)))


def _past_use(connection: sa.Connection, since: float, runs: Iterable[RunState]) -> Iterator[Use]:
    at_hand = {allocation.id for state in runs for allocation in state.allocations}
    allocations = schema.allocations
    query = (
        sa.select(allocations, _runs.user)
        .join(schema.runs, allocations.c.run_id == _runs.id)
        .where(
            allocations.c.state != AllocationState.NOMINATED.value,
            allocations.c.released_at.is_(None) | (allocations.c.released_at > since),
        )
        .order_by(allocations.c.created_at, allocations.c.id)
    )
    for row in connection.execute(query).mappings():
        allocation = ALLOCATION.value(row)
        if allocation.id not in at_hand and not allocation.victims:
            yield use_of(allocation, row["user"])


def find_run(
    connection: sa.Connection, key: str, user: str | None, *, as_live: bool = False
) -> RunState | None:
    """Return the run with this id, else the live one with this name, else the newest. `as_live`: a
    live run as a controller that leads has it in memory."""
    # PostgreSQL refuses a NUL even in a parameter; a key that has one shall find nothing.
    key = storable(key)
    allowed = sa.true() if user is None else _runs.user == user
    assemble = _assemble_as_live if as_live else _assemble
    by_id = sa.select(schema.runs).where(_runs.id == key, allowed)
    named = sa.select(schema.runs).where(_runs.name == key, allowed)
    # The live one may seem older: the clocks of two leaders may be minutes apart.
    has_ended = _runs.status.in_(FINAL)
    newest = named.order_by(has_ended, _runs.submitted_at.desc(), _runs.id.desc()).limit(1)
    found = assemble(connection, by_id) or assemble(connection, newest)
    return next(iter(found), None)


def _assemble_as_live(connection: sa.Connection, query: sa.Select[Any]) -> list[RunState]:
    """Return the states of the runs that the query selects, in its order: those of live runs as a
    controller that leads has them in memory."""
    heads = connection.execute(query.with_only_columns(_runs.id, _runs.status)).all()
    states: dict[str, RunState] = {}
    for present in (True, False):
        ids = [head.id for head in heads if (head.status not in FINAL) is present]
        for chunk in chunks(ids):
            of_these = sa.select(schema.runs).where(_runs.id.in_(chunk))
            for state in _assemble(connection, of_these, present=present):
                states[state.run.id] = recent(state) if present else state
    return [states[head.id] for head in heads]


def live_states(connection: sa.Connection, ids: Sequence[str]) -> list[RunState]:
    """Return these runs, as `find_run` does with `as_live`."""
    return _assemble_as_live(connection, sa.select(schema.runs).where(_runs.id.in_(ids)))


def account(connection: sa.Connection, digest: str) -> tuple[User, StoredToken] | None:
    """Return the token with this digest and its user."""
    return _account(connection, schema.tokens.c.digest == digest)


def account_of(connection: sa.Connection, token_id: str) -> tuple[User, StoredToken] | None:
    """Return the token with this id and its user."""
    return _account(connection, schema.tokens.c.id == token_id)


def _account(
    connection: sa.Connection, which: sa.ColumnElement[bool]
) -> tuple[User, StoredToken] | None:
    for row in _rows(connection, sa.select(schema.tokens).where(which)):
        token = TOKEN.value(row)
        of_name = sa.select(schema.users).where(schema.users.c.name == token.user)
        for of_user in _rows(connection, of_name):
            return USER.value(of_user), token
    return None


def service_keys(connection: sa.Connection, digest: str) -> tuple[ServiceKey, ...]:
    """Return the keys of services with this digest."""
    query = sa.select(schema.service_keys).where(schema.service_keys.c.digest == digest)
    return tuple(map(SERVICE_KEY.value, _rows(connection, query)))


def node_names(connection: sa.Connection) -> dict[str, str]:
    """Return the names of all nodes by id."""
    query = sa.select(schema.nodes.c.id, schema.nodes.c.name)
    return {row.id: row.name for row in connection.execute(query)}


def find_submissions(
    connection: sa.Connection, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], RunState]:
    by_user: dict[str, dict[str, str]] = defaultdict(dict)
    for user, key in keys:
        by_user[user][storable(key)] = key
    found: dict[tuple[str, str], RunState] = {}
    for user, given in by_user.items():
        for chunk in chunks(list(given)):
            query = sa.select(schema.runs).where(_runs.user == user, _runs.client_key.in_(chunk))
            # The newest of each key comes last, and stays.
            for state in _assemble(connection, query.order_by(_runs.submitted_at, _runs.id)):
                found[user, given[str(state.run.client_key)]] = state
    return found


def submission_marks(connection: sa.Connection) -> array[int]:
    query = sa.select(_runs.user, _runs.client_key).where(_runs.client_key.is_not(None))
    # Not all at once: a database keeps runs for months.
    found = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)
    return array("q", (submission_mark(user, key) for user, key in found))


def list_runs(
    connection: sa.Connection, wanted: RunQuery, *, as_live: bool = False
) -> list[RunState]:
    """`as_live`: as of `find_run`."""
    query = sa.select(schema.runs).order_by(_runs.submitted_at.desc(), _runs.id.desc())
    if not wanted.with_finished:
        query = query.where(_runs.status.not_in(FINAL))
    if wanted.user is not None:
        query = query.where(_runs.user == wanted.user)
    if wanted.parent_id is not None:
        query = query.where(_runs.parent_id == wanted.parent_id)
    if wanted.statuses:
        query = query.where(_runs.status.in_([status.value for status in wanted.statuses]))
    if wanted.band is not None:
        query = query.where(_runs.band == wanted.band.value)
    if wanted.name is not None:
        query = query.where(_runs.name.like(_like(storable(wanted.name)), escape=_ESCAPE))
    if wanted.last_known is not None:
        before = storable(wanted.last_known)
        last = connection.execute(sa.select(_runs.submitted_at).where(_runs.id == before)).scalar()
        if last is None:
            return []
        earlier = _runs.submitted_at < last
        # A clock may give several runs the same time: then the id decides, as in the order.
        query = query.where(earlier | ((_runs.submitted_at == last) & (_runs.id < before)))
    assemble = _assemble_as_live if as_live else _assemble
    return assemble(connection, query.limit(wanted.limit))


_ESCAPE = "\\"


def _like(pattern: str) -> str:
    """Return the pattern, with `*` and `?`, in the language of SQL."""
    # SQLite's LIKE ignores the case of ASCII letters and PostgreSQL's does not: names have no
    # capitals.
    plain = re.sub(r"([\\%_])", r"\\\1", pattern)
    return plain.replace("*", "%").replace("?", "_")


def events(connection: sa.Connection, wanted: EventQuery) -> list[StoredEvent]:
    columns = schema.events.c
    query = sa.select(schema.events).where(columns.seq > wanted.last_known).limit(wanted.limit)
    order = columns.seq if wanted.before is None else columns.seq.desc()
    query = query.order_by(order)
    if wanted.before is not None:
        query = query.where(columns.seq < wanted.before)
    if wanted.run is not None:
        query = query.where(columns.run_id == wanted.run)
    if wanted.user is not None:
        own = sa.select(_runs.id).where(_runs.user == wanted.user)
        query = query.where(columns.run_id.in_(own))
    if wanted.node_id is not None:
        there = sa.select(_attempts.id).where(_attempts.node_id == storable(wanted.node_id))
        query = query.where(columns.attempt_id.in_(there))
    rows = sorted(_rows(connection, query), key=lambda row: row["seq"])
    return [StoredEvent(seq=row["seq"], event=EVENT.value(row)) for row in rows]


def events_with_owners(
    connection: sa.Connection, after: int, limit: int
) -> list[tuple[StoredEvent, str | None]]:
    """Return the events after this number, each with the owner of its run; None: the run is no
    longer stored."""
    events = schema.events
    query = (
        sa.select(events, _runs.user.label("owner_of_run"))
        .select_from(events.outerjoin(schema.runs, _runs.id == events.c.run_id))
        .where(events.c.seq > after)
        .order_by(events.c.seq)
        .limit(limit)
    )
    return [
        (StoredEvent(seq=row["seq"], event=EVENT.value(row)), row["owner_of_run"])
        for row in _rows(connection, query)
    ]


def last_event(connection: sa.Connection) -> int:
    """Return the number of the latest event; 0: there is none."""
    return connection.execute(sa.select(sa.func.max(schema.events.c.seq))).scalar_one() or 0


def _assemble(
    connection: sa.Connection, query: sa.Select[Any], *, present: bool = False
) -> list[RunState]:
    """Return the states of the runs that the query selects, in its order, with their recent
    attempts.

    `present`: also with all attempts of the present occurrence.
    """
    rows = _rows(connection, query)
    ids = [row["id"] for row in rows]
    allocations = defaultdict(list)
    order = (schema.allocations.c.created_at, schema.allocations.c.id)
    for chunk in chunks(ids):
        recent_allocations = select_recent_allocations(chunk, present=present)
        for row in _rows(connection, recent_allocations.order_by(*order)):
            allocations[row["run_id"]].append(ALLOCATION.value(row))
    jobs = _jobs(connection, ids, present=present)
    sweeps = _sweeps(connection, ids)
    return [
        RunState(
            sweep=sweeps.get(row["id"]),
            run=RUN.value(row),
            jobs=tuple(jobs[row["id"]]),
            allocations=tuple(allocations[row["id"]]),
        )
        for row in rows
    ]


def _sweeps(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, SweepContent]:
    found: dict[str, SweepContent] = {}
    for chunk in chunks(run_ids):
        of_these = sa.select(schema.sweeps).where(schema.sweeps.c.run_id.in_(chunk))
        for row in _rows(connection, of_these):
            found[row["run_id"]] = sweep_content(row)
    return found


def _jobs(
    connection: sa.Connection, run_ids: Sequence[str], *, present: bool
) -> dict[str, list[Job]]:
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    jobs: dict[str, list[Job]] = defaultdict(list)
    specs: dict[str, JobSpec] = {}
    for chunk in chunks(run_ids):
        of_these = select_recent_attempts(chunk, present=present)
        for row in _rows(connection, of_these.order_by(schema.attempts.c.number)):
            attempts[row["job_id"]].append(ATTEMPT.value(row))
        slots = sa.select(schema.jobs).where(schema.jobs.c.run_id.in_(chunk))
        for row in _rows(connection, slots.order_by(schema.jobs.c.index)):
            job = JOB.value(row, attempts=tuple(attempts[row["id"]]))
            # The jobs of a sweep share one spec in memory, as they did when they were made.
            job = replace(job, spec=specs.setdefault(row["spec"], job.spec))
            jobs[row["run_id"]].append(job)
    return jobs


def chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), IDS_PER_QUERY):
        yield list(ids[start : start + IDS_PER_QUERY])


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> list[sa.RowMapping]:
    return list(connection.execute(query).mappings().all())


FINAL = [status.value for status in FINAL_RUN_STATUSES]
_ENDED = [status.value for status in FINAL_ATTEMPT_STATUSES]
_attempts = schema.attempts.c
_allocations = schema.allocations.c


def is_number(key: str) -> bool:
    """Return whether the key is a number that a database can hold."""
    # A BIGINT has up to 19 digits. `isdecimal` alone accepts the digits of other scripts.
    return key.isascii() and key.isdecimal() and len(key) < 19


def select_last_numbers(run_ids: Any) -> sa.Subquery:
    """Select, for each job of these runs (a list or a query of ids), the number of its latest
    attempt."""
    return (
        sa.select(_attempts.job_id, sa.func.max(_attempts.number).label("last"))
        .where(_attempts.run_id.in_(run_ids))
        .group_by(_attempts.job_id)
        .subquery()
    )


def is_older(last: sa.Subquery) -> sa.ColumnElement[bool]:
    return _attempts.number <= last.c.last - KEPT_ATTEMPTS


def select_recent_attempts(run_ids: list[str], *, present: bool) -> sa.Select[Any]:
    """Select at least the attempts that `lifecycle.runs.compaction` keeps; `present`: also all of
    the present occurrence."""
    last = select_last_numbers(run_ids)
    occupied = sa.select(_allocations.id).where(
        _allocations.run_id.in_(run_ids), _allocations.state != AllocationState.RELEASED.value
    )
    wanted = [
        ~is_older(last),
        _attempts.status.not_in(_ENDED),
        _attempts.allocation_id.in_(occupied),
    ]
    if present:
        wanted.append(_attempts.occurrence >= schema.runs.c.occurrence)
    return (
        sa.select(schema.attempts)
        .join(last, _attempts.job_id == last.c.job_id)
        .join(schema.runs, _attempts.run_id == schema.runs.c.id)
        .where(_attempts.run_id.in_(run_ids), sa.or_(*wanted))
    )


def select_recent_allocations(run_ids: list[str], *, present: bool) -> sa.Select[Any]:
    """Select the allocations that are occupied, that these attempts had, or that no attempt had."""
    attempts = select_recent_attempts(run_ids, present=present)
    kept = attempts.with_only_columns(_attempts.allocation_id)
    had = sa.select(_attempts.allocation_id).where(_attempts.run_id.in_(run_ids))
    return sa.select(schema.allocations).where(
        _allocations.run_id.in_(run_ids),
        (_allocations.state != AllocationState.RELEASED.value)
        | _allocations.id.in_(kept.where(_attempts.allocation_id.is_not(None)))
        # A NULL among them would make NOT IN true for no row.
        | _allocations.id.not_in(had.where(_attempts.allocation_id.is_not(None))),
    )


def attempts(connection: sa.Connection, run_id: str, wanted: AttemptQuery) -> list[Attempt]:
    conditions = [_attempts.run_id == run_id]
    if wanted.job is not None:
        conditions.append(_attempts.job_id == wanted.job)
    if wanted.occurrence is not None:
        conditions.append(_attempts.occurrence == wanted.occurrence)
    if (key := wanted.key) is not None:
        by_id = _attempts.id == storable(key)
        conditions.append(by_id | (_attempts.number == int(key)) if is_number(key) else by_id)
    if wanted.incarnation is not None:
        conditions.append(_of_incarnation(wanted.incarnation, connection.dialect.name))
    if wanted.cursor is not None:
        last = storable(wanted.cursor)
        at = connection.execute(sa.select(_attempts.submitted_at).where(_attempts.id == last))
        submitted_at = at.scalar()
        if submitted_at is None:
            return []
        # All jobs of a run are submitted at the same time: then the id decides, as in the order.
        later = (_attempts.submitted_at == submitted_at) & (_attempts.id > last)
        conditions.append((_attempts.submitted_at > submitted_at) | later)
    query = sa.select(schema.attempts).where(*conditions)
    query = query.order_by(_attempts.submitted_at, _attempts.id).limit(wanted.limit)
    return [ATTEMPT.value(row) for row in connection.execute(query).mappings()]


def _of_incarnation(key: str, dialect: str) -> sa.ColumnElement[bool]:
    """Return the condition for an incarnation's number or id. There is no index: one run has few
    attempts."""
    by_id = _of_its_incarnation("id", dialect) == storable(key)
    if not is_number(key):
        return by_id
    return by_id | (_of_its_incarnation("number", dialect) == str(int(key)))


def _of_its_incarnation(name: str, dialect: str) -> sa.ColumnElement[str]:
    """Return a field of the attempt's incarnation as text, because it is in `rest`; NULL for an
    attempt without one."""
    rest = _attempts.rest
    if dialect == "postgresql":
        return sa.func.json_extract_path_text(sa.cast(rest, sa.JSON), "incarnation", name)
    # SQLite gives a number of JSON as INTEGER, which equals no text.
    return sa.cast(sa.func.json_extract(rest, f"$.incarnation.{name}"), sa.Text)


def attempts_on(
    connection: sa.Connection, node_ids: Collection[str], since: float, limit: int
) -> list[tuple[str, Attempt]]:
    finished = _attempts.finished_at
    there = _attempts.node_id.in_([storable(one) for one in node_ids])
    wanted = there & ((finished >= since) | finished.is_(None))
    query = sa.select(schema.attempts).where(wanted)
    query = query.order_by(_attempts.submitted_at.desc(), _attempts.id.desc()).limit(limit)
    rows = connection.execute(query).mappings()
    return [(row["run_id"], ATTEMPT.value(row)) for row in rows]


def costs_of_days(connection: sa.Connection, first: str) -> list[DayCosts]:
    day = schema.cost_days.c.day
    query = sa.select(schema.cost_days).where(day >= first).order_by(day)
    return list(map(COSTS.value, _rows(connection, query)))
