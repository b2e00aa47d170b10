"""What a replica runs, with the interpreter that is in each container: its name, a talk, events."""

from __future__ import annotations

import asyncio
import itertools
import sys
import uuid

from aiohttp import WSMsgType, web

NAME = uuid.uuid4().hex


async def name(request: web.Request) -> web.Response:
    sent = request.headers.get("Authorization", "nothing")
    return web.Response(text=f"{NAME} saw {sent}")


async def seen(request: web.Request) -> web.Response:
    """The request's headers, a line each."""
    return web.Response(text="\n".join(f"{key.lower()}={v}" for key, v in request.headers.items()))


async def talk(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    async for message in ws:
        if message.type is WSMsgType.TEXT:
            await ws.send_str(message.data.upper())
    return ws


async def count(request: web.Request) -> web.StreamResponse:
    """Server-sent events, until the client hangs up."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for number in itertools.count():
        await answer.write(f"data: {NAME} {number}\n\n".encode())
        await asyncio.sleep(0.1)
    return answer


app = web.Application()
app.router.add_get("/count", count)
app.router.add_get("/ws", talk)
app.router.add_get("/seen", seen)
app.router.add_get("/", name)
web.run_app(app, host="127.0.0.1", port=int((sys.argv[1:] or ["8000"])[0]), print=None)
