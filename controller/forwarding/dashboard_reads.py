"""What the dashboard's open pages ask, answered at a follower: the stream that tells of changes,
and reads of the API below `/dashboard/api`, for a browser's login instead of a token.

The pages themselves are answered by `controller.replica.answers`, or by the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from common.proxy.browsers.site import Site
from common.refusals import ServiceError
from controller.clock import Clock
from controller.forwarding.final_logs import FinalLogs
from controller.forwarding.leader_feed import LeaderFeed
from controller.forwarding.live_logs import LiveLogs
from controller.forwarding.reads import Proof
from controller.forwarding.watch_reads import MayNotSee, WatchReads
from controller.replica.alone import NeedsLeader
from controller.service.accounts.users import Gate
from controller.store.reading import StoreReader
from controller.web import live
from controller.web.app import HEADERS
from controller.web.assets import installed
from controller.web.sessions import PATH, Sessions

API = PATH + "/api"
_WORTH_COMPRESSING = 1 << 10
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DashboardReads(WatchReads):
    """Answers browsers too. `key`: signs their logins, as at the leader."""

    def __init__(
        self,
        store: StoreReader,
        clock: Clock,
        feed: LeaderFeed,
        key: bytes,
        site: Site | None = None,
        logs: FinalLogs | None = None,
        live_logs: LiveLogs | None = None,
    ) -> None:
        super().__init__(store, clock, feed, logs, live_logs)
        self._site = site or Site()
        self._assets = installed()
        # Its gate is empty: who has the token of a login is asked of the database.
        self._sessions = Sessions(key, Gate((), (), clock), clock, self._site.client)

    @property
    def routes(self) -> Mapping[str, Answer]:
        plain = super().routes
        for_pages = {API + path: _compressed(answer) for path, answer in plain.items()}
        return {**plain, **for_pages, PATH + "/stream": self._tell_page}

    def _proof(self, request: web.Request) -> Proof:
        if not request.path.startswith(PATH + "/"):
            return super()._proof(request)
        self._site.require_unread(self._site.client(request))
        cookie = self._sessions.cookie_of(request)
        token_id, login = self._sessions.opened(cookie)
        self._sessions.require_page(request, cookie)
        return Proof(None, token_id, login)

    async def _tell_page(self, request: web.Request) -> web.StreamResponse:
        asked = live.asked_topics(request)
        try:
            async with self._at_once, self.begun(request) as read:
                topics = {
                    topic: mark
                    for topic, mark in asked.items()
                    if await live.may_follow(read.runs, read.user, topic)
                }
        except ServiceError as error:
            # It shows refusals as pages do.
            raise NeedsLeader from error
        reader = self._reader(request, read.user, None)

        async def before_line() -> None:
            try:
                await self._require(reader)
            except MayNotSee as error:
                raise ConnectionResetError("the login has ended") from error
            if self._feed.is_lost:
                raise ConnectionResetError("nobody tells of changes")

        version, clock = self._assets.version, self._clock
        async with self._feed.used():
            return await live.stream(
                request, topics, version, self._feed, clock, HEADERS, before_line
            )


def _compressed(answer: Answer) -> Answer:
    async def compressed(request: web.Request) -> web.StreamResponse:
        answered = await answer(request)
        body = answered.body if isinstance(answered, web.Response) else None
        if isinstance(body, bytes) and len(body) >= _WORTH_COMPRESSING:
            answered.enable_compression()
        return answered

    return compressed
