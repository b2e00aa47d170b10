"""Replicas that a test plays: apps, and servers that speak bytes and may misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def an_app(handler: Handler) -> AsyncIterator[int]:
    """A replica that answers every request with `handler`; gives its port."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def a_server(serve: Serve) -> AsyncIterator[int]:
    """A replica that speaks bytes; gives its port."""
    async with accepting(serve) as accept:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
    await server.wait_closed()


@contextlib.asynccontextmanager
async def accepting(serve: Serve, first: bytes = b"") -> AsyncIterator[Serve]:
    """Give what a server does with a connection: it writes `first` and serves. At the end all
    connections are cut."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        writer.write(first)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    try:
        yield accept
    finally:
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def says(answer: bytes) -> Serve:
    """A server that reads a head, sends these bytes and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return serve


async def echo(request: web.Request) -> web.Response:
    """Return the request as JSON."""
    body = await request.read()
    seen = {
        "method": request.method,
        "path": request.raw_path,
        "headers": [[name.lower(), value] for name, value in request.headers.items()],
        "body": body.decode("latin-1"),
    }
    return web.json_response(seen)
