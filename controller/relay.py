"""Accepts connections for the controller that leads, while this one waits.

So any address of the controllers works, for requests, streams, terminals and services alike. A
connection goes to what serves followers' clients; or it is carried on byte by byte, to a leader
that takes requests in no other way. While nobody leads, what serves requests holds them; without
it, a connection is held until somebody leads, which may be this controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from common.links.dialling import dial
from fairlead.connections.vanished import end_when_vanished

T = TypeVar("T")

log = logging.getLogger(__name__)

HOLD_SECONDS = 30.0
"""How long a connection, and what goes on at the next leader, wait for a leader."""
CONNECT_SECONDS = 1.5
"""A lost SYN is repeated after 1 s (RFC 6298)."""
STALLED_SECONDS = 300.0
"""So long a leader may take nothing that is written to it: its disk or bucket may be slow."""
LEFT_SECONDS = 3.0
"""The same for one that leads no more, which may be paused."""
_MAX_CONNECTIONS = 10_000
_RETRY_SECONDS = 0.1
_PIECE_BYTES = 64 << 10
_BACKLOG = 128
_PAUSE_SECONDS = 1.0


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """Where the leader is. `id`: of its process, which is another one after each start."""

    id: str
    host: str
    port: int
    is_secure: bool
    is_own: bool = False
    """It is this controller's own server."""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_secure else ''}://{host}:{self.port}"


def leader_at(url: str, peer_id: str = "", *, is_own: bool = False) -> Leader:
    """Raises ValueError."""
    host, port = address_of(url)
    return Leader(
        id=peer_id, host=host, port=port, is_secure=url.startswith("https:"), is_own=is_own
    )


class RequestServer(Protocol):
    """What passes requests on to the leader, one by one."""

    def lead_to(self, leader: Leader | None) -> None: ...
    async def can_serve(self, leader: Leader) -> bool:
        """Return whether this leader takes requests in this way. Raises OSError, TimeoutError."""

    async def take(self, connection: socket.socket) -> None:
        """Serve this connection from now on."""


class Relay:
    """Serves a listening socket. `lead_to` says where the leader is; it may be called at any time.
    `requests`: what connections are given to; None: they are carried byte by byte."""

    def __init__(
        self, hold_seconds: float = HOLD_SECONDS, requests: RequestServer | None = None
    ) -> None:
        self._hold_seconds = hold_seconds
        self._requests = requests
        self._leader: Leader | None = None
        self._over = asyncio.Event()
        self._listening: socket.socket | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self._arriving: set[asyncio.Task[None]] = set()
        """Of those, the ones whose connection is still here alone."""

    def serve_with(self, requests: RequestServer | None) -> None:
        """Give connections to this from now on. Call it while nobody is led to."""
        self._requests = requests

    def lead_to(self, leader: Leader | None) -> None:
        """Bring new connections to this controller; None: hold them."""
        if leader != self._leader:
            self._over.set()
            self._over = asyncio.Event()
        self._leader = leader
        if self._requests is not None:
            self._requests.lead_to(leader)

    async def listen(self, listening: socket.socket) -> None:
        """Serve a copy of the socket; the socket itself stays the caller's. It may be called again
        after `hand_over`."""
        self._listening = listening.dup()
        self._listening.setblocking(False)
        self._begin_accepting()

    async def take_back(self, listening: socket.socket) -> None:
        """Serve the socket again after `hand_over`, and hold what comes until there is a leader."""
        self.lead_to(None)
        await self.listen(listening)

    def hand_over(self, url: str) -> None:
        """Leave new connections to the server at this address, which has a copy of the socket, and
        carry to it those that are held.

        In this order: else a carried connection could arrive here again.
        """
        self._stop_listening()
        self.lead_to(leader_at(url, is_own=True))

    def _begin_accepting(self) -> None:
        self._pause = None
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _stop_listening(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def accept_no_more(self) -> None:
        """Take what waits in the socket's queue, and nothing after that. The caller closes the
        socket before it awaits anything: a connection that came later would be reset."""
        if self._pause is None:
            while self._accept():
                pass
        self._stop_listening()

    async def until_given_away(self, seconds: float) -> None:
        """Return when each connection that was accepted is served, or after so long."""
        if self._arriving:
            await asyncio.wait(self._arriving, timeout=seconds)

    async def close(self) -> None:
        """End everything; may be called twice."""
        self._stop_listening()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def _accept(self) -> bool:
        """Take what waits in the socket's queue; return whether more may wait there. Nothing may be
        awaited between: a connection that was taken while this stops would be lost."""
        listening = self._listening
        for _ in range(_BACKLOG):
            if listening is None:
                return False
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                # The client has left, or another process was faster (accept(2)).
                return False
            except (InterruptedError, ConnectionAbortedError):
                continue  # the client left before it was accepted
            except OSError as error:
                # Too many open files: the queue stays, and the loop would spin.
                log.warning("no connection can be accepted now: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                self._pause = loop.call_later(_PAUSE_SECONDS, self._begin_accepting)
                return False
            if len(self._carrying) >= _MAX_CONNECTIONS:
                connection.close()
                continue
            connection.setblocking(False)
            task = asyncio.create_task(self._accepted(connection))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)
        return True

    async def _accepted(self, connection: socket.socket) -> None:
        until = asyncio.get_running_loop().time() + self._hold_seconds
        try:
            while True:
                leader = self._leader
                if await self._is_served(leader):
                    await self._give_away(connection)
                    return
                if leader is not None:
                    # The database names a leader until its lease runs out, also one that is dead.
                    with contextlib.suppress(OSError, TimeoutError):
                        upstream = await while_it_leads(_connected(leader), self._over)
                        break
                if asyncio.get_running_loop().time() >= until or _has_left(connection):
                    connection.close()
                    return
                # A leader that has just died is still the last one that was seen.
                await asyncio.sleep(_RETRY_SECONDS)
        except BaseException:
            # Also when it is cancelled: the connection belongs to nobody else yet.
            connection.close()
            raise
        if (task := asyncio.current_task()) is not None:
            self._arriving.discard(task)
        await _carry(connection, upstream, self._over)

    async def _is_served(self, leader: Leader | None) -> bool:
        """Return whether the connection's requests are served one by one. So they are while no
        leader answers: then each is held, and its client is told why it was not done."""
        if self._requests is None:
            return False
        try:
            return leader is None or await self._requests.can_serve(leader)
        except (OSError, TimeoutError):
            return True

    async def _give_away(self, connection: socket.socket) -> None:
        assert self._requests is not None
        await self._requests.take(connection)


def _has_left(connection: socket.socket) -> bool:
    """Return whether the client ended before it said anything."""
    try:
        # No bytes at a socket that can be read are its end (recv(2)).
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        # The socket is open and has nothing to read yet (EAGAIN).
        return False
    # The client has reset the connection (ECONNRESET).
    except OSError:
        return True


async def while_it_leads(work: Coroutine[Any, Any, T], over: asyncio.Event) -> T:
    """Return what this returns. Raises what it raises, and ConnectionResetError once `over` is set:
    a leader whose machine vanished takes no connection, and its successor may lead by now."""
    working = asyncio.create_task(work)
    ended = asyncio.create_task(over.wait())
    try:
        await asyncio.wait((working, ended), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ConnectionResetError("it leads no more")
        return working.result()
    finally:
        for task in (working, ended):
            task.cancel()
        await asyncio.gather(working, ended, return_exceptions=True)


async def _connected(leader: Leader) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError, TimeoutError."""
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await dial(
            leader.host, leader.port, partial(asyncio.open_connection, port=leader.port)
        )
    end_when_vanished(writer.transport)
    return reader, writer


async def drained(writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
    """Wait until the leader takes more. `over` is set once it leads no more. Raises OSError when it
    takes nothing for too long."""
    now = asyncio.get_running_loop().time
    until = now() + STALLED_SECONDS
    while True:
        try:
            async with asyncio.timeout(LEFT_SECONDS):
                await writer.drain()
            return
        except TimeoutError:
            if over.is_set() or now() >= until:
                writer.transport.abort()
                raise


async def _carry(
    connection: socket.socket,
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    over: asyncio.Event,
) -> None:
    """`over` is set once the other end leads no more."""
    up_reader, up_writer = upstream
    try:
        reader, writer = await asyncio.open_connection(sock=connection)
    except BaseException:
        # Also when it is cancelled, or the client has left: both connections are nobody else's.
        connection.close()
        up_writer.close()
        raise
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, up_writer, partial(drained, up_writer, over)))
            group.create_task(_pump(up_reader, writer, writer.drain))
    # Either side may reset the connection: then the other one is closed, too.
    except* OSError:
        pass
    finally:
        up_writer.close()
        # Not abort(): what was read of the leader may still be on its way to the client.
        writer.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drain: Callable[[], Awaitable[None]]
) -> None:
    """Carry one direction to its end. `drain` waits for the writer. Raises OSError when the other
    side is gone."""
    while data := await reader.read(_PIECE_BYTES):
        writer.write(data)
        await drain()
    # A client may close its half and still wait for the answer (RFC 9112, 9.6).
    if writer.can_write_eof():
        with contextlib.suppress(OSError):
            # The other side may have closed all of it meanwhile (ENOTCONN, shutdown(2)).
            writer.write_eof()


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of `http[s]://HOST[:PORT]`. Raises ValueError for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    # urlsplit raises it for a port that is no number, and for half of an IPv6 address.
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https") or parts.path.strip("/"):
        raise ValueError("it is no http[s]://HOST[:PORT]")
    return host, port or (443 if parts.scheme == "https" else 80)
