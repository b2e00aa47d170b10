"""Which job and attempt a user means, and the connection of its node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from common.refusals import Conflict, NotFound
from common.streams import PortStream
from controller.lifecycle.model import Attempt, Job, RunState
from controller.links.base import NodeConnection
from fairlead.model.statuses import AttemptStatus


def find_job(state: RunState, key: str | None) -> Job:
    """Return the job with this id, index over all groups, or `GROUP/COOKIE`; None: the first that
    was not scaled down. Raises NotFound."""
    if key is None:
        jobs = state.all_jobs
        return next((job for job in jobs if not job.scaled_down), jobs[0])
    for job in state.all_jobs:
        if key in (job.id, str(job.index), f"{job.group}/{job.cookie}"):
            return job
    raise NotFound(
        f"run {state.run.name} has no job {key!r}; give an id, GROUP/COOKIE or an index below "
        f"{len(state.all_jobs)}",
        field="job",
    )


def running_attempt(state: RunState, key: str | None) -> Attempt:
    """Return the running attempt of the job that `find_job` finds. Raises NotFound, Conflict
    (`not_running`)."""
    job = find_job(state, key)
    attempt = job.attempts[-1] if job.attempts else None
    if attempt is None or attempt.status is not AttemptStatus.RUNNING:
        status = "not started" if attempt is None else attempt.status.lower()
        raise Conflict(f"the job of {state.run.name} does not run ({status})", code="not_running")
    return attempt


def find_attempt(state: RunState, job_key: str | None, attempt_key: str | None) -> Attempt | None:
    """Return the attempt with this id (of any job) or number within the job; None: the job's
    latest, if any.

    Raises NotFound.
    """
    if attempt_key is not None:
        for job in state.all_jobs:
            for attempt in job.attempts:
                if attempt.id == attempt_key:
                    return attempt
    job = find_job(state, job_key)
    if attempt_key is None:
        return job.attempts[-1] if job.attempts else None
    for attempt in job.attempts:
        if str(attempt.number) == attempt_key:
            return attempt
    raise NotFound(
        f"run {state.run.name} has no attempt {attempt_key!r}; give an id or a number from 0 to "
        f"{job.attempts[-1].number if job.attempts else 0}",
        field="attempt",
    )


CONNECT_SECONDS = 15.0
Connect = Callable[[str], Awaitable[NodeConnection]]
"""Returns the live connection of a node; waits for it as long as necessary."""
Reach = Callable[[Attempt, int], Awaitable[PortStream]]
"""Opens a stream to this port of a running attempt. Raises LinkError, AgentUnavailable,
AgentError."""


def through_runners(connect: Connect) -> Reach:
    """Reach ports through the nodes' connections and the jobs' runners."""

    async def reach(attempt: Attempt, port: int) -> PortStream:
        assert attempt.node_id is not None, "it runs"
        connection = await connect(attempt.node_id)
        return await connection.runner(attempt.task.runner_socket or "").connect_port(port)

    return reach


class Runs(Protocol):
    """Finds the run that a user names by id or name."""

    async def get(self, key: str) -> RunState: ...


class AttemptLookup(Protocol):
    async def get(self, key: str) -> RunState: ...

    async def attempt(
        self, state: RunState, job_key: str | None, attempt_key: str | None
    ) -> Attempt | None: ...
