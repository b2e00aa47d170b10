"""The leader's end of a feed: one request of a follower, for all watches of clients there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine

import msgspec
from aiohttp import web

from common.refusals import ServiceError
from controller.api.http.streams import HEARTBEAT_SECONDS
from controller.api.runs.runs import pause_after, watch_line
from controller.forwarding.feed import (
    MAX_ASK_BYTES,
    NO_LINE,
    Ask,
    Beat,
    Begun,
    Changed,
    Message,
    RunLine,
    RunLost,
    encoded,
)
from controller.service import ControllerService
from controller.service.runs.lookup import RunWatch
from controller.store.errors import StoreError
from controller.web.live import OwnChanges
from fairlead.model.statuses import FINAL_RUN_STATUSES

GATHER_SECONDS = 0.05
"""Changes are told so long after the first one, together. So whoever asked for a change has his
answer first, and a run that is submitted and stopped at once costs each follower one message."""
MAX_RUNS = 10_000
"""Watched at once by one follower."""


class _Run:
    """A run that the follower asked for. `number`: of its latest question."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.watch: RunWatch | None = None
        self.task: asyncio.Task[None] | None = None

    def ask(self, number: int) -> None:
        self.number = number
        if self.watch is not None:
            self.watch.look_again()


class Feeding:
    """`service`: of the controller that leads."""

    def __init__(self, service: ControllerService) -> None:
        self._service = service

    async def feed(self, request: web.Request, response: web.StreamResponse) -> None:
        """Answer until the follower leaves. `response` is begun."""
        feed = _Feed(self._service, request, response)
        await feed.go_on()


class _Feed:
    def __init__(
        self, service: ControllerService, request: web.Request, response: web.StreamResponse
    ) -> None:
        self._service = service
        self._changes = OwnChanges(service)
        self._request = request
        self._response = response
        self._runs: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def go_on(self) -> None:
        """Return when the follower leaves. Raises what ends the feed before."""
        ends = (self._begin(self._take_questions()), self._begin(self._tell_changes()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for ended in ends:
                if ended.done():
                    ended.result()
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_questions(self) -> None:
        """Return when the follower leaves, or sends what is no question."""
        with contextlib.suppress(msgspec.MsgspecError, ValueError, ConnectionError):
            while line := await self._request.content.readline():
                if len(line) > MAX_ASK_BYTES:
                    return
                self._take(msgspec.json.decode(line, type=Ask))

    def _take(self, ask: Ask) -> None:
        known = self._runs.get(ask.run)
        if ask.number == 0:
            if known is not None and known.task is not None:
                # At once: the next question about it begins it again.
                del self._runs[ask.run]
                known.task.cancel()
        elif known is not None:
            known.ask(ask.number)
        elif len(self._runs) >= MAX_RUNS:
            self._begin(self._tell(RunLost(ask.run)))
        else:
            run = self._runs[ask.run] = _Run(ask.number)
            run.task = self._begin(self._tell_run(ask.run, run))

    async def _tell(self, message: Message) -> None:
        # Its reader may be gone, which `_take_questions` notices.
        with contextlib.suppress(ConnectionError):
            await self._response.write(encoded(message))

    async def _tell_changes(self) -> None:
        runs = self._service.runs.lookup
        async with runs.changes(None) as changed:
            known = runs.revision
            await self._tell(Begun(self._changes.started, known, self._changes.broken))
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    # A feed without changes must not look like a leader that is gone.
                    await self._tell(Beat())
                    continue
                await asyncio.sleep(GATHER_SECONDS)
                changed.clear()
                keys, known = runs.changed_after(known), runs.revision
                named = None if keys is None else tuple(key for key in keys if key is not None)
                await self._tell(Changed(known, named, self._changes.broken))

    async def _tell_run(self, run_id: str, run: _Run) -> None:
        try:
            await self._tell_lines(run_id, run)
        except (ServiceError, StoreError):
            await self._tell(RunLost(run_id))
        finally:
            # Another question may have begun it again.
            if self._runs.get(run_id) is run:
                del self._runs[run_id]

    async def _tell_lines(self, run_id: str, run: _Run) -> None:
        """Return after the run's last line. Raises ServiceError, StoreError."""
        last = b""
        async with self._service.runs.lookup.watch(run_id) as watch:
            run.watch = watch
            while True:
                if not await watch.wait(HEARTBEAT_SECONDS):
                    continue
                # Before the read: what is asked during it wakes the next wait.
                number = run.number
                state = await watch.state()
                began = time.perf_counter()
                line = watch_line(self._service, state)
                took = time.perf_counter() - began
                sent = NO_LINE if line == last else msgspec.Raw(line)
                last, is_over = line, state.run.status in FINAL_RUN_STATUSES
                await self._tell(RunLine(run_id, sent, number, is_over))
                if is_over:
                    return
                if pause := pause_after(took):
                    await asyncio.sleep(pause)
