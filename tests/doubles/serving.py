"""Doubles of providers' APIs are served on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from aiohttp import web


class _ProviderApi(Protocol):
    url: str
    """Where it is served."""

    def app(self) -> web.Application: ...


T = TypeVar("T", bound=_ProviderApi)


@asynccontextmanager
async def served(double: T) -> AsyncIterator[T]:
    """Serve it in this event loop, at a free port."""
    runner = web.AppRunner(double.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    double.url = f"http://{host}:{port}"
    try:
        yield double
    finally:
        await runner.cleanup()
