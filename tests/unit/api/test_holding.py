"""Changes are held while it is in doubt who leads: for a while, and a bounded number of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from controller.api.http.holding import HELD_SECONDS, Holding, Room, held_size
from controller.daemon.lease import SURE_SECONDS, Leading
from tests.simulation.virtual import VirtualLoop
from tests.support.waiting import eventually

LEASE = 5.0


def test_a_room_has_so_many_places_and_bytes() -> None:
    room = Room(most=2, most_bytes=100)
    with room.place(60) as first, room.place(60) as too_large, room.place(40) as second:
        assert (first, too_large, second) == (True, False, True)
        with room.place(0) as third:
            assert not third
    assert (room.held, room.held_bytes) == (0, 0)
    with room.place(100) as again:
        assert again


def test_a_body_that_nobody_reads_takes_what_the_server_reads_ahead() -> None:
    assert held_size(0) < held_size(100) < held_size(1 << 30) == held_size(None)


async def _asked(lead: Leading, seconds: float = HELD_SECONDS) -> tuple[bool, float]:
    """Return the answer, and after how many seconds it came."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    return await lead.until_known(seconds), loop.time() - began


async def _renewal_that_comes(after: float) -> tuple[bool, float]:
    lead = Leading(LEASE, asyncio.get_running_loop().time)
    asking = asyncio.create_task(_asked(lead))
    await asyncio.sleep(after)
    lead.renewed(lead.now())
    return await asking


async def _renewal_that_came_too_late() -> tuple[bool, float]:
    lead = Leading(LEASE, asyncio.get_running_loop().time)
    asking = asyncio.create_task(_asked(lead))
    await asyncio.sleep(2.0)
    # The database answered, but the lease counts from the question.
    lead.renewed(lead.now() - LEASE + SURE_SECONDS)
    await asyncio.sleep(1.0)
    lead.renewed(lead.now())
    return await asking


async def _end() -> tuple[bool, float]:
    lead = Leading(LEASE, asyncio.get_running_loop().time)
    asking = asyncio.create_task(_asked(lead))
    await asyncio.sleep(3.0)
    lead.end()
    return await asking


async def _sure() -> tuple[bool, float]:
    lead = Leading(LEASE, asyncio.get_running_loop().time)
    lead.renewed(lead.now())
    # A stopped controller does what it was asked while its lease goes on.
    lead.end()
    return await _asked(lead)


def test_a_change_waits_for_the_next_word_about_the_lease_and_no_longer() -> None:
    stories = {
        _renewal_that_comes(4.0): (True, 4.0),
        _renewal_that_comes(HELD_SECONDS + 1): (False, HELD_SECONDS),
        _renewal_that_came_too_late(): (True, 3.0),
        _end(): (False, 3.0),
        _sure(): (True, 0.0),
    }
    for story, expected in stories.items():
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(0))) as runner:
            is_sure, took = runner.run(story)
        assert is_sure is expected[0]
        assert took == pytest.approx(expected[1])


class Bed:
    """A server that does a change when it may."""

    def __init__(self) -> None:
        self.lead = Leading(LEASE, lambda: 0.0)
        self.room = Room(most=2)
        self.done = 0
        holding = Holding(self.lead, self.room)

        async def change(request: web.Request) -> web.Response:
            if not await holding.may_go_on(request):
                return web.Response(status=503)
            self.done += 1
            return web.Response()

        app = web.Application()
        app.router.add_post("/", change)
        self.client: TestClient[Any, Any] = TestClient(TestServer(app))


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made = Bed()
    async with made.client:
        yield made
        made.lead.end()


async def _status(bed: Bed) -> int:
    async with bed.client.post("/", data=b"x") as answer:
        return answer.status


async def test_what_is_held_is_done_once_the_lease_is_renewed(bed: Bed) -> None:
    held = [asyncio.create_task(_status(bed)) for _ in range(2)]
    await eventually(lambda: bed.room.held == 2)
    assert await _status(bed) == 503  # there is no room
    assert bed.done == 0
    bed.lead.renewed(0.0)
    assert [await one for one in held] == [200, 200]
    assert (bed.done, bed.room.held, bed.room.held_bytes) == (2, 0, 0)


async def test_a_client_that_leaves_is_not_held(bed: Bed) -> None:
    leaving = asyncio.create_task(_status(bed))
    await eventually(lambda: bed.room.held == 1)
    leaving.cancel()
    await eventually(lambda: bed.room.held == 0)
    bed.lead.renewed(0.0)
    assert await _status(bed) == 200
    assert bed.done == 1
