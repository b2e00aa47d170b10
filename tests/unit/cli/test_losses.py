"""Why a controller cannot be reached: nobody needs to know by which library it was asked."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest
from websockets.exceptions import InvalidMessage

from fairlead.connections.http1 import BadAnswer
from fairlead.connections.requests import why_lost


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] (_ssl.c:992)")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"), "Connection refused"),
        (OSError("Multiple exceptions: [Errno 111], [Errno 99]"), "the connection failed"),
        (TimeoutError("timed out"), "it does not answer"),
        (socket.gaierror(-2, "Name or service not known"), "its name cannot be looked up"),
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), "the connection was cut"),
        (ConnectionResetError(), "the connection was cut"),
        (
            BadAnswer("another protocol than HTTP/1.1"),
            "it does not answer like a Fairlead controller",
        ),
        (InvalidMessage("did not receive"), "it does not answer like a Fairlead controller"),
        (
            ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1002)"),
            "a secure connection to it is not possible",
        ),
        (untrusted(), "its certificate is not trusted (self-signed certificate)"),
    ],
)
def test_each_loss_of_a_controller_is_told_in_plain_words(error: Exception, words: str) -> None:
    assert why_lost(error) == words
