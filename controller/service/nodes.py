"""What an admin can ask about nodes. A node's link and its jobs belong to `controller.nodes`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from controller.clock import Chance, Clock
from controller.lifecycle.model import Node, NodeAddress, RunState
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES, AllocationState
from controller.pipelines.turns import Turns
from controller.service.access import require_admin
from controller.service.errors import Conflict, Invalid, NotFound
from controller.service.hostkeys import HostKeys, trusted_key
from controller.store.users import User

NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
DEFAULT_SHIM_SOCKET = "/run/fairlead/shim.sock"


class NodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Either `local_socket`, or `host` with `host_key` or `accept_host_key`."""

    name: str
    local_socket: str | None = None
    host: str | None = None
    port: int = 22
    user: str = "fairlead"
    socket: str = DEFAULT_SHIM_SOCKET
    jump_user: str = "fairlead-jump"
    host_key: str | None = None
    accept_host_key: str | None = None


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """What allocations hold on a node: cores, bytes, bytes, GPU UUIDs; and whose they are."""

    cpu: float = 0.0
    memory: int = 0
    disk: int = 0
    gpus: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


class NodeService:
    def __init__(self, turns: Turns, clock: Clock, chance: Chance, host_keys: HostKeys) -> None:
        self._turns = turns
        self._clock = clock
        self._chance = chance
        self._host_keys = host_keys
        self._adding: set[str] = set()

    def all(self) -> list[Node]:
        return sorted(self._turns.nodes.values(), key=lambda node: node.name)

    def get(self, key: str) -> Node:
        """`key`: id or name. Raises NotFound."""
        found = self._turns.nodes.get(key) or self._named(key)
        if found is None:
            raise NotFound(
                f"there is no node {key!r}; `fairlead node list` shows them", field="node"
            )
        return found

    def names(self) -> dict[str, str]:
        return {node.id: node.name for node in self._turns.nodes.values()}

    def use(self, node: Node) -> NodeUse:
        return node_use(node.id, self._turns.runs.values())

    async def add(self, request: NodeRequest, *, user: User) -> Node:
        """Raises Invalid, Conflict, Refused, Unavailable, Forbidden."""
        require_admin(user, "add a node")
        _check(request)
        if request.name in self._adding or self._named(request.name) is not None:
            raise Conflict(f"a node named {request.name} exists already", field="name")
        self._adding.add(request.name)
        try:
            node = Node(
                id=self._chance.new_id(),
                name=request.name,
                address=await self._address(request),
                created_at=self._clock.now(),
            )
            await self._turns.save_node(node, node.id)
        finally:
            self._adding.discard(request.name)
        return node

    async def drain(self, key: str, *, reason: str | None, user: User) -> Node:
        """Nothing new is placed on it; what runs there goes on. Raises NotFound, Forbidden."""
        require_admin(user, "drain a node")
        return await self._change(key, draining=True, drain_reason=reason)

    async def resume(self, key: str, *, user: User) -> Node:
        """Raises NotFound, Forbidden."""
        require_admin(user, "resume a node")
        return await self._change(key, draining=False, drain_reason=None)

    async def remove(self, key: str, *, user: User) -> Node:
        """Raises NotFound, Forbidden, and Conflict while jobs are there."""
        require_admin(user, "remove a node")
        node = self.get(key)
        busy = self.use(node).runs
        if busy:
            raise Conflict(
                f"node {node.name} still has jobs of {', '.join(busy)}; drain it and wait, or stop "
                f"them (`fairlead stop RUN`)",
                code="node_busy",
                field="node",
            )
        await self._turns.save_node(None, node.id)
        return node

    async def _change(self, key: str, **changes: Any) -> Node:
        node = msgspec.structs.replace(self.get(key), **changes)
        await self._turns.save_node(node, node.id)
        return node

    async def _address(self, request: NodeRequest) -> NodeAddress:
        if request.local_socket is not None:
            return NodeAddress(shim_socket=request.local_socket, local_socket=True)
        assert request.host is not None
        key = await trusted_key(
            self._host_keys,
            host=request.host,
            port=request.port,
            host_key=request.host_key,
            accepted=request.accept_host_key,
        )
        return NodeAddress(
            shim_socket=request.socket,
            host=request.host,
            port=request.port,
            user=request.user,
            host_key=key,
            jump_user=request.jump_user,
        )

    def _named(self, name: str) -> Node | None:
        return next((node for node in self._turns.nodes.values() if node.name == name), None)


def node_use(node_id: str, states: Iterable[RunState]) -> NodeUse:
    """What is occupied there: held and orphaned allocations, and attempts that are not final."""
    cpu, memory, disk = 0.0, 0, 0
    gpus: list[str] = []
    runs: dict[str, None] = {}
    for state in states:
        for allocation in state.allocations:
            if allocation.node_id != node_id or allocation.state is AllocationState.RELEASED:
                continue
            cpu += allocation.resources.cpu
            memory += allocation.resources.memory
            disk += allocation.resources.disk
            gpus.extend(allocation.gpus)
            runs[state.run.name] = None
        if any(
            attempt.node_id == node_id and attempt.status not in FINAL_ATTEMPT_STATUSES
            for job in state.jobs
            for attempt in job.attempts
        ):
            runs[state.run.name] = None
    return NodeUse(cpu=cpu, memory=memory, disk=disk, gpus=tuple(gpus), runs=tuple(runs))


def _check(request: NodeRequest) -> None:
    if not NAME_PATTERN.fullmatch(request.name):
        raise Invalid(
            f"{request.name!r} is not a node name: 1 to 63 of a-z, 0-9, '.' and '-', with a letter "
            f"or digit at both ends",
            field="name",
        )
    if (request.local_socket is None) == (request.host is None):
        raise Invalid("give either local_socket or host", field="host")
    for field in ("local_socket", "socket"):
        path = getattr(request, field)
        if path is not None and not path.startswith("/"):
            raise Invalid(f"{path!r} is not an absolute path", field=field)
    if not 1 <= request.port <= 65535:
        raise Invalid(f"{request.port} is not a port (1 to 65535)", field="port")
    for field in ("host", "user", "jump_user"):
        text = getattr(request, field)
        if text is not None and (not text or text.startswith("-") or not text.isprintable()):
            raise Invalid(f"{text!r} is not a {field} name", field=field)
    if request.host_key is not None and request.accept_host_key is not None:
        raise Invalid("give either host_key or accept_host_key", field="accept_host_key")
