"""The lists, documents and pages that a follower answers, with the leader's own handlers.

A page of the API, and one of the dashboard, is the same as at the leader: authorised by the same
gate, made by the same code, from what was committed before the request came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Protocol

import msgspec
from aiohttp import web

from common.proxy.browsers.site import Site
from controller.aio import Watch
from controller.api.app import Endpoint, credentials, endpoints
from controller.api.runs import blobs as uploading
from controller.blobs import BlobStore
from controller.clock import Chance, Clock
from controller.replica.alone import NeedsLeader, is_alone
from controller.replica.copy import Chosen, Copy
from controller.replica.reading import Following
from controller.replica.uploads import Uploads
from controller.service.accounts.users import Credential
from controller.store.reading import StoreReader
from controller.store.turns.changed_state import Beginning
from controller.web.app import Dashboard
from controller.web.assets import Assets
from controller.web.sessions import PATH

_TRIES = 3
"""So often an answer is made while the copy takes over much; then it is the leader's."""
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
API = PATH + "/api"
LEADER_AWAY = "Fairlead-Leader-Away"
"""Of an answer that was made without what only the leader knows, because it did not answer."""
ANSWERED = frozenset(
    {
        "/v1/runs/{run}",
        "/v1/runs/{run}/explain",
        "/v1/runs/{run}/sets",
        "/v1/runs/{run}/ssh",
        "/v1/nodes",
        "/v1/nodes/{node}",
        "/v1/nodes/{node}/tasks",
        "/v1/node-key",
        "/v1/fleets",
        "/v1/machines",
        "/v1/costs",
        "/v1/controllers",
        "/v1/users",
        "/v1/users/{user}",
        "/v1/me",
        "/v1/tokens",
        "/v1/secrets",
        "/v1/service-keys",
    }
)
"""The routes of the API, all for GET, that the copy answers."""
PAGES = frozenset(
    {
        "/runs",
        "/runs/{run}",
        "/queue",
        "/nodes",
        "/nodes/{node}",
        "/cost",
        "/services",
        "/dev-environments",
        "/events",
        "/users",
    }
)
"""The pages below `/dashboard`."""


class FeedPosition(Protocol):
    """What a feed has named so far; see `live.Source`."""

    @property
    def started(self) -> str | None: ...
    @property
    def revision(self) -> int: ...


class _Known(msgspec.Struct, frozen=True):
    """What the leader's feed had sent before the copy was read: all of that is in the answer."""

    started: str | None = None
    revision: int = 0


_NOTHING = _Known()
_known: ContextVar[_Known] = ContextVar("known", default=_NOTHING)


class _Marks:
    """What a page that is made here says of its age, in the terms of the leader's feed."""

    def __init__(self, copy: Copy) -> None:
        self._service = copy.service

    @property
    def started(self) -> str | None:
        return _known.get().started

    @property
    def revision(self) -> int:
        return _known.get().revision

    @property
    def broken(self) -> Mapping[str, int]:
        return {"Nodes": len(self._service.machines.faults.broken_nodes())}

    def changes(self, key: str | None) -> Watch:
        raise NeedsLeader

    def changed_since(self, key: str | None, revision: int) -> bool:
        raise NeedsLeader


class ForPages(msgspec.Struct, frozen=True, kw_only=True):
    """What the dashboard is known by. `key` signs logins; `now`: seconds that only grow."""

    key: bytes
    now: Callable[[], float]
    assets: Assets
    site: Site = Site()
    service_domain: str | None = None


class AnsweringCopy(Copy):
    """`endpoints`: what answers, by the path of the route; `uploads`: what takes uploads, by the
    method and the path. `blobs`: None: the leader takes them."""

    def __init__(
        self,
        beginning: Beginning,
        reader: StoreReader,
        clock: Clock,
        chance: Chance,
        chosen: Chosen,
        pages: ForPages,
        blobs: BlobStore | None = None,
    ) -> None:
        super().__init__(beginning, reader, clock, chance, chosen, blobs)
        dashboard = Dashboard(
            self.service,
            pages.key,
            pages.now,
            assets=pages.assets,
            site=pages.site,
            service_domain=pages.service_domain,
            changes=_Marks(self),
            variant=is_alone,
        )
        self.endpoints: Mapping[str, Endpoint] = {
            **_of_the_api(self, credentials(self.service), ""),
            **_of_the_api(self, dashboard.for_api, API, compressed=True),
            **{path: dashboard.reading[path] for path in _paths_of_pages()},
        }
        self.uploads: Mapping[tuple[str, str], Endpoint] = {
            (route.method, route.path): endpoint
            for route, endpoint in endpoints(self.service, credentials(self.service))
            if blobs is not None and route in uploading.ROUTES
        }


def _of_the_api(
    copy: Copy,
    authorise: Callable[[web.Request], Credential],
    prefix: str,
    *,
    compressed: bool = False,
) -> dict[str, Endpoint]:
    found = endpoints(copy.service, authorise, compressed=compressed)
    return {
        prefix + route.path: endpoint
        for route, endpoint in found
        if route.method == "GET" and route.path in ANSWERED
    }


def _paths_of_pages() -> list[str]:
    first = ["/", PATH, PATH + "/", PATH + "/login", PATH + "/session"]
    return [*first, *(PATH + path for path in sorted(PAGES))]


class Answers:
    """The routes of all copies, one after another. `feed`: tells which changes the leader has
    named. `uploads`: None: the leader takes them."""

    def __init__(
        self,
        following: Following[AnsweringCopy],
        feed: FeedPosition,
        uploads: Uploads | None = None,
    ) -> None:
        self._following = following
        self._feed = feed
        self._uploads = uploads

    @property
    def routes(self) -> Mapping[str, Answer]:
        """What answers, by the path of the route. All are for GET. Each raises StoreError and
        NeedsLeader."""
        paths = [prefix + path for prefix in ("", API) for path in sorted(ANSWERED)]
        return {path: self._answer(path) for path in (*paths, *_paths_of_pages())}

    @property
    def taking(self) -> Mapping[tuple[str, str], Answer]:
        """What takes uploads and answers about them, by the method and the path of the route. Each
        raises StoreError and NeedsLeader; then it has read nothing of the body."""
        uploads = self._uploads
        if uploads is None:
            return {}
        routes = ((route.method, route.path) for route in uploading.ROUTES)
        return {route: self._take(uploads, route) for route in routes}

    def _take(self, uploads: Uploads, route: tuple[str, str]) -> Answer:
        async def found(request: web.Request) -> tuple[Endpoint, str]:
            copy = await self._following.now()
            endpoint = copy.uploads.get(route)
            # The database did not know its installation when this copy was made.
            if endpoint is None:
                raise NeedsLeader
            return endpoint, credentials(copy.service)(request).token.user

        return lambda request: uploads.answer(request, partial(found, request))

    @property
    def has_copy(self) -> bool:
        return self._following.is_loaded

    def _answer(self, path: str) -> Answer:
        async def answer(request: web.Request) -> web.StreamResponse:
            # Before the read: what is committed later may not be in the page.
            token = _known.set(_Known(self._feed.started, self._feed.revision))
            try:
                answered = await self._whole(path, request)
            finally:
                _known.reset(token)
            if is_alone() and not answered.prepared:
                answered.headers[LEADER_AWAY] = "1"
            return answered

        return answer

    async def _whole(self, path: str, request: web.Request) -> web.StreamResponse:
        """Return an answer that has all of each commit or nothing of it. Raises StoreError, what
        the endpoint does, and NeedsLeader."""
        for _ in range(_TRIES):
            copy = await self._following.now()
            before = copy.shown_in_parts
            try:
                answered = await copy.endpoints[path](request)
            except Exception:
                if copy.shown_in_parts == before:
                    raise
                continue
            # One that has asked the database meanwhile may have seen a part.
            if copy.shown_in_parts == before or answered.prepared:
                return answered
        raise NeedsLeader

    def keep(self, *, wanted: bool) -> None:
        """See `Following.keep`."""
        self._following.keep(wanted=wanted)

    async def close(self) -> None:
        await self._following.close()
