"""The controller's working parts joined: the same for the real process and the simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from ipaddress import IPv4Network
from typing import NoReturn

import msgspec

from controller.clock import Chance, Clock, month_began
from controller.gateways.manager import GatewayManager
from controller.gateways.manager import Settings as GatewaySettings
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.inventory import DEFAULT_NODE_FAILURE, NodeFailure
from controller.lifecycle.model import Node
from controller.links.base import NodeConnection, NodeLink
from controller.machines.manager import MachineManager, MachineSettings
from controller.nodes.drains import DrainDeadlines
from controller.nodes.engines import EngineAbsences
from controller.nodes.images import NodeImages
from controller.nodes.manager import NodeManager
from controller.nodes.session import Settings
from controller.nodes.strays import StrayTasks
from controller.pipelines.autoscaling import Autoscaler
from controller.pipelines.dependents import unknown_predecessors
from controller.pipelines.effects import EffectRunner, Performer
from controller.pipelines.live_state import unknown_parents
from controller.pipelines.performers import batches, dev_environments, service_replicas
from controller.pipelines.performers.cluster import Clusters
from controller.pipelines.performers.job_running import JobRunningPipeline
from controller.pipelines.performers.job_terminating import JobTerminatingPipeline
from controller.pipelines.performers.log_collection import LogCollector
from controller.pipelines.performers.output_collection import OutputCollector
from controller.pipelines.performers.taken_outputs import TakenOutputsReader
from controller.pipelines.renting.rentals import Rentals
from controller.pipelines.renting.settings import RentalSettings, has_rented
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.seams import TurnListener
from controller.pipelines.to_node import SecretSource
from controller.proxy.probes import try_probe
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.service import Stores
from controller.store.base import Boot, Snapshot
from controller.traffic.routes import RouteTable
from controller.traffic.statistics import Traffic
from fairlead.wire.shim import Fence, PullProgress, TaskInfo, TaskStatus

SHIM_ANSWER_SECONDS = 10.0


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes are reached, and what jobs get there."""

    make_link: Callable[[Node], NodeLink]
    secrets: SecretSource
    """What `${{ secrets.NAME }}` stands for."""
    failure: NodeFailure = DEFAULT_NODE_FAILURE
    """How a node's silence is judged."""
    cluster_secret: bytes
    """What the SSH keys of multi-node runs are derived from."""
    cluster_networks: Sequence[IPv4Network] = ()
    """Where their jobs reach each other, the preferred network first."""


def _rentals(
    placement: JobSubmittedPipeline,
    machines: MachineSettings | None,
    boot: Boot,
    chance: Chance,
    snapshot: Snapshot,
) -> Rentals | None:
    """Return what decides about machines; None: this controller has no providers of them, and had
    none whose fleets and machines are still known."""
    known = (*snapshot.machines, *snapshot.orphans)
    if machines is None and not has_rented(known, snapshot.fleets):
        return None
    if machines is None:
        # The file names none any more: fleets and waiting jobs say so, and costs are still summed.
        machines = MachineSettings(clouds={}, boot_data=_nothing_to_boot, pin=_nothing_to_boot)
    settings = RentalSettings(
        installation=boot.installation_id,
        pin=machines.pin,
        new_id=chance.new_id,
        month_of=month_began,
        spending=machines.spending,
        providers=frozenset(machines.clouds),
        regions=machines.regions,
        setups=machines.setups,
    )
    could_hold = placement.could_hold
    return Rentals(placement.index, settings, snapshot.machines, could_hold, snapshot.orphans)


def _nothing_to_boot(_: object) -> NoReturn:
    raise AssertionError("nothing is ordered without a provider")


def _was_sent(rentals: Rentals | None, machines: MachineSettings | None, node: Node) -> bool:
    """Return whether the node's host key was in the user-data of its rented machine."""
    if rentals is None or machines is None or node.id not in rentals.machines:
        return False
    return node.address.host_key == machines.pin(node.id).host_key


class Assembly:
    """Turns, node sessions and effects over one opened store.

    `routes` is empty, and is kept by the assembly from now on. `progress` gets the bytes of images
    being pulled, by attempt id; they are never stored. `listeners` hear of each turn.
    """

    def __init__(
        self,
        stores: Stores,
        boot: Boot,
        snapshot: Snapshot,
        *,
        clock: Clock,
        chance: Chance,
        progress: MutableMapping[str, PullProgress],
        routes: RouteTable,
        nodes: NodeSettings,
        gateways: GatewaySettings,
        machines: MachineSettings | None = None,
        listeners: Sequence[TurnListener] = (),
    ) -> None:
        self._progress = progress
        self._pulls: dict[str, PullProgress] = {}
        """The progress of pulls alone: what `_progress` has of an attempt may be of its outputs."""
        self._store = stores.store
        self._leftovers = snapshot.leftover_allocations
        self.fence = fence = Fence(boot.epoch, boot.token)
        placement = JobSubmittedPipeline(chance.new_id, snapshot.past_use)
        rentals = _rentals(placement, machines, boot, chance, snapshot)
        self.pipeline = RunPipeline(stores.store, clock, chance, placement, rentals, listeners)
        self._images = NodeImages(
            self.pipeline, nodes.secrets, wake=lambda node_id: self.nodes.look(node_id)
        )
        session = Settings(
            failure=nodes.failure,
            fence=fence,
            images=self._images,
            was_sent=lambda node: _was_sent(rentals, machines, node),
        )
        self.nodes = NodeManager(self.pipeline, nodes.make_link, clock, chance, session)
        self.machines = self._machines(rentals, machines, boot, clock)
        self._drains = DrainDeadlines(self.pipeline, clock)
        self._engines = EngineAbsences(self.pipeline, clock, nodes.failure.lost_after)
        self.traffic = Traffic(clock.now)
        self.routes = routes
        self.autoscaler = Autoscaler(self.pipeline, self.traffic, clock)
        self.gateways = self._gateways(boot, snapshot, chance, gateways)
        logs = LogCollector(self.pipeline, stores.logs)
        outputs = OutputCollector(self.pipeline, stores.outputs, progress)
        restored = boot.restored_at is not None
        self._strays = StrayTasks(
            self.pipeline, stores.store, fence, logs, outputs, restored=restored
        )
        performers = (
            self._starting(stores, nodes, fence, clock, logs)
            | JobTerminatingPipeline(self.pipeline, fence, clock, outputs).performers
            | self._of_services(fence, clock)
        )
        self._effects = EffectRunner(
            self.pipeline, self.nodes, stores.logs, performers, clock, chance
        )
        self._begin_with(snapshot)

    def _gateways(
        self, boot: Boot, snapshot: Snapshot, chance: Chance, settings: GatewaySettings
    ) -> GatewayManager:
        return GatewayManager(
            pipeline=self.pipeline,
            store=self._store,
            routes=self.routes,
            traffic=self.traffic,
            connect=self.nodes.connection,
            chance=chance,
            controller_id=boot.installation_id,
            gateways=snapshot.gateways,
            settings=settings,
        )

    def _machines(
        self,
        rentals: Rentals | None,
        machines: MachineSettings | None,
        boot: Boot,
        clock: Clock,
    ) -> MachineManager | None:
        if rentals is None or machines is None:
            return None
        return MachineManager(
            rentals,
            self.pipeline.nodes,
            machines,
            clock,
            installation=boot.installation_id,
            is_empty=self._is_empty,
            restored_at=boot.restored_at,
        )

    def _starting(
        self, stores: Stores, nodes: NodeSettings, fence: Fence, clock: Clock, logs: LogCollector
    ) -> dict[EffectKind, Performer]:
        """Return the performers that start and follow jobs."""
        clusters = Clusters(self.pipeline.nodes, nodes.cluster_secret, nodes.cluster_networks)
        inputs = TakenOutputsReader(stores.store, stores.outputs, self.pipeline.runs.get)
        running = JobRunningPipeline(
            self.pipeline, fence, clock, stores.blobs, clusters, logs, nodes.secrets, inputs
        )
        return running.performers | batches.performers(
            self.pipeline, clock, stores.logs, stores.outputs, nodes.secrets
        )

    def _of_services(self, fence: Fence, clock: Clock) -> dict[EffectKind, Performer]:
        """Return the performers of services and dev environments."""
        return service_replicas.performers(
            self.pipeline, self.traffic, self.gateways, fence, try_probe
        ) | dev_environments.performers(self.pipeline, self.traffic, clock)

    def _begin_with(self, snapshot: Snapshot) -> None:
        self.pipeline.restore(snapshot.runs, snapshot.nodes, snapshot.fleets)
        self._images.committed(tuple(self.pipeline.runs.values()))
        self.routes.committed(tuple(self.pipeline.runs.values()))
        self.pipeline.listen(self._effects)
        self.pipeline.listen(self.routes)
        self.pipeline.listen(self.gateways)
        self.pipeline.listen(self._images)

    async def run(self) -> None:
        """Work until cancelled. Raises LeaseLost, StoreUnavailable."""
        live = self.pipeline.runs
        unknown = (
            *unknown_predecessors(live.values(), live),
            *unknown_parents(live.values(), live),
        )
        of_leftovers = (allocation.run_id for allocation in self._leftovers)
        for run_id in dict.fromkeys((*of_leftovers, *(wanted for _, wanted in unknown))):
            ended = await self._store.find_run(run_id)
            if ended is not None:
                self.pipeline.remember(ended)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.pipeline.run(), name="turns")
                group.create_task(self.nodes.run(self), name="nodes")
                group.create_task(self._drains.run(), name="drains")
                group.create_task(self._engines.run(), name="engines")
                group.create_task(self.autoscaler.run(), name="autoscaler")
                group.create_task(self.gateways.run(), name="gateways")
                if self.machines is not None:
                    group.create_task(self.machines.run(), name="machines")
        # The first one tells why the controller ends; the others are of tasks that it cancelled.
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await self._strays.close()
            await self._effects.close()

    async def _is_empty(self, node_id: str) -> bool:
        """Return whether the node's shim has no task. Raises when it does not answer soon."""
        async with asyncio.timeout(SHIM_ANSWER_SECONDS):
            connection = await self.nodes.connection(node_id)
            return not await connection.shim.tasks()

    # -- what node sessions tell (SessionListener) ------------------------------------------

    def connected(self, node_id: str) -> None:
        self._effects.repeat(node_id)
        self.gateways.node_connected(node_id)

    def task_seen(self, node_id: str, info: TaskInfo) -> None:
        if info.status is TaskStatus.PULLING and info.pull is not None:
            self._pulls[info.id] = self._progress[info.id] = info.pull
        elif info.status is not TaskStatus.PULLING:
            pull = self._pulls.pop(info.id, None)
            if pull is not None and self._progress.get(info.id) is pull:
                del self._progress[info.id]  # else it is that of a collection by now

    async def stray_task(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> bool:
        return await self._strays.settle(node_id, connection, info)

    async def idle_allocations(self, node_id: str, connection: NodeConnection) -> None:
        await self._strays.release_idle(connection)
