"""The OpenAPI 3.1 document, generated from the route table and its types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from controller import __version__
from controller.api.http.routes import JSON, Route
from fairlead.wire.errors import ErrorBody

_REF = "#/components/schemas/{name}"


def document(routes: Sequence[Route]) -> dict[str, Any]:
    bodies = [shape for route in routes for shape in (route.body, route.answer) if shape]
    queries = [route.query for route in routes]
    types = list(dict.fromkeys((*bodies, *queries, ErrorBody)))
    _, components = msgspec.json.schema_components(types, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    for query in queries:
        components.pop(query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairlead", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "security": [] if route.public else [{"bearer": []}],
        "parameters": [*_path_parameters(route), *_query_parameters(route, components)],
        "responses": {
            str(route.status): _answer(route),
            "default": {
                "description": "What is wrong, for the person who must fix it",
                "content": {JSON: {"schema": _ref(ErrorBody)}},
            },
        },
    }
    for status, meaning in route.also.items():
        operation["responses"][str(status)] = {**_answer(route), "description": meaning}
    if route.body is not None:
        content = {JSON: {"schema": _ref(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _answer(route: Route) -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    content = _ref(route.answer) if route.answer is not None else schema
    media = (route.media, *route.asked_for)
    return {"description": route.summary, "content": {one: {"schema": content} for one in media}}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]


def _query_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    properties = components[route.query.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in properties.items()
        if name not in route.query.inner
    ]


def _ref(shape: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=shape.__name__)}
