"""Storing of the outputs of carried jobs, which their carrier's runner sends in pieces
(docs/rules.md 11.14)."""

from __future__ import annotations

import logging
from enum import Enum

from controller.outputs.store import OutputsDamaged, OutputStore, OutputsWriter, StoredOutputs
from fairlead.wire.runner import CarriedJob
from fairlead.wire.sizes import OutputsAbout

log = logging.getLogger(__name__)
MAX_TRIES = 2
"""A tar that comes damaged once more is lost: its runner has nothing else to send."""


class Missing(Enum):
    """Why there are no stored outputs."""

    INCOMPLETE = "incomplete"
    """More of them is to come."""
    LOST = "lost"


class CarriedOutputs:
    """The outputs of the jobs of one batch. `limit`: the most bytes of content that are kept of
    each. Every method may raise OSError."""

    def __init__(self, outputs: OutputStore) -> None:
        self._outputs = outputs
        self._writers: dict[str, OutputsWriter] = {}
        self._stored: dict[str, StoredOutputs] = {}
        self._tries: dict[str, int] = {}

    @property
    def limit(self) -> int:
        return self._outputs.limit

    def offsets(self) -> dict[str, int]:
        """Return how much of each tar is here."""
        arriving = {id: writer.at for id, writer in self._writers.items()}
        return arriving | {id: one.length for id, one in self._stored.items()}

    def forget(self, attempt_id: str) -> None:
        """Forget a job whose end is recorded."""
        self._stored.pop(attempt_id, None)
        self._tries.pop(attempt_id, None)

    async def take(self, job: CarriedJob) -> StoredOutputs | Missing | None:
        """Store what came of them; None: there are none. A repeated piece changes nothing."""
        about = job.outputs
        if about is None:
            return Missing.LOST if job.outputs_lost else None
        known = self._stored.get(job.attempt_id)
        if known is not None:
            return known
        found = await self._outputs.find(job.attempt_id) or await self._receive(job, about)
        if isinstance(found, StoredOutputs):
            # Before the end is posted: the runner drops them when that is recorded.
            await self._outputs.secure(job.attempt_id, found)
            self._stored[job.attempt_id] = found
        return found

    async def close(self) -> None:
        for writer in self._writers.values():
            await writer.close()
        self._writers.clear()

    async def _receive(self, job: CarriedJob, about: OutputsAbout) -> StoredOutputs | Missing:
        writer = self._writers.get(job.attempt_id)
        if writer is None:
            writer = self._writers[job.attempt_id] = await self._outputs.writer(job.attempt_id)
            if writer.at:
                # A life before this one stored a part: the runner is asked for what comes after it.
                return Missing.LOST if job.outputs_lost else Missing.INCOMPLETE
        # A job may answer in its runner's place: more than was announced would fill the disk.
        if not self._outputs.fits(about) or writer.at + len(job.outputs_piece) > about.length:
            return await self._damaged(job.attempt_id, "it is larger than was announced")
        if job.outputs_piece:
            await writer.append(job.outputs_piece)
        if writer.at < about.length:
            return Missing.LOST if job.outputs_lost else Missing.INCOMPLETE
        try:
            stored = await writer.complete(about)
        except OutputsDamaged as error:
            return await self._damaged(job.attempt_id, str(error))
        await self._writers.pop(job.attempt_id).close()
        return stored

    async def _damaged(self, attempt_id: str, why: str) -> Missing:
        """Begin again at the first byte; or give up."""
        log.warning("the outputs of attempt %s came damaged: %s", attempt_id, why)
        writer = self._writers.pop(attempt_id)
        await writer.restart()
        await writer.close()
        self._tries[attempt_id] = self._tries.get(attempt_id, 0) + 1
        return Missing.LOST if self._tries[attempt_id] >= MAX_TRIES else Missing.INCOMPLETE
