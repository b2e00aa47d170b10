"""What a run must be told of nodes that are not there, by whoever finds that it has a place on one.

A node may have gone while a placement on it was being committed, or its removal may have been
committed by a controller that died before the run heard of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from controller.lifecycle.model import Node, NodeStatus
from controller.lifecycle.reasons import Reason
from controller.lifecycle.reports import NodeDisconnected, NodeGone


def news_of(
    run_id: str, node_ids: Iterable[str], nodes: Mapping[str, Node], gone: Container[str]
) -> Iterator[NodeDisconnected | NodeGone]:
    for node_id in node_ids:
        node = nodes.get(node_id)
        if node_id in gone:
            yield removed(run_id, node_id)
        elif node is not None and node.status is not NodeStatus.CONNECTED:
            yield NodeDisconnected(run_id=run_id, node_id=node_id, disconnected=True)


def none_reached(
    run_id: str, node_ids: Iterable[str], nodes: Mapping[str, Node]
) -> Iterator[NodeDisconnected | NodeGone]:
    """As a controller that has just started sees it: nobody knows since when it was away."""
    for node_id in node_ids:
        if node_id in nodes:
            yield NodeDisconnected(
                run_id=run_id, node_id=node_id, disconnected=True, limits_anew=True
            )
        else:
            yield removed(run_id, node_id)


def removed(run_id: str, node_id: str) -> NodeGone:
    """A node is removed only when an admin says that nothing of ours runs there any more."""
    return NodeGone(
        run_id=run_id,
        node_id=node_id,
        reason=Reason.INSTANCE_UNREACHABLE,
        message="the node was removed",
        cleanup_confirmed=True,
        removed=True,
    )
