"""The runner's listening socket, a file with group permissions, and the peers that may use it."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from enum import StrEnum
from pathlib import Path

from common.sockets import BACKLOG

_MODE = 0o660
# `sun_path` has 108 bytes, the last of them zero (unix(7)).
_MAX_PATH = 107
_UNFINISHED = ".new"
"""A name next to the socket that is not longer than most."""
_CREDENTIALS = struct.Struct("3i")


class SocketUnusable(Exception):
    """The path cannot be listened on; the message is for the operator."""


class Peers(StrEnum):
    """The peers that may connect.

    NODE: processes outside of this pid namespace, whose pid the kernel shows as 0; that is the
    node, never the job in this container. ANY: all that the file's mode allows.
    """

    NODE = "node"
    ANY = "any"


def listen(path: Path) -> socket.socket:
    """Return a socket that appears at `path` only once it listens, so a client that sees it is not
    refused.

    Folders are made, and a stale socket is replaced. Blocking. Raises SocketUnusable.
    """
    unfinished = path.with_name(_UNFINISHED)
    if max(len(os.fsencode(path)), len(os.fsencode(unfinished))) > _MAX_PATH:
        raise SocketUnusable(f"--socket: {path} is longer than {_MAX_PATH} bytes")
    server = _unix_socket()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_unused(path)
        unfinished.unlink(missing_ok=True)
        server.setblocking(False)
        server.bind(str(unfinished))
        # The umask has cut the mode of bind(2); connect(2) needs the right to write (unix(7)).
        unfinished.chmod(_MODE)
        server.listen(BACKLOG)
        unfinished.rename(path)
    except OSError as error:
        server.close()
        raise SocketUnusable(f"--socket: cannot listen on {path}: {error.strerror}") from error
    return server


def is_welcome(connection: socket.socket, peers: Peers) -> bool:
    if peers is Peers.ANY:
        return True
    # A process outside of this pid namespace has the pid 0 here (pid_namespaces(7)).
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(raw)
    return bool(pid == 0)


def _check_unused(path: Path) -> None:
    """Raise OSError when another process listens there, or it is no socket."""
    if not os.path.lexists(path):
        return
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        with _unix_socket() as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                # A runner that was killed left this file.
                return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
