"""The latest turns by what each of them changed, so that a follower reads again only that.

The leader writes a row in the transaction of each commit, and only where others may follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from controller.lifecycle.machines.model import Machine
from controller.lifecycle.model import Allocation, Fleet, Node, RunState
from controller.store import queries, schema
from controller.store.accounts import ServiceKey, StoredSecret, StoredToken, User
from controller.store.base import Changes, Gateway, Snapshot
from controller.store.rows import (
    ALLOCATION,
    FLEET,
    GATEWAY,
    MACHINE,
    NODE,
    SECRET,
    SERVICE_KEY,
    TOKEN,
    USER,
    RowCodec,
)
from fairlead.wire.decoders import decoder_of

T = TypeVar("T", bound=msgspec.Struct)

MAX_KEPT = 2000
"""A follower that has not looked for longer reads all that is live again."""
_REMOVED_AT_ONCE = 100
MAX_NAMED = 2000
"""A turn that changed more things counts as one that changed all."""
_turns = schema.turns.c


class Turn(msgspec.Struct, frozen=True):
    """The latest turn that a follower knows. `leader`: a word of the controller's life in which it
    was committed; empty: there was none yet."""

    number: int = 0
    leader: str = ""


class Changed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What turns changed: ids of runs, nodes and machines, names of fleets, or any of the rest.
    `all`: nobody knows what, or it is too much."""

    runs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    fleets: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    accounts: bool = False
    """Users, their tokens and the keys of services."""
    secrets: bool = False
    gateways: bool = False
    all: bool = False


def changed_by(changes: Changes) -> Changed:
    """Return what this commit changes."""
    removed = changes.removed_users
    tokens = (*changes.tokens, *changes.removed_tokens)
    keys = (*changes.service_keys, *changes.removed_service_keys)
    found = Changed(
        runs=tuple(changes.runs),
        nodes=(*changes.nodes, *changes.removed_nodes),
        fleets=(*changes.fleets, *changes.removed_fleets),
        machines=tuple(changes.machines),
        accounts=bool(changes.users or removed or tokens or keys),
        secrets=bool(changes.secrets or changes.removed_secrets or removed),
        gateways=bool(changes.gateways or changes.removed_gateways),
    )
    named = (found.runs, found.nodes, found.fleets, found.machines)
    return Changed(all=True) if sum(map(len, named)) > MAX_NAMED else found


def note(connection: sa.Connection, changes: Changes, leader: str) -> None:
    """Write the turn of these changes, and remove the oldest ones now and then."""
    changed = changed_by(changes)
    if changed == Changed():
        return
    row = {"leader": leader, "changed": msgspec.json.encode(changed).decode()}
    number = connection.execute(schema.turns.insert().values(row)).inserted_primary_key
    assert number is not None, "both databases tell the key that they gave"
    if number[0] % _REMOVED_AT_ONCE == 0:
        connection.execute(sa.delete(schema.turns).where(_turns.number <= number[0] - MAX_KEPT))


def latest(connection: sa.Connection) -> Turn:
    query = sa.select(_turns.number, _turns.leader).order_by(_turns.number.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return Turn() if row is None else Turn(row.number, row.leader)


def since(connection: sa.Connection, known: Turn) -> tuple[Turn, Changed] | None:
    """Return the latest turn, and what the turns after `known` changed, in their order. None:
    `known` is no longer among those that are kept."""
    query = sa.select(schema.turns).where(_turns.number >= known.number).order_by(_turns.number)
    rows = connection.execute(query).all()
    if known.number and (not rows or Turn(rows[0].number, rows[0].leader) != known):
        return None
    if len(rows) > MAX_KEPT:
        return None
    new = rows[1:] if known.number else rows
    if not new:
        return known, Changed()
    decoder = decoder_of(Changed)
    return Turn(new[-1].number, new[-1].leader), together(
        [decoder.decode(row.changed) for row in new]
    )


def together(changes: Sequence[Changed]) -> Changed:
    """Return what all of these changed."""

    def named(name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for one in changes for key in getattr(one, name)))

    return Changed(
        runs=named("runs"),
        nodes=named("nodes"),
        fleets=named("fleets"),
        machines=named("machines"),
        accounts=any(one.accounts for one in changes),
        secrets=any(one.secrets for one in changes),
        gateways=any(one.gateways for one in changes),
        all=any(one.all for one in changes),
    )


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    users: tuple[User, ...]
    tokens: tuple[StoredToken, ...]
    service_keys: tuple[ServiceKey, ...]


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored now of what turns changed; of a key with None: nothing any more. `accounts`,
    `secrets`, `gateways`: all of them; None: they did not change."""

    runs: Mapping[str, RunState | None] = {}
    late: Mapping[str, tuple[Allocation, ...]] = {}
    """By run, the allocations that were asked for and are no longer in its state."""
    nodes: Mapping[str, Node | None] = {}
    fleets: Mapping[str, Fleet | None] = {}
    machines: Mapping[str, Machine | None] = {}
    accounts: Accounts | None = None
    secrets: tuple[StoredSecret, ...] | None = None
    gateways: tuple[Gateway, ...] | None = None


def news(connection: sa.Connection, changed: Changed, known: Mapping[str, Sequence[str]]) -> News:
    """Return what is stored of what changed. `known`: by run, the ids of the allocations whose end
    somebody has not seen."""
    states = {state.run.id: state for state in queries.live_states(connection, changed.runs)}
    runs = {run_id: states.get(run_id) for run_id in changed.runs}
    return News(
        runs=runs,
        late=_late(connection, states, known),
        nodes=_by_key(connection, NODE, "id", changed.nodes),
        fleets=_by_key(connection, FLEET, "name", changed.fleets),
        machines=_by_key(connection, MACHINE, "id", changed.machines),
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
    """All that is live, after this turn. `ended`: the ended runs that still occupy something."""

    turn: Turn
    snapshot: Snapshot
    ended: tuple[RunState, ...]


def beginning(connection: sa.Connection, used_since: float) -> Beginning:
    turn, snapshot = latest(connection), queries.snapshot(connection, used_since=used_since)
    ids = dict.fromkeys(one.run_id for one in snapshot.leftover_allocations)
    ended = (queries.find_run(connection, run_id, None) for run_id in ids)
    return Beginning(
        turn=turn,
        snapshot=snapshot,
        ended=tuple(state for state in ended if state is not None),
    )
