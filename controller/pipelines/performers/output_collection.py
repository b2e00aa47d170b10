"""Output collection stores what a job left in its output folder, before its task is removed.

The shim makes the tar; a broken connection or a restart goes on at the byte where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from controller.lifecycle import reports
from controller.lifecycle.model import CollectedOutputs
from controller.links.base import NodeConnection
from controller.outputs.bucket import BucketError
from controller.outputs.store import OutputsDamaged, OutputStore, OutputsWriter, StoredOutputs
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater
from fairlead.wire.shim import PullProgress
from shim.client import ShimError

log = logging.getLogger(__name__)


_SHOWN_BYTES = 8 << 20
"""Progress is told after so many bytes, and after each percent of more than a hundred times as
many: a change wakes all who watch the run."""


class OutputCollector:
    """Store the outputs durably, then report them; what is stored already is only reported.

    `progress`: attempt id → the bytes that are here and all of them, while they come.
    """

    def __init__(
        self,
        pipeline: RunPipeline,
        outputs: OutputStore,
        progress: MutableMapping[str, PullProgress],
    ) -> None:
        self._pipeline = pipeline
        self._outputs = outputs
        self._progress = progress

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        run_id, attempt_id = context.state.run.id, context.attempt.id
        try:
            stored = await self._outputs.find(attempt_id)
        except BucketError as error:
            raise RetryLater(str(error)) from error
        if stored is None:
            try:
                stored = await self._collect(attempt_id, connection)
            except ShimError as error:
                # 404: the task is gone, and its outputs with it. Asking again would not bring them
                # back.
                if error.status != 404:
                    raise RetryLater(str(error)) from error
                self._pipeline.post(reports.TaskMissing(run_id=run_id, attempt_id=attempt_id))
                return
            # The stream was cut off, or its file changed while it was read: the shim still has all
            # of it.
            except OutputsDamaged as error:
                raise RetryLater(f"the outputs came damaged: {error}") from error
        try:
            await self._outputs.secure(attempt_id, stored)
        except BucketError as error:
            raise RetryLater(f"the outputs wait for their bucket: {error}") from error
        self._pipeline.post(
            reports.OutputsCollected(
                run_id=run_id, attempt_id=attempt_id, outputs=collected(stored)
            )
        )

    async def _collect(self, attempt_id: str, connection: NodeConnection) -> StoredOutputs:
        writer = await self._outputs.writer(attempt_id)
        try:
            return await self._receive(attempt_id, connection, writer)
        finally:
            self._progress.pop(attempt_id, None)
            await writer.close()

    async def _receive(
        self, attempt_id: str, connection: NodeConnection, writer: OutputsWriter
    ) -> StoredOutputs:
        reading = connection.shim.outputs(attempt_id, offset=writer.at, limit=self._outputs.limit)
        async with reading as stream:
            if not self._outputs.fits(stream.about):
                raise RetryLater("the node sends more outputs than it was asked for")
            total, shown = stream.about.length, writer.at
            self._progress[attempt_id] = PullProgress(downloaded=shown, total=total)
            async for piece in stream.pieces():
                # A node that sends more than it announced would fill the controller's disk.
                if writer.at + len(piece) > stream.about.length:
                    raise RetryLater("the node sends more outputs than it announced")
                await writer.append(piece)
                if writer.at - shown >= max(_SHOWN_BYTES, total // 100):
                    shown = writer.at
                    self._progress[attempt_id] = PullProgress(downloaded=shown, total=total)
        return await writer.complete(stream.about)


def collected(stored: StoredOutputs) -> CollectedOutputs:
    return CollectedOutputs(
        files=len(stored.files),
        size=stored.size,
        left_out=stored.left_out,
        left_out_size=stored.left_out_size,
    )
