"""Renting joins the decisions about machines to the turns.

What they change is committed with a turn, and what that means for runs is told after the commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from controller.lifecycle.model import RunState
from controller.lifecycle.node_history import with_history
from controller.lifecycle.reports import MachineAnswered, NodeGone
from controller.pipelines.inventory import Inventory
from controller.pipelines.live_state import InventoryChanges
from controller.pipelines.renting.machine_turn import GoneNode
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.turn import TurnInProgress


class NodeUse(Protocol):
    """What runs have on nodes."""

    def is_used(self, node_id: str) -> bool:
        """Return whether something of a run is on the node, or may be, or is about to be."""

    def runs_on(self, node_id: str) -> list[RunState]:
        """Return the runs that have a live attempt on this node, or may have something left
        there."""


class Renting:
    def __init__(self, rentals: Rentals, inventory: Inventory, use: NodeUse) -> None:
        self._rentals = rentals
        self._inventory = inventory
        self._use = use
        self._gone: list[GoneNode] = []
        """Nodes whose machines are gone, to be told to their runs after the next commit."""
        self._answers: list[MachineAnswered] = []
        self.wakes_at: float | None = None
        """When a turn must follow although nothing is reported (Unix seconds)."""

    def decide(self, turn: TurnInProgress, changes: InventoryChanges, now: float) -> bool:
        """Decide about machines; what changes becomes part of the turn's commit. Return whether
        nodes have changed."""
        if turn.states or changes.nodes or changes.fleets:
            self._rentals.note_change()
        nodes, fleets = self._inventory.nodes, self._inventory.fleets
        turned = self._rentals.decide(nodes, fleets, self._use.is_used, now)
        changes.machines.update(turned.machines)
        for node_id, node in turned.nodes.items():
            if node is not None:
                node = with_history(nodes.get(node_id), node, now, None)
            changes.stored_nodes.setdefault(node_id, nodes.get(node_id))
            changes.nodes[node_id] = node
            if node_id in self._inventory.changes.nodes:
                # Somebody changed it during this turn: that is in `node`, and is committed later.
                self._inventory.changes.nodes[node_id] = node
            self._inventory.show_node(node, node_id)
        self.wakes_at = self._rentals.wakes_at(nodes, fleets, now)
        self._gone += turned.gone
        self._answers += turned.answers
        turn.events.extend(turned.events)
        turn.orphans = turned.orphans
        return bool(turned.nodes)

    def stored(self, changes: InventoryChanges) -> Iterator[MachineAnswered | NodeGone]:
        """Note the commit of these changes. Yield what runs must be told of it."""
        self._rentals.stored(changes.machines)
        # Only now is a run known that this turn admitted; the next look may be a minute away.
        answers, self._answers = self._answers, []
        yield from answers
        gone, self._gone = self._gone, []
        for one in gone:
            for state in self._use.runs_on(one.node_id):
                yield NodeGone(
                    run_id=state.run.id,
                    node_id=one.node_id,
                    reason=one.reason,
                    message=one.message,
                    cleanup_confirmed=True,
                    removed=one.removed,
                )

    def leave_out_events(self) -> None:
        """The database refuses the events that were offered, or the orphans."""
        self._rentals.leave_out_events()
