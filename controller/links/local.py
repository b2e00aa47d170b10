"""A shim on the controller's own machine, reached by its unix socket."""

from __future__ import annotations

import asyncio

import aiohttp

from controller.links.clients import IDLE_SECONDS, SocketClients
from runner.client import RunnerClient
from shim.client import ShimClient


class LocalConnection:
    """Has no connection to lose: that the shim is gone shows in its event stream."""

    def __init__(self, shim_socket: str) -> None:
        self._clients = SocketClients(
            shim_socket,
            lambda path: aiohttp.UnixConnector(path, keepalive_timeout=IDLE_SECONDS),
            asyncio.open_unix_connection,
        )
        self._closed = asyncio.Event()

    @property
    def shim(self) -> ShimClient:
        return self._clients.shim

    def runner(self, socket_path: str) -> RunnerClient:
        return self._clients.runner(socket_path)

    async def forget_runner(self, socket_path: str) -> None:
        await self._clients.forget_runner(socket_path)

    def heard_at(self) -> float:
        return float("-inf")

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
