"""The links to nodes, over SSH and to sockets of this machine, with clients of shim and runner."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
import asyncssh

import runner.client
from common.kept_connections import IDLE_SECONDS, KeptConnections
from common.links.errors import LinkError
from common.links.ssh import Advice, SshLogin
from common.links.ssh_http import SshUnixConnector, connect_protocol, open_stream
from common.open_answers import end
from common.streams import SocketUnreachable, StreamReader, StreamWriter
from controller.lifecycle.inventory import NodeAddress
from controller.links.listening import ListeningRunners
from runner.client import RunnerClient
from shim.client import ShimClient

CONNECT_SECONDS = 15.0
SILENCE_SECONDS = 30.0
"""Streams send a heartbeat every 10 s; a socket that is silent for longer is gone. The shim's event
stream is judged by the node's session, which sees the whole connection."""
_TIMEOUT = aiohttp.ClientTimeout(
    total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
)


class SocketClients:
    """Clients over connectors made by `connector(path)`, and over plain streams for what is not
    HTTP.

    `stream` and `connect` raise OSError. What `connect` opened is closed with the sessions; a
    stream is its user's.
    """

    def __init__(
        self,
        shim_socket: str,
        connector: Callable[[str], aiohttp.BaseConnector],
        stream: Callable[[str], Awaitable[tuple[StreamReader, StreamWriter]]],
        connect: Callable[[str, Callable[[], asyncio.Protocol]], Awaitable[asyncio.Transport]],
    ) -> None:
        self._connector = connector
        self._connect = connect
        self._stream = stream
        self._closed = False
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._open: list[tuple[str, asyncio.Transport]] = []
        dial = partial(self._dial, shim_socket)
        self.shim = ShimClient(
            self._session(shim_socket),
            silence=None,
            dial=dial,
            kept=KeptConnections(dial, "shim"),
        )
        self._runners: dict[str, RunnerClient] = {}

    def runner(self, socket_path: str) -> RunnerClient:
        """Return the client. Raises LinkError once closed, because a client opened then would never
        be closed."""
        if self._closed:
            raise LinkError("the connection to the node was closed")
        if socket_path not in self._runners:
            dial = partial(self._dial, socket_path)
            self._runners[socket_path] = RunnerClient(
                self._session(socket_path, runner.client.BASE_URL),
                dial=partial(self._stream, socket_path),
                dial_answer=dial,
                kept=KeptConnections(dial, "runner"),
            )
        return self._runners[socket_path]

    def http(self, socket_path: str) -> aiohttp.ClientSession:
        """Return a session for requests to this socket; it is closed with the connection."""
        return self._session(socket_path)

    async def forget_runner(self, socket_path: str) -> None:
        self._runners.pop(socket_path, None)
        session = self._sessions.pop(socket_path, None)
        self._close_answers(socket_path)
        if session is not None:
            await session.close()

    async def close(self) -> None:
        self._closed = True
        sessions, self._sessions = list(self._sessions.values()), {}
        self._close_answers(None)
        for session in sessions:
            await session.close()

    async def _dial(self, path: str, make: Callable[[], asyncio.Protocol]) -> None:
        if self._closed or path not in self._sessions:
            raise SocketUnreachable("this connection was closed")
        async with asyncio.timeout(CONNECT_SECONDS):
            transport = await self._connect(path, make)
        self._open = [kept for kept in self._open if not kept[1].is_closing()]
        self._open.append((path, transport))
        if self._closed or path not in self._sessions:
            self._close_answers(path)  # its reader is told of the loss

    def _close_answers(self, path: str | None) -> None:
        for other, transport in self._open:
            if path in (other, None):
                end(transport)

    def _session(self, path: str, base_url: str | None = None) -> aiohttp.ClientSession:
        if path not in self._sessions:
            self._sessions[path] = aiohttp.ClientSession(
                base_url,
                connector=self._connector(path),
                # aiohttp's own jar is asked at each request, and no daemon sets a cookie.
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=_TIMEOUT,
            )
        return self._sessions[path]


class _Connection:
    """What a connection gives to the sockets of its node, however it reaches them."""

    def __init__(self, clients: SocketClients) -> None:
        self.runners = ListeningRunners()
        self._clients = clients

    @property
    def shim(self) -> ShimClient:
        return self._clients.shim

    def runner(self, socket_path: str) -> RunnerClient:
        return self._clients.runner(socket_path)

    async def forget_runner(self, socket_path: str) -> None:
        await self._clients.forget_runner(socket_path)

    def http(self, socket_path: str) -> aiohttp.ClientSession:
        """Return a session for requests to this socket; it is closed with the connection."""
        return self._clients.http(socket_path)


class LocalConnection(_Connection):
    """A connection to sockets of this machine. It cannot be lost: when the shim is gone, its event
    stream ends."""

    def __init__(self, shim_socket: str) -> None:
        super().__init__(
            SocketClients(
                shim_socket, self._connector, asyncio.open_unix_connection, _connect_local
            )
        )
        self._closed = asyncio.Event()

    def heard_at(self) -> float:
        """Return a time before all others: every byte reaches its reader."""
        return float("-inf")

    def _connector(self, path: str) -> aiohttp.UnixConnector:
        return aiohttp.UnixConnector(path, keepalive_timeout=IDLE_SECONDS)

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def close(self) -> None:
        self._closed.set()
        await self._clients.close()


async def _connect_local(path: str, make: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_unix_connection(make, path)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise SocketUnreachable(f"nothing answers at {path} ({why})") from error
    return transport


class LocalLink:
    """The link to a shim on this machine."""

    def __init__(self, shim_socket: str) -> None:
        self._shim_socket = shim_socket

    async def connect(self) -> LocalConnection:
        return LocalConnection(self._shim_socket)


class SshConnection(_Connection):
    """One SSH connection to a node."""

    def __init__(self, ssh: asyncssh.SSHClientConnection, shim_socket: str) -> None:
        super().__init__(
            SocketClients(
                shim_socket,
                lambda path: SshUnixConnector(ssh, path, self._heard),
                partial(open_stream, ssh, heard=self._heard),
                partial(connect_protocol, ssh, heard=self._heard),
            )
        )
        self.ssh = ssh
        self._heard_at = float("-inf")

    def heard_at(self) -> float:
        return self._heard_at

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    async def wait_closed(self) -> None:
        await self.ssh.wait_closed()

    async def close(self) -> None:
        """Close the connection first: if it was cut, no end of a channel is ever answered."""
        self.ssh.abort()
        await self._clients.close()
        await self.ssh.wait_closed()


class SshLink:
    """The SSH link to a node. `identity`: our private key, with which we log in as the address's
    user."""

    def __init__(
        self, address: NodeAddress, identity: asyncssh.SSHKey, advice: Advice | None = None
    ) -> None:
        self._login = SshLogin(address, identity, advice, also=address.next_host_key)
        self._shim_socket = address.shim_socket

    async def connect(self) -> SshConnection:
        return SshConnection(await self._login.connect(), self._shim_socket)
