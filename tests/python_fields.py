"""Writes `TaskFields` of the Python client from the definition of a task: `./dev pages`.

A type checker needs the fields as text. Their types are those of the JSON schema, by which editors
check the same fields in YAML.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fairlead.configuration.json_schema import document
from fairlead.configuration.runs.task import TaskConfiguration

FILE = Path(__file__).parents[1] / "fairlead" / "task.py"
_BLOCK = re.compile(r"(?<=as in the YAML\.\"\"\"\n\n)(?:    \w+: [^\n]+\n)+")
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
_ORDER = ("bool", "int", "float", "str")


def written(text: str) -> str:
    """Return the text of the module with the fields of the definition."""
    parts = document()["$defs"]
    fields = parts[TaskConfiguration.__name__]["properties"]
    lines = [
        f"    {name}: {' | '.join(sorted(_types(fields[name], parts), key=_place))}\n"
        for name in TaskConfiguration.__struct_fields__
        if name != "type"
    ]
    return _BLOCK.sub("".join(lines), text)


def _place(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _types(schema: dict[str, Any], parts: dict[str, Any]) -> set[str]:
    """Return the Python types of the values that the schema accepts, without null."""
    if "$ref" in schema:
        return _types(parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        return set().union(*(_types(one, parts) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return {type(one).__name__ for one in schema.get("enum", [schema.get("const")])} - {
            "NoneType"
        }
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return set().union(*(_of_kind(kind, schema, parts) for kind in kinds if kind != "null"))


def _of_kind(kind: str, schema: dict[str, Any], parts: dict[str, Any]) -> set[str]:
    if kind in _PLAIN:
        return {_PLAIN[kind]}
    if kind == "array":
        items = schema.get("items")
        inner = sorted(_types(items, parts), key=_place) if items else ["Any"]
        return {f"Sequence[{' | '.join(inner)}]"}
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        return {f"Mapping[str, {' | '.join(sorted(_types(values, parts), key=_place))}]"}
    return {"Mapped"}


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
