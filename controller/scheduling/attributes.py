"""What constraints can ask about a node: what its shim said, its fleet's attributes, its own.

The node's own win over its fleet's, and both over what is built in.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.lifecycle.model import Fleet, Node


def attributes_of(node: Node, fleet: Fleet | None) -> dict[str, str]:
    """`node`, `fleet`, `cpu` (cores), `memory` and `disk` (bytes), `gpu.count` (cards,
    also where they are split); with GPUs that are all alike `gpu.name` and `gpu.memory`, too."""
    capacity = node.capacity
    found = {
        "node": node.name,
        "fleet": node.fleet,
        "cpu": f"{capacity.cpu:g}",
        "memory": str(capacity.memory),
        "disk": str(capacity.disk),
        "gpu.count": str(len({gpu.board for gpu in capacity.gpus})),
    }
    if len({gpu.name for gpu in capacity.gpus}) == 1:
        found["gpu.name"] = capacity.gpus[0].name
    if len({gpu.memory for gpu in capacity.gpus}) == 1:
        found["gpu.memory"] = str(capacity.gpus[0].memory)
    if fleet is not None:
        found |= fleet.attributes
    return found | node.attributes


class Domain(tuple[str, str | None]):
    """One fleet and one value of its placement attribute (None: the whole fleet is one place):
    what all nodes of one gang share."""

    __slots__ = ()

    @property
    def fleet(self) -> str:
        return self[0]

    @property
    def value(self) -> str | None:
        return self[1]

    def __str__(self) -> str:
        return f"fleet {self.fleet}" if self.value is None else f"{self.value} of {self.fleet}"


def domain_of(node: Node, fleets: Mapping[str, Fleet]) -> Domain | None:
    """None: its fleet names an attribute which the node does not have, so that nobody knows beside
    what it stands."""
    fleet = fleets.get(node.fleet)
    if fleet is None or fleet.placement is None:
        return Domain((node.fleet, None))
    value = attributes_of(node, fleet).get(fleet.placement)
    return None if value is None else Domain((node.fleet, value))
