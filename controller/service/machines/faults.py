"""What is broken: nodes that need a person, and the jobs that the fault of a GPU hit."""

from __future__ import annotations

import msgspec

from common.refusals import NotFound
from controller.lifecycle.model import Attempt, Node, NodeStatus, RunState
from controller.lifecycle.node_history import broken_since
from controller.nodes.health import MAX_FAILED_STARTS
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import may_see, names_for
from controller.service.runs.lookup import RunService, names_in
from controller.store.accounts import User
from controller.store.base import Store
from fairlead.model.reasons import Reason

AROUND_SECONDS = 60.0
"""A job may fail before its node notices that the GPU is broken, or be placed meanwhile."""
MAX_HITS = 50
_MAX_READ = 1000


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that had a broken GPU when it broke, or ended because of it. `run_id` None: a run
    of another user, whose name `run` does not tell. `ended_at` None: it has not ended."""

    run_id: str | None
    run: str
    job: str
    attempt_id: str
    gpu: str
    status: str
    reason: str | None
    ended_at: float | None


class FaultService:
    def __init__(self, pipeline: RunPipeline, runs: RunService, store: Store) -> None:
        self._pipeline = pipeline
        self._runs = runs
        self._store = store
        self._broken: tuple[int, frozenset[str]] = (0, frozenset())

    def broken_nodes(self) -> frozenset[str]:
        """Return the ids of the nodes that need a person; found once for each change."""
        revision, broken = self._broken
        if not revision or revision != self._pipeline.revision:
            broken = frozenset(one.id for one in self._pipeline.nodes.values() if is_broken(one))
            self._broken = (self._pipeline.revision, broken)
        return broken

    async def hits(self, node: Node, user: User) -> list[Hit]:
        """Return the latest attempts that the node's broken GPUs hit, the newest first. Raises
        StoreUnavailable."""
        broken = {
            gpu.uuid: broken_since(node, gpu.uuid) for gpu in node.capacity.gpus if not gpu.healthy
        }
        if not broken:
            return []
        since = min(at or 0.0 for at in broken.values()) - AROUND_SECONDS
        found = await self._store.attempts_on([node.id], since=since, limit=_MAX_READ)
        hit = [
            (run_id, attempt, gpu)
            for run_id, attempt in found
            for gpu in attempt.task.gpus
            if gpu in broken and was_hit(attempt, broken[gpu])
        ][:MAX_HITS]
        states = {run_id: await self._state(run_id) for run_id in {one[0] for one in hit}}
        return [
            _hit(state, attempt, gpu, user)
            for run_id, attempt, gpu in hit
            if (state := states[run_id]) is not None
        ]

    async def _state(self, run_id: str) -> RunState | None:
        try:
            return await self._runs.get(run_id)
        except NotFound:
            return None  # it was forgotten meanwhile


def is_broken(node: Node) -> bool:
    """Return whether the node needs a person: it is silent for too long, unfit, cordoned because it
    could not start jobs, or has a broken GPU."""
    return (
        node.status in (NodeStatus.UNREACHABLE, NodeStatus.LOST)
        or node.unfit is not None
        or len(node.failed_starts) >= MAX_FAILED_STARTS
        or any(not gpu.healthy for gpu in node.capacity.gpus)
    )


def was_hit(attempt: Attempt, broken_at: float | None) -> bool:
    """`broken_at`: when its GPU broke; None: that is not known any more."""
    if Reason.GPU_UNHEALTHY in (attempt.reason, *attempt.later_reasons):
        return True
    if broken_at is None:
        return False
    begun = attempt.provisioned_at or attempt.submitted_at
    ended = attempt.finished_at
    return begun <= broken_at + AROUND_SECONDS and (
        ended is None or ended >= broken_at - AROUND_SECONDS
    )


def _hit(state: RunState, attempt: Attempt, gpu: str, user: User) -> Hit:
    own = may_see(user, state.run)
    return Hit(
        run_id=state.run.id if own else None,
        run=names_for(user)(state.run),
        job=names_in(state).get(attempt.job_id, "") if own else "",
        attempt_id=attempt.id,
        gpu=gpu,
        status=attempt.status.value,
        reason=attempt.reason,
        ended_at=attempt.finished_at,
    )
