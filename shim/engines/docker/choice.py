"""Chooses who connects the containers of a node: the engine, or the shim itself (`wired`).

Containers of the two kinds do not reach each other. So a run keeps its kind as long as this shim
has a container of it, whatever the node's choice is by then: a restart with another choice ends no
job and separates no run.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fairlead.wire.node import EngineKind
from shim.engines.base import ContainerSpec, NetworkChoice, NodeFault
from shim.engines.docker.api import Call
from shim.engines.docker.dialect import Dialect
from shim.engines.docker.networks import LABEL, Networks, RunNetworks
from shim.engines.docker.subnets import Subnets, ranges_of
from shim.engines.docker.wired import WIRE, WiredNetworks
from shim.settings import NetworkKind, Settings
from shim.wires.bridges import Bridges
from shim.wires.namespace import Namespace, WireError

log = logging.getLogger(__name__)
_RUN = "fairlead.run"


class ChosenNetworks:
    """The node's networks. `others` are those of `runs` that began with another choice."""

    def __init__(
        self,
        chosen: Networks,
        choice: NetworkChoice,
        others: Networks | None = None,
        runs: Collection[str] = (),
    ) -> None:
        self._chosen = chosen
        self.choice = choice
        self._others = others
        self._runs = set(runs)
        """Those that stay with `others`."""

    @property
    def capacity(self) -> int:
        return self._chosen.capacity

    def routes_to(self, run_id: str) -> bool:
        return self._of(run_id).routes_to(run_id)

    async def close(self) -> None:
        for networks in self._both():
            await networks.close()

    async def ensure(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        return await self._of(run_id).ensure(run_id, taken, wanted)

    async def remove(self, run_id: str) -> None:
        await self._of(run_id).remove(run_id)
        self._runs.discard(run_id)

    def join(self, asked: dict[str, Any], spec: ContainerSpec) -> None:
        self._of(spec.run_id).join(asked, spec)

    async def made(self, spec: ContainerSpec, container_id: str) -> None:
        await self._of(spec.run_id).made(spec, container_id)

    async def starting(self, container_id: str) -> None:
        for networks in self._both():
            await networks.starting(container_id)

    async def started(self, container_id: str) -> bool:
        seen = [await networks.started(container_id) for networks in self._both()]
        return any(seen)

    async def ended(self, task_id: str) -> None:
        for networks in self._both():
            await networks.ended(task_id)

    async def removed(self, task_id: str) -> None:
        for networks in self._both():
            await networks.removed(task_id)

    def distrust(self, message: str) -> None:
        for networks in self._both():
            networks.distrust(message)

    def _of(self, run_id: str) -> Networks:
        if self._others is not None and run_id in self._runs:
            return self._others
        return self._chosen

    def _both(self) -> tuple[Networks, ...]:
        return (self._chosen,) if self._others is None else (self._chosen, self._others)


class NetworkChooser:
    """Opens the networks that the node is to have.

    `api` is a client of the engine, `info` its answer about itself, and `containers` are those of
    this shim as the engine lists them.
    """

    def __init__(
        self,
        call: Call,
        api: Any,
        dialect: Dialect,
        install_id: str,
        settings: Settings,
        info: Mapping[str, Any],
        containers: Sequence[Mapping[str, Any]],
    ) -> None:
        self._call, self._api = call, api
        self._dialect = dialect
        self._install_id = install_id
        self._settings = settings
        self._info = info
        self._containers = containers
        self._among = Subnets(ranges_of(settings.job_networks, info))

    async def open(self) -> ChosenNetworks:
        """Raises NodeFault when the operator asks for networks that this node cannot have."""
        asked = self._settings.networks
        wired = self._wired()
        runs_of_wires = self._runs_with(WIRE)
        why = None
        # An engine that never has wires is no choice of the node.
        if asked is not NetworkKind.DOCKER and not self._is_always_of_engine():
            why = await self._why_not(wired, conflicts_count=asked is NetworkKind.AUTO)
            if why is None:
                return await self._with_wires(wired)
            if asked is NetworkKind.AGENT:
                raise NodeFault(f"--networks agent: {why}; use --networks docker")
            log.info("the engine connects containers: %s", why)
        choice = NetworkChoice(kind=NetworkKind.DOCKER, why=why)
        of_engine = await self._of_engine(spares=True)
        await of_engine.open(self._api, self._used(), self._among)
        if not runs_of_wires:
            return ChosenNetworks(of_engine, choice)
        if not wired.is_open and (lost := await self._why_not(wired, conflicts_count=False)):
            log.warning("the connections of running jobs are not repaired: %s", lost)
        return ChosenNetworks(of_engine, choice, wired, runs_of_wires)

    async def _with_wires(self, wired: WiredNetworks) -> ChosenNetworks:
        choice = NetworkChoice(kind=NetworkKind.AGENT)
        of_engine = await self._of_engine(spares=False)
        # Also without a container: an earlier choice may have left networks without a run.
        await of_engine.open(self._api, self._used(), self._among)
        runs = self._runs_with(LABEL) - self._runs_with(WIRE)
        return ChosenNetworks(wired, choice, of_engine, runs)

    def _is_always_of_engine(self) -> bool:
        is_docker = self._dialect.kind is EngineKind.DOCKER
        return not is_docker and self._settings.networks is NetworkKind.AUTO

    async def _why_not(self, wired: WiredNetworks, *, conflicts_count: bool) -> str | None:
        """Open the wires. Return why this node cannot have them; None: it can."""
        if self._dialect.kind is not EngineKind.DOCKER:
            return "networks of the shim need the Docker engine"
        if (why := why_not_here(self._info)) is not None:
            return why
        try:
            await wired.open(
                self._api,
                self._socket,
                self._containers,
                self._among,
                conflicts_count=conflicts_count,
            )
        except WireError as error:
            return str(error)
        return None

    def _wired(self) -> WiredNetworks:
        return WiredNetworks(self._call, self._install_id, self._settings.network_folder)

    async def _of_engine(self, *, spares: bool) -> RunNetworks:
        label = f"fairlead.install={self._install_id}"
        options = self._dialect.network_options
        namespace = await self._call(self._namespace_of_engine)
        bridges = Bridges(self._install_id, namespace)
        return RunNetworks(
            self._call,
            label,
            options=options,
            spares=spares,
            namespace=namespace,
            bridges=bridges,
        )

    def _namespace_of_engine(self) -> Namespace:
        try:
            return Namespace.of_engine(self._socket)
        # An engine behind TCP has no process here that the kernel could name.
        except WireError as error:
            log.warning("%s; it is taken for the shim's own", error)
            return Namespace()

    @property
    def _socket(self) -> str:
        return self._dialect.url.removeprefix("unix://")

    def _used(self) -> set[tuple[str, str]]:
        labels = [one["Labels"] for one in self._containers]
        return {(one[_RUN], one[LABEL]) for one in labels if one.get(LABEL)}

    def _runs_with(self, label: str) -> set[str]:
        labels = [one["Labels"] for one in self._containers]
        return {one[_RUN] for one in labels if one.get(label)}


def why_not_here(info: Mapping[str, Any]) -> str | None:
    """Return why an engine that describes itself so cannot have networks of the shim; None: it
    can, as far as it says."""
    options = tuple(map(str, info.get("SecurityOptions") or ()))
    for name, what in (("rootless", "runs without root"), ("userns", "remaps users")):
        if any(f"name={name}" in option for option in options):
            return f"the engine {what}"
    # Docker 29 can write nftables itself: then no chain of iptables asks for our mark.
    driver = str((info.get("FirewallBackend") or {}).get("Driver", ""))
    if driver.startswith("nftables"):
        return "the engine's firewall is nftables, which has no chain DOCKER-USER"
    return None
