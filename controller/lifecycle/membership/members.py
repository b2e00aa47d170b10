"""Members: a replica of several nodes is one job on each of them (docs/rules.md 8.14).

The first member, of rank 0, is the primary: it alone serves a port. The members are placed together
or not at all, and live and die together: when one of them ends, all others end too, and the replica
comes back as a whole. A replica of one node is one job without a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from controller.lifecycle.model import Attempt, Job, JobSpec, Run
from fairlead.model.statuses import AttemptStatus

Members = list[Job]
"""The jobs of one replica, in the order of their ranks."""


def is_member(run: Run, job: Job) -> bool:
    """Return whether the job is one of several of its replica."""
    return (bool(run.deployments) or run.sweep is not None) and job.rank is not None


def queues_as_a_whole(run: Run) -> bool:
    """Return whether a replica that comes back keeps no allocation, so that all its jobs are placed
    together."""
    return bool(run.deployments) or run.sweep is not None


def replicas(jobs: Iterable[Job], group: str) -> list[Members]:
    """Return the replicas of a group that were not scaled down."""
    return list(_by_replica(job for job in jobs if job.group == group).values())


def of_several(run: Run, jobs: Iterable[Job]) -> list[Members]:
    """Return the replicas of several nodes that were not scaled down."""
    return list(_by_replica(job for job in jobs if is_member(run, job)).values())


def _by_replica(jobs: Iterable[Job]) -> dict[tuple[str, int], Members]:
    found: dict[tuple[str, int], Members] = {}
    for job in jobs:
        if not job.scaled_down:
            found.setdefault((job.group, job.replica), []).append(job)
    for members in found.values():
        members.sort(key=lambda job: job.rank or 0)
    return found


def members_of(jobs: Iterable[Job], job: Job) -> Members:
    """Return all members of this job's replica, itself included."""
    own = (one for one in jobs if (one.group, one.replica) == (job.group, job.replica))
    present = [one for one in own if one.id == job.id or one.scaled_down is job.scaled_down]
    return sorted(present, key=lambda one: one.rank or 0)


def ranks(nodes: int) -> list[int | None]:
    """Return the ranks of a replica's jobs."""
    return [None] if nodes == 1 else list(range(nodes))


def spec_of(spec: JobSpec, rank: int | None) -> JobSpec:
    """Return what the member executes: only the primary serves."""
    return replace(spec, serves=None) if rank else spec


def runs(attempt: Attempt) -> bool:
    is_over = attempt.seen.runner_exited or attempt.seen.container_gone
    return attempt.status is AttemptStatus.RUNNING and not is_over


def why_not_whole(members: Sequence[Job]) -> str | None:
    """Return a sentence about a member that does not run; None: all of them do."""
    for job in members:
        last = job.attempts[-1] if job.attempts else None
        if last is None or not runs(last):
            status = "has not started yet" if last is None else f"is {last.status.value}"
            pending = None if last is None else last.pending_reason
            why = (last and last.message) or (pending and pending.sentence())
            return f"job {job.group}/{job.cookie} of it {status}" + (f": {why}" if why else "")
    return None


def primary_attempt(jobs: Iterable[Job], job: Job) -> Attempt | None:
    """Return the present attempt of the primary beside which this member works."""
    primary = members_of(jobs, job)[0]
    return primary.attempts[-1] if primary.attempts and not primary.rank else None
