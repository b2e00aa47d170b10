from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.unit.shipping.parts import Receiver


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made, app = Receiver(), web.Application()
    app.router.add_post("/{path:.*}", made.take)
    async with TestServer(app) as server:
        made.url = str(server.make_url("")).rstrip("/")
        yield made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made
