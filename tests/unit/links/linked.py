"""Connections to a node whose daemons are played, over SSH or a local socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aiohttp

from common.links.ssh_http import SshUnixConnector
from controller.links.base import NodeConnection, NodeLink
from controller.links.clients import LocalLink, SshConnection, SshLink
from tests.unit.links.sshd import CLIENT_KEY, Sockets, Sshd, listening, sshd


@contextlib.asynccontextmanager
async def linked(kind: str) -> AsyncIterator[tuple[NodeConnection, Sockets]]:
    async with contextlib.AsyncExitStack() as stack:
        sockets = await stack.enter_async_context(listening())
        link: NodeLink = LocalLink(sockets.path)
        if kind == "ssh":
            server = await stack.enter_async_context(sshd())
            link = SshLink(server.address(sockets.path), CLIENT_KEY)
        connection = await link.connect()
        stack.push_async_callback(connection.close)
        yield connection, sockets


@contextlib.asynccontextmanager
async def ssh_linked(sockets: Sockets, server: Sshd) -> AsyncIterator[SshConnection]:
    connection = await SshLink(server.address(sockets.path), CLIENT_KEY).connect()
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def http_over_ssh(
    rekey_bytes: int = 1 << 30,
) -> AsyncIterator[tuple[aiohttp.ClientSession, Sockets, Sshd]]:
    async with (
        listening() as sockets,
        sshd(rekey_bytes=rekey_bytes) as server,
        ssh_linked(sockets, server) as connection,
    ):
        connector = SshUnixConnector(connection.ssh, sockets.path)
        async with aiohttp.ClientSession("http://node", connector=connector) as session:
            yield session, sockets, server
