"""Which parts of a refused transaction it was, so that the others need not wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import sqlalchemy as sa

from controller.lifecycle.history import Event
from controller.store import writing
from controller.store.base import Changes
from controller.store.failures import is_about_values

Kind = Literal["runs", "nodes", "fleets"]


def culprits(connection: sa.Connection, changes: Changes) -> dict[Kind, set[str]]:
    """The ids and names of what is refused on top of what came before it. The transaction, which
    is the caller's, has the rest then, and is to be rolled back."""
    refused: dict[Kind, set[str]] = {"runs": set(), "nodes": set(), "fleets": set()}
    for kind, key, part in _parts(changes):
        try:
            with connection.begin_nested():
                writing.write(connection, part)
        except Exception as error:
            if not is_about_values(error):
                raise
            refused[kind].add(key)
    return refused


def _parts(changes: Changes) -> Iterator[tuple[Kind, str, Changes]]:
    events: dict[str, list[Event]] = {run_id: [] for run_id in changes.runs}
    for event in changes.events:
        events.setdefault(event.run_id, []).append(event)
    for run_id, told in events.items():
        states = {run_id: changes.runs[run_id]} if run_id in changes.runs else {}
        yield "runs", run_id, Changes(runs=states, events=tuple(told))
    for name, fleet in changes.fleets.items():
        yield "fleets", name, Changes(fleets={name: fleet})
    for name in changes.removed_fleets:
        yield "fleets", name, Changes(removed_fleets=(name,))
    for node_id, node in changes.nodes.items():
        yield "nodes", node_id, Changes(nodes={node_id: node})
    for node_id in changes.removed_nodes:
        yield "nodes", node_id, Changes(removed_nodes=(node_id,))
