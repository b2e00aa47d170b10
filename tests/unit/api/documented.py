"""Compares each answer of the API in these tests with the document that describes it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import jsonschema
from aiohttp import web

from controller.api.app import ROUTES
from controller.api.http.openapi import document
from controller.api.http.routes import JSON

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def as_documented(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn an answer that its document does not describe into a failure that names it."""
    answer = await handler(request)
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    if path not in _document()["paths"] or request.method == "HEAD":
        return answer
    wrong = difference(request.method.lower(), path, answer)
    if wrong is None:
        return answer
    return web.Response(status=599, text=f"{request.method} {path}: {wrong}")


def difference(method: str, path: str, answer: web.StreamResponse) -> str | None:
    """Return in what the answer differs from its document; None: in nothing."""
    operation = _document()["paths"][path][method]
    described = operation["responses"].get(str(answer.status))
    if described is None:
        if answer.status < 400 and answer.status != 101:
            return f"the status {answer.status} is not described"
        described = operation["responses"]["default"]
    if not isinstance(answer, web.Response) or answer.status == 101:
        return None
    if answer.content_type not in described["content"]:
        return f"{answer.content_type} is not described for {answer.status}"
    if answer.content_type != JSON or not isinstance(answer.body, bytes):
        return None
    schema = described["content"][JSON]["schema"]
    found = next(_validator(json.dumps(schema)).iter_errors(json.loads(answer.body)), None)
    return None if found is None else f"{found.json_path}: {found.message[:300]}"


@cache
def _document() -> dict[str, Any]:
    made = document(ROUTES)
    for schema in made["components"]["schemas"].values():
        _without_more(schema)
    return made


def _without_more(schema: object) -> None:
    """Refuse keys that are not described."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            _without_more(part)
    elif isinstance(schema, list):
        for part in schema:
            _without_more(part)


@cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    whole = {**json.loads(schema), "components": _document()["components"]}
    return jsonschema.Draft202012Validator(whole)
