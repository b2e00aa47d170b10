"""The runner's listening socket, made with nothing but what the interpreter has at hand, so that it
is there before even Python's own `socket` is loaded."""

from __future__ import annotations

import _socket
import errno
import os
import stat

_MODE = 0o660
_MAX_PATH = 107
_UNFINISHED = ".new"
"""Beside the socket, with a name no longer than most."""


class SocketUnusable(Exception):
    """The path cannot be listened on; the text is for a person."""


def listen(path: str) -> int:
    """The descriptor of a socket that is at `path` only once it listens, so that nobody who sees it
    is refused; folders are made, a stale socket replaced. Blocking. Raises SocketUnusable."""
    folder = os.path.dirname(path) or "."
    unfinished = os.path.join(folder, _UNFINISHED)
    if max(len(os.fsencode(path)), len(os.fsencode(unfinished))) > _MAX_PATH:
        raise SocketUnusable(f"--socket: {path} is longer than {_MAX_PATH} bytes")
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        os.makedirs(folder, exist_ok=True)
        _check_unused(path)
        if os.path.lexists(unfinished):
            os.unlink(unfinished)
        server.setblocking(False)
        server.bind(unfinished)
        os.chmod(unfinished, _MODE)
        server.listen(128)
        os.rename(unfinished, path)
    except OSError as error:
        server.close()
        raise SocketUnusable(f"--socket: cannot listen on {path}: {error.strerror}") from error
    return server.detach()


def _check_unused(path: str) -> None:
    """Raises OSError when somebody listens there, or when it is no socket at all."""
    if not os.path.lexists(path):
        return
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
        probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        finally:
            probe.close()
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
