"""What a user of a terminal sees."""

from __future__ import annotations

import asyncio

from aiohttp import ClientWebSocketResponse, WSMsgType

from tests.support.waiting import LONG


async def shown(socket: ClientWebSocketResponse[bool], text: str) -> None:
    """Wait until the terminal shows the text. Raises TimeoutError."""
    seen = ""
    async with asyncio.timeout(LONG):
        while text not in seen:
            message = await socket.receive()
            assert message.type is WSMsgType.BINARY, message
            seen += message.data.decode()
