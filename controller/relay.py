"""Carries connections to the controller that leads, byte by byte, while this one waits.

So any address of the controllers works, for requests, streams, terminals and services alike, and
TLS stays between the client and the leader. A connection that comes while nobody leads is held: it
is carried on as soon as somebody does, which may be this controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

from fairlead.connections.keepalives import notice_the_gone

HOLD_SECONDS = 30.0
"""How long a connection waits for a leader."""
_MAX_CONNECTIONS = 10_000
_RETRY_SECONDS = 0.1
_CONNECT_SECONDS = 1.5
"""A lost SYN is repeated after 1 s (RFC 6298)."""
_PIECE_BYTES = 64 << 10


class Relay:
    """Serves a listening socket. `lead_to` says where the leader is; it may be called at any
    time."""

    def __init__(self, hold_seconds: float = HOLD_SECONDS) -> None:
        self._hold_seconds = hold_seconds
        self._leader: tuple[str, int] | None = None
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    def lead_to(self, url: str | None) -> None:
        """Carry new connections to the controller with this URL; None: hold them."""
        self._leader = None if url is None else address_of(url)

    async def listen(self, listening: socket.socket) -> None:
        """Serve a copy of the socket; the socket itself stays the caller's. It may be called again
        after `hand_over`."""
        self._server = await asyncio.start_server(self._accepted, sock=listening.dup())

    def hand_over(self, url: str) -> None:
        """Leave new connections to the server at this address, which has a copy of the socket, and
        carry to it those that are held.

        In this order: else a carried connection could arrive here again.
        """
        self._stop_listening()
        self.lead_to(url)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """End everything; may be called twice."""
        self._stop_listening()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._carrying) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._carrying.add(task)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            # By close(). The streams of Python 3.11 ask this task for its exception, and log what
            # a cancelled one raises then.
            return
        finally:
            self._carrying.discard(task)
            # Not abort(): what was read of the leader may still be on its way to the client.
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await self._connected(writer)
        if found is None:
            return
        up_reader, up_writer = found
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, up_writer))
                group.create_task(_pump(up_reader, writer))
        except* OSError:
            pass
        finally:
            up_writer.close()

    async def _connected(
        self, client: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return a connection to the leader; None: there was none in time, or the client left."""
        until = asyncio.get_running_loop().time() + self._hold_seconds
        while not client.transport.is_closing():
            if self._leader is not None:
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        reader, writer = await asyncio.open_connection(*self._leader)
                    notice_the_gone(writer.get_extra_info("socket"))
                    return reader, writer
            if asyncio.get_running_loop().time() >= until:
                break
            # A leader that has just died is still the last one that was seen.
            await asyncio.sleep(_RETRY_SECONDS)
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction to its end. Raises OSError when the other side is gone."""
    while data := await reader.read(_PIECE_BYTES):
        writer.write(data)
        await writer.drain()
    # A client may close its half and still wait for the answer (RFC 9112, 9.6).
    if writer.can_write_eof():
        with contextlib.suppress(OSError):
            writer.write_eof()


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of `http[s]://HOST[:PORT]`. Raises ValueError for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https") or parts.path.strip("/"):
        raise ValueError("it is no http[s]://HOST[:PORT]")
    return host, port or (443 if parts.scheme == "https" else 80)
