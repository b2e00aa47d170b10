"""The type of a route. The application and the OpenAPI document are both made from the routes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
import msgspec.inspect
from aiohttp import web

from common.refusals import Invalid
from controller.service import ControllerService
from controller.store.accounts import StoredToken, User
from fairlead.configuration.hints import not_a_field
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

    Every body refuses unknown fields: with `machine` for `machines`, a fleet rented nothing any
    more. A newer client leaves out what it was not asked for, so an older controller still takes
    the rest.
    """
    try:
        return decoder_of(shape).decode(data or b"{}")
    except msgspec.ValidationError as error:
        raise _unknown_field(error, shape) or _invalid(error, "the body") from None
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


_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?([^`]*)`)?", re.DOTALL)


def _unknown_field(error: msgspec.ValidationError, shape: type) -> Invalid | None:
    """Return the refusal that says which fields there are, if the body has an unknown one."""
    found = _UNKNOWN.fullmatch(str(error))
    if found is None:
        return None
    # Anyone may send it: no control characters go into answers and logs.
    name = "".join(char for char in found[1] if char.isprintable())[:60]
    place = found[2] or ""
    message, allowed = not_a_field(name, _fields_at(shape, place), {}, {}, is_in_schema=False)
    fields = f" (fields: {allowed})" if allowed and allowed not in message else ""
    return Invalid(f"{message}{fields}", field=f"{place}.{name}" if place else name)


def _fields_at(shape: type, place: str) -> list[str]:
    """Return the names of the fields of the object at this place of a body, such as `runs[0]`."""
    found = msgspec.inspect.type_info(shape)
    for step in re.findall(r"\[[^\]]*\]|[^.\[\]]+", place):
        if isinstance(found, msgspec.inspect.StructType):
            found = next(one.type for one in found.fields if one.encode_name == step)
        elif isinstance(found, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            found = found.item_type
    if isinstance(found, msgspec.inspect.StructType):
        return [one.encode_name for one in found.fields]
    return []


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
