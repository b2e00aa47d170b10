"""`CONNECT /v1/ports/{n}`: a way to a port of the job, although no port is published.

Once the job's port has answered on its loopback, the connection becomes a pair of sockets whose
bytes are passed on unread; the end of one direction is passed on too. A port without a listener
gets an ordinary error answer. aiohttp has no part in it: it refuses a CONNECT to a path.

A shim that has the caller's socket can give it to the runner. Else each byte passes through the
shim as well: a process more to wake, twice for each request of a service.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from contextlib import suppress

from common.relay import BUFFER_BYTES, RelayEnd
from fairlead.wire.errors import Refused
from fairlead.wire.runner import (
    MAX_EARLY,
    SOCKET_NOT_TAKEN,
    SOCKET_OFFERED,
    SOCKET_TAKEN,
    SOCKET_WANTED,
    SOCKETS,
    early_in,
)

BEGIN = b"CONNECT "
LOOPBACKS = ("127.0.0.1", "::1")
CONNECT_SECONDS = 10.0
OFFER_SECONDS = 10.0
"""Seconds for the shim to give the socket that it has offered."""
_MAX_HEAD = 8192
_END_OF_HEAD = b"\r\n\r\n"
_TARGET = re.compile(rb"CONNECT (?:/v1/ports/)?([0-9]{1,9}) HTTP/1\.[01]\r\n", re.ASCII)
_QUESTION = re.compile(rb"CONNECT %b HTTP/1\.[01]\r\n" % SOCKETS.encode(), re.ASCII)
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n"
_PHRASES = {400: "Bad Request", 502: "Bad Gateway"}
# A linger of 0 s makes close(2) reset the connection (socket(7)).
_RESET = struct.pack("ii", 1, 0)


class Relay:
    """All relayed connections of one runner; `open` counts those that reached the job, by port."""

    def __init__(self) -> None:
        self._ends: set[RelayEnd] = set()
        self.open: dict[int, int] = {}

    def make_protocol(self) -> asyncio.Protocol:
        return _Near(self)

    def close(self) -> None:
        for end in tuple(self._ends):
            end.abort()

    def came(self, end: RelayEnd) -> None:
        self._ends.add(end)

    def left(self, end: RelayEnd) -> None:
        self._ends.discard(end)

    def count(self, port: int, difference: int) -> None:
        self.open[port] = self.open.get(port, 0) + difference
        if not self.open[port]:
            del self.open[port]


class _Near(RelayEnd):
    """The caller's side: names the port, and waits until it is connected."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._head = bytearray()
        self._dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._relay.came(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        self._head += data
        if self._dialing is None:
            self._look_at_head()
        elif len(self._head) > BUFFER_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        if self.other is None and self._dialing is not None:
            self.has_ended = True
            # asyncio closes the transport unless this is true: the answer is still to come.
            return True
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.left(self)
        if self._dialing is not None:
            self._dialing.cancel()
        super().connection_lost(exc)

    def _look_at_head(self) -> None:
        end = self._head.find(_END_OF_HEAD)
        if end < 0 and len(self._head) <= _MAX_HEAD:
            return
        head = bytes(self._head[: end + 2])
        del self._head[: end + len(_END_OF_HEAD)]
        if _QUESTION.match(head):
            self._dialing = asyncio.create_task(self._show())
            return
        try:
            port = _port(head if end >= 0 else b"")
        except Refused as refused:
            self._refuse(refused)
            return
        # What the caller has sent already is here: its socket alone would lose it.
        is_offered = b"\r\n" + SOCKET_OFFERED + b"\r\n" in head and not self._head
        self._dialing = asyncio.create_task(self._dial(port, is_offered))

    async def _dial(self, port: int, is_offered: bool) -> None:
        try:
            far = await _reach(port, self._relay)
        except Refused as refused:
            self._refuse(refused)
            return
        if is_offered and not (self._head or self.has_ended):
            try:
                if await self._is_taken_out(far):
                    return
            # The shim may have let its socket go or not: nobody can go on with it.
            except (OSError, ValueError, TimeoutError):
                far.abort()
                self.abort()
                return
            except BaseException:
                far.abort()  # nobody else has this connection
                raise
        else:
            self.write(_ESTABLISHED + b"\r\n")
        self.other, far.other = far, self
        far.write(bytes(self._head))
        self._head.clear()
        if self.has_ended:
            far.write_eof()
        if self.transport is not None:
            self.transport.resume_reading()
        far.begin()

    async def _show(self) -> None:
        """Show whether a socket that is given can be used here."""
        try:
            caller, _ = await self._offered()
            if caller is not None:
                with caller:
                    # A security module may hand a socket over, and refuse each use of it.
                    caller.send(caller.recv(1, socket.MSG_DONTWAIT), socket.MSG_DONTWAIT)
            self.write(SOCKET_NOT_TAKEN if caller is None else SOCKET_TAKEN)
        except (OSError, ValueError, TimeoutError):
            self.abort()
        self._dialing = None
        self.close()

    async def _offered(self) -> tuple[socket.socket | None, bytes]:
        """Ask for the caller's socket; return it, if it came, and the caller's first bytes. Raises
        OSError, ValueError."""
        assert self.transport is not None
        # The transport would read the message, and leave the socket that comes with it.
        self.transport.pause_reading()
        self.write(_ESTABLISHED + SOCKET_WANTED + b"\r\n\r\n")
        return await _received(self.transport)

    async def _is_taken_out(self, far: _Far) -> bool:
        """Take the caller's socket from the shim, and join it with `far`. Return whether it came:
        what comes on this connection is the caller's otherwise. Raises OSError, ValueError."""
        caller, early = await self._offered()
        if caller is None:
            self.write(SOCKET_NOT_TAKEN)
        else:
            near = await _joined(self._relay, caller)
            near.other, far.other = far, near
            self._dialing = None
            self.write(SOCKET_TAKEN)
            self.close()
        far.write(early)
        if caller is not None:
            far.begin()
        return caller is not None

    def _refuse(self, refused: Refused) -> None:
        body = refused.body()
        head = (
            f"HTTP/1.1 {refused.status} {_PHRASES[refused.status]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self.write(head.encode() + body)
        self.close()


class _Given(RelayEnd):
    """The caller's side when the shim gave its socket."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._relay.came(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.left(self)
        super().connection_lost(exc)


class _Far(RelayEnd):
    """The job's side. It reads nothing before the caller knows that it is connected."""

    def __init__(self, relay: Relay, port: int) -> None:
        super().__init__()
        self._relay = relay
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._relay.count(self._port, 1)
        assert self.transport is not None
        self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.count(self._port, -1)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Break the connection, so that the job does not see an ordinary end."""
        if self.transport is not None:
            connection = self.transport.get_extra_info("socket")
            with suppress(OSError):
                # With no time to linger, close sends a reset in place of an end (socket(7)).
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        super().abort()

    def begin(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


async def _received(transport: asyncio.Transport) -> tuple[socket.socket | None, bytes]:
    """Return the socket of the next message, if one came with it, and the caller's first bytes.
    Raises OSError, ValueError."""
    loop = asyncio.get_running_loop()
    # asyncio lets nobody watch a transport's own descriptor.
    number = os.dup(transport.get_extra_info("socket").fileno())
    with socket.socket(fileno=number) as connection:
        readable = loop.create_future()
        loop.add_reader(number, _wake, readable)
        try:
            async with asyncio.timeout(OFFER_SECONDS):
                await readable
        finally:
            loop.remove_reader(number)
        # No program that is started meanwhile may inherit what comes (recvmsg(2)).
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        data, numbers, _, _ = socket.recv_fds(connection, 2 + MAX_EARLY, 1, flags)
    if not numbers:
        return None, early_in(data)
    try:
        early, caller = early_in(data), socket.socket(fileno=numbers[0])
    except BaseException:
        # A descriptor that came has no owner but this function: it would stay open.
        os.close(numbers[0])
        raise
    caller.setblocking(False)
    return caller, early


async def _joined(relay: Relay, caller: socket.socket) -> _Given:
    loop = asyncio.get_running_loop()
    try:
        _, near = await loop.connect_accepted_socket(lambda: _Given(relay), caller)
    except BaseException:
        caller.close()
        raise
    return near


def _wake(readable: asyncio.Future[None]) -> None:
    # The loop calls this in each of its turns until the waiting task has run and removed it.
    if not readable.done():
        readable.set_result(None)


def _port(head: bytes) -> int:
    match = _TARGET.match(head)
    port = int(match[1]) if match else 0
    if not 1 <= port <= 65535:
        raise Refused(400, "invalid", "ask for CONNECT /v1/ports/{1..65535}", "port")
    return port


async def _reach(port: int, relay: Relay) -> _Far:
    """Connect to the port. Raises Refused."""
    loop = asyncio.get_running_loop()
    refused = False
    # A server that was told `localhost` may listen on either of them alone.
    for host in LOOPBACKS:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, far = await loop.create_connection(lambda: _Far(relay, port), host, port)
        except OSError as error:
            refused |= isinstance(error, ConnectionRefusedError)
        else:
            return far
    hosts = " or ".join(LOOPBACKS)
    if refused:
        message = f"nothing listens on port {port} of the job ({hosts})"
        raise Refused(502, "port_refused", message, "port")
    message = f"port {port} of the job ({hosts}) did not answer"
    raise Refused(502, "port_unreachable", message, "port")
