"""What stands in JupyterLab's place: it tells the path that was asked for and its own options."""

from __future__ import annotations

import sys

from aiohttp import WSMsgType, web


async def page(request: web.Request) -> web.Response:
    return web.Response(text=" ".join([request.path, *sys.argv[1:]]))


async def kernel(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    async for message in ws:
        if message.type is WSMsgType.TEXT:
            await ws.send_str(f"{message.data} of {request.path}")
    return ws


app = web.Application()
app.router.add_get("/services/{name}/api/kernels/{kernel}/channels", kernel)
app.router.add_get("/{path:.*}", page)
web.run_app(app, host="127.0.0.1", port=8888, print=None)
