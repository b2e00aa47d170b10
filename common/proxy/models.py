"""The OpenAI-compatible endpoint: `/models/v1/…` leads to the service of the model it names."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from aiohttp import web

from common.proxy.view import Service
from fairlead.wire.decoders import decoder_of
from fairlead.wire.errors import Refused

MODELS = "/models/v1"
MAX_BODY = 32 << 20
"""A body is read as a whole, because the model's name is in it."""
_FORM_FIELD = re.compile(
    rb'content-disposition:[^\r\n]*;\s*name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,300})\r\n',
    re.IGNORECASE,
)
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class _Named(msgspec.Struct):
    model: str


def model_of(body: bytes, content_type: str) -> str | None:
    """Return the model that a request names, in JSON or in a form."""
    if content_type.startswith("multipart/form-data"):
        found = _FORM_FIELD.search(body)
        return None if found is None else found[1].decode("utf-8", "replace").strip()
    try:
        return decoder_of(_Named).decode(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # JSON that is nested too deeply is a RecursionError of msgspec, not one of its own errors.
        return None


def listing(services: Iterable[Service]) -> web.Response:
    """Return the answer of `/models/v1/models`. Each model is listed once, as clients expect it,
    with the service that its requests reach."""
    first: dict[str, Service] = {}
    for service in services:
        if service.model:
            first.setdefault(service.model, service)
    data = [_entry(first[model]) for model in sorted(first)]
    return _json({"object": "list", "data": data}, 200)


def description(service: Service) -> web.Response:
    return _json(_entry(service), 200)


def _entry(service: Service) -> dict[str, object]:
    return {"id": service.model, "object": "model", "created": 0, "owned_by": service.owner}


def error_response(error: Refused, *, param: str | None = None) -> web.Response:
    """Return an error as clients of OpenAI's API read it."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    body = {
        "message": error.message,
        "type": _TYPES.get(error.status, kind),
        "param": param or error.field,
        "code": error.code,
    }
    return _json({"error": body}, error.status)


def _json(value: object, status: int) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )
