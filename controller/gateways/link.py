"""The way to a gateway's agent: one WebSocket to its unix socket, through SSH."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import aiohttp
import asyncssh
import msgspec

from common.http import why_lost
from common.links.errors import LinkError
from common.links.ssh import Advice
from controller.links.clients import LocalLink, SshLink
from controller.store.base import Gateway
from fairlead.wire.gateway import LINK_PATH, FromAgent, FromController

_MAX_MESSAGE = 16 << 20
_ADVICE = Advice(host_key="apply the gateway's file with `accept_host_key: SHA256:…`")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FromAgent)


class GatewayConnection(Protocol):
    """One life of the link to an agent."""

    async def send(self, message: FromController) -> None:
        """Raises LinkError once the link is gone."""

    def messages(self) -> AsyncGenerator[FromAgent, None]:
        """Yield what the agent says, until the link is gone; one of another version may say what
        this controller does not know, which is left out."""


class GatewayLink(Protocol):
    """Makes connections to one agent."""

    def open(self) -> AbstractAsyncContextManager[GatewayConnection]:
        """Connect. Raises LinkError; HostKeyRefused when the host key is not the pinned one."""


class SocketGatewayLink:
    """The real link. `identity`: the controller's private key."""

    def __init__(self, gateway: Gateway, identity: asyncssh.SSHKey) -> None:
        self._gateway = gateway
        self._identity = identity

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[GatewayConnection]:
        address = self._gateway.address
        connection = await (
            LocalLink(address.shim_socket).connect()
            if address.local_socket
            else SshLink(address, self._identity, _ADVICE).connect()
        )
        try:
            yield _WebSocket(await self._websocket(connection.http(address.shim_socket)))
        finally:
            await connection.close()

    async def _websocket(
        self, session: aiohttp.ClientSession
    ) -> aiohttp.ClientWebSocketResponse[bool]:
        try:
            return await session.ws_connect(
                f"http://gateway{LINK_PATH}",
                max_msg_size=_MAX_MESSAGE,
                # A dead link never answers the close frame, and aiohttp would wait 10 s for that.
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            socket = self._gateway.address.shim_socket
            raise LinkError(
                f"its agent does not answer at {socket}: {why_lost(error)}; is "
                "fairlead-gateway.service running there?"
            ) from error


class _WebSocket:
    def __init__(self, websocket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._websocket = websocket

    async def send(self, message: FromController) -> None:
        try:
            await self._websocket.send_str(_encode(message).decode())
        except (aiohttp.ClientError, OSError) as error:
            raise LinkError(str(error) or "the link was closed") from error

    async def messages(self) -> AsyncGenerator[FromAgent, None]:
        async for message in self._websocket:
            # aiohttp yields a fault of the connection as a message of the type ERROR.
            if message.type is not aiohttp.WSMsgType.TEXT:
                return
            # An agent of a newer version may send what this controller does not know.
            with contextlib.suppress(msgspec.ValidationError):
                yield _decode.decode(message.data)
