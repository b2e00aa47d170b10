"""The free resources of nodes, by the kind of GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fairlead.documents.nodes import NodeView
from fairlead.model.statuses import NodeStatus


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of nodes that take work, with one kind of GPU or without GPUs (`gpu` null).

    Sizes are in bytes, CPU in cores. `most_on_a_node`: the GPUs that one job can get at once.
    """

    gpu: str | None
    gpu_memory: int
    free: int
    total: int
    most_on_a_node: int
    cpu_free: float
    memory_free: int
    nodes: tuple[str, ...]


def offers(nodes: Iterable[NodeView]) -> list[Offer]:
    """Return what the nodes that take work have free, most GPUs first; GPUs that are broken or in
    use count as not free."""
    kinds: dict[tuple[str | None, int], list[NodeView]] = {}
    for node in nodes:
        if _takes_work(node):
            for kind in _kinds(node):
                kinds.setdefault(kind, []).append(node)
    found = [_offer(name, memory, having) for (name, memory), having in kinds.items()]
    return sorted(found, key=lambda one: (-one.free, one.gpu or "~", one.gpu_memory))


def _kinds(node: NodeView) -> set[tuple[str | None, int]]:
    return {(gpu.name, gpu.memory) for gpu in node.gpus} or {(None, 0)}


def _takes_work(node: NodeView) -> bool:
    return node.status == NodeStatus.CONNECTED and not (
        node.draining or node.cordoned or node.unfit
    )


def _offer(name: str | None, memory: int, nodes: Sequence[NodeView]) -> Offer:
    of_kind = [
        [gpu for gpu in node.gpus if (gpu.name, gpu.memory) == (name, memory)] for node in nodes
    ]
    free = [sum(gpu.healthy and not gpu.in_use for gpu in gpus) for gpus in of_kind]
    return Offer(
        gpu=name,
        gpu_memory=memory,
        free=sum(free),
        total=sum(len(gpus) for gpus in of_kind),
        most_on_a_node=max(free),
        cpu_free=sum(max(0.0, node.cpu - node.cpu_allocated) for node in nodes),
        memory_free=sum(max(0, node.memory - node.memory_allocated) for node in nodes),
        nodes=tuple(node.name for node in nodes),
    )
