"""What the dashboard's open pages ask, answered at a follower: the stream that tells of changes,
and reads of the API below `/dashboard/api`, for a browser's login instead of a token.

The pages themselves are the leader's; it is asked once for all who ask for the same at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from aiohttp import web

from common.proxy.browsers.site import Site
from common.refusals import ServiceError
from controller.clock import Clock
from controller.forwarding.final_logs import FinalLogs
from controller.forwarding.forwarder import headers_for_leader
from controller.forwarding.leader_feed import LeaderFeed
from controller.forwarding.leader_links import LeaderLinks
from controller.forwarding.live_logs import LiveLogs
from controller.forwarding.reads import NeedsLeader, Proof
from controller.forwarding.shared_answers import SharedAnswers, ask_leader
from controller.forwarding.watch_reads import MayNotSee, WatchReads
from controller.service.accounts.users import Gate
from controller.store.accounts import User
from controller.store.reading import StoreReader
from controller.web import live
from controller.web.app import HEADERS, PAGES
from controller.web.assets import Assets
from controller.web.sessions import PATH, Sessions

API = PATH + "/api"
_WORTH_COMPRESSING = 1 << 10
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DashboardReads(WatchReads):
    """Answers browsers too. `links`: to the leader. `key`: signs their logins, as there."""

    def __init__(
        self,
        store: StoreReader,
        clock: Clock,
        links: LeaderLinks,
        key: bytes,
        site: Site | None = None,
        logs: FinalLogs | None = None,
        live_logs: LiveLogs | None = None,
    ) -> None:
        super().__init__(store, clock, LeaderFeed(links), logs, live_logs)
        self._links = links
        self._shared = SharedAnswers()
        self._site = site or Site()
        self._assets = Assets()
        # Its gate is empty: who has the token of a login is asked of the database.
        self._sessions = Sessions(key, Gate((), (), clock), clock, self._site.client)

    @property
    def routes(self) -> Mapping[str, Answer]:
        plain = super().routes
        for_pages = {API + path: _compressed(answer) for path, answer in plain.items()}
        fragments = {PATH + page.path: self._fragment for page in PAGES if page.shared}
        return {**plain, **for_pages, **fragments, PATH + "/stream": self._stream}

    async def close(self) -> None:
        await self._shared.close()
        await super().close()

    async def _fragment(self, request: web.Request) -> web.StreamResponse:
        """Answer with the part of a page that other pages of the user may ask for at once."""
        if request.method != "GET" or request.headers.get("HX-Request") != "true":
            raise NeedsLeader  # a whole page has a token of its own
        try:
            user = await self._judge.user_of(self._proof(request))
        except (ServiceError, MayNotSee) as error:
            raise NeedsLeader from error
        # As the leader shares them, and in the coding that the browser knows.
        varying = (request.headers.get(name, "") for name in ("HX-Target", "Accept-Encoding"))
        key = (user.name, user.role, request.path_qs, *varying)
        ask = partial(ask_leader, self._links, request.raw_path, headers_for_leader(request))
        # Before the database is read, which answers one after another: pages that ask at once would
        # else come here one after another too, and share nothing.
        asked = asyncio.create_task(self._shared.get(key, ask))
        try:
            await self._require_still(request, user)
            found = await asked
        finally:
            asked.cancel()
        if found is None:
            raise NeedsLeader
        answer = found.response()
        answer.headers.update(HEADERS)
        return answer

    def _proof(self, request: web.Request) -> Proof:
        if not request.path.startswith(PATH + "/"):
            return super()._proof(request)
        self._site.require_unread(self._site.client(request))
        cookie = self._sessions.cookie_of(request)
        token_id, login = self._sessions.opened(cookie)
        self._sessions.require_page(request, cookie)
        return Proof(None, token_id, login)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        asked = live.asked_topics(request)
        try:
            async with self._at_once, self._begun(request) as read:
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

    async def _require_still(self, request: web.Request, user: User) -> None:
        """Raise NeedsLeader unless the request is of this user, with this role, now."""
        try:
            async with self._begun(request) as read:
                now = read.user
        except ServiceError as error:
            raise NeedsLeader from error
        if (now.name, now.role) != (user.name, user.role):
            raise NeedsLeader


def _compressed(answer: Answer) -> Answer:
    async def compressed(request: web.Request) -> web.StreamResponse:
        answered = await answer(request)
        body = answered.body if isinstance(answered, web.Response) else None
        if isinstance(body, bytes) and len(body) >= _WORTH_COMPRESSING:
            answered.enable_compression()
        return answered

    return compressed
