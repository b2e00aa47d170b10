"""What both ends of a WebSocket (RFC 6455) agree on: opcodes, close codes and the handshake."""

from __future__ import annotations

import binascii
from enum import IntEnum

FIN, RESERVED, OPCODE = 0x80, 0x70, 0x0F
"""Bits of a frame's first byte."""
MASKED, LENGTH = 0x80, 0x7F
"""Bits of its second byte."""
MAX_CONTROL = 125
"""Bytes of a control frame's payload."""
_ACCEPT_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class CloseCode(IntEnum):
    OK = 1000
    PROTOCOL_ERROR = 1002
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011


class Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


OPCODES = frozenset(Opcode)


class Violation(Exception):
    """The peer broke the protocol."""

    def __init__(self, code: CloseCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def accept_of(key: str) -> str:
    """Return the server's answer to the key of a client's handshake."""
    import hashlib  # loads OpenSSL, which takes 2 ms of a short command

    # OpenSSL in FIPS mode has SHA-1 only for what is no security.
    digest = hashlib.sha1((key + _ACCEPT_GUID).encode(), usedforsecurity=False).digest()
    return binascii.b2a_base64(digest, newline=False).decode()


def frame_head(opcode: Opcode, size: int) -> bytes:
    """Return the first bytes of a whole message of a server."""
    if size <= MAX_CONTROL:
        return bytes((FIN | opcode, size))
    if size < 1 << 16:
        return bytes((FIN | opcode, 126)) + size.to_bytes(2, "big")
    return bytes((FIN | opcode, 127)) + size.to_bytes(8, "big")
