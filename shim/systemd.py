"""What systemd is told: that the shim is ready, and that it is alive.

The protocol is one datagram to a socket that systemd names; elsewhere there is no such socket, and
nothing is told.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


class Systemd:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._watchdog = environment.get("WATCHDOG_USEC", "")

    @property
    def watchdog(self) -> float | None:
        """Seconds of silence after which systemd restarts the shim; None: it does not watch."""
        return int(self._watchdog) / 1e6 if self._watchdog.isdecimal() else None

    def tell(self, state: str) -> None:
        """Never raises: a shim does not end because nobody listens."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
                out.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("cannot tell systemd %s: %s", state, error)
