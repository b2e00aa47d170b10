"""The JSON Schema of a run's YAML, by which editors complete and check it.

It is made from the definitions of `runs`; the descriptions are what each field may hold. It accepts
every configuration that `parse` accepts. It refuses unknown fields and wrong kinds of values, and
leaves to the controller what only several fields together tell.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.configuration.field import mapping_of, own_fields, parts_of
from fairlead.configuration.runs.common import TYPES_ALLOWED, GroupedFields
from fairlead.configuration.runs.definition import RunDefinition
from fairlead.configuration.runs.service import ReplicaGroupFields, ServiceConfiguration
from fairlead.configuration.runs.task import GroupFields
from fairlead.configuration.runs.types import DEFINITIONS
from fairlead.configuration.text.dstack import FIELDS
from fairlead.configuration.values.commands import STRING as _STRING
from fairlead.configuration.values.commands import FolderName
from fairlead.configuration.values.resources import GpuFields, ResourcesFields
from fairlead.configuration.values.serving import RateLimitFields, RateLimitKeyFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_WHOLES: tuple[type[msgspec.Struct], ...] = tuple(
    definition.fields for definition in DEFINITIONS.values()
)
_SENT = frozenset({"UploadedRepo", "SentSets"})
"""What only a client fills in."""
_OF_DSTACK = {name: {"description": f"of dstack: {note}"} for name, note in FIELDS.items()}
_RELATIVE = f"{FolderName.ALLOWED}; a relative one counts from dstack's /workflow"
_OF_DSTACKS_GROUPS = {name: _OF_DSTACK[name] for name in ("docker",)} | {
    "ports": {"type": "array", "description": "of dstack: ports of the run"}
}


def document() -> dict[str, Any]:
    """Return the schema of a whole file."""
    parts = tuple(dict.fromkeys(part for whole in _WHOLES for part in parts_of(whole)))
    _, components = msgspec.json.schema_components(
        (*_WHOLES, *parts), schema_hook=_schema_of, ref_template="#/$defs/{name}"
    )
    for part in (*parts, *_WHOLES):
        _describe(components[part.__name__], part)
    groups = {part for part in parts if issubclass(part, GroupedFields)}
    for definition in DEFINITIONS.values():
        for part in (definition.fields, *groups.intersection(parts_of(definition.fields))):
            for name in definition.withheld:
                components[part.__name__]["properties"].pop(name, None)
    for whole in _WHOLES:
        properties = components[whole.__name__]["properties"]
        properties |= _OF_DSTACK
        properties["working_dir"] = _STRING | {"description": _RELATIVE}
    for part in groups:
        components[part.__name__]["properties"] |= _OF_DSTACKS_GROUPS
    _add_forms_of_dstack(components)
    components[GroupFields.__name__].pop("required", None)
    used = {name: part for name, part in components.items() if name not in _SENT}
    return {
        "$schema": DIALECT,
        "title": "Fairlead run",
        "type": "object",
        "properties": {
            "type": {
                "enum": list(DEFINITIONS),
                "description": TYPES_ALLOWED,
            }
        },
        "required": ["type"],
        **_by_type(list(DEFINITIONS.items())),
        "$defs": used,
    }


def _add_forms_of_dstack(components: dict[str, Any]) -> None:
    """Add dstack's forms of fields that we have in another form."""
    resources = components[ResourcesFields.__name__]["properties"]
    gpu = components[GpuFields.__name__]["properties"]
    service = components[ServiceConfiguration.__name__]["properties"]
    group = components[ReplicaGroupFields.__name__]["properties"]
    key = components[RateLimitKeyFields.__name__]["properties"]
    limit = components[RateLimitFields.__name__]["properties"]
    wholes = [components[whole.__name__]["properties"] for whole in _WHOLES]
    for fields, name, form in (
        *((resources, name, _AMOUNT_OF_DSTACK) for name in ("cpu", "memory", "disk", "shm_size")),
        *((gpu, name, _RANGE_OF_DSTACK) for name in ("count", "memory")),
        (service, "replicas", _RANGE_OF_DSTACK),
        (group, "count", _RANGE_OF_DSTACK),
        (service, "gateway", _OF_A_PROJECT),
        *((fields, "fleets", {"type": "array", "items": _OF_A_PROJECT}) for fields in wholes),
        (key, "type", {"const": "ip_address"}),
        (limit, "key", {"const": "ip_address"}),
    ):
        described = fields[name].pop("description", None)
        fields[name] = {"anyOf": [fields[name], form], "description": described}
    service["replica_groups"] = {"type": "array", "description": "of dstack: replicas"}


_NUMBERS = {"type": ["integer", "number", "string", "null"]}
_RANGE_OF_DSTACK = {
    "type": "object",
    "properties": {"min": _NUMBERS, "max": _NUMBERS},
    "additionalProperties": False,
}
_AMOUNT_OF_DSTACK = {
    "anyOf": [
        _RANGE_OF_DSTACK,
        {"type": "string", "pattern": r"^\.\."},
        {"type": "object", "required": ["arch"], "additionalProperties": False}
        | {"properties": {"arch": {"const": "x86"}, "count": {}}},
    ]
}
_OF_A_PROJECT = {
    "anyOf": [
        _STRING,
        {"type": "object", "required": ["name"], "additionalProperties": False}
        | {"properties": {"name": _STRING, "project": _STRING}},
    ]
}


def _by_type(definitions: list[tuple[str, RunDefinition[Any]]]) -> dict[str, Any]:
    """Return the schema of the type that a file names; the first of these if it names no other."""
    first, *others = definitions
    schema = mapping_of(first[1].fields)
    for name, definition in reversed(others):
        is_it = {"properties": {"type": {"const": name}}, "required": ["type"]}
        schema = {"if": is_it, "then": mapping_of(definition.fields), "else": schema}
    return schema


def _describe(component: dict[str, Any], part: type[msgspec.Struct]) -> None:
    component.pop("description", None)
    properties = component["properties"]
    for name, described in own_fields(part).items():
        if described.field.is_filled_in:
            del properties[name]
            continue
        properties[name]["description"] = described.allowed
        properties[name].pop("default", None)


def _schema_of(type_: Any) -> dict[str, Any]:
    """Return the schema of a type of `values`."""
    return dict(type_.SCHEMA)
