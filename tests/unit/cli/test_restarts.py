"""Commands that go on while the controller is started anew: nothing is lost, nothing said twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.http import error_response
from controller.api.app import make_app
from fairlead.wire.errors import Refused
from tests.support.waiting import LONG
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import Fairlead, PlayedNode

BACK = "the controller is back"


class Restarted:
    """The same controller behind the same port, as often as it is asked for."""

    def __init__(self, controller: Controller, port: int) -> None:
        self._controller = controller
        self._port = port

    @contextlib.asynccontextmanager
    async def again(self) -> AsyncIterator[None]:
        async with self._serving(make_app(self._controller.service)):
            yield

    @contextlib.asynccontextmanager
    async def busy(self, asked: asyncio.Event) -> AsyncIterator[None]:
        """Its database is away: everything gets 503."""

        async def refuse(request: web.Request) -> web.Response:
            asked.set()
            error = Refused(503, "store_unavailable", "the database can't be used now")
            return error_response(error)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", refuse)
        async with self._serving(app):
            yield

    @contextlib.asynccontextmanager
    async def _serving(self, app: web.Application) -> AsyncIterator[None]:
        server = TestServer(app, port=self._port)
        await server.start_server()
        try:
            yield
        finally:
            await server.close()


@pytest.fixture
def restarted(controller: Controller, server: TestServer) -> Restarted:
    assert server.port is not None
    return Restarted(controller, server.port)


async def test_events_are_followed_over_restarts_each_told_once(
    start: Fairlead, node: PlayedNode, task: str, server: TestServer, restarted: Restarted
) -> None:
    await (await start("apply", "-f", task, "-d")).ended()
    command = await start("events", "-f", "hello", "--json")
    first = await command.reads(1)
    await server.close()
    await command.hears("trying again")
    asked = asyncio.Event()
    async with restarted.busy(asked):
        await asyncio.wait_for(asked.wait(), LONG)
    await node.runs("hello")
    async with restarted.again():
        await command.hears(BACK)
        await node.ends("hello", 0)
        result = await command.ended()
        shown = await (await start("events", "hello", "--json")).ended()
    lines = (first + result.out).splitlines()
    told = [msgspec.json.decode(line) for line in lines]
    assert told == msgspec.json.decode(shown.out)["events"]
    assert result.err.count("trying again") == result.err.count(BACK) == 1


async def test_a_log_is_followed_over_restarts_that_only_stderr_knows_of(
    start: Fairlead, node: PlayedNode, task: str, server: TestServer, restarted: Restarted
) -> None:
    await (await start("apply", "-f", task, "-d")).ended()
    await node.runs("hello")
    await node.prints("hello", b"one ")
    command = await start("logs", "-f", "hello")
    assert await command.reads(4) == b"one "
    await server.close()
    await node.prints("hello", b"two ")
    await command.hears("trying again")
    async with restarted.again():
        await command.hears(BACK)
        assert await command.reads(4) == b"two "
    async with restarted.again():
        await node.prints("hello", b"three")
        await node.ends("hello", 0)
        assert (await command.ended()).out == b"three"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("logs", "-f", "hello"), b"one\n"),
        (("logs", "-f", "hello", "--tail", "1"), b"one\n"),
        (("events", "-f", "hello"), b"done"),
        (("attach", "hello"), b"one\n"),
    ],
)
async def test_a_command_that_follows_waits_for_a_controller_that_is_away_from_the_beginning(
    start: Fairlead,
    node: PlayedNode,
    task: str,
    server: TestServer,
    restarted: Restarted,
    command: tuple[str, ...],
    shown: bytes,
) -> None:
    await (await start("apply", "-f", task, "-d")).ended()
    await node.runs("hello")
    await node.prints("hello", b"one\n")
    await server.close()
    follower = await start(*command)
    await follower.hears("trying again")
    async with restarted.again():
        await follower.hears(BACK)
        await node.ends("hello", 0)
        result = await follower.ended()
    assert result.status == 0
    assert shown in result.out
    assert result.err.count("trying again") == result.err.count(BACK) == 1


@pytest.mark.parametrize("command", [("logs", "-f"), ("events", "-f"), ("attach",)])
async def test_a_run_that_does_not_exist_is_refused_at_once(
    start: Fairlead, command: tuple[str, ...]
) -> None:
    result = await (await start(*command, "nothing")).ended()
    assert result.status == 1
    assert "nothing" in result.err
    assert "trying again" not in result.err
