from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from controller.api import app
from controller.api.app import ROUTES
from controller.api.http.openapi import document
from controller.api.http.routes import Route
from tests.unit.api.documented import difference


def refs(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(refs(part) for part in value.values()))
    if isinstance(value, list):
        return set().union(*(refs(part) for part in value))
    return set()


async def test_the_document_lists_exactly_the_routes_that_are_served(
    api: TestClient[Any, Any],
) -> None:
    async with api.get("/v1/openapi.json") as answer:
        paths = (await answer.json())["paths"]
    listed = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    served = {
        (route.method, route.resource.canonical)
        for route in api.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert listed == served - {
        ("GET", path) for path in ("/v1/openapi.json", "/metrics", "/metrics/services")
    }


async def test_many_who_ask_first_have_the_document_made_once(
    api: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def counted(routes: Sequence[Route]) -> dict[str, Any]:
        made.append(routes)
        return document(routes)

    monkeypatch.setattr(app, "document", counted)
    app._document.cache_clear()

    async def asked(method: str) -> tuple[int, str | None, bytes]:
        async with api.request(method, "/v1/openapi.json") as answer:
            return answer.status, answer.headers.get("Content-Length"), await answer.read()

    whole = msgspec.json.encode(document(ROUTES))
    length = str(len(whole))
    answers = await asyncio.gather(*(asked("GET") for _ in range(30)), asked("HEAD"))
    assert answers == [(200, length, whole)] * 30 + [(200, length, b"")]
    assert len(made) == 1


def test_every_reference_of_the_document_is_in_it() -> None:
    made = document(ROUTES)
    names = {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
    assert refs(made) == names


def test_operations_have_names_of_their_own() -> None:
    operations = [route.operation for route in ROUTES]
    assert len(operations) == len(set(operations))


def test_path_parameters_are_described() -> None:
    for path, methods in document(ROUTES)["paths"].items():
        for operation in methods.values():
            described = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
            assert described == re.findall(r"{(\w+)}", path)


def test_a_log_is_described_in_all_its_forms() -> None:
    logs = document(ROUTES)["paths"]["/v1/runs/{run}/logs"]["get"]
    answer = logs["responses"]["200"]
    assert list(answer["content"]) == [
        "application/octet-stream",
        "text/plain",
        "application/x-ndjson",
    ]


def test_every_status_of_a_submission_is_described() -> None:
    answers = document(ROUTES)["paths"]["/v1/runs"]["post"]["responses"]
    assert answers.keys() == {"200", "201", "202", "default"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.json_response({"findings": []}), None),
        (web.json_response({"findings": [], "more": 1}), "'more' was unexpected"),
        (web.json_response({}), "'findings' is a required property"),
        (web.json_response({"findings": []}, status=201), "the status 201 is not described"),
        (web.json_response({"message": "no"}, status=404), "'error' is a required property"),
        (web.Response(text="fine"), "text/plain is not described"),
    ],
    ids=str,
)
def test_answers_of_these_tests_are_compared_with_their_document(
    answer: web.Response, words: str | None
) -> None:
    found = difference("get", "/v1/nodes/{node}/doctor", answer)
    assert found == words if words is None else words in (found or "")


_MAY_BE_NEWER = {"Part"}
"""Structs that are stored as well; all their fields are required, so a wrong name is missed."""


def _taken_as_sent(document: dict[str, Any], shape: str, seen: set[str]) -> set[str]:
    """Return the structs of a body, this one included, that take fields they do not know."""
    if shape in seen:
        return set()
    seen.add(shape)
    schema = document["components"]["schemas"][shape]
    inner = {one.rpartition("/")[2] for one in refs(schema)}
    takes = schema.get("type") == "object" and schema.get("additionalProperties") is not False
    found = {shape} if takes else set()
    return found.union(*(_taken_as_sent(document, one, seen) for one in inner))


def test_no_body_takes_a_field_that_it_does_not_know() -> None:
    described = document(ROUTES)
    bodies = {route.body.__name__ for route in ROUTES if route.body is not None}
    found = {one for body in bodies for one in _taken_as_sent(described, body, set())}
    assert found == _MAY_BE_NEWER
