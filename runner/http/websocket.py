"""The server's end of a WebSocket (RFC 6455) whose client has nothing to say.

What a client sends is checked; pings and its close are answered, and messages are thrown away
without being held. Nothing is compressed: for a unix socket that would only cost CPU time of the
job.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from fairlead.wire.errors import Refused
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
    frame_head,
)

CLOSING_SECONDS = 5.0
"""Seconds for which a peer may leave a close unanswered."""
MAX_MESSAGE = 4 << 20
_KEY_BYTES = 16
_VERSIONS = ("13", "8", "7")
_JOINED = 1 << 12
"""Below this size, one write of a copy costs less than two writes."""


def accept_key(headers: Mapping[str, str]) -> str:
    """Return what the answer to a handshake with these headers says; their names are in lower case.
    Raises Refused when it is none."""
    asks = (
        headers.get("upgrade", "").lower() == "websocket"
        and "upgrade" in headers.get("connection", "").lower()
        and headers.get("sec-websocket-version") in _VERSIONS
    )
    key = headers.get("sec-websocket-key", "")
    # A key that is no base64 is refused as one of another length is (RFC 6455, 4.2.1).
    with suppress(binascii.Error):
        if asks and len(binascii.a2b_base64(key.encode())) == _KEY_BYTES:
            return accept_of(key)
    raise Refused(400, "not_a_websocket", "this is a WebSocket: request an upgrade")


class FrameReader:
    """Reads a client's frames; holds no more than the head or the payload of one control frame.

    `feed` returns control frames in their order. It raises Violation, after which it must not be
    fed again.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._to_skip = 0
        self._message_bytes = 0
        self._in_message = False

    def feed(self, data: bytes) -> list[tuple[Opcode, bytes]]:
        found = []
        rest = memoryview(data)
        while rest or self._held:
            skipped = min(self._to_skip, len(rest))
            self._to_skip -= skipped
            rest = rest[skipped:]
            wanted = self._size_of_head()
            if wanted > len(self._held):
                taken = rest[: wanted - len(self._held)]
                self._held += taken
                rest = rest[len(taken) :]
                if not taken:
                    break
                continue
            if (control := self._frame()) is not None:
                found.append(control)
        return found

    def _size_of_head(self) -> int:
        """Return the bytes that have to be held, as far as those that are held tell."""
        held = self._held
        if len(held) < 2:
            return 2
        self._check_start(held[0], held[1])
        short = held[1] & LENGTH
        head = 2 + 4 + (2 if short == 126 else 8 if short == 127 else 0)
        return head + (short if held[0] & 0x08 else 0)

    def _check_start(self, first: int, second: int) -> None:
        opcode, length = first & OPCODE, second & LENGTH
        if first & RESERVED or opcode not in OPCODES:
            raise Violation(CloseCode.PROTOCOL_ERROR, "reserved bits or an unknown opcode")
        if not second & MASKED:
            raise Violation(CloseCode.PROTOCOL_ERROR, "a frame without a mask")
        if opcode >= Opcode.CLOSE:
            if not first & FIN or length > MAX_CONTROL:
                raise Violation(CloseCode.PROTOCOL_ERROR, "a control frame in parts or too long")
        elif self._in_message is not (opcode == Opcode.CONTINUATION):
            raise Violation(CloseCode.PROTOCOL_ERROR, "a message within a message")

    def _frame(self) -> tuple[Opcode, bytes] | None:
        """Take the head that is held, of a control frame with its payload."""
        held = bytes(self._held)
        self._held.clear()
        opcode, short = Opcode(held[0] & OPCODE), held[1] & LENGTH
        if opcode >= Opcode.CLOSE:
            mask, payload = held[2:6], held[6:]
            return opcode, bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        size = short
        if short >= 126:
            size = int.from_bytes(held[2 : 4 if short == 126 else 10], "big")
        self._message_bytes += size
        if self._message_bytes > MAX_MESSAGE:
            raise Violation(CloseCode.TOO_BIG, f"a message of more than {MAX_MESSAGE} bytes")
        self._in_message = not held[0] & FIN
        if not self._in_message:
            self._message_bytes = 0
        self._to_skip = size
        return None


class WebSocket:
    """One WebSocket, after its handshake. `drain` returns when the transport takes more, or raises
    ConnectionError. `left` is done when the peer has closed or is gone."""

    def __init__(self, transport: asyncio.Transport, drain: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._drain = drain
        self._reader = FrameReader()
        self._closed = False
        self._pong: bytes | None = None
        self.is_paused = False
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send_text(self, text: str) -> None:
        await self._send(Opcode.TEXT, text.encode())

    async def send_bytes(self, data: bytes) -> None:
        await self._send(Opcode.BINARY, data)

    async def close(self, code: int, message: bytes) -> None:
        """Close, and wait until the peer has confirmed that it has everything. A peer that does not
        read holds memory only for the closing time."""
        self._say_close(code.to_bytes(2, "big") + message)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                # A timeout cancels what it waits for, and a cancelled `left` would count as the
                # peer's close.
                await asyncio.shield(self.left)

    def abort(self) -> None:
        self._transport.abort()

    # -- what the connection tells -------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if self.left.done():
            return
        try:
            for opcode, payload in self._reader.feed(data):
                self._obey(opcode, payload)
        except Violation as violation:
            self._say_close(violation.code.to_bytes(2, "big") + str(violation).encode())
            self.gone()

    def gone(self) -> None:
        if not self.left.done():
            self.left.set_result(None)

    def resume(self) -> None:
        self.is_paused = False
        if self._pong is not None:
            pong, self._pong = self._pong, None
            self._write(Opcode.PONG, pong)

    def _obey(self, opcode: Opcode, payload: bytes) -> None:
        # What follows a close frame is discarded (RFC 6455, 1.4).
        if self.left.done():
            return
        if opcode is Opcode.CLOSE:
            if len(payload) == 1:
                raise Violation(CloseCode.PROTOCOL_ERROR, "half a close code")
            self._say_close(payload[:2])
            self.gone()
        elif opcode is Opcode.PING:
            # Only the last of several pings has to be answered (RFC 6455, 5.5.3), so a peer that
            # sends pings and reads nothing fills no buffer.
            if self.is_paused:
                self._pong = payload
            else:
                self._write(Opcode.PONG, payload)

    def _say_close(self, payload: bytes) -> None:
        if not self._closed:
            self._write(Opcode.CLOSE, payload)
            self._closed = True

    async def _send(self, opcode: Opcode, data: bytes) -> None:
        if self.left.done() or self._closed:
            raise ConnectionResetError("the peer has closed the WebSocket")
        self._write(opcode, data)
        await self._drain()

    def _write(self, opcode: Opcode, data: bytes) -> None:
        # Nothing may follow our close frame (RFC 6455, 5.5.1).
        if self._closed or self._transport.is_closing():
            return
        head = frame_head(opcode, len(data))
        if len(data) < _JOINED:
            self._transport.write(head + data)
        else:
            self._transport.write(head)
            # A view: what the socket does not take at once would else be copied to be cut off.
            self._transport.write(memoryview(data))
