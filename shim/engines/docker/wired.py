"""Containers without a network of Docker's: each gets a wire (`shim.wires`) once it runs.

The container's labels name its address, so the next life of the shim finds what each wire is for.
What Docker would write into a container of one of its networks is written here: `/etc/hosts` and
`/etc/resolv.conf`. Nothing is published: the node reaches a container at its address.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any

import docker.errors
import msgspec
import requests.exceptions
from docker.types import Mount

from shim.engines.base import ContainerSpec, NodeFault, NodeFull
from shim.engines.docker import subnets
from shim.engines.docker.api import Call, NotFound
from shim.engines.docker.subnets import Subnets
from shim.errors import EngineError
from shim.wires.guard import Guard
from shim.wires.namespace import AddressTaken, Namespace, ProcessEnded, WireError
from shim.wires.rules import addresses
from shim.wires.wires import Attachment, Wires

log = logging.getLogger(__name__)
WIRE = "fairlead.wire"
"""The label with the container's address; a container without it has no wire."""
_REPAIR_SECONDS = 10.0
_REST_SECONDS = 0.2
_ID = 12
"""Docker's short ids, which are the host names of containers without one."""
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""The second has the servers behind systemd-resolved, which the first names as 127.0.0.53."""
_PROC = Path("/proc")
_MAX_MESSAGE = 1 << 16
_LOST = "the shim connects no containers any more; its log says why"
_HOSTS, _DNS = "/etc/hosts", "/etc/resolv.conf"


class WiredNetworks:
    """The networks of one shim's containers.

    `call` runs an act of docker-py in a thread, with its errors translated; `files` returns the
    folder for the files of a task's network, which no job reaches as a folder.
    """

    def __init__(
        self,
        call: Call,
        install_id: str,
        files: Callable[[str], Path],
        repair_every: float = _REPAIR_SECONDS,
        read_resolvers: Callable[[], Resolvers] | None = None,
    ) -> None:
        self._call = call
        self._install_id = install_id
        self._files = files
        self._repair_every = repair_every
        self._api: Any = None
        self._wires = Wires(install_id, Namespace())
        self._guard = Guard(install_id, Namespace())
        self._given: dict[str, set[str]] = {}
        """The addresses of runs that have no container yet."""
        self._made: dict[str, tuple[str, str]] = {}
        """Task and run of containers that were made here and not started."""
        self._read_resolvers = read_resolvers or resolvers
        self._resolvers = Resolvers()
        self._repairing: asyncio.Task[None] | None = None
        self._watched = asyncio.Event()
        self._watching: socket.socket | None = None
        self.capacity = 0
        """How many containers the node has addresses for."""
        self.is_open = False

    async def open(
        self,
        api: Any,
        engine_socket: str,
        containers: Iterable[Mapping[str, Any]],
        among: Subnets,
        *,
        conflicts_count: bool = False,
    ) -> None:
        """Take over the wires of these containers, as Docker lists them.

        Raises WireError, which says why this node cannot have wires; with `conflicts_count`, also
        why it may be unable to. Nothing was changed then.
        """
        self._api = api
        self._resolvers = self._read_resolvers()
        if not self._resolvers.servers:
            raise WireError(
                "its DNS servers are on its loopback, where containers cannot reach them"
            )
        known = tuple(containers)
        running = [one for one in known if one["State"] == "running"]
        attached = [one for one in map(_attachment, running) if one is not None]
        # A container that a crash kept from its start has its address already.
        made = [one for one in known if one["State"] == "created"]
        reserved = [one.address for one in map(_attachment, made) if one is not None]
        namespace = await self._call(lambda: Namespace.of_engine(engine_socket))
        self._wires = Wires(self._install_id, namespace, self._bridges_of_engine)
        if (
            conflicts_count
            and (conflict := await self._call(self._wires.firewall_conflict)) is not None
        ):
            raise WireError(conflict)
        found = await self._call(lambda: self._api.networks())
        used = {subnet for network in found for subnet in subnets.of_network(network)}
        subnet = among.free(used | await self._call(lambda: subnets.of_node(namespace)))
        if subnet is None:
            raise WireError(f"all of {among} is used by its routes or networks of the engine")
        self.capacity = len(addresses(subnet))
        await self._call(lambda: self._wires.open(attached, subnet, reserved))
        self._guard = Guard(self._install_id, namespace)
        await self._call(self._guard.ensure)
        self.is_open = True
        for one in attached:
            await self._take_over(one)
        await self._watch(namespace)
        self._repairing = asyncio.create_task(self._repair(), name="wires of containers")

    def _bridges_of_engine(self) -> frozenset[str]:
        """Return the names of the bridges of the engine's networks. Blocking. Raises WireError."""
        try:
            found = self._api.networks()
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise WireError(f"the engine does not tell its bridges: {error}") from None
        return frozenset(map(_bridge_of, found))

    async def _watch(self, namespace: Namespace) -> None:
        """Wake the repair when rules are removed from the node's firewall."""
        try:
            self._watching = await self._call(namespace.rules_that_go)
        except OSError as error:
            log.warning("removed firewall rules are found %.0f s later: %s", _REPAIR_SECONDS, error)
            return
        asyncio.get_running_loop().add_reader(self._watching, self._hear, self._watching)

    def _hear(self, watching: socket.socket) -> None:
        # ENOBUFS: more was said than the kernel keeps, so anything may have gone.
        lost = True
        with contextlib.suppress(OSError):
            lost = self._wires.loses(watching.recv(_MAX_MESSAGE))
        if lost:
            self._watched.set()

    def routes_to(self, run_id: str) -> bool:
        return True

    async def _take_over(self, one: Attachment) -> bool:
        """Complete a wire that a crash cut short; return whether its container runs with it. One
        that cannot be had ends no other task's life."""
        try:
            return await self.started(one.container)
        except EngineError as error:
            log.warning("task %s has no network: %s", one.task_id, error)
            return False

    async def close(self) -> None:
        await self.stop_repairing()
        if self.is_open:
            await self._call(self._guard.close)
            await self._call(self._wires.close)

    async def stop_repairing(self) -> None:
        if self._repairing is not None:
            self._repairing.cancel()
            # Awaiting a cancelled task raises its CancelledError here; ours is not meant.
            with contextlib.suppress(asyncio.CancelledError):
                await self._repairing
            self._repairing = None
        if self._watching is not None:
            asyncio.get_running_loop().remove_reader(self._watching)
            self._watching.close()
            self._watching = None

    async def ensure(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        """Return an address for a task of the run. Raises NodeFull, NodeFault."""
        if not self.is_open:
            raise NodeFault(f"run {run_id} cannot get another container here: {_LOST}")
        try:
            address = await self._call(lambda: self._wires.give(taken, wanted))
        except AddressTaken as error:
            raise NodeFull(f"{error} (--job-networks gives it more)") from None
        self._given.setdefault(run_id, set()).add(address)
        return address

    async def remove(self, run_id: str) -> None:
        """Give back the addresses of the run's tasks that never had a container."""
        addresses = self._given.pop(run_id, ())
        # In a thread: another one may hold the lock of the wires while `nft` runs.
        await self._call(lambda: self._wires.give_back(addresses))

    def join(self, asked: dict[str, Any], spec: ContainerSpec) -> None:
        """Change a request for a container so that it has no network, and its files. Blocking."""
        assert spec.address is not None, "the step of its network comes first"
        asked["network_disabled"] = True
        asked["labels"][WIRE] = spec.address
        folder = self._files(spec.task_id)
        folder.mkdir(parents=True, exist_ok=True)
        # As the engine does for each container: a lease or a VPN changes the node's servers.
        if (found := self._read_resolvers()).servers:
            self._resolvers = found
        (folder / "resolv.conf").write_text(resolv_conf(self._resolvers))
        # A bind mount needs its source now; `made` fills it once the container has its id.
        (folder / "hosts").touch()
        taken = {mount["Target"] for mount in asked["host_config"].get("Mounts", ())}
        for target in {_HOSTS, _DNS} - taken:
            source = folder / Path(target).name
            # The unit's umask would hide these files from a job that is not root in its container.
            source.chmod(0o644)
            asked["host_config"].setdefault("Mounts", []).append(
                Mount(target, str(source), type="bind")
            )

    async def made(self, spec: ContainerSpec, container_id: str) -> None:
        """Write the container's name, before it starts."""
        assert spec.address is not None, "the step of its network comes first"
        text = hosts(spec.address, spec.hostname or container_id[:_ID])
        await asyncio.to_thread((self._files(spec.task_id) / "hosts").write_text, text)
        self._made[container_id] = spec.task_id, spec.run_id

    async def starting(self, container_id: str) -> None:
        """Write the rules of the container's wire, which waits for the kernel longer than for the
        program. Raises NodeFault."""
        made = self._made.pop(container_id, None)
        if made is None:
            return
        try:
            await self._call(lambda: self._wires.expect(*made))
        except WireError as error:
            raise NodeFault(f"the container's network cannot be made: {error}") from None

    async def started(self, container_id: str) -> bool:
        """Make the wire of a container that runs, unless it has one or needs none. Return whether
        it runs and has one.

        Raises NodeFull when another shim has taken its address, and NodeFault: a container without
        its network must not run a job.
        """
        found = await self._inspect(container_id)
        one = None if found is None else _attachment(_as_listed(found))
        if found is None or one is None or not found["State"]["Running"]:
            return False
        pid = int(found["State"]["Pid"])
        try:
            await self._call(
                lambda: self._wires.attach(one, pid, lambda: self._is_still(container_id, pid))
            )
        except AddressTaken as error:
            raise NodeFull(str(error)) from None
        # The kernel knows it before the engine, which still says that it runs.
        except ProcessEnded:
            return False
        except WireError as error:
            # A container that has ended took its namespace along: that is no fault of the node.
            now = await self._inspect(container_id)
            if now is not None and now["State"]["Running"] and now["State"]["Pid"] == pid:
                raise NodeFault(f"the container's network cannot be made: {error}") from None
            return False
        return True

    def _is_still(self, container_id: str, pid: int) -> bool:
        """Return whether the process is still the container's first one."""
        if is_in_cgroup_of(container_id, pid):
            return True
        # On nodes with cgroups of both versions, the engine may leave all containers in one's root.
        state = self._api.inspect_container(container_id)["State"]
        return bool(state["Running"]) and state["Pid"] == pid

    async def _inspect(self, container_id: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._call(
                lambda: self._api.inspect_container(container_id)
            )
        except NotFound:
            return None
        return found

    async def ended(self, task_id: str) -> None:
        """Remove the wire and the rules of a container that has ended. Its address stays taken."""
        await self._call(lambda: self._wires.cut(task_id))

    async def removed(self, task_id: str) -> None:
        """Give back the address of a container that is gone."""
        self._made = {id: made for id, made in self._made.items() if made[0] != task_id}
        address = await self._call(lambda: self._wires.detach(task_id))
        for given in self._given.values():
            given.discard(str(address))

    def distrust(self, message: str) -> None:
        """Do nothing: Docker knows no network of a wired container, so it can name none."""

    async def _repair(self) -> None:
        """Put back what others took from the node's firewall, at once when the kernel tells of it,
        and every few seconds: `nft flush ruleset` and `iptables -F` are in many guides, and
        firewalld reloads. The kernel tells nothing of rules that iptables-legacy removes."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._repair_every):
                    await self._watched.wait()
            self._watched.clear()
            try:
                gone = await self._call(self._wires.repair)
                await self._call(self._guard.ensure)
                for one in gone:
                    # One that has ended lost it with its namespace, and waits for its removal.
                    if await self._take_over(one):
                        log.warning("task %s had lost its network and has it again", one.task_id)
            except EngineError as error:
                log.warning("the networks of containers are not repaired: %s", error)
            # An engine that starts removes dozens of rules, one after the other.
            await asyncio.sleep(_REST_SECONDS)


def _bridge_of(network: Mapping[str, Any]) -> str:
    """Return the name of a network's bridge: the one that it was given, else Docker's for it."""
    given = (network.get("Options") or {}).get("com.docker.network.bridge.name")
    return str(given or f"br-{network['Id'][:_ID]}")


def is_in_cgroup_of(container_id: str, pid: int) -> bool:
    """Return whether the kernel accounts for the process in a cgroup of the container.

    The kernel gives the number of an ended process to another one, but not this cgroup: with its
    first process all of a container ends, and only root of the node moves a process into it.
    """
    try:
        return container_id in (_PROC / str(pid) / "cgroup").read_text()
    # ENOENT without the process, ESRCH when it ends before the read.
    except OSError:
        return False


class Resolvers(msgspec.Struct, frozen=True):
    """What a resolv.conf says (resolv.conf(5)): DNS servers that containers can reach, the domains
    to search, and options."""

    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def resolvers(files: Iterable[Path] = _RESOLVERS) -> Resolvers:
    """Return what the first file says that names a server. Without IPv6, servers with such an
    address are left out."""
    for file in files:
        # Only nodes with systemd-resolved have the second file.
        with contextlib.suppress(OSError):
            found = _resolvers_in(file.read_text(errors="replace"))
            if found.servers:
                return found
    return Resolvers()


def _resolvers_in(text: str) -> Resolvers:
    servers, search, options = list[str](), tuple[str, ...](), list[str]()
    for line in text.splitlines():
        match line.split():
            # Of several such lines the last one counts.
            case ["search" | "domain", *domains]:
                search = tuple(domains)
            case ["options", *more]:
                options += more
            case ["nameserver", server, *_] if _is_reached(server):
                servers.append(server)
    return Resolvers(tuple(servers), search, tuple(options))


def _is_reached(server: str) -> bool:
    try:
        address = ip_address(server)
    except ValueError:
        return False
    return isinstance(address, IPv4Address) and not address.is_loopback


def resolv_conf(found: Resolvers) -> str:
    settings = (("search", found.search), ("options", found.options))
    lines = [" ".join((name, *words)) for name, words in settings if words]
    return "\n".join((*lines, *(f"nameserver {server}" for server in found.servers), ""))


def hosts(address: str, hostname: str) -> str:
    own = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    return f"{own}{address}\t{hostname}\n"


def _attachment(listed: Mapping[str, Any]) -> Attachment | None:
    """Return what the container's labels say of its wire; None: it has none."""
    labels = listed["Labels"]
    try:
        return Attachment(
            task_id=labels["fairlead.task"],
            run_id=labels["fairlead.run"],
            container=str(listed["Id"]),
            address=IPv4Address(labels[WIRE]),
        )
    except (KeyError, ValueError):
        return None


def _as_listed(inspected: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"Id": inspected["Id"], "Labels": inspected["Config"].get("Labels") or {}}
