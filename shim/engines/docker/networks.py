"""Each run gets a network; a spare one is ready, because to make one takes a tenth of a second.

A network's labels cannot change, so the run's containers carry its name: from these the next life
of the shim knows which network belongs to which run. A network without containers is spare. A used
network is never given to another run.

No caller waits for work that can be done later: the end of a run does not wait for its network's
removal, and the next spare is made only after the start. A network may stay without a run, because
its removal failed or the engine's answer was lost. So all networks are compared with the runs now
and then, and those without a run are removed.

Each network has a subnet of the node's ranges (`subnets`), and each container an address there that
is chosen here: so a run's tasks can be told where its others are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Protocol

from docker.types import IPAMConfig, IPAMPool

from shim.engines.base import ContainerSpec, NodeFault, NodeFull
from shim.engines.docker import request, subnets
from shim.engines.docker.api import Call, DockerRefused, NotFound
from shim.engines.docker.subnets import Subnets
from shim.errors import EngineError
from shim.wires.bridges import Bridges
from shim.wires.namespace import Namespace
from shim.wires.rules import BRIDGES

log = logging.getLogger(__name__)
_START_SECONDS = 2.0
"""A container that took the spare has started within this time."""
_TIDY_SECONDS = 300.0
_PATIENCE_SECONDS = 15.0
"""A removal of a network takes tenths of a second, and several go on at once."""
_LOOK_AGAIN_SECONDS = 1.0
_SUBNET = "fairlead.subnet"
"""The label of a network whose subnet was chosen here. The engine gives a container a certain
address in no other."""
_MAX_OVERLAPS = 16
LABEL = "fairlead.network"
"""The label of a container that names its run's network."""
_OVERLAP = re.compile("overlap|is already used on the host", re.IGNORECASE)
"""Docker's word, and netavark's."""


class Networks(Protocol):
    """The networks of runs' containers: Docker's, wires of our own (`wired`), or both
    (`choice`)."""

    @property
    def capacity(self) -> int:
        """How many there can be at once."""

    async def close(self) -> None: ...

    def routes_to(self, run_id: str) -> bool:
        """Return whether the node reaches the run's containers at their addresses."""

    async def ensure(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        """Return an address for a task of the run; None: the engine chooses. Raises NodeFull."""

    async def remove(self, run_id: str) -> None: ...

    def join(self, asked: dict[str, Any], spec: ContainerSpec) -> None:
        """Put the container's network into the engine's request. Blocking. Raises NodeFault."""

    async def made(self, spec: ContainerSpec, container_id: str) -> None:
        """Prepare a container that is not started yet."""

    async def starting(self, container_id: str) -> None:
        """Prepare for a container that was made here, while the engine starts it. Raises
        NodeFault."""

    async def started(self, container_id: str) -> bool:
        """Complete the network of a container that runs; may be repeated. Return whether the engine
        said meanwhile that it runs, without published ports. Raises NodeFull, NodeFault."""

    async def ended(self, task_id: str) -> None:
        """Take away what connects a container that has ended, while it is being removed; may be
        repeated."""

    async def removed(self, task_id: str) -> None:
        """Clear up after a container that is gone."""

    def distrust(self, message: str) -> None:
        """Give up what the engine named when it refused to start a container."""


class RunNetworks:
    """The networks of runs. `call` runs an act of docker-py in a thread, with its errors
    translated.

    Each network gets `options` besides the name of its bridge. Every `tidy_every` seconds, networks
    without a run are removed. A run waits `patience` seconds for a subnet when none is free.
    `spares`: a network is ready for the next run. `bridges` keeps the networks apart besides the
    engine.
    """

    def __init__(
        self,
        call: Call,
        label: str,
        tidy_every: float = _TIDY_SECONDS,
        patience: float = _PATIENCE_SECONDS,
        options: Mapping[str, str] | None = None,
        *,
        spares: bool = True,
        namespace: Namespace | None = None,
        bridges: Bridges | None = None,
    ) -> None:
        self._namespace = namespace or Namespace()
        """The engine's, in which it makes the networks."""
        self._bridges = bridges
        self._spares = spares
        self._options = dict(options or {})
        self._call = call
        self._label = label
        self._tidy_every = tidy_every
        self._patience = patience
        self._api: Any = None
        self._subnets = Subnets(())
        self._subnet_of: dict[str, IPv4Network | None] = {}
        """Our networks; None: one that an earlier version made, in an address pool of Docker's."""
        self._others: frozenset[IPv4Network] = frozenset()
        """The subnets and addresses of everything else on the node."""
        self._of_run: dict[str, str] = {}
        self._giving: dict[str, asyncio.Task[frozenset[str]]] = {}
        self._spare: str | None = None
        self._making: asyncio.Task[None] | None = None
        self._unanswered: dict[str, IPv4Network] = {}
        """The networks that are being made."""
        self._tidying: asyncio.Task[None] | None = None
        self._removing: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._freed = asyncio.Event()
        self.capacity = 0
        """How many networks the node has room for, those that exist included."""

    async def open(self, api: Any, used: Iterable[tuple[str, str]], among: Subnets) -> None:
        """Take over existing networks; new ones get their subnets `among` these.

        `used` are the (run, network) pairs that the containers name. A run may have two, if one was
        pruned while it had only ended containers.
        """
        self._api, self._subnets = api, among
        existing = await self._look()
        await self._keep_apart()
        self._of_run = {run_id: name for run_id, name in used if name in existing}
        idle = self._without_owner(existing)
        if self._spares:
            self._spare = next((name for name in idle if self._subnet_of[name] is not None), None)
        for name in idle:
            if name != self._spare:
                await self._retire(name)
        self._idle.set()
        self._make_spare()
        self._tidying = asyncio.create_task(self._tidy(), name="networks without a run")

    async def close(self) -> None:
        """Remove the networks without a run. If that fails, the next life finds them without
        containers."""
        beside = {task for task in (self._making, self._tidying) if task is not None}
        chores = {*self._removing, *self._giving.values(), *beside}
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        # No run gets the spare network any more: without an owner it is removed below.
        self._spare = None
        if self._api is not None:
            await self._retire_all_without_owner()
            if self._bridges is not None and not self._subnet_of:
                await self._call(self._bridges.leave)
        self._namespace.close()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(self._tidy_every)
            await self._retire_all_without_owner()
            await self._keep_apart()

    async def _retire_all_without_owner(self) -> None:
        try:
            for name in self._without_owner(await self._look()):
                await self._retire(name)
        except EngineError as error:
            log.warning("networks may be left behind: %s", error)

    async def _look(self) -> set[str]:
        """Return the names of our networks, and learn what else has addresses on the node."""
        before = set(self._subnet_of)
        found, of_node = await self._call(
            lambda: (self._api.networks(), subnets.of_node(self._namespace))
        )
        key, _, value = self._label.partition("=")
        ours, others = set(), set[IPv4Network]()
        for network in found:
            labels = network.get("Labels") or {}
            mine = labels.get(key) == value
            if mine:
                ours.add(network["Name"])
                self._subnet_of[network["Name"]] = _chosen(labels)
            if not (mine and _SUBNET in labels):
                others.update(subnets.of_network(network))
        # Only what was known before the question: its answer lacks networks that were made since.
        for gone in before - ours - set(self._unanswered):
            self._subnet_of.pop(gone, None)
        self._others = of_node | others
        self.capacity = self._subnets.count(self._others)
        return ours

    def _without_owner(self, names: set[str]) -> list[str]:
        """Return the networks without a run. Such a network never gets one again: names are never
        reused."""
        owned = {*self._of_run.values(), *self._unanswered, self._spare}
        return sorted(names - owned)

    def name_of(self, run_id: str) -> str:
        """Return the run's network. Raises NodeFault when `ensure` was not called for the run."""
        try:
            return self._of_run[run_id]
        except KeyError:
            raise NodeFault(f"run {run_id} has no network") from None

    def join(self, asked: dict[str, Any], spec: ContainerSpec) -> None:
        """Put the run's network into the request. Raises NodeFault when `ensure` was not called for
        the run."""
        network = self.name_of(spec.run_id)
        asked["host_config"]["NetworkMode"] = network
        asked["labels"][LABEL] = network
        if spec.address is not None:
            asked["networking_config"] = request.at_address(network, spec.address)
        if spec.publish is not None:
            asked["ports"] = [spec.publish]
            # Only the node itself reaches it; with an empty HostPort the engine chooses the port.
            on_loopback = {"HostIp": "127.0.0.1", "HostPort": ""}
            asked["host_config"]["PortBindings"] = {f"{spec.publish}/tcp": [on_loopback]}

    def routes_to(self, run_id: str) -> bool:
        return False

    async def made(self, spec: ContainerSpec, container_id: str) -> None:
        """Do nothing: Docker makes the files of a container's network."""

    async def starting(self, container_id: str) -> None:
        """Do nothing: a run's network is there before its containers."""

    async def started(self, container_id: str) -> bool:
        """Do nothing: Docker connects a container before its process runs."""
        return False

    async def ended(self, task_id: str) -> None:
        """Do nothing, as when it is removed."""

    async def removed(self, task_id: str) -> None:
        """Do nothing: Docker disconnects a container that it removes."""

    async def ensure(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        """Make sure that the run has a network; return an address in it besides those `taken`.

        None: the engine chooses the address, because an earlier version made the network. An
        address that is `wanted` stays the task's, even if it is in use: by the task's own
        container. Raises NodeFull, or NodeFault, because a job has no influence on its network.

        It goes on when the caller is cancelled: a network that is being made must have a run, or it
        would never be removed.
        """
        # Tasks of one run may come at once, and two networks would part them.
        giving = self._giving.get(run_id)
        if giving is None:
            giving = asyncio.create_task(self._give(run_id), name=f"network of run {run_id}")
            self._giving[run_id] = giving
            giving.add_done_callback(lambda given: self._given(run_id, given))
        try:
            in_use = await asyncio.shield(giving)
        except (NodeFault, NodeFull):
            raise
        except EngineError as error:
            raise NodeFault(f"the run's network cannot be made: {error}") from None
        subnet = self._subnet_of.get(self._of_run.get(run_id, ""))
        if subnet is None:
            return None
        if wanted is not None and wanted not in taken and IPv4Address(wanted) in subnet:
            return wanted
        return _address(subnet, {*in_use, *taken})

    def _given(self, run_id: str, given: asyncio.Task[frozenset[str]]) -> None:
        """Its callers may all have been cancelled: then its error is logged here."""
        del self._giving[run_id]
        if not given.cancelled() and (error := given.exception()) is not None:
            log.warning("run %s has no network: %s", run_id, error)

    async def remove(self, run_id: str) -> None:
        """Remove the run's network soon; if that fails, the next comparison removes it."""
        # A network that is still being made would get its run after this removal, and stay.
        if giving := self._giving.get(run_id):
            await asyncio.wait({giving})
        name = self._of_run.pop(run_id, None)
        if name is not None:
            chore = asyncio.create_task(self._retire(name), name=f"removing network {name}")
            self._removing.add(chore)
            chore.add_done_callback(self._removing.discard)

    def distrust(self, message: str) -> None:
        """Give up the run's network, which the engine named when it refused to start a container:
        the run's next container gets another one."""
        for run_id, name in tuple(self._of_run.items()):
            if name in message:
                log.warning("network %s of run %s is given up: %s", name, run_id, message)
                del self._of_run[run_id]

    async def _give(self, run_id: str) -> frozenset[str]:
        """Return the addresses that are in use in the run's network."""
        if run_id not in self._of_run and self._spare is not None:
            self._of_run[run_id], self._spare = self._spare, None
        name = self._of_run.get(run_id)
        in_use = None if name is None else await self._in_use(name)
        if in_use is None:
            self._of_run[run_id] = await self._make_in_time()
            in_use = frozenset()
        self._idle.clear()
        self._make_spare()
        return in_use

    async def _in_use(self, name: str) -> frozenset[str] | None:
        """Return the addresses of the network's containers; None: it was pruned."""
        try:
            found = await self._call(lambda: self._api.inspect_network(name))
        except NotFound:
            # `docker network prune` removes every network without containers.
            return None
        ends = (found.get("Containers") or {}).values()
        return frozenset(str(end.get("IPv4Address", "")).partition("/")[0] for end in ends)

    async def _make_in_time(self) -> str:
        """Make a network, when there is a subnet for it: one may be about to come free."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            self._freed.clear()
            try:
                return await self._make()
            except NodeFull:
                # A spare that was being made meanwhile may have got the last subnet.
                if self._spare is not None:
                    name, self._spare = self._spare, None
                    return name
                if loop.time() >= deadline:
                    raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    await self._freed.wait()

    async def _make(self) -> str:
        """Raises NodeFull when no subnet is free."""
        overlapping: set[IPv4Network] = set()
        while True:
            await self._look()
            used = {one for one in self._subnet_of.values() if one is not None}
            used |= {*self._unanswered.values(), *overlapping, *self._others}
            subnet = self._subnets.free(used)
            if subnet is None:
                raise NodeFull(self._why_full())
            try:
                return await self._make_in(subnet)
            except DockerRefused as error:
                # A route or another network may have come since the look: the next subnet is tried.
                overlapping.add(subnet)
                if not _OVERLAP.search(str(error)) or len(overlapping) > _MAX_OVERLAPS:
                    raise

    async def _make_in(self, subnet: IPv4Network) -> str:
        # With `fl-` before it 15 characters, the longest name of a device (IFNAMSIZ of if.h).
        number = uuid.uuid4().hex[:12]
        name = f"fairlead-{number}"
        key, _, value = self._label.partition("=")
        pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        self._unanswered[name] = subnet

        def create() -> None:
            # First, because the engine opens all networks for a moment while it makes one.
            if self._bridges is not None:
                self._bridges.keep_apart()
            self._api.create_network(
                name,
                driver="bridge",
                labels={key: value, _SUBNET: str(subnet)},
                ipam=IPAMConfig(pool_configs=[pool]),
                options={"com.docker.network.bridge.name": f"{BRIDGES}{number}", **self._options},
            )

        try:
            await self._call(create)
            self._subnet_of[name] = subnet
        finally:
            del self._unanswered[name]
        return name

    async def _keep_apart(self) -> None:
        """Write the table again: `nft flush ruleset` takes it away, with all that others have."""
        if self._bridges is not None and self._subnet_of:
            await self._call(self._bridges.keep_apart)

    def _why_full(self) -> str:
        if not self.capacity:
            return (
                "this node has no addresses for the networks of runs: all of "
                f"{self._subnets} is used by its routes, DNS servers or other networks of the "
                "engine (--job-networks names others)"
            )
        return (
            f"all {self.capacity} networks for runs on this node are in use (--job-networks gives "
            "it more)"
        )

    async def _remove(self, name: str) -> None:
        # An operator's `docker network prune` may come first.
        with contextlib.suppress(NotFound):
            await self._call(lambda: self._api.remove_network(name))
        self._subnet_of.pop(name, None)
        self._freed.set()

    async def _retire(self, name: str) -> None:
        try:
            await self._remove(name)
        except EngineError as error:
            log.warning("network %s is left behind: %s", name, error)
        self._idle.set()

    def _make_spare(self) -> None:
        if self._spares and self._spare is None and (self._making is None or self._making.done()):
            self._making = asyncio.create_task(self._fill(), name="spare network")

    async def _fill(self) -> None:
        """Make a spare network. Without one, the next run only waits for its own."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                await self._idle.wait()
        try:
            self._spare = await self._make()
        except NodeFull:
            return  # runs have them all
        except EngineError as error:
            log.warning("no spare network: %s", error)
        self._freed.set()


def _chosen(labels: Mapping[str, str]) -> IPv4Network | None:
    try:
        return IPv4Network(labels[_SUBNET])
    except (KeyError, ValueError):
        return None


def _address(subnet: IPv4Network, taken: Collection[str]) -> str:
    """Return the first address that nothing has. Raises NodeFull."""
    # The network's first address is the bridge's, as its gateway.
    first, last = int(subnet[2]), int(subnet.broadcast_address)
    for number in range(first, last):
        address = str(IPv4Address(number))
        if address not in taken:
            return address
    raise NodeFull(
        f"the run has {last - first} tasks on this node, which is all that its network {subnet} "
        "has addresses for (--job-networks RANGE:SIZE makes networks larger)"
    )
