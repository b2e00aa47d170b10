"""What an admin says about a node's GPUs; the node itself keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from controller.lifecycle.model import Node
from controller.links.base import ShimApi
from controller.nodes import gate
from controller.pipelines import convert
from controller.pipelines.turns import Turns
from controller.service.access import require_admin
from controller.service.errors import NotFound, Unavailable
from controller.service.nodes import NodeService
from controller.service.ports import CONNECT_SECONDS, Connect
from controller.store.users import User
from shim.client import ShimError, ShimUnavailable


class GpuService:
    def __init__(self, nodes: NodeService, turns: Turns, connect: Connect) -> None:
        self._nodes = nodes
        self._turns = turns
        self._connect = connect

    async def clear(self, key: str, uuid: str, *, user: User) -> Node:
        """Offer a cordoned GPU again; forget one that is gone. Raises NotFound, Forbidden,
        Unavailable."""
        require_admin(user, "clear a GPU")
        node = self._nodes.get(key)
        missing = any(gpu.uuid == uuid and gpu.missing for gpu in node.capacity.gpus)
        with _refusals(node):
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._connect(node.id)
            if missing:
                return await self._forget(node, uuid, connection.shim)
            info = await connection.shim.clear_gpu(uuid)
            if all(uuid not in (gpu.uuid, gpu.mig_parent) for gpu in info.gpus):
                return await self._forget(node, uuid, connection.shim)
        return msgspec.structs.replace(node, capacity=convert.capacity(info))

    async def _forget(self, node: Node, uuid: str, shim: ShimApi) -> Node:
        health, info = await shim.health(), await shim.node()
        reading = gate.Reading(health=health, info=info)
        now = self._nodes.get(node.id)
        changed = gate.passed(gate.without_gpu(now, uuid), reading)
        await self._turns.save_node(changed, node.id)
        return changed


@contextmanager
def _refusals(node: Node) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Unavailable(
            f"node {node.name} is not connected at the moment", code="node_unreachable"
        ) from None
    except ShimUnavailable as error:
        raise Unavailable(f"node {node.name} does not answer: {error}") from error
    except ShimError as error:
        if error.status == 404:
            raise NotFound(error.message, field="gpu") from error
        raise Unavailable(f"node {node.name} says: {error.message}") from error
