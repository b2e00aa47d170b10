"""HTTP and byte streams over channels of an SSH connection to unix sockets on the node.

aiohttp gets a connector that opens one channel for each connection. A lost SSH connection raises
the errors that aiohttp's callers expect. `_create_connection` is the one method that aiohttp's
reference has a connector override; it names not all of its parameters, so `daemons/pyproject.toml`
pins aiohttp's minor version.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterable
from typing import Any, cast, overload

import aiohttp
import asyncssh
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest, ConnectionKey
from aiohttp.tracing import Trace

from common.kept_connections import IDLE_SECONDS
from common.streams import SocketUnreachable

_WINDOW_BYTES = 4 << 20
_STREAM_WINDOW_BYTES = 1 << 20
"""The buffer of a stream to a port: a client that reads nothing makes the controller keep it."""
_STREAM_BUFFER_BYTES = 128 << 10
_SMALL_BYTES = 4096
CHANNEL_ERRORS = (asyncssh.Error, AssertionError)
"""The errors that asyncssh raises from a channel. It asserts that a channel has its connection even
if the connection was just closed, because a task that awaits the channel wakes after that."""


class ChannelTransport(asyncio.Transport):
    """An SSH channel as the transport of a protocol.

    What comes while the protocol reads nothing is held here, up to twice the channel's window.
    asyncssh (2.24) opens the window anew at the first piece that it delivers, whatever it holds
    beside that: paused and resumed for each piece, it kept 3.1 GiB of 5 GB for a disk that was
    slower than the node. So the channel is resumed only when nothing is held, and delivers all of
    its own before it is paused again.
    """

    def __init__(self, channel: asyncssh.SSHUNIXChannel[bytes], protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._channel = channel
        self._protocol: asyncio.Protocol = protocol
        self._closing = False
        self._lost = False
        # A list, of at most 256 pieces of 32 KiB: an empty deque takes 700 bytes, and each node has
        # three of these.
        self._held: list[bytes] = []
        self._wants_nothing = self._is_stopped = self._delivers = False
        self._at_end: Callable[[], None] | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # aiohttp sets options of TCP on a socket that it is told; this is a channel within one.
        return None if name in ("socket", "sslcontext", "ssl_object") else default

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._held.clear()
            self._channel.close()

    def abort(self) -> None:
        self._closing = True
        self._held.clear()
        self._channel.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write; data for a lost connection is dropped, as in every transport. The protocol learns
        of it by `connection_lost`."""
        if not self._closing:
            # asyncssh raises it for a channel that the other side closed a moment ago.
            with contextlib.suppress(BrokenPipeError):
                self._channel.write(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing:
            with contextlib.suppress(BrokenPipeError):
                self._channel.write_eof()

    def pause_reading(self) -> None:
        self._wants_nothing = True

    def resume_reading(self) -> None:
        """Resume reading; aiohttp may call this on a lost channel."""
        self._wants_nothing = False
        # aiohttp pauses and resumes within `data_received`: the outer call goes on delivering.
        if self._delivers:
            return
        self._delivers = True
        try:
            self._deliver()
        finally:
            self._delivers = False

    def is_reading(self) -> bool:
        return not (self._closing or self._wants_nothing)

    def received(self, data: bytes) -> None:
        """Give the data to the protocol, or hold it until the protocol reads again."""
        if not (self._held or self._wants_nothing):
            self._protocol.data_received(data)
            return
        self._held.append(data)
        if not (self._is_stopped or self._delivers):
            self._is_stopped = True
            self._channel.pause_reading()

    def ended(self, at_end: Callable[[], None]) -> None:
        """Call `at_end` when the protocol has all that came."""
        # The end must not overtake data that a slow reader has not taken yet.
        if self._held:
            self._at_end = at_end
        else:
            at_end()

    def _deliver(self) -> None:
        while not (self._wants_nothing or self._closing):
            if self._held:
                self._protocol.data_received(self._held.pop(0))
            elif self._at_end is not None:
                at_end, self._at_end = self._at_end, None
                at_end()
            elif self._is_stopped and not self._lost:
                self._is_stopped = False
                self._channel.resume_reading()
            else:
                return
        # What came during the delivery was held without a pause, and the protocol wants no more.
        if self._held and not (self._is_stopped or self._lost or self._closing):
            self._is_stopped = True
            self._channel.pause_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if not self._lost:
            self._channel.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._channel.get_write_buffer_size()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def lost(self) -> None:
        """Note that the channel is gone and must not be used; the protocol gets what is held."""
        self._closing = self._lost = True
        while self._held:
            self._protocol.data_received(self._held.pop(0))


class _ChannelSession(asyncssh.SSHUNIXSession[bytes]):
    """Feeds a protocol. `stays_half_open`: the end of what comes leaves the other way open."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        acknowledge: Callable[[], None],
        heard: Callable[[], None],
        *,
        stays_half_open: bool = False,
    ) -> None:
        self._first_protocol = protocol
        self._acknowledge = acknowledge
        self._heard = heard
        self._stays_half_open = stays_half_open
        self._transport: ChannelTransport | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def transport(self) -> ChannelTransport:
        assert self._transport is not None
        return self._transport

    @property
    def _protocol(self) -> asyncio.Protocol:
        if self._transport is None:
            return self._first_protocol
        return cast(asyncio.Protocol, self._transport.get_protocol())

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        self._transport = ChannelTransport(chan, self._first_protocol)

    def session_started(self) -> None:
        assert self._transport is not None
        self._protocol.connection_made(self._transport)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        assert self._transport is not None
        self._heard()
        # TCP_QUICKACK holds for a moment only (tcp(7)), so it is set again for each small piece.
        if len(data) < _SMALL_BYTES:
            self._acknowledge()
        self._transport.received(data)

    def eof_received(self) -> bool:
        """Close the channel, as asyncio closes sockets, without sending an own end first.

        That saves one packet for each of thousands of channels that end together.
        """
        assert self._transport is not None
        self._transport.ended(self._end)
        return True

    def _end(self) -> None:
        self._protocol.eof_received()
        if self._transport is not None and not self._stays_half_open:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport.lost()
        self._protocol.connection_lost(as_os_error(exc))

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class SshUnixConnector(aiohttp.BaseConnector):
    """Opens one streamlocal channel for each HTTP connection.

    A lost SSH connection or a refused channel is an `aiohttp.ClientConnectorError`, as in any other
    connector. `heard` is called whenever bytes came.
    """

    def __init__(
        self,
        ssh: asyncssh.SSHClientConnection,
        path: str,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(keepalive_timeout=IDLE_SECONDS)
        self._ssh = ssh
        self._path = path
        self._heard = heard
        self._acknowledge = acknowledger(ssh)

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the name is aiohttp's
    ) -> ResponseHandler:
        protocol = ResponseHandler(asyncio.get_running_loop())
        session = _ChannelSession(protocol, self._acknowledge, self._heard)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                await _opened(self._ssh, self._path, session, _WINDOW_BYTES)
        except (*CHANNEL_ERRORS, OSError) as error:
            raise ChannelFailed(req.connection_key, as_os_error(error), self._path) from error
        return protocol


def acknowledger(ssh: asyncssh.SSHClientConnection) -> Callable[[], None]:
    """Return a function that acknowledges at once what came: sshd leaves Nagle's algorithm on for
    what it forwards.

    A second small packet would wait for the kernel's delayed acknowledgement of the first, 40 ms.
    """
    own: Any = ssh.get_extra_info("socket")

    def acknowledge() -> None:
        with contextlib.suppress(OSError):
            # Each time, because the kernel goes back to delayed ones by itself (tcp(7)).
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    return acknowledge


class ChannelFailed(aiohttp.ClientConnectorError):
    """The socket could not be reached; the message names it, because aiohttp's would name a
    host."""

    def __init__(self, key: ConnectionKey, error: OSError, path: str) -> None:
        super().__init__(key, error)
        self._path = path

    def __str__(self) -> str:
        return not_opened(self._path, self.strerror or "it was lost")


def not_opened(path: str, why: str) -> str:
    """Return the message about a socket to which sshd opened no channel."""
    return (
        f"the node's sshd did not open {path} ({why}); does it exist, and may "
        f"the tunnel user open it?"
    )


@overload
def as_os_error(error: Exception) -> OSError: ...


@overload
def as_os_error(error: None) -> None: ...


def as_os_error(error: Exception | None) -> OSError | None:
    """Return the error as OSError: asyncssh's errors are not ClientErrors, which users of aiohttp
    expect."""
    match error:
        case None | OSError():
            return error
        # asyncssh asserts that a channel has its connection, which may be closed in the same turn.
        case AssertionError():
            return ConnectionResetError(errno.ECONNRESET, "the SSH connection was closed")
        case _:
            return ConnectionResetError(errno.ECONNRESET, str(error) or type(error).__name__)


async def open_stream(
    ssh: asyncssh.SSHClientConnection, path: str, heard: Callable[[], None] = lambda: None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a byte stream. `heard` is called whenever bytes came. Raises SocketUnreachable."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(_STREAM_BUFFER_BYTES, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    session = _ChannelSession(protocol, lambda: None, heard, stays_half_open=True)
    await _open(ssh, path, session)
    return reader, asyncio.StreamWriter(session.transport, protocol, reader, loop)


async def connect_protocol(
    ssh: asyncssh.SSHClientConnection,
    path: str,
    make: Callable[[], asyncio.Protocol],
    heard: Callable[[], None] = lambda: None,
) -> ChannelTransport:
    """Connect the protocol. `heard` is called whenever bytes came. Raises SocketUnreachable."""
    session = _ChannelSession(make(), acknowledger(ssh), heard)
    await _open(ssh, path, session)
    return session.transport


async def _open(ssh: asyncssh.SSHClientConnection, path: str, session: _ChannelSession) -> None:
    """Raises SocketUnreachable."""
    try:
        await _opened(ssh, path, session, _STREAM_WINDOW_BYTES)
    except (*CHANNEL_ERRORS, OSError) as error:
        why = as_os_error(error).strerror or str(error)
        raise SocketUnreachable(not_opened(path, why)) from error


class _Unwanted(asyncssh.SSHUNIXSession[bytes]):
    """Closes a channel that nobody waits for any more as soon as it is open."""

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        self._channel = chan

    def session_started(self) -> None:
        self._channel.abort()


async def _opened(
    ssh: asyncssh.SSHClientConnection, path: str, session: _ChannelSession, window: int
) -> None:
    """Open a channel for the session. A caller that is cancelled leaves none behind. Raises
    CHANNEL_ERRORS, OSError."""
    is_wanted = True

    async def open_it() -> None:
        await ssh.create_unix_connection(
            lambda: session if is_wanted else _Unwanted(), path, window=window
        )

    def close_late(opening: asyncio.Task[None]) -> None:
        # It opened in the moment in which the caller was cancelled.
        if not opening.cancelled() and opening.exception() is None and session.is_open:
            session.transport.abort()

    # In a task of its own: asyncssh (2.24) forgets a channel whose opening is cancelled, and the
    # node's sshd keeps its end, with the connection to the socket, until the link ends.
    opening = asyncio.create_task(open_it())
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        is_wanted = False
        opening.add_done_callback(close_late)
        raise
