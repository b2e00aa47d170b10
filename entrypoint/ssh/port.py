"""The port of a task's SSH, bound before its job can begin: while the larger part of the program is
still being loaded, who comes to a job that is said to run waits in the backlog and is not refused.

Nothing here may load what takes long.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from entrypoint.ssh.settings import SettingsUnusable, SshSettings, read_settings

_BACKLOG = 64


class OpenPort(NamedTuple):
    settings: SshSettings
    listener: socket.socket


def open_port(task: Path) -> OpenPort | None:
    """None when nobody asked for SSH. Raises SettingsUnusable and OSError."""
    settings = read_settings(task)
    return None if settings is None else OpenPort(settings, _listen(settings))


def open_early(task: Path) -> OpenPort | None:
    """None also where that cannot be: the door tries it once more, and says why."""
    with suppress(SettingsUnusable, OSError):
        return open_port(task)
    return None


def _listen(settings: SshSettings) -> socket.socket:
    address, port = settings.address, settings.port
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {address}:{port}: {error.strerror}") from None
    return listener
