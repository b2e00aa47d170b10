"""The JSON Schema of a run's YAML, by which editors complete and check it.

It is made from the types of `schema`, and the descriptions are `ALLOWED`. It accepts every
configuration that `parse` accepts. It refuses unknown fields and wrong kinds of values, and leaves
to the controller what only several fields together tell.
"""

from __future__ import annotations

from typing import Any

import msgspec

from controller.configuration import schema
from controller.configuration.dstack import FIELDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_WHOLES = (
    schema.TaskConfiguration,
    schema.ServiceConfiguration,
    schema.DevEnvironmentConfiguration,
)
_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}
_NUMBER_OR_STRING = {"type": ["number", "string"]}
_ABSOLUTE_PATH = {"type": "string", "pattern": "^/"}
_RUN_NAME = {"type": "string", "pattern": "^[a-z][a-z0-9-]{0,40}$"}
_PLAIN_SIZE = r"\s*[0-9.]+\s*([KMGTPkmgtp]?[Bb]|[KMGTPkmgtp][Ii][Bb])\s*"
_SIZE = {"type": "string", "pattern": rf"^{_PLAIN_SIZE}(\.\.({_PLAIN_SIZE}|\s*))?$"}
_DURATION = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*([0-9.]+\s*[smhdwSMHDW]?\s*)+$"},
    ]
}
_OFF = {"enum": [False, "off", "never", "none"]}
_VALUES_OF_NAMES = {"type": "object", "additionalProperties": _NUMBER_OR_STRING}
_PARTS: dict[str, type[msgspec.Struct]] = {
    "resources": schema.ResourcesFields,
    "resources.gpu": schema.GpuFields,
    "retry": schema.RetryFields,
    "registry_auth": schema.RegistryAuthFields,
    "repos": schema.RepoFields,
    "files": schema.FileFields,
    "volumes": schema.VolumeFields,
    "buckets": schema.BucketFields,
    "gang": schema.GangFields,
    "constraints": schema.ConstraintFields,
    "on_disconnect": schema.DisconnectFields,
    "groups": schema.GroupFields,
    "replicas": schema.ReplicaGroupFields,
    "scaling": schema.ScalingFields,
    "probes": schema.ProbeFields,
    "rate_limits": schema.RateLimitFields,
    "rate_limits.key": schema.RateLimitKeyFields,
    "model": schema.ModelFields,
    "headers": schema.HeaderFields,
}
"""The path of each mapping, by the type of its fields."""
_OF_DSTACK = {name: {"description": f"of dstack: {said}"} for name, said in FIELDS.items()}
_RELATIVE = f"{schema.ALLOWED['working_dir']}; a relative one counts from dstack's /workflow"
_OF_DSTACKS_GROUPS = {name: _OF_DSTACK[name] for name in ("docker",)} | {
    "ports": {"type": "array", "description": "of dstack: ports of the run"}
}
_FILLED_IN_BY_THE_COMMAND = "uploaded"


def document() -> dict[str, Any]:
    """Return the schema of a whole file."""
    types = (*_WHOLES, *_PARTS.values())
    _, components = msgspec.json.schema_components(
        types, schema_hook=_schema_of, ref_template="#/$defs/{name}"
    )
    for path, part in _PARTS.items():
        _describe(components[part.__name__], f"{path}.")
    for whole in _WHOLES:
        _describe(components[whole.__name__], "")
    of_dev_environments = components[schema.DevEnvironmentConfiguration.__name__]["properties"]
    for name, allowed in schema.DEV_ENVIRONMENT_ALLOWED.items():
        if name in of_dev_environments:
            of_dev_environments[name]["description"] = allowed
    for name in schema.NOT_OF_DEV_ENVIRONMENTS:
        of_dev_environments.pop(name, None)
    for part in (schema.ServiceConfiguration, schema.ReplicaGroupFields):
        for name in schema.ONLY_OF_TASKS:
            components[part.__name__]["properties"].pop(name, None)
    for whole in _WHOLES:
        properties = components[whole.__name__]["properties"]
        properties |= _OF_DSTACK
        properties["working_dir"] = _STRING | {"description": _RELATIVE}
    for part in (schema.GroupFields, schema.ReplicaGroupFields):
        components[part.__name__]["properties"] |= _OF_DSTACKS_GROUPS
    _add_forms_of_dstack(components)
    components[schema.GroupFields.__name__].pop("required", None)
    used = {name: part for name, part in components.items() if name != "UploadedRepo"}
    return {
        "$schema": DIALECT,
        "title": "Fairlead run",
        "type": "object",
        "properties": {
            "type": {
                "enum": ["task", "service", "dev-environment"],
                "description": schema.ALLOWED["type"],
            }
        },
        "required": ["type"],
        **_by_type("service", schema.ServiceConfiguration),
        "else": {
            **_by_type("dev-environment", schema.DevEnvironmentConfiguration),
            "else": _mapping(schema.TaskConfiguration),
        },
        "$defs": used,
    }


def _add_forms_of_dstack(components: dict[str, Any]) -> None:
    """Add dstack's forms of fields that we have in another form."""
    resources = components[schema.ResourcesFields.__name__]["properties"]
    gpu = components[schema.GpuFields.__name__]["properties"]
    service = components[schema.ServiceConfiguration.__name__]["properties"]
    group = components[schema.ReplicaGroupFields.__name__]["properties"]
    key = components[schema.RateLimitKeyFields.__name__]["properties"]
    limit = components[schema.RateLimitFields.__name__]["properties"]
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
    gpu["vendor"] = {"const": "nvidia", "description": "of dstack: nvidia"}
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


def _by_type(name: str, whole: type[msgspec.Struct]) -> dict[str, Any]:
    is_it = {"properties": {"type": {"const": name}}, "required": ["type"]}
    return {"if": is_it, "then": _mapping(whole)}


_ALLOWED = {**schema.ALLOWED, **schema.SERVICE_ALLOWED}


def _describe(component: dict[str, Any], prefix: str) -> None:
    """Add the descriptions. A group has fields of the whole file, which are described there."""
    component.pop("description", None)
    if prefix == "headers.":
        component["properties"]["name"]["description"] = _ALLOWED["rate_limits.header"]
        component["properties"]["value"]["description"] = "a string"
        return
    properties = component["properties"]
    properties.pop(_FILLED_IN_BY_THE_COMMAND, None)
    for name, described in properties.items():
        allowed = _ALLOWED.get(prefix + name, _ALLOWED.get(name))
        described["description"] = allowed
        described.pop("default", None)


def _list_of(part: type[msgspec.Struct]) -> dict[str, Any]:
    return {"type": "array", "items": {"anyOf": [_STRING, _mapping(part)]}}


def _mapping(part: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{part.__name__}"}


def _schema_of(type_: type) -> dict[str, Any]:
    """Return the schema of a type. Raises KeyError for a type that has none yet."""
    return dict(_SCHEMAS[type_])


_SCHEMAS: dict[type, dict[str, Any]] = {
    schema.Size: _SIZE,
    schema.Duration: _DURATION,
    schema.DurationOrOff: {"anyOf": [_DURATION, _OFF]},
    schema.Cpu: {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "string", "pattern": r"^\s*(x86:)?\s*[0-9.]+\s*(\.\.\s*[0-9.]*\s*)?$"},
        ]
    },
    schema.RunName: _RUN_NAME,
    schema.GroupName: _RUN_NAME,
    schema.Argv: {"anyOf": [_STRING, {**_STRINGS, "minItems": 1}]},
    schema.Env: {"anyOf": [_VALUES_OF_NAMES, _STRINGS]},
    schema.FolderName: _ABSOLUTE_PATH,
    schema.ImageName: {"type": "string", "minLength": 1},
    schema.UserName: {"type": ["string", "integer"]},
    schema.PythonVersion: {"type": ["string", "number"]},
    schema.SignalName: _STRING,
    schema.SshChoice: {"enum": ["auto", "embedded", "install", "off", False]},
    schema.Gpu: {"anyOf": [{"type": ["integer", "string"]}, _mapping(schema.GpuFields)]},
    schema.Repos: _list_of(schema.RepoFields),
    schema.FileList: _list_of(schema.FileFields),
    schema.Secrets: {
        "anyOf": [{"type": "object", "additionalProperties": _STRING}, _STRINGS],
    },
    schema.Volume: {"anyOf": [_STRING, _mapping(schema.VolumeFields)]},
    schema.Home: {"anyOf": [{"const": True}, {"type": "string", "minLength": 1}]},
    schema.IdeVersion: {"type": ["string", "number"]},
    schema.Capability: _STRING,
    schema.Ulimits: {"type": "object", "additionalProperties": {"type": ["integer", "string"]}},
    schema.PortMapping: {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 65535},
            {"type": "string", "pattern": r"^(([0-9]{1,5}|\*):)?[0-9]{1,5}$"},
        ]
    },
    schema.WrittenConstraint: {"anyOf": [_STRING, _mapping(schema.ConstraintFields)]},
    schema.Names: {"anyOf": [_STRING, {**_STRINGS, "minItems": 1}]},
    schema.Schedule: {
        "anyOf": [
            _STRING,
            {**_STRINGS, "minItems": 1},
            {"type": "object", "required": ["cron"], "additionalProperties": False}
            | {"properties": {"cron": {"anyOf": [_STRING, _STRINGS]}}},
        ]
    },
    schema.PortPair: {"type": ["integer", "string"]},
    schema.ReplicaRange: {"type": ["integer", "string"]},
    schema.Replicas: {
        "anyOf": [
            {"type": ["integer", "string"]},
            {"type": "array", "minItems": 1, "items": _mapping(schema.ReplicaGroupFields)},
        ]
    },
    schema.Headers: {
        "anyOf": [
            {"type": "object", "additionalProperties": _STRING},
            {"type": "array", "items": _mapping(schema.HeaderFields)},
        ]
    },
    schema.HeaderName: _STRING,
    schema.OutputPath: _STRING,
    schema.BucketUrl: {"type": "string", "pattern": "^s3://"},
    schema.BucketEndpoint: {"type": "string", "pattern": "^https?://"},
    schema.UrlPath: {"type": "string", "pattern": "^/"},
    schema.ProbeMethod: _STRING,
    schema.Groups: {"type": "array", "minItems": 1, "items": _mapping(schema.GroupFields)},
}
