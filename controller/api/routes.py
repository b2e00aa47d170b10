"""One table of all routes: the application is built from it, and so is the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from controller.api.bodies import NoQuery
from controller.service import ControllerService
from controller.store.base import User

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


class Instead(msgspec.Struct, frozen=True, kw_only=True):
    """Sent with a status of its own, one of the route's `also`."""

    answer: object
    status: int


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
    also: Mapping[int, str] = {}
    """Other statuses under which an `answer` may come, and what each means."""
    asked_for: tuple[str, ...] = ()
    """Other media in which a caller gets the answer by an `Accept` that names them."""

    @property
    def operation(self) -> str:
        return self.handler.__name__
