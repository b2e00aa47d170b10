"""What an admin says about a node's GPUs; the node itself keeps it."""

from __future__ import annotations

import asyncio

import msgspec

from controller.lifecycle.model import Node
from controller.pipelines import convert
from controller.service.access import require_admin
from controller.service.errors import NotFound, Unavailable
from controller.service.nodes import NodeService
from controller.service.ports import CONNECT_SECONDS, Connect
from controller.store.users import User
from shim.client import ShimError, ShimUnavailable


class GpuService:
    def __init__(self, nodes: NodeService, connect: Connect) -> None:
        self._nodes = nodes
        self._connect = connect

    async def clear(self, key: str, uuid: str, *, user: User) -> Node:
        """Offer a cordoned GPU again. Raises NotFound, Forbidden, Unavailable."""
        require_admin(user, "clear a GPU")
        node = self._nodes.get(key)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._connect(node.id)
            info = await connection.shim.clear_gpu(uuid)
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
        return msgspec.structs.replace(node, capacity=convert.capacity(info))
