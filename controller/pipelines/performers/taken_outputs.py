"""The outputs of other runs on their way into a job (docs/rules.md 4.21).

The tar of an attempt's outputs is an archive as any other of the job: the runner unpacks it into a
folder and checks its sha256, so nothing new is asked of it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import msgspec

from controller.lifecycle.model import Run, RunState
from controller.outputs.bucket import BucketError
from controller.outputs.store import OutputStore, StoredOutputs
from controller.pipelines.to_node import RetryLater
from controller.store.base import Store
from controller.store.errors import StoreUnavailable
from fairlead.wire.job import Files

FOLDER = "inputs"
"""In the job's working folder."""
PIECE_BYTES = 1 << 20
MAX_REMEMBERED = 1000


class OutputsGone(Exception):
    """There is nothing to take; the message says why."""


class TakenArchive(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of one attempt, and where they go."""

    attempt_id: str
    stored: StoredOutputs
    files: Files


def _why_none(name: str, state: RunState) -> str:
    lasts = [job.attempts[-1] for job in state.all_jobs if job.attempts]
    if any(one.seen.outputs is not None for one in lasts):
        return (
            f"the outputs of run {name}, which it takes, were removed: they are older than outputs "
            f"are kept here (--keep-outputs); run it again"
        )
    return f"run {name}, whose outputs it takes, left none"


class TakenOutputsReader:
    """Finds and reads the outputs that a run takes; `live` returns a run that the store may not
    have yet."""

    def __init__(
        self, store: Store, outputs: OutputStore, live: Callable[[str], RunState | None]
    ) -> None:
        self._store = store
        self._outputs = outputs
        self._live = live
        self._digests: dict[str, str] = {}

    async def of(self, run: Run) -> tuple[TakenArchive, ...]:
        """Return what the jobs of this run get. Raises OutputsGone, RetryLater."""
        found: list[TakenArchive] = []
        for one in run.outputs_from:
            state = self._live(one.run_id) or await self._ended(one.run_id)
            if state is None:
                raise OutputsGone(f"run {one.name}, whose outputs it takes, was removed")
            of_run = [taken async for taken in self._of(state)]
            if not of_run:
                raise OutputsGone(_why_none(one.name, state))
            found += of_run
        return tuple(found)

    async def read(self, taken: TakenArchive) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the tar. Raises RetryLater."""
        async with aclosing(self._pieces(taken.attempt_id, taken.stored)) as pieces:
            async for piece in pieces:
                yield piece

    async def _ended(self, run_id: str) -> RunState | None:
        try:
            return await self._store.find_run(run_id)
        except StoreUnavailable as error:
            raise RetryLater(str(error)) from error

    async def _of(self, state: RunState) -> AsyncIterator[TakenArchive]:
        """Yield the outputs of each job's last attempt. Several jobs get a folder each."""
        jobs = [job for job in state.all_jobs if job.attempts]
        for job in jobs:
            attempt = job.attempts[-1]
            try:
                left = attempt.seen.outputs is not None
                stored = await self._outputs.find(attempt.id) if left else None
            except BucketError as error:
                raise RetryLater(str(error)) from error
            if stored is None:
                continue
            own = f"/{job.group}-{job.cookie}" if len(jobs) > 1 else ""
            digest = await self._digest(attempt.id, stored)
            path = f"{FOLDER}/{state.run.name}{own}"
            files = Files(path=path, archive=digest, read_only=True)
            yield TakenArchive(attempt_id=attempt.id, stored=stored, files=files)

    async def _digest(self, attempt_id: str, stored: StoredOutputs) -> str:
        known = self._digests.get(attempt_id)
        if known is not None:
            return known
        found = hashlib.sha256()
        async with aclosing(self._pieces(attempt_id, stored)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(found.update, piece)
        if len(self._digests) >= MAX_REMEMBERED:
            self._digests.clear()
        return self._digests.setdefault(attempt_id, found.hexdigest())

    async def _pieces(self, attempt_id: str, stored: StoredOutputs) -> AsyncGenerator[bytes, None]:
        if stored.place is not None:
            try:
                async for piece in self._outputs.read(stored.place, 0, stored.length):
                    yield piece
            except BucketError as error:
                raise RetryLater(
                    f"its inputs are in a bucket that does not answer: {error}"
                ) from error
            return
        try:
            file = await asyncio.to_thread(self._outputs.archive(attempt_id).open, "rb")
        except FileNotFoundError:
            # The upload to the bucket removes the file once the bucket has it.
            raise RetryLater("the outputs that it takes were moved meanwhile") from None
        with file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece
