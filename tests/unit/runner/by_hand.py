"""HTTP as bytes, for who must know when they are on their way."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

import msgspec

from runner.schemas import SubmitRequest
from tests.unit.runner.harness import DEADLINE

FIRST_PAGE = b"GET /v1/logs?offset=0&wait=20 HTTP/1.1\r\nHost: runner\r\n\r\n"


class Answer(NamedTuple):
    status: str
    headers: dict[str, str]
    body: bytes


def visitor_at(path: Path, said: bytes) -> socket.socket:
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    visitor.settimeout(DEADLINE)
    visitor.connect(str(path))
    visitor.sendall(said)
    return visitor


def post(path: str, body: bytes, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: runner", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def start_of(request: SubmitRequest) -> bytes:
    return post("/v1/start", msgspec.json.encode(request))


def answer_at(visitor: socket.socket) -> Answer:
    received = b""
    while b"\r\n\r\n" not in received:
        received += told(visitor)
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers["Content-Length"]):
        body += told(visitor)
    return Answer(status, headers, body)


def told(visitor: socket.socket) -> bytes:
    data = visitor.recv(1 << 20)
    assert data, "the connection was closed"
    return data
