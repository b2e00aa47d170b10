"""Log collection follows a job's log, stores it, and acknowledges what is stored.

It begins next to the job's start, so that the first line finds an open way. It acknowledges at once
at the end, soon when much came, else every minute; where logs are in a bucket, every 5 min, because
each time makes an object. When the container is gone, it reads the rest from the shim and adds the
last lines of the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from controller.aio import Flag
from controller.lifecycle import reports
from controller.links.base import NodeConnection, RunnerApi
from controller.logs.parts import PART_BYTES, PART_SECONDS
from controller.logs.store import LogStore, LogWriter
from controller.outputs.bucket import BucketError
from controller.pipelines import to_node
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater
from fairlead.model.job_links import LinkFinder
from fairlead.wire.frames import BadFrame, Decoder, Frame, Stream, encode, notice_line
from fairlead.wire.runner import RunnerState
from fairlead.wire.shim import Notice
from runner.client import RunnerError
from shim.client import ShimError

log = logging.getLogger(__name__)

# Each acknowledgement costs an fsync here and a request to the node, for thousands of jobs.
SOON_SECONDS = 0.5
LATE_SECONDS = 60.0
MUCH_BYTES = 1 << 20
AWAY_SECONDS = 10.0
"""Seconds until a bucket that was away is asked again."""


class Acknowledged(Protocol):
    """What hears how much of a log is stored durably."""

    async def ack(self, offset: int) -> int: ...


class Acknowledging:
    """Stores what came durably and acknowledges it, soon after much data came, later after any
    data. At rest it holds no task."""

    def __init__(self, runner: Acknowledged, writer: LogWriter) -> None:
        self._runner = runner
        self._writer = writer
        self._acknowledged = writer.end - writer.waiting
        self._much_bytes = PART_BYTES if writer.is_for_bucket else MUCH_BYTES
        self._late_seconds = PART_SECONDS if writer.is_for_bucket else LATE_SECONDS
        self._task: asyncio.Task[None] | None = None
        self._much = Flag()

    def came(self) -> None:
        """Note that the writer has taken data. Raises the error of the last acknowledgement, from
        runner or disk."""
        if self._task is not None and self._task.done():
            self._task.result()
            self._task = None
        if self._writer.end - self._acknowledged >= self._much_bytes:
            self._much.set()
        if self._task is None:
            self._task = asyncio.create_task(self._acknowledge())

    async def end(self) -> None:
        """Stop; what was not acknowledged stays so."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _acknowledge(self) -> None:
        while self._writer.end > self._acknowledged:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._late_seconds - SOON_SECONDS):
                    await self._much.wait()
            await asyncio.sleep(SOON_SECONDS)
            # Cleared before the sync: what comes during it counts for the next one.
            self._much.clear()
            # Stored first: a runner whose whole log is acknowledged exits.
            try:
                self._acknowledged = await self._writer.sync()
            except BucketError as error:
                # The log goes on to the disk here, and its node keeps what isn't acknowledged.
                log.warning("a log waits for its bucket: %s", error)
                await asyncio.sleep(AWAY_SECONDS)
                self._much.set()
                continue
            await self._runner.ack(self._acknowledged)


class Links:
    """Reports links to the job's run in another tool, as the job prints them.

    The log is read here once anyway, so it costs a search for two words. A link that comes in the
    moment in which the controller dies may be missed.
    """

    def __init__(self, pipeline: RunPipeline, context: AttemptContext) -> None:
        self._pipeline = pipeline
        self._run_id, self._attempt_id = context.state.run.id, context.attempt.id
        self._finder = LinkFinder(context.attempt.links)

    def look(self, frames: Iterable[Frame]) -> None:
        fresh = [
            self._finder.feed(frame.stream, frame.payload)
            for frame in frames
            if frame.stream is not Stream.SYSTEM
        ]
        if any(fresh):
            links = self._finder.found
            self._pipeline.post(
                reports.LinksFound(run_id=self._run_id, attempt_id=self._attempt_id, links=links)
            )


async def say_rest(
    logs: LogStore, writer: LogWriter, attempt_id: str, notices: Sequence[Notice]
) -> None:
    """Append the notices that the stored log does not have. Raises OSError."""
    if not notices:
        return
    known, at_line_start = await _system_lines(logs, attempt_id)
    lead = b"" if at_line_start else b"\n"
    for notice in notices:
        line = notice_line(notice.text)
        if line in known:
            continue
        frame = Frame(writer.end, int(notice.at * 1e9), Stream.SYSTEM, lead + line)
        await writer.append(encode(frame))
        known.add(line)
        lead = b""


async def _system_lines(logs: LogStore, attempt_id: str) -> tuple[set[bytes], bool]:
    """Return the lines that are not the job's output, and whether the log ends with a whole
    line."""
    decoder, last = Decoder(), b"\n"
    lines: set[bytes] = set()
    async with contextlib.aclosing(logs.read(attempt_id, 0)) as pieces:
        async for piece in pieces:
            for frame in decoder.feed(piece):
                last = frame.payload[-1:] or last
                if frame.stream is Stream.SYSTEM:
                    lines.add(frame.payload.lstrip(b"\n"))
    return lines, last == b"\n"


class LogCollector:
    """Store the log as it comes, acknowledge what is durable, and read the rest from the shim when
    the container is gone.

    It ends when the log is complete.
    """

    def __init__(self, pipeline: RunPipeline, logs: LogStore) -> None:
        self._pipeline = pipeline
        self._logs = logs

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        try:
            await self._collect(context, connection)
        # It can last for hours: each log tells it once.
        except BucketError as error:
            raise RetryLater(f"the log waits for its bucket: {error}") from error

    async def _collect(self, context: AttemptContext, connection: NodeConnection) -> None:
        attempt = context.attempt
        writer = await self._logs.writer_of_rest(attempt.id)
        # None: complete on disk and not committed. A controller ended in between.
        if writer is not None:
            links = Links(self._pipeline, context)
            try:
                if attempt.seen.container_gone:
                    if not await self._read_from_shim(context, connection, writer, links):
                        return
                else:
                    runner = connection.runner(to_node.runner_socket(context))
                    if not await connection.runners.until_it_listens(attempt.id):
                        raise RetryLater("the connection to the node was lost")
                    await self._follow_runner(runner, writer, links)
                if attempt.task.gpus:
                    notices = await self._notices(attempt.id, connection)
                    await say_rest(self._logs, writer, attempt.id, notices)
                await writer.sync()
            finally:
                await writer.close()
            await self._logs.complete(attempt.id)
        self._pipeline.post(
            reports.LogsComplete(run_id=context.state.run.id, attempt_id=attempt.id)
        )

    async def _notices(self, attempt_id: str, connection: NodeConnection) -> tuple[Notice, ...]:
        try:
            return (await connection.shim.task(attempt_id)).notices
        except ShimError as error:
            # 404: the task is removed, and its notices with it.
            if error.status != 404:
                raise RetryLater(str(error)) from error
            return ()

    async def _read_from_shim(
        self,
        context: AttemptContext,
        connection: NodeConnection,
        writer: LogWriter,
        links: Links,
    ) -> bool:
        try:
            async with connection.shim.logs(context.attempt.id, writer.end) as log_stream:
                async for piece in log_stream.pieces():
                    links.look(await writer.append(piece))
        # For example, a reboot tore the last frame: what came before it is kept.
        except BadFrame as error:
            log.warning("log of attempt %s is damaged on its node: %s", context.attempt.id, error)
        except ShimError as error:
            if error.status != 404:
                raise RetryLater(str(error)) from error
            self._pipeline.post(
                reports.TaskMissing(run_id=context.state.run.id, attempt_id=context.attempt.id)
            )
            return False
        return True

    async def _follow_runner(self, runner: RunnerApi, writer: LogWriter, links: Links) -> None:
        acknowledging = Acknowledging(runner, writer)
        try:
            async with contextlib.aclosing(runner.follow_logs(writer.end)) as pieces:
                async for data in pieces:
                    links.look(await writer.append(data))
                    acknowledging.came()
                    del data  # the next piece may be long in coming
        except BadFrame as error:
            raise RetryLater(f"the runner sent a damaged frame: {error}") from error
        except RunnerError as error:
            known = await runner.health()
            if known.state is not RunnerState.SERVING_LOGS or writer.end <= known.log_end:
                raise RetryLater(str(error)) from error
            # A try that was cut short has written the whole log, and lines of its own after it.
            await writer.sync()
            await runner.ack(known.log_end)
            return
        finally:
            await acknowledging.end()
        await runner.ack(await writer.sync())
