"""The queue as a user may see it: the order in which waiting jobs get allocations, and why."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller.clock import Clock
from controller.lifecycle.model import Band, Node, Run
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.queue import Unit
from controller.service.accounts.rights import may_see, names_for
from controller.store.accounts import User

MAX_ENTRIES = 500


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are placed together. `run_id` None: the user may not see the run. `gpus` and `cpu`:
    of all its jobs. `nominated`: the nodes on which it waits until others have left."""

    position: int
    run_id: str | None
    name: str
    user: str
    band: Band
    priority: int
    jobs: tuple[str, ...]
    gang: bool
    gpus: int
    cpu: float
    submitted_at: float
    why: str
    nominated: tuple[str, ...]


class UserShare(msgspec.Struct, frozen=True, kw_only=True):
    """A user's recent use, which halves in a day: the user with the least goes first in a band."""

    user: str
    waiting: int
    gpu_hours: float
    cpu_hours: float


class VisibleQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the queue, in its order. `length`: how many the whole queue has."""

    entries: tuple[QueueEntry, ...]
    shares: tuple[UserShare, ...]
    length: int


class QueueService:
    def __init__(self, pipeline: RunPipeline, clock: Clock) -> None:
        self._pipeline = pipeline
        self._clock = clock

    def positions(self) -> Mapping[str, int]:
        """Return the first place in the queue of each run that waits."""
        positions: dict[str, int] = {}
        for at, unit in enumerate(self._pipeline.scheduler.queue(self._clock.now()), 1):
            positions.setdefault(unit.run.id, at)
        return positions

    def view(self, user: User, *, skip: int = 0) -> VisibleQueue:
        """Return MAX_ENTRIES entries, without the first `skip`."""
        now = self._clock.now()
        units = self._pipeline.scheduler.queue(now)
        names = names_for(user)
        shown = units[skip : skip + MAX_ENTRIES]
        waiting: dict[str, int] = {}
        for unit in units:
            waiting[unit.run.user] = waiting.get(unit.run.user, 0) + len(unit.members)
        return VisibleQueue(
            entries=tuple(
                _entry(
                    at, unit, names(unit.run), self._pipeline.nodes, sees=may_see(user, unit.run)
                )
                for at, unit in enumerate(shown, skip + 1)
            ),
            shares=tuple(self._share(name, count, now) for name, count in sorted(waiting.items())),
            length=len(units),
        )

    def _share(self, user: str, waiting: int, now: float) -> UserShare:
        gpu, cpu = self._pipeline.scheduler.used(user, now)
        return UserShare(user=user, waiting=waiting, gpu_hours=gpu / 3600, cpu_hours=cpu / 3600)


def _entry(
    position: int, unit: Unit, name: str, nodes: Mapping[str, Node], *, sees: bool
) -> QueueEntry:
    run: Run = unit.run
    reasons = (member.attempt.waits_for for member in unit.members) if sees else ()
    on = dict.fromkeys(one.node_id for one in unit.nominated)
    resources = [member.job.spec.resources for member in unit.members]
    return QueueEntry(
        position=position,
        run_id=run.id if sees else None,
        name=name,
        user=run.user,
        band=run.policy.band,
        priority=run.policy.priority,
        jobs=tuple(f"{one.job.group}/{one.job.cookie}" for one in unit.members) if sees else (),
        gang=unit.gang,
        gpus=sum(member.need.min_gpus for member in unit.members),
        cpu=sum(one.cpu for one in resources),
        submitted_at=run.submitted_at,
        why=next((one for one in reasons if one is not None), ""),
        nominated=tuple(nodes[node].name for node in on if node in nodes),
    )
