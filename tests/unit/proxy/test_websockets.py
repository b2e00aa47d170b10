"""WebSockets through the proxy."""

import asyncio

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from tests.support.replicas import a_server, an_app, echo, says
from tests.support.waiting import LONG, eventually
from tests.unit.proxy.bed import a_bed, as_user

SOON = LONG


async def talk(request: web.Request) -> web.StreamResponse:
    """Send each message back; `bye` closes with 4001."""
    ws = web.WebSocketResponse(protocols=("chat",), max_msg_size=0)
    await ws.prepare(request)
    async for message in ws:
        if message.type is WSMsgType.TEXT and message.data == "bye":
            await ws.close(code=4001, message=b"done")
        elif message.type is WSMsgType.TEXT:
            await ws.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await ws.send_bytes(message.data)
    return ws


@pytest.mark.parametrize("compress", [0, 15])
async def test_messages_pass_both_ways_and_the_close_code_too(compress: int) -> None:
    async with a_bed() as bed, an_app(talk) as port:
        bed.serve(port)
        async with bed.client.ws_connect(
            "/services/api/ws", protocols=("chat",), compress=compress, max_msg_size=0
        ) as ws:
            assert ws.protocol == "chat"
            await ws.send_str("hello")
            assert (await ws.receive(timeout=SOON)).data == "hello"
            large = bytes(range(256)) * 16384
            await ws.send_bytes(large)
            assert (await ws.receive(timeout=SOON)).data == large
            await ws.send_str("bye")
            assert (await ws.receive(timeout=SOON)).type is WSMsgType.CLOSE
            assert ws.close_code == 4001
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)
    assert [is_stream for *_, is_stream in bed.traffic.ended] == [True]


async def test_a_client_that_leaves_closes_the_socket_of_the_replica() -> None:
    ended = asyncio.Event()

    async def listen(request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        async for _ in ws:
            pass
        ended.set()
        return ws

    async with a_bed() as bed, an_app(listen) as port:
        bed.serve(port)
        ws = await bed.client.ws_connect("/services/api/ws")
        await ws.close()
        async with asyncio.timeout(SOON):
            await ended.wait()
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)


async def test_a_refused_handshake_is_the_replicas_answer() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await bed.client.ws_connect("/services/api/ws")
    assert refused.value.status == 200


async def test_a_socket_of_a_revoked_token_ends() -> None:
    async with a_bed() as bed, an_app(talk) as port:
        bed.serve(port, auth=True)
        ws = await bed.client.ws_connect("/services/api/ws", headers=as_user("ada"))
        bed.gate.end_streams("ada")
        assert (await ws.receive(timeout=SOON)).type in (WSMsgType.CLOSED, WSMsgType.ERROR)
        await eventually(lambda: not bed.traffic.in_flight.total(), SOON)


async def test_bytes_that_follow_the_handshake_at_once_reach_the_client() -> None:
    early = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        b"\x81\x02hi"
    )
    async with a_bed() as bed, a_server(says(early)) as port:
        bed.serve(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", bed.client.port)
        writer.write(
            b"GET /services/api/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        async with asyncio.timeout(SOON):
            answer = await reader.read()
        writer.close()
    assert answer.endswith(b"\r\n\r\n\x81\x02hi")
