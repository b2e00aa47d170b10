"""Tasks that a node has and no live attempt stands for.

One that belongs to a run of ours was given up while the node was away: it is stopped and removed.
One that nobody here knows is left alone and reported, since another controller, or a database older
than the node's tasks, may know it.
"""

from __future__ import annotations

import logging

from controller.lifecycle import reports
from controller.links.base import NodeConnection
from controller.pipelines.performing import TryAgain
from controller.pipelines.terminating import remove_from_node
from controller.pipelines.turns import Turns
from controller.store.base import Store
from shim.client import ShimError
from shim.schemas import Fence, TaskInfo, TaskStatus, TerminateRequest

log = logging.getLogger(__name__)


class StrayTasks:
    def __init__(self, turns: Turns, store: Store, fence: Fence) -> None:
        self._turns = turns
        self._store = store
        self._fence = fence
        self._quarantined: set[tuple[str, str]] = set()

    async def settle(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> None:
        """Repeated at every word of the node about the task until it is gone; a place that was
        orphaned with it is free then."""
        if await self._store.find_run(info.run_id) is None:
            self._quarantine(node_id, info)
            return
        try:
            if info.status is not TaskStatus.TERMINATED:
                log.warning("stopping task %s: its attempt has ended", info.id)
                await connection.shim.terminate(
                    info.id,
                    TerminateRequest(grace=0.0, message="its attempt has ended"),
                    run_id=info.run_id,
                    fence=self._fence,
                    incarnation=info.incarnation,
                )
                return
            await remove_from_node(
                connection,
                task_id=info.id,
                allocation_id=info.allocation_id,
                run_id=info.run_id,
                fence=self._fence,
                incarnation=info.incarnation,
            )
        except (ShimError, TryAgain) as error:
            log.warning("stray task %s could not be cleared: %s", info.id, error)
            return
        self._turns.post(reports.TaskRemoved(run_id=info.run_id, attempt_id=info.id))

    def _quarantine(self, node_id: str, info: TaskInfo) -> None:
        if (node_id, info.id) not in self._quarantined:
            self._quarantined.add((node_id, info.id))
            log.warning(
                "task %s of unknown run %s (%s) is left running on its node",
                info.id,
                info.run_id,
                info.run_name,
            )
