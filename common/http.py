"""JSON over HTTP: bodies in; values, refusals and failures out; and why no answer came."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from common.json_bodies import decode_body
from common.streams import SocketUnreachable
from fairlead.wire.errors import Refused

JSON = "application/json"
HEAD_SECONDS = 75.0
"""A server that strangers reach closes a connection on which no whole head came for so long, after
its opening or its last answer. aiohttp's own time is an hour."""
BROKEN_BODY = "the body does not match its Content-Length or Transfer-Encoding"
_T = TypeVar("_T")


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type=JSON)


def error_response(refused: Refused) -> web.Response:
    return web.Response(body=refused.body(), status=refused.status, content_type=JSON)


def is_our_failure(record: logging.LogRecord) -> bool:
    """Return whether aiohttp should log it: not for bytes that are no HTTP and bodies that break
    off.

    Any client that can connect may send those; it gets a 400.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


async def read_body(request: web.Request, kind: type[_T], whole: str | None = None) -> _T:
    """Return the request's JSON body; no body is an empty object.

    Raises Refused (400) with the field, or with `whole` when no single field is wrong.
    """
    return decode_body(await request.read(), kind, whole)


def errors_as_json(
    log: logging.Logger, failed: str, known: Mapping[type[Exception], Refused] | None = None
) -> Middleware:
    """Return a middleware that answers every refusal and failure in the one shape.

    `known` maps exceptions to refusals. Any other exception is logged with its traceback and
    answered with `failed`. A lost connection passes through: no client is left to answer.
    """
    foreseen = known or {}

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            return error_response(refused)
        except web.HTTPException as error:
            return _of_http(request, error)
        # The client is gone: no answer reaches it, and its going is no fault to log.
        except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError):
            raise
        # aiohttp raises it out of the handler's read: the head was good, and the handler has begun.
        except web.RequestPayloadError:
            return error_response(Refused(400, "invalid", BROKEN_BODY, "body"))
        except Exception as error:
            if (refusal := foreseen.get(type(error))) is not None:
                return error_response(refusal)
            log.exception("%s %s failed", request.method, request.path)
            return error_response(Refused(500, "internal", failed))

    return middleware


def _of_http(request: web.Request, error: web.HTTPException) -> web.Response:
    code = (error.reason or "error").lower().replace(" ", "_")
    message = f"{request.method} {request.path}: {error.reason}"
    answer = error_response(Refused(error.status, code, message))
    # A 405 must name the methods that there are (RFC 9110, 15.5.6).
    if allowed := error.headers.get("Allow"):
        answer.headers["Allow"] = allowed
    return answer


def why_lost(error: Exception) -> str:
    """Return why a client got no answer, without the words of the HTTP library."""
    match error:
        case UnixClientConnectorError():
            return f"nothing answers at {error.path} ({os.strerror(error.errno or 0)})"
        case aiohttp.ClientConnectorError() | SocketUnreachable():
            return str(error)
        case TimeoutError():
            return "no answer came in time"
        case aiohttp.WSServerHandshakeError():
            return f"it answered with HTTP status {error.status}"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return "the connection was lost"
