"""An admin's requests about nodes. Links and jobs belong to `controller.nodes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from common.refusals import Conflict, Invalid, NotFound
from controller.clock import Chance, Clock
from controller.lifecycle.model import (
    DEFAULT_FLEET,
    Node,
    NodeAddress,
    NodeStatus,
    QuarantinedTask,
    RunState,
)
from controller.nodes.health import with_another_chance
from controller.nodes.sync import report_gone
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import may_see, names_for, require_admin
from controller.service.machines.fleets import changed_attributes, check_attributes
from controller.service.machines.use import Holder, NodeUse, node_uses
from controller.service.ssh_keys import HostKeys, trusted_key
from controller.store.accounts import User
from fairlead.configuration.values.names import NODE_NAMES, is_node_name
from fairlead.configuration.values.units import MAX_DURATION
from fairlead.model.statuses import AllocationState

MAX_REASON = 500
DEFAULT_SHIM_SOCKET = "/run/fairlead/shim.sock"


class NodeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node to add: either `local_socket`, or `host` with `host_key` or `accept_host_key`."""

    name: str
    local_socket: str | None = None
    host: str | None = None
    port: int = 22
    user: str = "fairlead"
    socket: str = DEFAULT_SHIM_SOCKET
    jump_user: str = "fairlead-jump"
    host_key: str | None = None
    accept_host_key: str | None = None
    fleet: str = DEFAULT_FLEET.name
    attributes: dict[str, str] = {}


class NodeService:
    def __init__(
        self, pipeline: RunPipeline, clock: Clock, chance: Chance, host_keys: HostKeys
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._chance = chance
        self._host_keys = host_keys
        self._adding: set[str] = set()

    def all(self) -> list[Node]:
        return sorted(self._pipeline.nodes.values(), key=lambda node: node.name)

    def get(self, key: str) -> Node:
        """Return the node with this id or name. Raises NotFound."""
        found = self._pipeline.nodes.get(key) or self.named(key)
        if found is None:
            raise NotFound(
                f"there is no node {key!r}; `fairlead node list` shows them", field="node"
            )
        return found

    def names(self) -> Mapping[str, str]:
        """Return the names by id, as they are when they are looked up."""
        return _Names(self._pipeline.nodes)

    def use(self, node: Node, user: User) -> NodeUse:
        return self.uses(user).get(node.id, NodeUse())

    def uses(self, user: User) -> dict[str, NodeUse]:
        """Return the use by node id, as this user may see it; a node without use is not in it."""
        return node_uses(self._pipeline.known.values(), names_for(user))

    def holders(self, user: User) -> dict[str, dict[str, Holder]]:
        """Return which run holds which GPU, by node id and UUID, as this user may see it."""
        name_of = names_for(user)
        held: dict[str, dict[str, Holder]] = {}
        for state in self._pipeline.known.values():
            for allocation in state.allocations:
                if allocation.state not in (AllocationState.RELEASED, AllocationState.NOMINATED):
                    own = may_see(user, state.run)
                    run_id = state.run.id if own else None
                    holder = Holder(run_id=run_id, name=name_of(state.run))
                    gpus = held.setdefault(allocation.node_id, {})
                    gpus.update(dict.fromkeys(allocation.gpus, holder))
        return held

    def runs_on(self, node: Node, user: User) -> list[RunState]:
        """Return the runs with something on the node that the user may see, newest first."""
        states = [
            state
            for state in self._pipeline.known.values()
            if may_see(user, state.run) and node.id in node_uses((state,), lambda run: run.name)
        ]
        return sorted(states, key=lambda state: state.run.submitted_at, reverse=True)

    def quarantine(self, key: str, user: User) -> tuple[QuarantinedTask, ...]:
        """Return the quarantined tasks of a node; only an admin may see them, because their owners
        are unknown.

        Raises NotFound, Forbidden.
        """
        require_admin(user, "list tasks in quarantine")
        return self.get(key).quarantine

    async def add(self, request: NodeRequest, *, user: User) -> Node:
        """Add a node. Raises Invalid, Conflict, Refused, Unavailable, Forbidden."""
        require_admin(user, "add a node")
        _check(request)
        check_attributes(request.attributes)
        self.require_fleet(request.fleet)
        if request.name in self._adding or self.named(request.name) is not None:
            raise Conflict(f"a node named {request.name} exists already", field="name")
        # The host's key takes seconds to come: a second request must not get this name meanwhile.
        self._adding.add(request.name)
        try:
            address = await self._address(request)
            # Again: the fleet may have been removed while the host was asked for its key.
            self.require_fleet(request.fleet)
            node = Node(
                id=self._chance.new_id(),
                name=request.name,
                fleet=request.fleet,
                attributes=request.attributes,
                address=address,
                created_at=self._clock.now(),
            )
            await self._pipeline.save_node(node, node.id, by=user.name)
        finally:
            self._adding.discard(request.name)
        return node

    def seen_at(self, node: Node) -> float | None:
        """Return when the node was last heard (Unix time). For a connected node that is now, which
        is not stored."""
        return self._clock.now() if node.status is NodeStatus.CONNECTED else node.last_seen_at

    async def drain(
        self, key: str, *, reason: str | None, deadline: float | None = None, user: User
    ) -> Node:
        """Stop new placements; running jobs stay, for at most `deadline` seconds from now.

        The last request counts. Raises NotFound, Invalid, Forbidden.
        """
        require_admin(user, "drain a node")
        _require_short(reason)
        if deadline is not None and not 0 <= deadline <= MAX_DURATION:
            raise Invalid("deadline is a number of seconds from now, 0 or more", field="deadline")
        ends_at = None if deadline is None else self._clock.now() + deadline
        return await self._change(
            key, user, draining=True, drain_reason=reason, drain_deadline=ends_at
        )

    async def resume(self, key: str, *, user: User) -> Node:
        """End a drain. Raises NotFound, Forbidden."""
        require_admin(user, "resume a node")
        node = self.get(key)
        ended = node.ended_recall if node.recalled_at is None else node.recalled_at
        # With the recall the next drain, of an admin, would leave the jobs no time at all.
        return await self._change(
            key,
            user,
            draining=False,
            drain_reason=None,
            drain_deadline=None,
            recalled_at=None,
            ended_recall=ended,
        )

    async def cordon(self, key: str, *, cordoned: bool, reason: str | None, user: User) -> Node:
        """Stop new placements, or allow them again; running jobs stay. Raises NotFound,
        Forbidden."""
        require_admin(user, "cordon a node")
        _require_short(reason)
        reason = reason if cordoned else None
        return await self._change(
            key, user, cordoned=cordoned, cordon_reason=reason, failed_starts=()
        )

    async def give_another_chance(self, key: str) -> None:
        """Allow placements again if the node was cordoned because jobs could not be started."""
        node = self.get(key)
        if (changed := with_another_chance(node)) is not node:
            await self._pipeline.save_node(changed, node.id)

    async def set(
        self,
        key: str,
        *,
        attributes: dict[str, str | None],
        fleet: str | None = None,
        host_key: str | None = None,
        accept_host_key: str | None = None,
        user: User,
    ) -> Node:
        """Change these attributes (None: remove one), the fleet, and the pinned host key.

        A connection under the old host key is made again. Raises NotFound, Invalid, Refused,
        Unavailable, Forbidden.
        """
        require_admin(user, "change a node")
        check_attributes(attributes)
        address = self.get(key).address
        if fleet is not None:
            self.require_fleet(fleet)
        if host_key is not None or accept_host_key is not None:
            _require_one_key(host_key, accept_host_key)
            address = await self._pinned_anew(address, host_key, accept_host_key)
        # Again: the node may have changed while its host was asked for a key.
        node = self.get(key)
        return await self._change(
            key,
            user,
            attributes=changed_attributes(node.attributes, attributes),
            fleet=fleet or node.fleet,
            address=address,
        )

    async def stop_task(self, key: str, task_id: str, *, user: User) -> Node:
        """End a task that is quarantined there, and remove what is left of it. Raises NotFound,
        Forbidden."""
        require_admin(user, "stop a task in quarantine")
        node = self.get(key)
        if all(task.id != task_id for task in node.quarantine):
            raise NotFound(
                f"node {node.name} has no task {task_id!r} in quarantine; `fairlead node tasks "
                f"{node.name}` lists them",
                field="task",
            )
        marked = tuple(
            msgspec.structs.replace(task, stopping=task.stopping or task.id == task_id)
            for task in node.quarantine
        )
        return await self._change(key, user, quarantine=marked)

    async def remove(self, key: str, *, lost: bool = False, user: User) -> Node:
        """Remove a node. `lost`: the admin knows that the machine is gone and nothing runs there
        any more.

        Raises NotFound, Forbidden, and Conflict while something is there.
        """
        require_admin(user, "remove a node")
        node = self.get(key)
        if lost:
            self._give_up(node)
        else:
            _require_empty(node, self.use(node, user))
        await self._pipeline.save_node(None, node.id)
        return node

    def _give_up(self, node: Node) -> None:
        if node.status is NodeStatus.CONNECTED:
            raise Conflict(
                f"node {node.name} is connected, so it is not lost; drain it, and remove it when "
                f"it is empty",
                code="node_connected",
                field="lost",
            )
        message = f"node {node.name} was removed as lost"
        report_gone(self._pipeline, node.id, message, lambda _: True, removed=True)

    def require_fleet(self, name: str) -> None:
        """Raise Invalid if there is no such fleet."""
        if name not in self._pipeline.fleets:
            raise Invalid(
                f"there is no fleet {name!r}; `fairlead fleet list` shows them, `fairlead fleet "
                f"add {name}` makes it",
                field="fleet",
            )

    async def _change(self, key: str, user: User, **changes: Any) -> Node:
        node = msgspec.structs.replace(self.get(key), **changes)
        await self._pipeline.save_node(node, node.id, by=user.name)
        return self._pipeline.nodes.get(node.id, node)

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

    async def _pinned_anew(
        self, address: NodeAddress, host_key: str | None, accepted: str | None
    ) -> NodeAddress:
        if address.host is None and not address.local_socket:
            raise Invalid(
                "the node is expected: its host key is in its user-data; `fairlead node user-data` "
                "makes another",
                field="host_key" if accepted is None else "accept_host_key",
            )
        if address.host is None:
            raise Invalid(
                "the node is a shim on the controller's own machine, which has no host key",
                field="host_key" if accepted is None else "accept_host_key",
            )
        pinned = await trusted_key(
            self._host_keys,
            host=address.host,
            port=address.port,
            host_key=host_key,
            accepted=accepted,
        )
        return msgspec.structs.replace(address, host_key=pinned, next_host_key=None)

    def named(self, name: str) -> Node | None:
        return next((node for node in self._pipeline.nodes.values() if node.name == name), None)


class _Names(Mapping[str, str]):
    """The names of nodes by id, as they are when they are looked up."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def __getitem__(self, node_id: str) -> str:
        return self._nodes[node_id].name

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def _require_empty(node: Node, use: NodeUse) -> None:
    lost = f"if the machine is gone for good, `fairlead node remove {node.name} --lost`"
    if use.runs:
        what = f"jobs of {', '.join(use.runs)}"
        advice = f"drain it and wait, or stop them (`fairlead stop RUN`); {lost}"
    elif use.ended:
        what = f"allocations of {', '.join(use.ended)}, which may or may not be free"
        advice = f"wait until it is connected again; {lost}"
    elif node.quarantine:
        what = f"unknown tasks: {', '.join(task.id for task in node.quarantine)}"
        advice = f"see `fairlead node tasks {node.name}`; {lost}"
    else:
        return
    raise Conflict(f"node {node.name} still has {what}; {advice}", code="node_busy", field="node")


def _require_short(reason: str | None) -> None:
    if reason is not None and len(reason) > MAX_REASON:
        raise Invalid(f"a reason has at most {MAX_REASON} characters", field="reason")


def _check(request: NodeRequest) -> None:
    check_name(request.name)
    if (request.local_socket is None) == (request.host is None):
        raise Invalid("give either local_socket or host", field="host")
    for field in ("local_socket", "socket"):
        path = getattr(request, field)
        if path is not None and not path.startswith("/"):
            raise Invalid(f"{path!r} is not an absolute path", field=field)
    for field in ("user", "jump_user"):
        check_word(getattr(request, field), field)
    if request.host is not None:
        check_address(request.host, request.port)
    _require_one_key(request.host_key, request.accept_host_key)


def check_name(name: str) -> None:
    """Raise Invalid for a wrong node name."""
    if not is_node_name(name):
        raise Invalid(f"{name!r} is not a node name: {NODE_NAMES}", field="name")


def check_address(host: str, port: int) -> None:
    """Raise Invalid for a wrong host or port."""
    if not 1 <= port <= 65535:
        raise Invalid(f"{port} is not a port (1 to 65535)", field="port")
    check_word(host, "host")
    name, colon, number = host.rpartition(":")
    # An address of IPv6 has several colons.
    if colon and number.isdecimal() and ":" not in name:
        raise Invalid(
            f"{host[:80]!r} holds a port: give host {name[:80]} and port {number[:5]}", field="host"
        )
    if "/" in host or not _can_be_looked_up(host):
        raise Invalid(f"{host[:80]!r} is not a host name or address", field="host")


def check_word(text: str, field: str) -> None:
    """Raise Invalid for what can be no host or user of ssh."""
    # ssh would take a host or user that begins with a hyphen for an option.
    if not text or text.startswith("-") or " " in text or not text.isprintable():
        raise Invalid(f"{text[:80]!r} is not a {field} name", field=field)


def _require_one_key(host_key: str | None, accepted: str | None) -> None:
    if host_key is not None and accepted is not None:
        raise Invalid("give either host_key or accept_host_key", field="accept_host_key")


def _can_be_looked_up(host: str) -> bool:
    """Return whether a resolver accepts the name; for other names it raises."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return not any(letter.isspace() or letter == "/" for letter in host)
