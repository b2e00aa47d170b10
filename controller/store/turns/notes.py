"""Notes: a row for each of the latest turns, with the keys of what it changed.

The leader writes it in the transaction of the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from controller.store import schema
from controller.store.base import Changes
from fairlead.wire.decoders import decoder_of

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
    """What turns changed: ids of runs, nodes, machines and orphans, names of fleets, or any of the
    rest. `all`: nobody knows what, or it is too much."""

    runs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    fleets: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
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
        orphans=tuple(changes.orphans),
        accounts=bool(changes.users or removed or tokens or keys),
        secrets=bool(changes.secrets or changes.removed_secrets or removed),
        gateways=bool(changes.gateways or changes.removed_gateways),
    )
    named = (found.runs, found.nodes, found.fleets, found.machines, found.orphans)
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
        orphans=named("orphans"),
        accounts=any(one.accounts for one in changes),
        secrets=any(one.secrets for one in changes),
        gateways=any(one.gateways for one in changes),
        all=any(one.all for one in changes),
    )
