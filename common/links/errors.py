"""What a link can fail with, and the words for it."""

from __future__ import annotations

import os
import socket


class LinkError(Exception):
    """The machine cannot be reached; the message says why, for the operator."""


class HostKeyRefused(LinkError):
    """The machine presented another host key than the pinned one. A retry never makes it
    trusted."""


def why_unreachable(error: Exception) -> str:
    """Return the errors of sockets and asyncssh in words for the operator."""
    match error:
        case socket.gaierror():
            return "the name cannot be looked up"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case ConnectionError():  # without a number: asyncssh's word for a channel that has ended
            return "the connection was lost"
        # asyncio's, of several addresses.
        case OSError() if str(error).startswith("Multiple exceptions"):
            return "none of its addresses answers"
        case _:
            return str(error) or "the connection was lost"
