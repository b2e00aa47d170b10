"""The outputs of a run's jobs: a list of them, and the file that has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from common.refusals import Conflict, Gone, NotFound, Unavailable
from controller.clock import Clock
from controller.lifecycle.model import Attempt, Job, RunState
from controller.lifecycle.outputs import state_of
from controller.outputs.bucket import BucketError
from controller.outputs.store import OutputStore, StoredOutputs
from controller.service.jobs.access import find_job
from fairlead.model.statuses import OutputsState


class JobOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of one attempt. `stored` None: they are not here, or no more (`removed`)."""

    job: Job
    attempt: Attempt
    state: OutputsState
    stored: StoredOutputs | None
    removed: bool = False


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """The tar of an attempt's outputs. `path` None: it is in a bucket."""

    stored: StoredOutputs
    path: Path | None


class OutputService:
    """`kept_for`: seconds after which the outputs of an ended run may be removed."""

    def __init__(self, outputs: OutputStore, clock: Clock, kept_for: float) -> None:
        self._outputs = outputs
        self._clock = clock
        self._kept_for = kept_for

    async def find(self, state: RunState, attempt: Attempt) -> JobOutputs:
        """Raises Unavailable."""
        job = find_job(state, attempt.job_id)
        found = state_of(attempt)
        stored = None
        if found is OutputsState.COLLECTED:
            try:
                stored = await self._outputs.find(attempt.id)
            except BucketError as error:
                raise _unreachable(error) from error
        removed = found is OutputsState.COLLECTED and stored is None
        return JobOutputs(job=job, attempt=attempt, state=found, stored=stored, removed=removed)

    async def read(self, archive: Archive, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield bytes of a tar in a bucket, `end` is not among them. Raises Unavailable."""
        assert archive.stored.place is not None
        try:
            async for piece in self._outputs.read(archive.stored.place, start, end):
                yield piece
        except BucketError as error:
            raise _unreachable(error) from error

    async def archive(self, state: RunState, attempt: Attempt | None) -> Archive:
        """Return the tar of an attempt's outputs. Raises NotFound, Conflict (not stored yet), Gone
        (lost or removed), Unavailable."""
        found = None if attempt is None else await self.find(state, attempt)
        if found is not None and found.stored is not None:
            here = found.stored.place is None
            path = self._outputs.archive(found.attempt.id) if here else None
            return Archive(stored=found.stored, path=path)
        which = f"of run {state.run.name}" if found is None else _name(state, found)
        if found is not None and found.state is OutputsState.COLLECTING:
            raise Conflict(
                f"the outputs {which} are still being collected; ask again soon",
                code="outputs_collecting",
            )
        if found is not None and found.state is OutputsState.LOST:
            raise Gone(f"the outputs {which} were lost with their node", code="outputs_lost")
        if found is not None and found.removed:
            raise Gone(
                f"the outputs {which} were removed: they are older than outputs are kept here "
                f"(--keep-outputs)",
                code="outputs_removed",
            )
        raise NotFound(
            f"there are no outputs {which}: a job keeps what it writes to $FAIRLEAD_OUTPUT_DIR, "
            f"once it has ended",
            code="no_outputs",
        )


def _unreachable(error: BucketError) -> Unavailable:
    return Unavailable(
        f"the outputs are in a bucket that does not give them now: {error}",
        code="outputs_unreachable",
    )


def _name(state: RunState, found: JobOutputs) -> str:
    job = f"{found.job.group}/{found.job.cookie}"
    return f"of job {job} of run {state.run.name}, attempt {found.attempt.number},"
