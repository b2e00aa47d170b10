"""The runner's listening socket, a file with group permissions, and who may use it."""

from __future__ import annotations

import os
import socket
import struct
from enum import StrEnum
from pathlib import Path

from runner import listening
from runner.listening import SocketUnusable as SocketUnusable

_CREDENTIALS = struct.Struct("3i")


class Peers(StrEnum):
    """Who may connect. NODE: processes outside our pid namespace, whose pid the kernel shows as 0;
    that is the node, never the job in our own container. ANY: whoever the file's mode lets."""

    NODE = "node"
    ANY = "any"


def listen(path: Path) -> socket.socket:
    """See `listening.listen`."""
    return opened(listening.listen(os.fspath(path)))


def opened(listener: int) -> socket.socket:
    """The socket, which accepts without waiting, of a descriptor."""
    server = socket.socket(fileno=listener)
    server.setblocking(False)
    return server


def is_welcome(connection: socket.socket, peers: Peers) -> bool:
    if peers is Peers.ANY:
        return True
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(raw)
    return bool(pid == 0)
