"""The type of a route. The application and the OpenAPI document are both made from the routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from controller.api.bodies import NoQuery
from controller.service import ControllerService
from controller.store.base import StoredToken, User

JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
FRAMES = BYTES
TEXT = "text/plain"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One authorised request; `query` and `body` are of the types that its route names."""

    request: web.Request
    service: ControllerService
    user: User | None
    token: StoredToken | None
    query: Any
    body: Any
    paths: dict[str, str]
    """The names in the route's path; a run is always its id."""

    @property
    def caller(self) -> User:
        """The user of the request; only routes that are not public have one."""
        assert self.user is not None
        return self.user

    def path(self, name: str) -> str:
        return self.paths[name]


class Instead(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with another status, one of the route's `also`."""

    answer: object
    status: int


Handler = Callable[[Call], Awaitable[object]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route. `handler` returns a value of type `answer` (sent as JSON with `status`), or a
    response when `media` is another type."""

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
    also: Mapping[int, str] = {}
    """Other statuses that an `answer` may have, and what each means."""
    asked_for: tuple[str, ...] = ()
    """Other media types that a caller gets by naming them in `Accept`."""

    @property
    def operation(self) -> str:
        return self.handler.__name__
