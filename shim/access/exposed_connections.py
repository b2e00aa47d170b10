"""Connections to exposed ports: a caller at a socket of the shim, and the port behind the runner of
a task.

Bytes are passed on unread. A runner that can takes a caller's socket over from the shim.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial

from common.relay import BUFFER_BYTES, RelayEnd
from fairlead.wire.runner import (
    MAX_EARLY,
    SOCKET_OFFERED,
    SOCKET_TAKEN,
    SOCKET_WANTED,
    socket_offer,
)
from fairlead.wire.shim import EXPOSED_OK

_MAX_HEAD = 8192
_END_OF_HEAD = b"\r\n\r\n"
_MAX_DIGITS = 5
CONNECT_SECONDS = 15.0


async def takes_one(far: Port) -> bool:
    """Return whether the runner behind this port takes over a socket that it is offered."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.send(b"?")
        if not far.offer(b"", theirs.fileno()) or not await far.has_taken():
            return False
        with contextlib.suppress(OSError):
            # EAGAIN: a runner that says so without the socket has sent nothing back.
            return ours.recv(1) == b"?"
    return False


class Caller(RelayEnd):
    """The side of a gateway or follower. `connect` opens the other one. `tells`: the
    connection begins with a line that says whether that worked."""

    def __init__(self, connect: Callable[..., Awaitable[Port]], *, tells: bool) -> None:
        super().__init__()
        self._connect = connect
        self._tells = tells
        self._early = bytearray()
        self._dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._dialing = asyncio.create_task(self._dial(), name="exposed port")

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        # The other end is not there yet: what a client sends ahead is kept up to a bound, and TCP
        # holds back the rest.
        self._early += data
        if len(self._early) > BUFFER_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        if self.other is None:
            self.has_ended = True
            # asyncio closes the transport unless this is true: the answer is still to come.
            return True
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._dialing is not None:
            self._dialing.cancel()
        super().connection_lost(exc)

    async def _dial(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                far = await self._connect(may_offer=not self._tells)
                if far.wants_socket and await self._is_given_away(far):
                    return
        except (OSError, TimeoutError) as error:
            if self._tells:
                self.write(f"{_sentence(error)}\n".encode())
            self.close()
            return
        self.other, far.other = far, self
        if self._tells:
            self.write(EXPOSED_OK)
        far.write(bytes(self._early))
        self._early.clear()
        if self.has_ended:
            far.write_eof()
        far.begin()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    async def _is_given_away(self, far: Port) -> bool:
        """Give the runner this socket; return False if it can't be given. Raises OSError."""
        if self.transport is None or self.transport.is_closing():
            far.abort()
            raise ConnectionError("the caller is gone")
        # From here on its bytes are the runner's.
        self.transport.pause_reading()
        own = self.transport.get_extra_info("socket")
        early, number = b"", None
        if not self.has_ended and len(self._early) <= MAX_EARLY:
            early, number = bytes(self._early), own.fileno()
            self._early.clear()
        is_given = False
        try:
            is_given = far.offer(early, number)
            taken = await far.has_taken()
            if is_given and not taken:
                raise ConnectionError("the runner did not take the socket")
        except BaseException:
            far.abort()
            if is_given:
                # A runner that holds it would else keep the gateway's connection open.
                with contextlib.suppress(OSError):
                    own.shutdown(socket.SHUT_RDWR)
            raise
        if is_given:
            # Without a shutdown: the runner's descriptor keeps the connection.
            self._dialing = None
            self.close()
            far.close()
        return is_given


class AskingCaller(Caller):
    """A caller whose first line names the port. `connect`: as `Caller`'s, with the port before."""

    def __init__(self, connect: Callable[..., Awaitable[Port]]) -> None:
        super().__init__(connect, tells=True)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        RelayEnd.connection_made(self, transport)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(CONNECT_SECONDS, self.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._dialing is not None or self.other is not None:
            return
        line, newline, rest = self._early.partition(b"\n")
        if not newline and len(self._early) <= _MAX_DIGITS:
            return
        self._stop_waiting()
        port = int(line) if line.isdigit() and len(line) <= _MAX_DIGITS else 0
        if not 1 <= port <= 65535:
            self.write(b"the first line is a port from 1 to 65535\n")
            self.close()
            return
        self._early = rest
        self._connect = partial(self._connect, port)
        self._dialing = asyncio.create_task(self._dial(), name="exposed port")

    def eof_received(self) -> bool:
        # Without a port nothing is to come.
        return self._patience is None and super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class PortRefused(ConnectionRefusedError):
    """The runner answered that it does not connect."""


class Port(RelayEnd):
    """The runner's side: asks for the port, and waits until it is connected. `connected` raises
    ConnectionError. `offers`: the runner may have the caller's socket; then `wants_socket` says
    whether it waits for that."""

    def __init__(self, target: str, *, offers: bool) -> None:
        super().__init__()
        self._target = target
        self._offers = offers
        self._answer: asyncio.Future[bytes] | None = None
        self.wants_socket = False
        self._head = bytearray()
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        offered = SOCKET_OFFERED + b"\r\n" if self._offers else b""
        self.write(b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (self._target.encode(), offered))

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        self._head += data
        if self._answer is not None:
            if self.transport is not None:
                self.transport.pause_reading()
            if not self._answer.done():
                self._answer.set_result(bytes(self._head[:1]))
                del self._head[:1]
            return
        end = self._head.find(_END_OF_HEAD)
        # A job may impersonate its runner and never end its head.
        if end < 0 and len(self._head) <= _MAX_HEAD:
            return
        if self.transport is not None:
            self.transport.pause_reading()
        if end < 0 or b" 200 " not in self._head.partition(b"\r\n")[0]:
            port = self._target.rpartition("/")[2]
            self._fail(PortRefused(f"nothing listens on port {port}"))
            return
        self.wants_socket = self._offers and SOCKET_WANTED in self._head[:end].split(b"\r\n")
        del self._head[: end + len(_END_OF_HEAD)]
        if not self.connected.done():
            self.connected.set_result(None)

    def offer(self, early: bytes, number: int | None) -> bool:
        """Send these first bytes of the caller with its descriptor, if there is one; return whether
        it could be sent. Raises OSError."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionError("the runner gave no answer")
        self._answer = asyncio.get_running_loop().create_future()
        # asyncio's TransportSocket cannot send descriptors; the copy is the same connection.
        with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as way:
            is_sent = _is_sent(way, socket_offer(early), number)
        self.transport.resume_reading()
        return is_sent

    async def has_taken(self) -> bool:
        """Return whether the runner answers the offer so. Raises OSError."""
        assert self._answer is not None, "after an offer"
        return await self._answer == SOCKET_TAKEN

    def eof_received(self) -> bool:
        if self.other is None:
            self._fail(ConnectionError("the runner gave no answer"))
            return False
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError("the runner gave no answer"))
        super().connection_lost(exc)

    def begin(self) -> None:
        """Pass on what came, and what comes."""
        if self.other is not None and self._head:
            self.other.write(bytes(self._head))
            self._head.clear()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            # Nobody may wait for it: asyncio logs an exception that nobody has asked for.
            self._answer.exception()
        if not self.connected.done():
            self.connected.set_exception(error)
            self.connected.exception()  # the caller may be gone


def _is_sent(way: socket.socket, message: bytes, number: int | None) -> bool:
    """Send the message, with the descriptor if the kernel lets it. Raises OSError."""
    if number is not None:
        try:
            socket.send_fds(way, [message], [number])
            return True
        except OSError as error:
            # As many as this user may open wait in sockets that nobody reads (unix(7)). A job that
            # impersonates its runner brings that about, and must harm no other one by it.
            if error.errno != errno.ETOOMANYREFS:
                raise
    way.send(message)
    return False


def _sentence(error: OSError | TimeoutError) -> str:
    return " ".join(str(error).split()) or "its runner does not answer"
