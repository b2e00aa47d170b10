"""A shim over its socket, on a node in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from shim.api.app import make_app
from shim.daemon import Daemon
from tests.unit.shim.parts import Node


@contextlib.asynccontextmanager
async def served(node: Node) -> AsyncIterator[Daemon]:
    """Of the shim: it ends like a killed one, with nothing but records left of it."""
    async with node.shim() as daemon:
        runner = web.AppRunner(make_app(daemon), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, str(node.settings.socket)).start()
        try:
            yield daemon
        finally:
            daemon.events.close()
            await runner.cleanup()
