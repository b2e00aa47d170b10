"""As much of HTTP as is understood before the library that knows all of it is loaded.

A request is looked at without being taken from its socket: what is not understood stays there,
whole, for that library.
"""

from __future__ import annotations

import socket
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

_MOST_BYTES = 64 << 10
_END_OF_HEAD = b"\r\n\r\n"
_ORDINARY = frozenset(
    {"host", "accept", "accept-encoding", "user-agent", "content-length", "content-type"}
)


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    body: bytes
    size: int
    """How many bytes of the socket it is."""


class NotPlain(Exception):
    """Nothing for us, or not yet whole when no more of it would be looked at."""


def peek(connection: socket.socket) -> Request | None:
    """The one request that lies in the socket; None while it is not whole. Raises NotPlain, also
    when the peer has left."""
    try:
        seen = connection.recv(_MOST_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        raise NotPlain from error
    head, end, body = seen.partition(_END_OF_HEAD)
    if not end:
        if not seen or len(seen) == _MOST_BYTES:
            raise NotPlain
        return None
    method, target, size = _read_head(head)
    whole = len(head) + len(end) + size
    if len(seen) > whole or whole > _MOST_BYTES:
        raise NotPlain
    if len(seen) < whole:
        return None
    url = urlsplit(target)
    return Request(method, url.path, dict(parse_qsl(url.query)), body, whole)


def answer(
    connection: socket.socket, request: Request, body: bytes, headers: dict[str, str]
) -> bool:
    """Takes the request from the socket; False when the peer did not take all of the answer, and
    the connection is of no more use."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(["HTTP/1.1 200 OK", *lines, f"Content-Length: {len(body)}", "", ""])
    whole = head.encode() + body
    try:
        connection.recv(request.size, socket.MSG_DONTWAIT)
        return connection.send(whole, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(whole)
    except OSError:
        return False


def _read_head(head: bytes) -> tuple[str, str, int]:
    """Method, target and how long the body is. Raises NotPlain."""
    try:
        first, *lines = head.decode("ascii").split("\r\n")
        method, target, version = first.split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    except ValueError as error:
        raise NotPlain from error
    size = headers.get("content-length", "0")
    ordinary = headers.keys() <= _ORDINARY and len(headers) == len(lines)
    if version != "HTTP/1.1" or not ordinary or not (size.isdecimal() and len(size) < 9):
        raise NotPlain
    return method, target, int(size)
