"""Why a controller cannot be reached, in words for whoever typed the command."""

from __future__ import annotations

import http.client
import os
import socket
import ssl


def why_lost(error: Exception) -> str:
    """Of what sockets, TLS, HTTP and WebSocket clients raise."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message})"
        case ssl.SSLError():
            return "no secure connection can be made with it"
        case socket.gaierror():
            return "its name cannot be looked up"
        case TimeoutError():
            return "it does not answer"
        case ConnectionResetError() | BrokenPipeError() | http.client.IncompleteRead():
            return "the connection was cut"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case OSError():
            return "the connection failed"
        case _:
            return "it does not answer as a Fairlead controller does"
