"""A node in this process: an SSH server that forwards to unix sockets, and an HTTP server there."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncssh
import msgspec
from aiohttp import web

from common.links.host_keys import public_line
from controller.lifecycle.model import NodeAddress
from fairlead.wire.runner import LOG_COMPLETE_HEADER, LOG_END_HEADER, LogsHeader
from fairlead.wire.shim import Event, EventType, Health

MIB = 1 << 20
DOWNLOAD_MIB = 32
"""Many times what SSH and aiohttp hold back before they stop reading."""
HEALTH = Health(version="1", api_versions=("v1",), boot_id="b", install_id="i", epoch="e")
CLIENT_KEY = asyncssh.generate_private_key("ssh-ed25519")
STRANGER_KEY = asyncssh.generate_private_key("ssh-ed25519")
HOST_KEYS = {
    "ed25519": asyncssh.generate_private_key("ssh-ed25519"),
    "rsa": asyncssh.generate_private_key("ssh-rsa", key_size=2048),
    "ecdsa": asyncssh.generate_private_key("ecdsa-sha2-nistp256"),
}


class Sockets:
    """The listeners on the node: one app that plays shim and runner."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "shim.sock")
        self.runner_path = str(folder / "runner.sock")
        self.asked = asyncio.Event()
        """Somebody waits for `/slow` or for the next event."""
        self.go_on = asyncio.Event()
        self.flooded = 0
        """Bytes that `/flood` has got rid of."""
        self._runner = web.AppRunner(self._app(), shutdown_timeout=0.1)

    @property
    def connections(self) -> int:
        """How many are open."""
        assert self._runner.server is not None
        return len(self._runner.server.connections)

    async def open(self) -> None:
        await self._runner.setup()
        await web.UnixSite(self._runner, self.path).start()
        await web.UnixSite(self._runner, self.runner_path).start()

    async def close(self) -> None:
        self.go_on.set()
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=64 * MIB)
        app.router.add_get("/v1/health", self._health)
        app.router.add_get("/v1/node", self._slow)
        app.router.add_get("/v1/events", self._events)
        app.router.add_post("/echo", self._echo)
        app.router.add_get("/download", self._download)
        app.router.add_get("/flood", self._flood)
        app.router.add_get("/page", self._page)
        app.router.add_get("/v1/logs", self._empty_page)
        app.router.add_get("/v1/logs/ws", self._websocket)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(HEALTH))

    async def _slow(self, request: web.Request) -> web.Response:
        self.asked.set()
        await self.go_on.wait()
        return web.Response(body=b"{}")

    async def _echo(self, request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for cursor in ("e.1", "e.2"):
            event = Event(cursor=cursor, type=EventType.HEARTBEAT)
            await response.write(msgspec.json.encode(event) + b"\n")
        self.asked.set()
        await self.go_on.wait()
        return response

    async def _download(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(DOWNLOAD_MIB):
            await response.write(bytes([number]) * MIB)
        return response

    async def _flood(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while not self.go_on.is_set():
            await response.write(b"x" * 65536)
            self.flooded += 65536
        return response

    async def _page(self, request: web.Request) -> web.Response:
        """More than aiohttp takes unread; then the connection ends."""
        page = web.Response(body=b"x" * MIB)
        page.force_close()
        return page

    async def _empty_page(self, request: web.Request) -> web.Response:
        return web.Response(headers={LOG_COMPLETE_HEADER: "false", LOG_END_HEADER: "0"})

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str(msgspec.json.encode(LogsHeader(offset=0)).decode())
        for number in range(int(request.query.get("messages", "3"))):
            await ws.send_bytes(bytes([number]) * (4 * MIB))
        if request.query.get("offset") == "7":
            self.asked.set()
            await self.go_on.wait()
        await ws.close()
        return ws


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Sockets]:
    with tempfile.TemporaryDirectory(prefix="fl") as folder:
        sockets = Sockets(Path(folder))
        await sockets.open()
        try:
            yield sockets
        finally:
            await sockets.close()


class _Tunnel(asyncssh.SSHServer):
    def __init__(self, connections: list[asyncssh.SSHServerConnection]) -> None:
        self._connections = connections

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connections.append(conn)

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True


class Sshd:
    def __init__(self, port: int, host_key: asyncssh.SSHKey) -> None:
        self.port = port
        self.host_key = host_key
        self.connections: list[asyncssh.SSHServerConnection] = []

    def address(self, shim_socket: str, pinned: asyncssh.SSHKey | None = None) -> NodeAddress:
        return NodeAddress(
            shim_socket=shim_socket,
            host="127.0.0.1",
            port=self.port,
            host_key=public_line(pinned or self.host_key),
        )

    def cut(self) -> None:
        for connection in self.connections:
            connection.abort()


@contextlib.asynccontextmanager
async def sshd(
    host_key: asyncssh.SSHKey = HOST_KEYS["ed25519"],
    *others: asyncssh.SSHKey,
    rekey_bytes: int = 1 << 30,
    runs: Callable[[asyncssh.SSHServerProcess[bytes]], Awaitable[None]] | None = None,
) -> AsyncIterator[Sshd]:
    """Keys are exchanged anew whenever it has sent `rekey_bytes`. `runs`: the commands."""
    server = Sshd(0, host_key)
    line = CLIENT_KEY.export_public_key().decode()
    listener = await asyncssh.create_server(
        lambda: _Tunnel(server.connections),
        "127.0.0.1",
        0,
        server_host_keys=[host_key, *others],
        authorized_client_keys=asyncssh.import_authorized_keys(line),
        rekey_bytes=rekey_bytes,
        process_factory=runs,
        encoding=None,
    )
    server.port = listener.get_port()
    try:
        yield server
    finally:
        server.cut()
        listener.close()
        await listener.wait_closed()
        for connection in server.connections:
            await connection.wait_closed()
