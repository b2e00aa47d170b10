"""The API's description, generated from the wire types so that both are always equal."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.wire.errors import ErrorBody
from fairlead.wire.node import AllocationInfo, Finding, HostKey, NodeInfo, NodeMetrics
from fairlead.wire.shim import (
    FENCE_HEADER,
    INCARNATION_HEADER,
    RUN_HEADER,
    DrainRequest,
    Event,
    ExposedPort,
    ExposeRequest,
    GatewayKeys,
    Health,
    TaskInfo,
    TaskRequest,
    TerminateRequest,
    WantedImages,
)
from shim.settings import VERSION

_REF = "#/components/schemas/{name}"
_TASK, _ALLOCATION = "/v1/tasks/{id}", "/v1/allocations/{id}"
_OPERATIONS: tuple[tuple[str, str, str, Any, Any, bool], ...] = (
    ("get", "/v1/health", "Version, boot, install and this life of the shim", None, Health, False),
    ("get", "/v1/node", "What the node has, and what is allocated", None, NodeInfo, False),
    ("get", "/v1/node/metrics", "Figures of node, tasks and GPUs", None, NodeMetrics, False),
    ("get", "/v1/node/doctor", "What a job needs here, and fixes", None, list[Finding], False),
    ("get", "/metrics", "The same as Prometheus text", None, str, False),
    ("post", "/v1/node/drain", "Start or end a drain", DrainRequest, NodeInfo, False),
    (
        "post",
        "/v1/node/gpus/{id}/clear",
        "Offer a GPU again that was cordoned because of a fault (404 when it is not cordoned)",
        None,
        NodeInfo,
        False,
    ),
    ("get", "/v1/allocations", "All allocations", None, list[AllocationInfo], False),
    ("delete", _ALLOCATION, "Release an allocation (409 while it is in use)", None, None, True),
    ("get", "/v1/tasks", "All tasks", None, list[TaskInfo], False),
    ("get", _TASK, "One task", None, TaskInfo, False),
    (
        "put",
        _TASK,
        "Accept a task; the same body again is the same task",
        TaskRequest,
        TaskInfo,
        True,
    ),
    ("put", "/v1/node/gateways", "Let gateways with these keys in", GatewayKeys, None, False),
    (
        "post",
        "/v1/node/host-key",
        "Make the node's next host key (404 where it is not a rented machine)",
        None,
        HostKey,
        False,
    ),
    ("put", "/v1/node/host-key", "Have sshd use the next host key", HostKey, None, False),
    ("put", "/v1/node/images", "Pull these images ahead, no others", WantedImages, None, True),
    (
        "put",
        _TASK + "/exposed",
        "Let gateways reach a port of a running task",
        ExposeRequest,
        ExposedPort,
        True,
    ),
    ("delete", _TASK, "Remove a terminated task", None, None, True),
    ("post", _TASK + "/claim", "Refuse older controllers from now on", None, TaskInfo, True),
    ("post", _TASK + "/terminate", "Stop a task", TerminateRequest, TaskInfo, True),
    ("get", _TASK + "/logs", "Raw log frames from ?offset=", None, bytes, False),
    (
        "get",
        _TASK + "/outputs",
        "What the job left, as a tar (409 until it ended)",
        None,
        bytes,
        False,
    ),
    ("get", "/v1/events", "NDJSON stream of changes after ?after=", None, Event, False),
)
_QUERIES = {
    _TASK + "/logs": [("offset", "integer", "The offset of the first byte; default 0")],
    _TASK + "/outputs": [
        ("offset", "integer", "The offset of the first byte of the tar; default 0"),
        ("limit", "integer", "The most bytes of content"),
        ("links", "integer", "1: with links that lead to places within the output folder"),
    ],
    "/v1/events": [("after", "string", "A cursor; by default the stream begins now")],
}


def document() -> dict[str, Any]:
    kinds = [kind for op in _OPERATIONS for kind in op[3:5] if kind not in (None, bytes, str)]
    schemas, components = msgspec.json.schema_components([*kinds, ErrorBody], ref_template=_REF)
    by_kind = dict(zip(map(repr, kinds), schemas, strict=False))
    paths: dict[str, Any] = {}
    for method, path, summary, body, answer, fenced in _OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "parameters": _parameters(path, fenced),
            "responses": {
                "2XX": _answer(answer, by_kind),
                "default": {"description": "An error", "content": _content(schemas[-1])},
            },
        }
        if body is not None:
            operation["requestBody"] = {"content": _content(by_kind[repr(body)])}
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairlead shim", "version": VERSION},
        "paths": paths,
        "components": {"schemas": components},
    }


def _parameters(path: str, fenced: bool) -> list[dict[str, Any]]:
    names = [("id", "path")] if "{id}" in path else []
    if fenced:
        of_run = (INCARNATION_HEADER, RUN_HEADER) if names else ()
        names += [(name, "header") for name in (FENCE_HEADER, *of_run)]
    required: list[dict[str, Any]] = [
        {"name": name, "in": where, "required": True, "schema": {"type": "string"}}
        for name, where in names
    ]
    return [*required, *(_query(*query) for query in _QUERIES.get(path, ()))]


def _query(name: str, kind: str, description: str) -> dict[str, Any]:
    schema = {"type": kind}
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _answer(kind: Any, by_kind: dict[str, Any]) -> dict[str, Any]:
    if kind is None:
        return {"description": "Done"}
    if kind is bytes:
        return {"description": "OK", "content": {"application/octet-stream": {}}}
    if kind is str:
        return {"description": "OK", "content": {"text/plain": {}}}
    return {"description": "OK", "content": _content(by_kind[repr(kind)])}


def _content(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
