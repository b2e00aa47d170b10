"""Reads of logs that a follower answers, next to those from the database: logs that are whole in
the bucket, and streams of those that grow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import msgspec
from aiohttp import web

from common.http import json_response
from common.refusals import ServiceError
from controller.api.http.routes import decode_query
from controller.api.jobs.log_windows import wanted_by
from controller.api.jobs.logs import FollowQuery, LogsQuery, send_log, stream_log
from controller.clock import Clock
from controller.forwarding.final_logs import FinalLogs, WholeLog
from controller.forwarding.live_logs import LiveLogs
from controller.forwarding.reader_rights import UNKNOWN_SECONDS, ReaderRights
from controller.forwarding.reads import Reads
from controller.lifecycle.model import Attempt
from controller.replica.alone import NeedsLeader
from controller.store.errors import OtherSchema, StoreError, StoreHangs, StoreUnavailable
from controller.store.reading import StoreReader
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from fairlead.queries import SearchQuery, WindowQuery

Q = TypeVar("Q", LogsQuery, FollowQuery, SearchQuery, WindowQuery)
T = TypeVar("T")

READS_AT_ONCE = 2
"""Of what is followed: one reads, and the next one is ready. More would only wait, and other reads
must find room at the database."""
ALLOWED_SECONDS = 5.0
"""A log that is sent for longer is sent on only after another look at the reader's rights."""


class _Found(msgspec.Struct, Generic[T], frozen=True):
    """The attempt that a request is about, and what is asked."""

    asked: T
    attempt: Attempt
    run_id: str
    installation_id: str


class LogReads(Reads):
    """Answers for logs too, as `Reads` does. `logs`: those of final attempts; `live`: all others.
    Where one is None, the leader answers."""

    def __init__(
        self,
        store: StoreReader,
        clock: Clock,
        logs: FinalLogs | None = None,
        live: LiveLogs | None = None,
    ) -> None:
        super().__init__(store, clock)
        self._logs = logs
        self._live = live
        self._at_once = asyncio.Semaphore(READS_AT_ONCE)
        self._rights = ReaderRights(self._is_allowed)

    @property
    def routes(self) -> Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
        streams = {**super().routes, "/v1/runs/{run}/logs/ws": self._stream}
        if self._logs is None:
            return streams
        return {
            **streams,
            "/v1/runs/{run}/logs": self._log,
            "/v1/runs/{run}/logs/window": self._window,
            "/v1/runs/{run}/logs/search": self._search,
        }

    async def _log(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request, LogsQuery, lambda query: query)
        async with self._whole(found) as log:
            pieces = self._while_allowed(request, found.run_id, log.read(found.asked.offset))
            return await send_log(request, found.asked, pieces, found.attempt.id)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        try:
            found = await self._found_in_turn(request)
        except OtherSchema:
            # Nobody could look up his rights here later either.
            raise
        except StoreUnavailable:
            # He would follow the log at the leader, for hours, because the database was slow once.
            known = None if self._live is None else await self._live.find(request)
            if known is None:
                raise
            query = decode_query(dict(request.query), FollowQuery)
            return await self._stream_live(request, query, known.run_id, known.attempt_id)
        query, attempt, run_id = found.asked, found.attempt, found.run_id
        if attempt.status in FINAL_ATTEMPT_STATUSES:
            async with self._whole(found) as log:
                pieces = self._while_allowed(request, run_id, log.read(query.offset))
                return await stream_log(request, query, pieces)
        return await self._stream_live(request, query, run_id, attempt.id)

    async def _found_in_turn(self, request: web.Request) -> _Found[FollowQuery]:
        # All readers of a follower that ends come at once.
        try:
            async with asyncio.timeout(self._store.answer_seconds):
                await self._at_once.acquire()
        except TimeoutError:
            raise StoreHangs("other readers wait for the database for too long") from None
        try:
            return await self._found(request, FollowQuery, lambda query: query)
        finally:
            self._at_once.release()

    async def _stream_live(
        self, request: web.Request, query: FollowQuery, run_id: str, attempt_id: str
    ) -> web.StreamResponse:
        if self._live is None:
            raise NeedsLeader
        async with self._live.held(run_id, attempt_id, query.offset, request) as frames:
            # It may be quiet for hours, so its pieces can't be the time to look.
            with self.while_allowed(request, run_id):
                return await stream_log(request, query, frames)

    async def _window(self, request: web.Request) -> web.StreamResponse:
        async with self._held(request, WindowQuery, lambda query: query) as (query, log, _):
            return json_response(await log.window(query))

    async def _search(self, request: web.Request) -> web.StreamResponse:
        async with self._held(
            request, SearchQuery, lambda query: (wanted_by(query), query.offset, query.limit)
        ) as (asked, log, _):
            return json_response(await log.search(*asked))

    @asynccontextmanager
    async def _held(
        self, request: web.Request, shape: type[Q], understood: Callable[[Q], T]
    ) -> AsyncIterator[tuple[T, WholeLog, str]]:
        """Hold the log of a final attempt. `understood` may raise ServiceError."""
        found = await self._found(request, shape, understood)
        async with self._whole(found) as log:
            yield found.asked, log, found.run_id

    async def _found(
        self, request: web.Request, shape: type[Q], understood: Callable[[Q], T]
    ) -> _Found[T]:
        async with self.begun(request) as read:
            state = await read.run()
            query = read.query(shape)
            asked = understood(query)
            attempt = await read.runs.attempt(state, query.job, query.attempt)
            installation_id = await read.moment.installation_id()
        if attempt is None or installation_id is None:
            raise NeedsLeader
        return _Found(asked, attempt, state.run.id, installation_id)

    @asynccontextmanager
    async def _whole(self, found: _Found[T]) -> AsyncIterator[WholeLog]:
        if self._logs is None or found.attempt.status not in FINAL_ATTEMPT_STATUSES:
            raise NeedsLeader
        async with self._logs.held(found.installation_id, found.attempt.id) as log:
            yield log

    async def _while_allowed(
        self, request: web.Request, run_id: str, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield the pieces, and cut the connection if the reader may not see the run any more."""
        now = asyncio.get_running_loop().time
        known_at = asked_at = now()
        async for piece in pieces:
            if now() - asked_at >= ALLOWED_SECONDS:
                is_allowed = await self._is_allowed(request, run_id)
                asked_at = now()
                known_at = asked_at if is_allowed else known_at
                if is_allowed is False or asked_at - known_at >= UNKNOWN_SECONDS:
                    # The client must not take what it has for the whole log.
                    if request.transport is not None:
                        request.transport.abort()
                    raise ConnectionResetError("the reader may read no more")
            yield piece

    def while_allowed(
        self, request: web.Request, run_id: str
    ) -> contextlib.AbstractContextManager[None]:
        """Cut the request's connection within some seconds if its user may not see the run any
        more. Raises Unauthenticated."""
        return self._rights.watched(request, self._proof(request), run_id)

    async def _is_allowed(self, request: web.Request, run_id: str) -> bool | None:
        """Return whether the request's token may see the run; None: the database does not tell."""
        try:
            async with self.begun(request) as read:
                await read.runs.seen(run_id, read.user)
        except ServiceError:
            return False
        except StoreError:
            return None
        return True
