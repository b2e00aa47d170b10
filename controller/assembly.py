"""The controller's working parts, joined: the same for the real process and for the simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from ipaddress import IPv4Network

from controller.blobs import BlobStore
from controller.clock import Chance, Clock
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.inventory import DEFAULT_NODE_FAILURE, NodeFailure
from controller.lifecycle.model import Node
from controller.links.base import NodeConnection, NodeLink
from controller.logs.store import LogStore
from controller.nodes.drains import DrainDeadlines
from controller.nodes.session import Settings
from controller.nodes.strays import StrayTasks
from controller.nodes.supervisor import Nodes
from controller.pipelines.cluster import Clusters
from controller.pipelines.effects import EffectRunner, Performer
from controller.pipelines.running import (
    JobInterrupter,
    JobStarter,
    LimitHolder,
    LogCollector,
    RunnerFollower,
    TaskSubmitter,
)
from controller.pipelines.submitted import JobSubmittedPipeline
from controller.pipelines.terminating import (
    JobStopper,
    PlaceReleaser,
    TaskRemover,
    TaskTerminator,
)
from controller.pipelines.turns import Turns
from controller.store.base import Boot, Snapshot, Store
from shim.schemas import Fence, PullProgress, TaskInfo, TaskStatus


class Machinery:
    """Turns, node sessions and effects over one opened store.

    `node_failure`: what is made of a node's silence.
    `progress` is told the bytes of images being pulled, by attempt id; they are never stored.
    `cluster_secret` is what the SSH keys of multi-node runs are derived from, `cluster_networks`
    where their jobs reach each other.
    """

    def __init__(
        self,
        *,
        store: Store,
        boot: Boot,
        snapshot: Snapshot,
        logs: LogStore,
        progress: MutableMapping[str, PullProgress],
        make_link: Callable[[Node], NodeLink],
        clock: Clock,
        chance: Chance,
        blobs: BlobStore,
        node_failure: NodeFailure = DEFAULT_NODE_FAILURE,
        cluster_secret: bytes,
        cluster_networks: Sequence[IPv4Network] = (),
    ) -> None:
        fence = Fence(boot.epoch, boot.token)
        self._progress = progress
        self.turns = Turns(
            store, clock, chance, JobSubmittedPipeline(chance.new_id, snapshot.past_use)
        )
        settings = Settings(failure=node_failure, fence=fence)
        self.nodes = Nodes(self.turns, make_link, clock, chance, settings)
        self._drains = DrainDeadlines(self.turns, clock)
        restored = boot.restored_at is not None
        collector = LogCollector(self.turns, logs)
        self._strays = StrayTasks(self.turns, store, fence, collector, restored=restored)
        clusters = Clusters(self.turns.nodes, cluster_secret, cluster_networks)
        performers: dict[EffectKind, Performer] = {
            EffectKind.SUBMIT_TASK: TaskSubmitter(self.turns, fence, clusters),
            EffectKind.START_JOB: JobStarter(self.turns, clock, blobs, clusters),
            EffectKind.FOLLOW_RUNNER: RunnerFollower(self.turns, clock),
            EffectKind.COLLECT_LOGS: collector,
            EffectKind.INTERRUPT_JOB: JobInterrupter(clock),
            EffectKind.SUSPEND_LIMIT: LimitHolder(suspended=True),
            EffectKind.RESUME_LIMIT: LimitHolder(suspended=False),
            EffectKind.STOP_JOB: JobStopper(clock),
            EffectKind.TERMINATE_TASK: TaskTerminator(self.turns, fence),
            EffectKind.REMOVE_TASK: TaskRemover(self.turns, fence),
            EffectKind.RELEASE_PLACE: PlaceReleaser(self.turns, fence),
        }
        self._effects = EffectRunner(self.turns, self.nodes, logs, performers, clock, chance)
        self.turns.restore(snapshot.runs, snapshot.nodes, snapshot.fleets)
        self._store = store
        self._leftovers = snapshot.leftover_allocations
        self.turns.listen(self._effects)

    async def run(self) -> None:
        """Work until cancelled. Raises LeaseLost, StoreUnavailable."""
        for run_id in dict.fromkeys(place.run_id for place in self._leftovers):
            ended = await self._store.find_run(run_id)
            if ended is not None:
                self.turns.remember(ended)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.turns.run(), name="turns")
                group.create_task(self.nodes.run(self), name="nodes")
                group.create_task(self._drains.run(), name="drains")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await self._strays.close()
            await self._effects.close()

    # -- what node sessions tell (SessionListener) ------------------------------------------

    def connected(self, node_id: str) -> None:
        self._effects.repeat(node_id)

    def task_seen(self, node_id: str, info: TaskInfo) -> None:
        if info.status is TaskStatus.PULLING and info.pull is not None:
            self._progress[info.id] = info.pull
        elif info.status is not TaskStatus.PULLING:
            self._progress.pop(info.id, None)

    async def stray_task(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> None:
        await self._strays.settle(node_id, connection, info)

    async def idle_places(self, node_id: str, connection: NodeConnection) -> None:
        await self._strays.release_idle(connection)
