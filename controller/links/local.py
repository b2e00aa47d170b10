"""A shim on the controller's own machine, reached by its unix socket."""

from __future__ import annotations

import asyncio

import aiohttp

from controller.links.clients import IDLE_SECONDS, SocketClients
from controller.links.heartbeats import use_heartbeat_handlers
from runner.client import RunnerClient
from shim.client import ShimClient


class LocalConnection:
    """Has no connection to lose: that the shim is gone shows in its event stream."""

    def __init__(self, shim_socket: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard_at = float("-inf")
        self._clients = SocketClients(shim_socket, self._connector, asyncio.open_unix_connection)
        self._closed = asyncio.Event()

    @property
    def shim(self) -> ShimClient:
        return self._clients.shim

    def runner(self, socket_path: str) -> RunnerClient:
        return self._clients.runner(socket_path)

    async def forget_runner(self, socket_path: str) -> None:
        await self._clients.forget_runner(socket_path)

    def heard_at(self) -> float:
        """Only of heartbeats that were kept back: of all else whoever waits for it knows."""
        return self._heard_at

    def _connector(self, path: str) -> aiohttp.UnixConnector:
        connector = aiohttp.UnixConnector(path, keepalive_timeout=IDLE_SECONDS)
        use_heartbeat_handlers(connector, self._heard)
        return connector

    def _heard(self) -> None:
        self._heard_at = self._loop.time()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def close(self) -> None:
        self._closed.set()
        await self._clients.close()


class LocalLink:
    def __init__(self, shim_socket: str) -> None:
        self._shim_socket = shim_socket

    async def connect(self) -> LocalConnection:
        return LocalConnection(self._shim_socket)
