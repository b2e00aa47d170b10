"""The client's end of a WebSocket (RFC 6455) on which only the controller has something to say.

`websockets` takes 39 ms of CPU time to load, a third of `fairlead apply` (`./dev bench command`).
What is read is checked; a message is given out in the pieces in which it comes, so none is held.
"""

from __future__ import annotations

import binascii
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

from fairlead.connections import READ_BYTES
from fairlead.connections.closing import Closing
from fairlead.wire.websocket import (
    FIN,
    LENGTH,
    MASKED,
    MAX_CONTROL,
    OPCODE,
    OPCODES,
    RESERVED,
    CloseCode,
    Opcode,
    Violation,
    accept_of,
)

QUIET_SECONDS = 30.0
"""Seconds without a byte until a ping is sent, and until its answer is there."""
QUIET_OF_SEVERAL_SECONDS = 4.0
"""The same where another address can go on with it: a controller that is paused is replaced in the
meantime, and its kernel takes the ping all the same."""
UNREAD_SECONDS = 15.0
"""A controller cuts a connection that answers no ping for so long: nobody reads it, as behind a
pager, or in a program that works on each line."""
_MASK_BYTES = 4
_MIN_PIECE = 4096
"""Smaller pieces of a whole message are joined as they come."""


def new_key() -> str:
    return binascii.b2a_base64(os.urandom(16), newline=False).decode()


def handshake(key: str) -> dict[str, str]:
    """Return the headers of a request that asks for a WebSocket."""
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
    }


def require_accepted(
    key: str, upgrade: str | None, connection: str | None, accept: str | None
) -> None:
    """Raises Violation when the answer with status 101 is not one to this key. The others are its
    headers Upgrade, Connection and Sec-WebSocket-Accept."""
    # A list, in any case (RFC 9110, 7.6.1): a proxy may name more than `upgrade`.
    options = [one.strip().lower() for one in (connection or "").split(",")]
    is_upgrade = (upgrade or "").lower() == "websocket" and "upgrade" in options
    if not is_upgrade or accept != accept_of(key):
        raise Violation(CloseCode.PROTOCOL_ERROR, "an answer to another handshake")


class FrameReader:
    """Reads a server's frames; holds no more than the head of one, or one control frame.

    `feed` returns pieces of messages, each with the opcode of its message, and whole control
    frames, in their order. It raises Violation, after which it must not be fed again. `whole`: it
    returns whole messages, of at most so many bytes, and holds what came of one.
    """

    __slots__ = ("_held", "_in_message", "_left", "_message", "_most", "_pieces", "_size")

    def __init__(self, whole: int | None = None) -> None:
        self._most = whole
        self._pieces: list[bytes] = []
        self._size = 0
        """The bytes of all pieces."""
        self._held = b""
        self._left = 0
        self._message = Opcode.CONTINUATION
        self._in_message = False

    def feed(self, data: bytes) -> list[tuple[Opcode, bytes]]:
        if self._held:
            data, self._held = self._held + data, b""
        found: list[tuple[Opcode, bytes]] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                self._add(piece, found)
                continue
            start, size = _head(data, at)
            control = bool(data[at] & 0x08)
            if start is None or (control and len(data) < start + size):
                self._held = data[at:]
                break
            self._check_order(data[at])
            if control:
                found.append((Opcode(data[at] & OPCODE), data[start : start + size]))
                at = start + size
            else:
                self._left, at = size, start
                if not size:
                    self._add(b"", found)
        return found

    def _add(self, piece: bytes, found: list[tuple[Opcode, bytes]]) -> None:
        if self._most is None:
            if piece:
                found.append((self._message, piece))
            return
        if self._size + len(piece) + self._left > self._most:
            raise Violation(CloseCode.TOO_BIG, f"a message of more than {self._most} bytes")
        if self._left or self._in_message:
            self._hold(piece)
            return
        if self._pieces:
            piece = b"".join((*self._pieces, piece))
            self._pieces, self._size = [], 0
        found.append((self._message, piece))

    def _hold(self, piece: bytes) -> None:
        # A bytearray copied each byte up to nine times while it grew. A list of pieces that are
        # empty or of one byte would take far more than their bytes.
        self._size += len(piece)
        if self._pieces and len(self._pieces[-1]) < _MIN_PIECE:
            self._pieces[-1] += piece
        elif piece:
            self._pieces.append(piece)

    def _check_order(self, first: int) -> None:
        opcode = Opcode(first & OPCODE)
        # Control frames may come between the frames of a message (RFC 6455, 5.4).
        if opcode >= Opcode.CLOSE:
            return
        if self._in_message is not (opcode is Opcode.CONTINUATION):
            raise Violation(CloseCode.PROTOCOL_ERROR, "a message within a message")
        if not self._in_message:
            self._message = opcode
        self._in_message = not first & FIN


def _head(data: bytes, at: int) -> tuple[int | None, int]:
    """Return where the payload of the frame begins, and its size; None: its head is not whole.
    Raises Violation."""
    if len(data) < at + 2:
        return None, 0
    first, second = data[at], data[at + 1]
    opcode, short = first & OPCODE, second & LENGTH
    if first & RESERVED or opcode not in OPCODES:
        raise Violation(CloseCode.PROTOCOL_ERROR, "reserved bits or an unknown opcode")
    if second & MASKED:
        raise Violation(CloseCode.PROTOCOL_ERROR, "a frame of a server with a mask")
    if opcode >= Opcode.CLOSE and (not first & FIN or short > MAX_CONTROL):
        raise Violation(CloseCode.PROTOCOL_ERROR, "a control frame in parts or too long")
    long = 2 if short == 126 else 8 if short == 127 else 0
    start = at + 2 + long
    if len(data) < start:
        return None, 0
    return start, int.from_bytes(data[at + 2 : start], "big") if long else short


def frame(opcode: Opcode, payload: bytes = b"") -> bytes:
    """Return a control frame of a client, which is masked."""
    mask = os.urandom(_MASK_BYTES)
    masked = bytes(byte ^ mask[at % _MASK_BYTES] for at, byte in enumerate(payload))
    return bytes((FIN | opcode, MASKED | len(payload))) + mask + masked


class Closed(Exception):
    """The server closed with another code than that of an end."""


class WebSocket(Closing):
    """One WebSocket, after its handshake. `received`: what came right behind that. `was_unread`:
    its reader stayed away for so long that the server may have cut it for that alone."""

    def __init__(
        self, connection: socket.socket, received: bytes = b"", *, are_several: bool = False
    ) -> None:
        """`are_several`: another address can go on with it."""
        self.socket = connection
        self._received = received
        self.was_unread = False
        self._read_at = time.monotonic()
        self._close_code: CloseCode | None = CloseCode.OK
        """What `close` sends; None: the server closed first, and has its answer."""
        connection.settimeout(QUIET_OF_SEVERAL_SECONDS if are_several else QUIET_SECONDS)

    def pieces(self) -> Iterator[tuple[Opcode, bytes]]:
        """Yield the pieces of text and binary messages until the server closes with 1000.

        Raises Closed, Violation, OSError; a TimeoutError when the server answers no ping.
        """
        reader = FrameReader()
        while data := self._receive():
            for opcode, payload in self._checked(reader, data):
                if opcode is Opcode.CLOSE:
                    self._close_code = None
                    # A close frame is answered with its code (RFC 6455, 5.5.1).
                    self._answer(frame(Opcode.CLOSE, payload[:2]))
                    if int.from_bytes(payload[:2], "big") != CloseCode.OK:
                        raise Closed
                    return
                if opcode is Opcode.PING:
                    self._answer(frame(Opcode.PONG, payload))
                elif opcode is not Opcode.PONG:
                    yield opcode, payload
        raise ConnectionResetError

    def _receive(self) -> bytes:
        if self._received:
            received, self._received = self._received, b""
            return received
        if time.monotonic() - self._read_at > UNREAD_SECONDS:
            self.was_unread = True
        try:
            return self.socket.recv(READ_BYTES)
        except TimeoutError:
            self.socket.sendall(frame(Opcode.PING))
            return self.socket.recv(READ_BYTES)  # bytes of any kind are as good as its answer
        finally:
            self._read_at = time.monotonic()

    def _checked(self, reader: FrameReader, data: bytes) -> list[tuple[Opcode, bytes]]:
        try:
            return reader.feed(data)
        except Violation as error:
            # The server learns from its close frame which rule it broke (RFC 6455, 7.4.1).
            self._close_code = error.code
            raise

    def _answer(self, data: bytes) -> None:
        """Answer a control frame. A server that is gone needs no answer, and what it sent before is
        there to be read."""
        with suppress(OSError):
            self.socket.sendall(data)

    def close(self) -> None:
        """Leave: the server is told, and not waited for."""
        if self._close_code is not None:
            # The server may be gone already, and nobody waits for its answer.
            with suppress(OSError):
                self.socket.sendall(frame(Opcode.CLOSE, self._close_code.to_bytes(2, "big")))
        self.socket.close()
