"""Every failure leaves as the same JSON shape, never as a traceback."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from aiohttp import web

from common.http import BROKEN_BODY, error_response
from common.proxy.entry import CLIENT_GONE
from common.proxy.errors import NOTHING_DONE
from common.refusals import ServiceError
from controller.outputs.bucket import BucketError
from controller.store.errors import StoreError, StoreRefused
from fairlead.configuration.convert import ConfigurationError
from fairlead.wire.errors import LEADS_NO_MORE, STORE_UNAVAILABLE, Refused

log = logging.getLogger(__name__)

LEAVES: web.ResponseKey[bool] = web.ResponseKey("leaves", bool)
"""Of a refusal: another controller leads, or will soon."""
NOT_KNOWN: web.ResponseKey[bool] = web.ResponseKey("not_known", bool)
"""Of an answer: it is not known whether the request was done. If it may be sent twice, another
controller may do it."""
BUCKET_RETRY_SECONDS = 10
"""A client asks so much later for a log whose bucket does not answer, which may be for hours."""
BUCKET_TOLD_SECONDS = 60.0
NO_WEBSOCKET = (
    "only a WebSocket is answered here, and the request asks for none: a proxy in front of the "
    "controller must pass the headers Upgrade and Connection, as in docs/controller.md"
)
_NO_UPGRADE = ("No WebSocket UPGRADE hdr", "No CONNECTION upgrade hdr")
"""How aiohttp refuses a request for no WebSocket. nginx takes both headers away by default."""
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def encoded(request: web.Request) -> web.Response | None:
    """Return the refusal of a compressed body, else None."""
    encoding = request.headers.get("Content-Encoding", "").strip()
    if not request.body_exists or encoding.lower() in ("", "identity"):
        return None
    # Anyone may send it: no control characters go into answers and logs.
    shown = "".join(char for char in encoding if char.isprintable())[:40]
    return _answer(
        400, "bad_body", f"the body has the Content-Encoding {shown}: send it without an encoding"
    )


def _answer(status: int, code: str, message: str, field: str | None = None) -> web.Response:
    return error_response(Refused(status, code, message, field))


_RETRY_AFTER_SECONDS = 1


def _nothing_done(message: str) -> web.Response:
    answer = _answer(503, LEADS_NO_MORE, message)
    # RFC 9110, 10.2.3: what other clients wait before they ask again.
    answer.headers["Retry-After"] = str(_RETRY_AFTER_SECONDS)
    answer[NOTHING_DONE] = True
    return answer


def leads_no_more() -> web.Response:
    """Return the refusal of a change, of which nothing was done."""
    return _nothing_done(
        "this controller can't renew its lease in the database, so that another one may lead: "
        "try again, or at the address of another controller",
    )


def leaves(why: str = "another controller has taken over from this one") -> web.Response:
    """Return the refusal of a change, of which nothing was done, by a controller that surely does
    no more."""
    answer = _nothing_done(f"{why}: try again, or at the address of another controller")
    answer[LEAVES] = True
    return answer


def not_known_to_be_done(
    why: str = "the database has not answered, so it is not known whether this change was stored",
) -> web.Response:
    """Return the answer to a change of which this controller does not know whether it was done."""
    answer = _answer(
        503,
        STORE_UNAVAILABLE,
        f"{why}: look before you ask for it again; a submission with the same client_key is never "
        "done twice",
    )
    answer[NOT_KNOWN] = True
    return answer


def stopping() -> web.Response:
    """Return what the route of the health says of a controller that is being stopped."""
    return _answer(
        503, "stopping", "this controller is being stopped: ask at the address of another one"
    )


def nobody_leads() -> web.Response:
    """Return the refusal of a request that no leader could take in time. Nothing was done."""
    return _nothing_done(
        "no controller leads at the moment: try again, or at the address of another controller "
        "(`fairlead controller doctor` there tells what is wrong)",
    )


def body_too_slow(seconds: float) -> web.Response:
    return _answer(408, "body_too_slow", f"the body did not come within {seconds:g} s")


def _of_http(request: web.Request, error: web.HTTPException) -> web.Response:
    text = " ".join((error.text or error.reason).split())
    messages = {
        400: NO_WEBSOCKET if text.startswith(_NO_UPGRADE) else text,
        404: f"there is no {request.path}; /v1/openapi.json lists all paths",
        405: f"{request.path} does not support {request.method}",
        413: f"the body is larger than {request.client_max_size} bytes",
    }
    answer = _answer(
        error.status,
        _HTTP_CODES.get(error.status, "bad_request"),
        messages.get(error.status, error.reason),
    )
    # A 405 must name the methods (RFC 9110, 15.5.6).
    if "Allow" in error.headers:
        answer.headers["Allow"] = error.headers["Allow"]
    return answer


def as_response(request: web.Request, error: Exception) -> web.Response:
    """Return the response for an error. An unexpected error is logged with its traceback and shown
    without it."""
    if isinstance(error, web.HTTPException):
        return _of_http(request, error)
    if isinstance(error, ServiceError):
        answer = error_response(error)
        # A 401 must name a way to log in (RFC 9110, 15.5.2).
        if error.status == 401:
            answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
    if isinstance(error, ConnectionError) and request.transport is None:
        # The client left; aiohttp tells a reader of its body in this way.
        return web.Response(status=CLIENT_GONE)
    if isinstance(error, web.RequestPayloadError):
        return _answer(400, "bad_body", BROKEN_BODY)
    if isinstance(error, BucketError):
        _BUCKET_OF_LOGS.failed(request, error)
        answer = error_response(as_refusal(error))
        answer.headers["Retry-After"] = str(BUCKET_RETRY_SECONDS)
        return answer
    if isinstance(error, StoreError):
        log.error("%s %s: %s", request.method, request.path, error)
    elif not isinstance(error, ConfigurationError):
        log.error("%s %s failed", request.method, request.path, exc_info=error)
    return error_response(as_refusal(error))


def as_refusal(error: Exception) -> Refused:
    """Return what a request, or a part of one, is told of an error of the service."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ConfigurationError):
        return Refused(400, "invalid_configuration", error.sentence(), error.field or None)
    if isinstance(error, StoreRefused):
        return Refused(500, "store_refused", str(error))
    if isinstance(error, StoreError):
        return Refused(503, STORE_UNAVAILABLE, str(error))
    if isinstance(error, BucketError):
        return Refused(503, "logs_unreachable", f"the bucket of logs does not answer: {error}")
    return Refused(500, "internal", "the controller failed on this request; see its log")


class FailingBucket:
    """Tells the log once a minute that the bucket of logs does not answer: each reader asks again
    for as long as it does not. `now`: seconds that only grow."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told_at = -math.inf
        self._untold = 0

    def failed(self, request: web.BaseRequest, error: BucketError) -> None:
        now = self._now()
        if now - self._told_at < BUCKET_TOLD_SECONDS:
            self._untold += 1
            return
        log.error(
            "the bucket of logs does not answer: %s (%s %s; %d more requests since this was told "
            "last)",
            error,
            request.method,
            request.path,
            self._untold,
        )
        self._told_at, self._untold = now, 0


# A controller has one bucket of logs, which the API and the dashboard read.
_BUCKET_OF_LOGS = FailingBucket()
