"""Google's APIs as their discovery documents describe them, which google-api-python-client ships:
each request is held against them, and one that they do not allow is refused as Google does."""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_DOCUMENTS = "discovery_cache/documents"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_NOT_ASKED = "[Output Only]"


class GoogleFailure(msgspec.Struct, frozen=True):
    """A refusal as the APIs give it."""

    status: int
    reason: str
    message: str = "eight are enough"


class WrongRequest(Exception):
    """The document does not allow the request."""


@functools.cache
def _document(name: str) -> dict[str, Any]:
    file = importlib.resources.files("googleapiclient").joinpath(_DOCUMENTS, f"{name}.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


class Method:
    """A method of an API. `document`: such as `compute.v1`; `path`: of its resource and it, such as
    `instances.insert`."""

    def __init__(self, document: str, path: str) -> None:
        self._document = _document(document)
        *resources, name = path.split(".")
        found = self._document
        for one in resources:
            found = found["resources"][one]
        self._method = found["methods"][name]
        self.id: str = self._method["id"]
        self.verb: str = self._method["httpMethod"]
        self.route = f"/{self._document['servicePath']}{self._method.get('flatPath', '')}"
        self._asked = {**self._document["parameters"], **self._method.get("parameters", {})}

    def require(self, asked: Mapping[str, str], content: object) -> None:
        """Raises WrongRequest."""
        for name in asked:
            if self._asked.get(name, {}).get("location") != "query":
                raise WrongRequest(f"{self.id} has no parameter {name}")
        if (wanted := self._method.get("request")) is None:
            if content is not None:
                raise WrongRequest(f"{self.id} has no content")
            return
        for problem in self._problems(wanted, content, "content"):
            raise WrongRequest(problem)

    def require_answer(self, answer: object) -> None:
        """Raises WrongRequest: a double that answers what the document does not have is wrong."""
        for problem in self._problems(self._method["response"], answer, "answer", asks=False):
            raise WrongRequest(problem)

    def _problems(
        self, schema: Mapping[str, Any], value: object, where: str, *, asks: bool = True
    ) -> Iterator[str]:
        if "$ref" in schema:
            schema = self._document["schemas"][schema["$ref"]]
        kind = schema.get("type", "any")
        if kind != "any" and not (
            isinstance(value, _TYPES[kind]) and (kind == "boolean") == isinstance(value, bool)
        ):
            yield f"{where} is no {kind}"
            return
        if "enum" in schema and value not in schema["enum"]:
            yield f"{where}: {value!r} is none of its values"
        if isinstance(value, str) and not re.fullmatch(schema.get("pattern", ".*"), value, re.S):
            yield f"{where}: {value!r} is not {schema['pattern']}"
        if isinstance(value, list):
            for number, one in enumerate(value):
                yield from self._problems(schema["items"], one, f"{where}[{number}]", asks=asks)
        if isinstance(value, dict):
            yield from self._problems_within(schema, value, where, asks=asks)

    def _problems_within(
        self, schema: Mapping[str, Any], value: Mapping[str, Any], where: str, *, asks: bool
    ) -> Iterator[str]:
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, one in known.items():
            needed = one.get("annotations", {}).get("required", ())
            if asks and self.id in needed and name not in value:
                yield f"{where}.{name} is missing"
        for name, one in value.items():
            part = known.get(name, others)
            if part is None:
                yield f"{where} has no {name}"
            elif asks and _NOT_ASKED in part.get("description", ""):
                yield f"{where}.{name} is only told"
            else:
                yield from self._problems(part, one, f"{where}.{name}", asks=asks)


def refused(failure: GoogleFailure) -> web.Response:
    content = {
        "code": failure.status,
        "message": failure.message,
        "errors": [
            {"domain": "global", "reason": failure.reason, "message": failure.message},
        ],
    }
    return web.json_response({"error": content}, status=failure.status)
