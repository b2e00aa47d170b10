"""What is kept of a job: its exit record, and the outputs that are copied after its end.

The last output of the job is on disk before its record is, so a reader of the record finds all of
it. A stop of the job ends the copying, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from pathlib import Path

import msgspec

from common.files.durable import sync_and_close, write_durably
from common.files.task_folder import EXIT_RECORD_NAME
from fairlead.wire.decoders import decoder_of
from fairlead.wire.runner import ExitRecord
from runner.logs.segments import SegmentLog

CUT_OFF = "outputs: the job was stopped while they were copied; the rest is left out"
_log = logging.getLogger(__name__)


class SegmentSyncs:
    """Makes full segments durable, next to the loop."""

    def __init__(self) -> None:
        self._syncs: set[asyncio.Future[None]] = set()

    def retire(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, partial(sync_and_close, fd))
        self._syncs.add(future)
        future.add_done_callback(self._retired)

    async def wait(self) -> None:
        """Wait for those that have begun."""
        if self._syncs:
            await asyncio.wait(self._syncs)

    def _retired(self, future: asyncio.Future[None]) -> None:
        self._syncs.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            _log.error("a log segment could not be synced: %s", error)


class ExitRecords:
    """The record of a task's job. `log`: the job's output, whose full segments `syncs` has."""

    def __init__(self, task: Path, log: SegmentLog, syncs: SegmentSyncs) -> None:
        self._path = task / EXIT_RECORD_NAME
        self._output = log
        self._syncs = syncs

    def found(self) -> ExitRecord | None:
        """Return the record of a job that has ended before. Blocking."""
        try:
            return decoder_of(ExitRecord).decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _log.error("the exit record found cannot be read: %s", error)
            return None

    async def keep(self, record: ExitRecord) -> None:
        """Write the record, after the output."""
        try:
            # A power cut must not leave the record without a segment that is still in a thread.
            await self._syncs.wait()
            await asyncio.to_thread(self._write, msgspec.json.encode(record))
        except OSError:
            _log.exception("the exit record could not be written")

    def _write(self, record: bytes) -> None:
        self._output.sync()
        write_durably(self._path, record)

    async def with_log_whole(self, record: ExitRecord) -> ExitRecord:
        """Return the record; it says so if the job removed files of its log."""
        gone = 0
        try:
            gone = await asyncio.to_thread(self._output.make_whole)
        except OSError:
            _log.exception("the log's newest segment was not restored")
        if not gone:
            return record
        notice = f"{gone} bytes of its log are gone: the job removed their files"
        message = notice if record.message is None else f"{record.message}; {notice}"
        return msgspec.structs.replace(record, message=message)

    async def synced(self) -> None:
        """Return once all output that was written by now is on disk."""
        await self._syncs.wait()
        await asyncio.to_thread(self._output.sync)


class Keeping:
    """Runs one copying at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[list[str]] | None = None

    async def lines(self, copying: Coroutine[None, None, list[str]]) -> list[str]:
        """Copy, and return the lines for the log."""
        task = self._task = asyncio.create_task(copying)
        try:
            return await task
        except asyncio.CancelledError:
            # Without this, a cancel of our own task would look like the end of the copying.
            if not task.cancelled():
                raise
            return [CUT_OFF]
        finally:
            self._task = None

    def stop(self, grace: float) -> None:
        """End the copying that runs after `grace` seconds."""
        if self._task is not None:
            asyncio.get_running_loop().call_later(grace, self._task.cancel)
