"""What is stored now of what turns changed, and all that is live for a beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from controller.lifecycle.machines.model import Machine
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.model import Allocation, Fleet, Node, RunState
from controller.store import queries, schema
from controller.store.accounts import ServiceKey, StoredSecret, StoredToken, User
from controller.store.base import Gateway, Snapshot
from controller.store.rows import (
    ALLOCATION,
    FLEET,
    GATEWAY,
    MACHINE,
    NODE,
    ORPHAN,
    SECRET,
    SERVICE_KEY,
    TOKEN,
    USER,
    RowCodec,
)
from controller.store.turns.notes import Changed, Turn, latest

T = TypeVar("T", bound=msgspec.Struct)


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    users: tuple[User, ...]
    tokens: tuple[StoredToken, ...]
    service_keys: tuple[ServiceKey, ...]


class ChangedState(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored now of what turns changed; of a key with None: nothing any more. `accounts`,
    `secrets`, `gateways`: all of them; None: they did not change."""

    runs: Mapping[str, RunState | None] = {}
    late: Mapping[str, tuple[Allocation, ...]] = {}
    """By run, the allocations that were asked for and are no longer in its state."""
    nodes: Mapping[str, Node | None] = {}
    fleets: Mapping[str, Fleet | None] = {}
    machines: Mapping[str, Machine | None] = {}
    orphans: Mapping[str, KnownOrphan | None] = {}
    accounts: Accounts | None = None
    secrets: tuple[StoredSecret, ...] | None = None
    gateways: tuple[Gateway, ...] | None = None


def changed_state(
    connection: sa.Connection, changed: Changed, known: Mapping[str, Sequence[str]]
) -> ChangedState:
    """Return what is stored of what changed. `known`: by run, the ids of the allocations whose end
    a reader has not seen."""
    chunks = queries.chunks(changed.runs)
    found = (state for chunk in chunks for state in queries.live_states(connection, chunk))
    states = {state.run.id: state for state in found}
    runs = {run_id: states.get(run_id) for run_id in changed.runs}
    return ChangedState(
        runs=runs,
        late=_late(connection, states, known),
        nodes=_by_key(connection, NODE, "id", changed.nodes),
        fleets=_by_key(connection, FLEET, "name", changed.fleets),
        machines=_by_key(connection, MACHINE, "id", changed.machines),
        orphans=_by_key(connection, ORPHAN, "id", changed.orphans),
        accounts=_accounts(connection) if changed.accounts else None,
        secrets=_all(connection, SECRET) if changed.secrets else None,
        gateways=_all(connection, GATEWAY) if changed.gateways else None,
    )


def _late(
    connection: sa.Connection,
    states: Mapping[str, RunState],
    known: Mapping[str, Sequence[str]],
) -> dict[str, tuple[Allocation, ...]]:
    shown = {one.id for state in states.values() for one in state.allocations}
    gone = [one for run_id in states for one in known.get(run_id, ()) if one not in shown]
    found: dict[str, list[Allocation]] = {}
    for allocation in _by_key(connection, ALLOCATION, "id", gone).values():
        if allocation is not None:
            found.setdefault(allocation.run_id, []).append(allocation)
    return {run_id: tuple(of_run) for run_id, of_run in found.items()}


def _accounts(connection: sa.Connection) -> Accounts:
    return Accounts(
        users=_all(connection, USER),
        tokens=_all(connection, TOKEN),
        service_keys=_all(connection, SERVICE_KEY),
    )


def _all(connection: sa.Connection, codec: RowCodec[T]) -> tuple[T, ...]:
    return tuple(map(codec.value, connection.execute(sa.select(codec.table)).mappings()))


def _by_key(
    connection: sa.Connection, codec: RowCodec[T], key: str, wanted: Sequence[str]
) -> dict[str, T | None]:
    found: dict[str, T | None] = dict.fromkeys(wanted)
    for chunk in queries.chunks(wanted):
        query = sa.select(codec.table).where(codec.table.c[key].in_(chunk))
        for row in connection.execute(query).mappings():
            found[row[key]] = codec.value(row)
    return found


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """All that is live, after this turn. `ended`: the ended runs that still occupy something.
    `installation_id`: whose database it is; None: it is new."""

    turn: Turn
    installation_id: str | None
    snapshot: Snapshot
    ended: tuple[RunState, ...]


def beginning(connection: sa.Connection, used_since: float) -> Beginning:
    turn, snapshot = latest(connection), queries.snapshot(connection, used_since=used_since)
    ids = dict.fromkeys(one.run_id for one in snapshot.leftover_allocations)
    ended = (queries.find_run(connection, run_id, None) for run_id in ids)
    return Beginning(
        turn=turn,
        installation_id=schema.installation_of(connection),
        snapshot=snapshot,
        ended=tuple(state for state in ended if state is not None),
    )
