"""The type of a route. The application and the OpenAPI document are both made from the routes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from common.refusals import Invalid
from controller.service import ControllerService
from controller.store.accounts import StoredToken, User
from fairlead.queries import Query, QueryError, parse
from fairlead.wire.decoders import decoder_of

JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
FRAMES = BYTES
TEXT = "text/plain"


class NoQuery(Query, frozen=True):
    pass


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
    query: type[Query] = NoQuery
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


T = TypeVar("T")
Q = TypeVar("Q", bound=Query)


def decode_body(data: bytes, shape: type[T]) -> T:
    """Return the body. Raises Invalid with the field.

    Unknown fields are ignored, so that a newer client can talk to an older controller.
    """
    try:
        return decoder_of(shape).decode(data or b"{}")
    except msgspec.ValidationError as error:
        raise _invalid(error, "the body") from None
    # msgspec decodes strings only when it reaches them: half a character is found there.
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not JSON: {error}", code="not_json") from None
    except RecursionError:
        # msgspec counts nesting against Python's recursion limit: a kilobyte of `[` reaches it.
        raise Invalid("the body is nested too deeply", code="not_json") from None


def decode_query(parameters: Mapping[str, str], shape: type[Q]) -> Q:
    """Return the query. Raises Invalid with the field."""
    try:
        return parse(parameters, shape)
    except QueryError as error:
        raise Invalid(str(error), field=error.field) from None
    except msgspec.ValidationError as error:
        raise _invalid(error, "the query") from None


def _invalid(error: msgspec.ValidationError, what: str) -> Invalid:
    text = str(error)
    named = re.search(r"field `([^`]+)`", text)
    place = re.search(r" - at `\$\.?([^`]*)`", text)
    parts = [found.group(1) for found in (place, named) if found and found.group(1)]
    message = re.sub(r" - at `[^`]*`", "", text)
    if bound := re.fullmatch(r"Expected `(?:int|float)` (>=|<=) (\S+)", message):
        side = "less" if bound[1] == ">=" else "more"
        return Invalid(f"is {side} than {bound[2]}", field=".".join(parts) or None)
    return Invalid(f"{what} is not as expected: {message}", field=".".join(parts) or None)
