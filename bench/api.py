"""The controller as another program sees it: REST for the run, a WebSocket for its log."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import yaml
from websockets.sync.client import connect

from fairlead.wire.frames import HEADER_SIZE, span_at
from tests.support.processes import ControllerProcess


class Bed(Protocol):
    @property
    def controller(self) -> ControllerProcess: ...


FINAL = frozenset({"done", "failed", "terminated"})


def submit(parts: Bed, file: Path, name: str) -> str:
    """Submit a run and return its id."""
    # The C reader of YAML: what a program has at hand costs it nothing here.
    configuration = yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader)
    body = {"configuration": configuration, "name": name}
    connection = http.client.HTTPConnection("127.0.0.1", parts.controller.port)
    try:
        connection.request("POST", "/v1/runs", json.dumps(body), _headers(parts))
        answer = json.load(connection.getresponse())
    finally:
        connection.close()
    return str(answer["id"])


def first_attempt(parts: Bed, run_id: str) -> str:
    return next(
        str(run["jobs"][0]["attempts"][0]["id"])
        for run in _watch(parts, run_id)
        if run["jobs"] and run["jobs"][0]["attempts"]
    )


def wait_final(parts: Bed, run_id: str) -> str:
    """Return the status with which the run ended."""
    return next(str(run["status"]) for run in _watch(parts, run_id) if run["status"] in FINAL)


def log_messages(parts: Bed, run_id: str, attempt_id: str) -> Iterator[bytes]:
    """Yield whole frames as they come, to the end of the attempt."""
    url = f"ws://127.0.0.1:{parts.controller.port}/v1/runs/{run_id}/logs/ws?attempt={attempt_id}"
    options: dict[str, Any] = {"compression": None, "max_size": 64 << 20, "proxy": None}
    with connect(url, additional_headers=_headers(parts), **options) as stream:
        for message in stream:
            if isinstance(message, bytes):
                yield message


def payload_size(message: bytes) -> int:
    size = at = 0
    while (span := span_at(message, at)) is not None:
        size += span.size - HEADER_SIZE
        at += span.size
    return size


def _watch(parts: Bed, run_id: str) -> Iterator[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", parts.controller.port)
    try:
        connection.request("GET", f"/v1/runs/{run_id}/watch", headers=_headers(parts))
        for line in connection.getresponse():
            if run := json.loads(line).get("run"):
                yield run
    finally:
        connection.close()


def _headers(parts: Bed) -> dict[str, str]:
    return {"Authorization": f"Bearer {parts.controller.token}"}
