"""A follower that passes requests on, and leaders that say what comes of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import aiohttp
from aiohttp import web

from controller.api.http.errors import leads_no_more
from controller.daemon.lease import Leading
from controller.forwarding.credentials import LinkTls, link_tls
from controller.forwarding.follower import Follower
from controller.forwarding.follower_links import (
    FollowerLinks,
)
from controller.forwarding.leader_links import LeaderLinks
from controller.relay import Leader, Relay, leader_at
from fairlead.connections.order_keys import ORDER_KEY
from tests.support.waiting import LONG

BIG = b"x" * (1 << 20)


class ALeader:
    """Says what it sees of each request. `follow`: what ends the stream of `/log`."""

    def __init__(self, tls: LinkTls | None, name: str = "one") -> None:
        self.name = name
        self.links = None if tls is None else FollowerLinks(tls.leader)
        self.lead: Leading | None = None
        self.refuses: Callable[[], web.Response] | None = None
        self.writes = 0
        self.order_keys: list[str | None] = []
        self.goes_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.flood_ended = asyncio.Event()
        app = web.Application(
            middlewares=[] if self.links is None else [self.links.middleware],
            client_max_size=1 << 30,
        )
        app.router.add_route("*", "/seen{rest:.*}", self._seen)
        app.router.add_get("/log", self._log)
        app.router.add_get("/long", self._long)
        app.router.add_get("/flood", self._flood)
        app.router.add_get("/ws", self._ws)
        app.router.add_get("/wait", self._wait)
        app.router.add_post("/v1/{what:.*}", self._write)
        app.router.add_put("/v1/blobs/{digest}", self._put)
        if self.links is not None:
            self.links.mount(app)
        self.runner = web.AppRunner(app, auto_decompress=False, shutdown_timeout=0.1)
        if self.links is not None:
            self.links.serve_with(self.runner)

    async def _seen(self, request: web.Request) -> web.Response:
        body = await request.read()
        seen = {
            "by": self.name,
            "remote": request.remote,
            "scheme": request.scheme,
            "host": request.host,
            "path": request.raw_path,
            "method": request.method,
            "length": len(body),
            "headers": [[name.lower(), value] for name, value in request.headers.items()],
        }
        return web.json_response(seen, headers={"X-Own": "1", "Set-Cookie": "a=b"})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await self.goes_on.wait()
        await response.write(b"second")
        return response

    async def _long(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "11"})
        await response.prepare(request)
        await response.write(b"first")
        self.begun.set()
        await self.goes_on.wait()
        await response.write(b"second")
        return response

    async def _flood(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            while True:
                await response.write(BIG)
        finally:
            self.flood_ended.set()

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["fairlead"])
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"{request.remote} {message.data}")
        return socket

    async def _wait(self, request: web.Request) -> web.StreamResponse:
        self.begun.set()
        await self.goes_on.wait()
        return web.Response(text=self.name)

    async def _put(self, request: web.Request) -> web.StreamResponse:
        self.begun.set()
        await self.goes_on.wait()
        return web.Response(text=str(len(await request.read())))

    async def _write(self, request: web.Request) -> web.StreamResponse:
        if self.lead is not None and not await self.lead.until_known(LONG):
            return leads_no_more()
        await request.read()
        if self.refuses is not None:
            self.begun.set()
            return self.refuses()
        self.order_keys.append(request.headers.get(ORDER_KEY))
        self.writes += 1
        self.begun.set()
        await self.goes_on.wait()
        return web.Response(text=self.name)


class Bed:
    """A follower, and whom it takes for the leader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls = link_tls(b"secret", folder)
        self.closing = contextlib.AsyncExitStack()
        self.session = aiohttp.ClientSession()
        self.url = ""

    async def leader(self, name: str = "one", tls: LinkTls | None = None) -> ALeader:
        made = ALeader(tls or self.tls, name)
        await self.serve(made)
        return made

    async def serve(self, made: ALeader) -> None:
        await made.runner.setup()
        self.closing.push_async_callback(made.runner.cleanup)
        self.closing.callback(made.goes_on.set)
        await web.TCPSite(made.runner, "127.0.0.1", 0).start()

    async def follow(self, hold_seconds: float = 30.0) -> None:
        self.follower = Follower(LeaderLinks(self.tls.follower), None)
        self.follower.forwarder._hold_seconds = hold_seconds
        await self.follower.start()
        self.closing.push_async_callback(self.follower.close)
        self.relay = Relay(hold_seconds, self.follower)
        self.listening = listening = socket.create_server(("127.0.0.1", 0))
        self.closing.callback(listening.close)
        self.closing.push_async_callback(self.relay.close)
        await self.relay.listen(listening)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def lead_to(self, leader: ALeader) -> None:
        self.relay.lead_to(at(leader))


def at(leader: ALeader) -> Leader:
    host, port = leader.runner.addresses[0][:2]
    return leader_at(f"http://{host}:{port}", leader.name)


def abort(leader: ALeader) -> None:
    assert leader.runner.server is not None
    for connection in leader.runner.server.connections:
        assert connection.transport is not None
        connection.transport.abort()
