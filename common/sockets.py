"""What all listening sockets have in common, and those that systemd holds for a daemon."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

BACKLOG = 4096
"""Connections that may wait until they are accepted. A unix socket refuses those beyond (EAGAIN),
and each hop of a burst of requests to a service gets its connections at once. Linux allows no more
than `net.core.somaxconn`, which is 4096 since 5.4."""
_FIRST_FD = 3


def held_by_systemd(is_wanted: Callable[[socket.socket], bool]) -> socket.socket | None:
    """Return the first wanted socket of those that systemd gave (sd_listen_fds(3)).

    It is there before the daemon and after it, so that connections wait while the daemon is started
    again. May be called several times.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    for number in range(int(os.environ.get("LISTEN_FDS", "0"))):
        held = socket.socket(fileno=_FIRST_FD + number)
        if is_wanted(held):
            held.setblocking(False)
            # systemd clears the flag for the daemon, and a child of it must not keep the socket.
            held.set_inheritable(False)
            return held
        # Closing it would close the descriptor, which another call of this function returns.
        held.detach()
    return None
