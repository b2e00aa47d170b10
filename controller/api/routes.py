"""One table of all routes: the application is built from it, and so is the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from controller.api.bodies import NoQuery
from controller.service import ControllerService
from controller.store.users import User

JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
FRAMES = BYTES


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One authorised request; `query` and `body` are of the types that its route names."""

    request: web.Request
    service: ControllerService
    user: User | None
    query: Any
    body: Any
    paths: dict[str, str]
    """What the route's path names; a run by its id, whatever the caller called it."""

    @property
    def caller(self) -> User:
        """Who asks; only routes that are not public may look."""
        assert self.user is not None
        return self.user

    def path(self, name: str) -> str:
        return self.paths[name]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Sent with status 200 by a route that `may_find` what it else makes."""

    answer: object


Handler = Callable[[Call], Awaitable[object]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """`handler` gives a value of type `answer` (sent as JSON with `status`), or a response of its
    own when `media` is another one."""

    method: str
    path: str
    summary: str
    handler: Handler
    query: type = NoQuery
    body: type | None = None
    answer: type | None = None
    status: int = 200
    media: str = JSON
    public: bool = False
    may_find: bool = False

    @property
    def operation(self) -> str:
        return self.handler.__name__
