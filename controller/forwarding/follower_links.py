"""The leader's end: connections of followers, which carry requests of many clients.

A follower opens an ordinary connection and asks to switch to `fairlead-link`. From then on the
bytes are TLS in which both ends prove the installation's key, and inside is HTTP for the same
application. So it is the connection that tells a follower from a client: what a client writes into
a header counts for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from common.proxy.errors import NOTHING_DONE
from common.proxy.forwarding import HangUps
from common.proxy.headers import CLIENT
from controller.api.http.errors import LEAVES, NOT_KNOWN, leads_no_more
from controller.api.http.routes import FRAMES, JSON, NDJSON
from controller.api.http.streams import cancel_this, reader_may_leave, registered
from controller.api.jobs.logs import IS_ONLY_FOUND
from controller.forwarding.feed import FEED_PATH
from fairlead.connections.vanished import end_when_vanished

log = logging.getLogger(__name__)

LINK_PATH = "/v1/controllers/link"
WAYS_PATH = "/v1/controllers/ways"
"""The session in which a follower is told of services (`controller.ways`)."""
PROTOCOL = "fairlead-link"
JOB_WAY_PATH = "/v1/controllers/ways/{run}/{attempt}"
"""The way to the ports of an attempt, for a user of a follower, which has judged his rights."""
LOGS_PATH = "/v1/controllers/logs/{run}/{attempt}"
"""The log of an attempt for the readers of a follower, which has judged their rights."""
SUBMISSIONS_PATH = "/v1/controllers/submissions"
"""Submissions that a follower has read, of many clients at once (`forwarding.submissions`)."""
BY_ITSELF = "follower"
"""Takes the place of the client's address in what a follower asks for itself. A request that it
passes on has the address there, also if the follower is of an earlier version and the client
asks for LOGS_PATH."""
ONLY_FIND = "Fairlead-Only-Find"
"""Of a request for the stream of a log: the leader judges it, and says which log that is instead of
giving it. A follower sends it for a reader about whom the database tells nothing."""
NOT_DONE = "Fairlead-Not-Done"
"""Of an answer on a link: nothing of the request was done, and another controller may do it. This
one leads no more."""
HELD = "Fairlead-Held"
"""Of an answer on a link: nothing of the request was done. This controller could not renew its
lease; it may lead again, or another one leads already."""
PERHAPS_DONE = "Fairlead-Perhaps-Done"
"""Of an answer on a link: it is not known whether the request was done. One that may be sent twice
may go to the next leader."""
HANDSHAKE_SECONDS = 10.0
LOG_REST_SECONDS = 0.25
"""Between two small pieces of a log on a link. A piece costs the leader 0.1 ms of CPU, and 20 jobs
that print ten lines a second have 400 of them a second at two followers."""
LEAVE_SECONDS = 0.1
"""Time for followers to hear that this controller leads no more: a request that meets the end of
its connection may have been done or not."""


FollowLog = Callable[[str, str, int], Awaitable[AsyncIterator[bytes]]]
"""Returns the frames of an attempt (of this run, this attempt, from this offset on) up to its end.
Raises what the API answers for it."""


Feed = Callable[[web.Request, web.StreamResponse], Coroutine[None, None, None]]
"""Feeds the watches of a follower; see `feed`. The answer is begun."""


LendWay = Callable[[str, str], Awaitable[bytes | None]]
"""Returns how a follower reaches the ports of an attempt (of this run, this attempt), as JSON;
None: it does not."""


Submit = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Answers a follower that gives submissions at once."""


def mark_of(answer: web.StreamResponse) -> str | None:
    """Return the name of the header by which a follower learns that nothing was done, or perhaps
    all; None: it has the answer."""
    if NOTHING_DONE in answer:
        return NOT_DONE if LEAVES in answer else HELD
    return PERHAPS_DONE if NOT_KNOWN in answer else None


class Lease(Protocol):
    """This controller's lease, of which only the database knows whether another one has it."""

    def has_ended(self) -> bool: ...

    async def until_ended(self) -> None:
        """Return when it has run out."""


class FollowerLinks:
    """Links that followers opened to this controller while it leads. `follow_log`, `feed`, `ways`,
    `lend_way`, `submit`: what they may ask for beside requests of clients. `lease`: None: it never
    runs out."""

    def __init__(
        self,
        context: ssl.SSLContext,
        follow_log: FollowLog | None = None,
        feed: Feed | None = None,
        lease: Lease | None = None,
        ways: Feed | None = None,
        lend_way: LendWay | None = None,
        submit: Submit | None = None,
    ) -> None:
        self._context = context
        self._follow_log = follow_log
        self._feed = feed
        self._ways = ways
        self._lend_way = lend_way
        self._submit = submit
        self._lease = lease
        self._hang_ups = HangUps()
        self._runner: web.AppRunner | None = None
        self._has_had_any = False
        self._is_leaving = False

    def serve_with(self, runner: web.AppRunner) -> None:
        """Answer with this application, which has been set up when the first link comes."""
        self._runner = runner

    def mount(self, app: web.Application) -> None:
        app.router.add_get(LINK_PATH, self._opened)
        app.router.add_get(LOGS_PATH, self._log)
        app.router.add_get(FEED_PATH, partial(self._fed, self._feed))
        app.router.add_get(WAYS_PATH, partial(self._fed, self._ways))
        app.router.add_get(JOB_WAY_PATH, self._lent)
        app.router.add_post(SUBMISSIONS_PATH, self._submitted)

    @property
    def middleware(self) -> Middleware:
        """Show requests on a link as their clients sent them. It comes before all others."""

        @web.middleware
        async def as_its_client_sent_it(
            request: web.Request, handler: Handler
        ) -> web.StreamResponse:
            if not self._is_on_link(request):
                return await handler(request)
            if self._is_leaving:
                answer: web.StreamResponse = leads_no_more()
                answer.headers[NOT_DONE] = "1"
                return answer
            scheme, _, address = request.headers.get(CLIENT, "").partition(" ")
            seen = request.clone(scheme=scheme, remote=address)
            seen[IS_ONLY_FOUND] = ONLY_FIND in request.headers
            answer = await handler(seen)
            if (mark := mark_of(answer)) is not None:
                # One that was held: this controller may have left meanwhile.
                is_over = mark == HELD and self._is_leaving
                answer.headers[NOT_DONE if is_over else mark] = "1"
            # With the request that the handler saw: what it noted there is for the answer's head.
            await answer.prepare(seen)
            return answer

        return as_its_client_sent_it

    def _is_on_link(self, request: web.Request) -> bool:
        transport = request.transport
        return transport is not None and transport.get_extra_info("sslcontext") is self._context

    async def leave(self) -> None:
        """Let followers take their requests to the next leader; those that were begun go on."""
        self._is_leaving = True
        if self._has_had_any:
            await asyncio.sleep(LEAVE_SECONDS)

    def _is_asked_here(self, request: web.Request) -> bool:
        """Return whether a follower asks for itself, and for no client."""
        return self._is_on_link(request) and request.headers.get(CLIENT) == BY_ITSELF

    async def _fed(self, feed: Feed | None, request: web.Request) -> web.StreamResponse:
        if feed is None or not self._is_asked_here(request):
            raise web.HTTPNotFound
        if self._lease is not None and self._lease.has_ended():
            return leads_no_more()
        response = web.StreamResponse(headers={"Content-Type": NDJSON})
        # The next leader feeds it then.
        response.force_close()
        with (
            registered(request, cancel_this()),
            self._hang_ups.watched(request),
            reader_may_leave(),
        ):
            await response.prepare(request)
            await self._while_it_leads(request, feed(request, response))
            await response.write_eof()
        return response

    async def _while_it_leads(
        self, request: web.Request, feeding: Coroutine[None, None, None]
    ) -> None:
        """A leader that can't renew its lease may not know its successor, nor see what that one
        changes."""
        if self._lease is None:
            await feeding
            return
        tasks = (asyncio.create_task(feeding), asyncio.create_task(self._lease.until_ended()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
            elif request.transport is not None:
                # Else aiohttp waits for the end of the questions.
                request.transport.abort()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _submitted(self, request: web.Request) -> web.StreamResponse:
        if self._submit is None or not self._is_asked_here(request):
            raise web.HTTPNotFound
        return await self._submit(request)

    async def _lent(self, request: web.Request) -> web.StreamResponse:
        if self._lend_way is None or not self._is_asked_here(request):
            raise web.HTTPNotFound
        if self._lease is not None and self._lease.has_ended():
            return leads_no_more()
        way = await self._lend_way(request.match_info["run"], request.match_info["attempt"])
        if way is None:
            raise web.HTTPNotFound
        return web.Response(body=way, content_type=JSON)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        if self._follow_log is None or not self._is_asked_here(request):
            raise web.HTTPNotFound
        offset = request.query.get("offset", "")
        if not offset.isdecimal():
            raise web.HTTPBadRequest
        run, attempt = request.match_info["run"], request.match_info["attempt"]
        pieces = await self._follow_log(run, attempt, int(offset))
        response = web.StreamResponse(headers={"Content-Type": FRAMES})
        with (
            registered(request, cancel_this()),
            self._hang_ups.watched(request),
            reader_may_leave(),
        ):
            await response.prepare(request)
            async for piece in pieces:
                await response.write(piece)
            await response.write_eof()
        return response

    async def _opened(self, request: web.Request) -> web.StreamResponse:
        transport, runner = request.transport, self._runner
        if request.headers.get("Upgrade") != PROTOCOL or runner is None or runner.server is None:
            raise web.HTTPNotFound
        if self._is_leaving or transport is None:
            return leads_no_more()
        # A log may be quiet for hours; the follower that reads it may be gone. One that waits for
        # a slow client is not.
        end_when_vanished(transport)
        response = web.StreamResponse(status=101)
        response.headers.update({"Connection": "Upgrade", "Upgrade": PROTOCOL})
        response.force_close()
        try:
            await response.prepare(request)
        except ConnectionError:
            # It waited while this process was paused, and has left for another leader.
            return response
        self._has_had_any = True
        begun = _Begun()
        try:
            # The other side has left, or has no key of this installation: there is nobody to
            # answer.
            with contextlib.suppress(OSError, ssl.SSLError):
                inner = await asyncio.get_running_loop().start_tls(
                    transport,
                    begun,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
                begun.go_on_with(runner.server(), inner)
        finally:
            # The transport is the inner protocol's now, and tells the outer one nothing more; the
            # outer one would close it.
            request.protocol.transport = None
            request.protocol.connection_lost(None)
        return response


class _Begun(asyncio.Protocol):
    """Keeps what comes with the end of the handshake: start_tls() tells no protocol that its
    connection was made, and its first bytes may come before start_tls() returns."""

    def __init__(self) -> None:
        self._first: list[bytes] = []
        self._is_lost = False

    def data_received(self, data: bytes) -> None:
        self._first.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    def go_on_with(self, protocol: asyncio.Protocol, transport: asyncio.Transport | None) -> None:
        if transport is None or self._is_lost:
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._first:
            protocol.data_received(b"".join(self._first))
