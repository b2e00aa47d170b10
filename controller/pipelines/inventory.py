"""The inventory in memory: nodes and fleets as they are shown, and what the next commit stores."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from controller.lifecycle.model import DEFAULT_FLEET, Fleet, Node, NodeStatus
from controller.pipelines.live_state import InventoryChanges
from controller.pipelines.seams import Scheduler


class Inventory:
    """The nodes and fleets. The scheduler learns of each change at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.nodes: dict[str, Node] = {}
        self.fleets: dict[str, Fleet] = {DEFAULT_FLEET.name: DEFAULT_FLEET}
        self.draining: set[str] = set()
        """The ids of the draining nodes."""
        self.removed: set[str] = set()
        """The ids of removed nodes: a turn that began before may still bring a run to one."""
        self.membership = 0
        """Grows when a node comes or goes, or is no longer only expected."""
        self.changes = InventoryChanges()
        """What the next commit stores."""
        self._scheduler = scheduler
        self._installs: dict[str, set[str]] = {}
        """The ids of the nodes that have each shim, by its install id."""

    def restore(self, nodes: Iterable[Node], fleets: Iterable[Fleet]) -> None:
        """Take over what the store has."""
        self.fleets.update({fleet.name: fleet for fleet in fleets})
        for name, fleet in self.fleets.items():
            self._scheduler.fleet_changed(name, fleet)
        for node in nodes:
            self._note_member(None, node)
            self.nodes[node.id] = node
            self._note_drain(node, node.id)
            self._scheduler.node_changed(node.id, node)

    def change_node(self, node: Node | None, node_id: str) -> None:
        """Add, change or (None) remove a node."""
        # Only the first change since a commit sees what the store has; a refusal goes back to it.
        self.changes.stored_nodes.setdefault(node_id, self.nodes.get(node_id))
        self.changes.nodes[node_id] = node
        self.show_node(node, node_id)

    def change_fleet(self, fleet: Fleet | None, name: str) -> None:
        """Add, change or (None) remove a fleet."""
        self.changes.stored_fleets.setdefault(name, self.fleets.get(name))
        self.changes.fleets[name] = fleet
        self.show_fleet(fleet, name)

    def take_changes(self) -> InventoryChanges:
        """Return what changed since the last call."""
        changes, self.changes = self.changes, InventoryChanges()
        return changes

    def put_back(self, changes: InventoryChanges) -> None:
        """Keep changes that could not be committed for the next commit."""
        self.changes = self.changes.over(changes)

    def node_with_shim(self, install_id: str, *, besides: str) -> Node | None:
        """Return another node than `besides` that has the shim with this install id."""
        found = self._installs.get(install_id, set()) - {besides}
        return self.nodes[min(found)] if found else None

    def nodes_of_fleets(self, fleets: Collection[str]) -> dict[str, Node]:
        """Return the nodes of changed fleets: what a node is asked for depends on its fleet."""
        if not fleets:
            return {}
        return {node_id: node for node_id, node in self.nodes.items() if node.fleet in fleets}

    def show_node(self, node: Node | None, node_id: str) -> None:
        """Show this version of a node; only `changes` are stored."""
        self._note_member(self.nodes.get(node_id), node)
        if node is None:
            self.nodes.pop(node_id, None)
            self.removed.add(node_id)
        else:
            self.nodes[node_id] = node
            self.removed.discard(node_id)
        self._note_drain(node, node_id)
        self._scheduler.node_changed(node_id, node)

    def show_fleet(self, fleet: Fleet | None, name: str) -> None:
        """Show this version of a fleet, as `show_node` does for a node."""
        if fleet is None:
            self.fleets.pop(name, None)
        else:
            self.fleets[name] = fleet
        self._scheduler.fleet_changed(name, fleet)

    def _note_member(self, before: Node | None, after: Node | None) -> None:
        """Keep count of who is there: with thousands of nodes, each that connects would have to
        look at all others."""
        if _is_member(before) != _is_member(after):
            self.membership += 1
        if before is not None and before.install_id is not None:
            of_shim = self._installs[before.install_id]
            of_shim.discard(before.id)
            if not of_shim:
                del self._installs[before.install_id]
        if after is not None and after.install_id is not None:
            self._installs.setdefault(after.install_id, set()).add(after.id)

    def _note_drain(self, node: Node | None, node_id: str) -> None:
        if node is not None and node.draining:
            self.draining.add(node_id)
        else:
            self.draining.discard(node_id)


def _is_member(node: Node | None) -> bool | None:
    """Return whether the node can be connected to; None: it is not there."""
    return None if node is None else node.status is not NodeStatus.EXPECTED
