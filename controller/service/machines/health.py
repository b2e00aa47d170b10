"""The health of a node: what its shim finds, and GPUs that were repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from common.refusals import NotFound, Unavailable
from controller.lifecycle.model import (
    Node,
)
from controller.links.base import ShimApi
from controller.nodes.health import Reading, after_health_check, without_gpu
from controller.pipelines import from_node
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_admin
from controller.service.jobs.access import CONNECT_SECONDS, Connect
from controller.service.machines.nodes import NodeService
from controller.store.accounts import User
from fairlead.wire.node import Finding, FindingLevel
from shim.client import ShimError, ShimUnavailable


class GpuService:
    def __init__(self, nodes: NodeService, pipeline: RunPipeline, connect: Connect) -> None:
        self._nodes = nodes
        self._pipeline = pipeline
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
            if all(uuid not in (gpu.uuid, gpu.parent) for gpu in info.gpus):
                return await self._forget(node, uuid, connection.shim)
        return msgspec.structs.replace(node, capacity=from_node.capacity(info))

    async def _forget(self, node: Node, uuid: str, shim: ShimApi) -> Node:
        health, info = await shim.health(), await shim.node()
        reading = Reading(health=health, info=info)
        # Read after the shim's answers: the node may have changed meanwhile.
        now = self._nodes.get(node.id)
        changed = after_health_check(without_gpu(now, uuid), reading)
        await self._pipeline.save_node(changed, node.id)
        return changed


class DoctorService:
    def __init__(self, nodes: NodeService, connect: Connect) -> None:
        self._nodes = nodes
        self._connect = connect

    async def examine(self, key: str, *, user: User) -> tuple[Finding, ...]:
        """Ask the node what a job would miss there; without an error, a node that was cordoned for
        failed starts gets another chance. Raises NotFound, Forbidden, Unavailable."""
        require_admin(user, "examine a node")
        node = self._nodes.get(key)
        with _refusals(node):
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._connect(node.id)
            try:
                findings = tuple(await connection.shim.doctor())
            except ShimError as error:
                if error.status != 404:
                    raise
                raise Unavailable(
                    f"the shim of node {node.name} is too old for this; run `fairlead-shim doctor` "
                    "there, or upgrade it"
                ) from None
        if all(finding.level is not FindingLevel.ERROR for finding in findings):
            await self._nodes.give_another_chance(node.id)
        return findings


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
