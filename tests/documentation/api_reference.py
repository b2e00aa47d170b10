"""The OpenAPI document as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_INTRODUCTION = """\
# API reference

To ask for your runs:
```sh
curl -H "Authorization: Bearer $FAIRLEAD_TOKEN" "$FAIRLEAD_URL/v1/runs?limit=10"
```
This page is made from the document that the controller serves as `/v1/openapi.json`.
[The API](../api.md) explains streams, logs and uploads. An answer that is no success is an
[`ErrorBody`](#errorbody).
"""

Schema = Mapping[str, Any]


def page(document: Schema) -> str:
    """Return the reference as Markdown."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    parts = [_INTRODUCTION]
    for resource, routes in _by_resource(document["paths"]).items():
        parts.append(f"## {resource}\n")
        parts += [_route(*route) for route in routes]
    parts.append("## Types\n")
    parts += [_type(name, schemas[name]) for name in sorted(schemas)]
    return "\n".join(parts)


def _by_resource(paths: Schema) -> dict[str, list[tuple[str, str, Schema]]]:
    found: dict[str, list[tuple[str, str, Schema]]] = {}
    for path, methods in paths.items():
        resource = path.split("/")[2].replace("_", " ").capitalize()
        found.setdefault(resource, []).extend(
            (method.upper(), path, operation) for method, operation in methods.items()
        )
    return found


def _route(method: str, path: str, operation: Schema) -> str:
    lines = [f"### {method} `{path}`\n", f"{operation['summary']}.\n"]
    if not operation["security"]:
        lines.append("It needs no token.\n")
    parameters = [each for each in operation["parameters"] if each["in"] == "query"]
    if parameters:
        rows = [(f"`{each['name']}`", *_of_value(each["schema"])) for each in parameters]
        lines.append(_table(("parameter", "type", "default"), rows))
    body = operation.get("requestBody")
    if body is not None:
        lines.append(f"Body: {_content(body['content'])}.\n")
    lines.append(_table(("status", "answer", "meaning"), list(_answers(operation))))
    return "\n".join(lines)


def _answers(operation: Schema) -> Iterator[tuple[str, ...]]:
    for status, answer in operation["responses"].items():
        if status == "default":
            continue
        meaning = answer["description"]
        told = "" if meaning == operation["summary"] else meaning
        yield status, _content(answer["content"]), told


def _content(content: Schema) -> str:
    return " or ".join(
        f"{_name(media['schema'])} (`{kind}`)"
        if kind != "application/json"
        else _name(media["schema"])
        for kind, media in content.items()
    )


def _of_value(schema: Schema) -> tuple[str, str]:
    default = schema.get("default")
    return _name(schema), "" if default is None else f"`{default}`"


def _type(name: str, schema: Schema) -> str:
    lines = [f"### {name}\n"]
    if "description" in schema:
        lines.append(" ".join(schema["description"].split()) + "\n")
    if "enum" in schema:
        lines.append("One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".\n")
    properties = schema.get("properties", {})
    if properties:
        required = set(schema.get("required", ()))
        rows = [
            (f"`{field}`", _name(value), "yes" if field in required else "")
            for field, value in properties.items()
        ]
        lines.append(_table(("field", "type", "always there"), rows))
    return "\n".join(lines)


def _name(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_name(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_name(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"mapping to {_name(schema['additionalProperties'])}"
    if schema.get("format") == "binary":
        return "bytes"
    return str(schema.get("type", "any value"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([*lines, ""])
