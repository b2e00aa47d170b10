"""Changes are held while it is in doubt who leads: for a while, and a bounded number of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from controller.api.http.holding import (
    ANSWERED_BEFORE_SECONDS,
    HELD_SECONDS,
    LOOK_AGAIN_SECONDS,
    Changing,
    Holding,
    LeaseEnds,
    Room,
    has_left,
    held_size,
    note_answer,
)
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


async def _old_question(word: Callable[[Leading], None], comes_after: float) -> tuple[bool, float]:
    loop = asyncio.get_running_loop()
    lead = Leading(LEASE, loop.time)
    lead.renewed(loop.time() - LEASE)
    began = loop.time()
    loop.call_later(comes_after, word, lead)
    return await has_left(lead), loop.time() - began


async def _fresh_question() -> tuple[bool, float]:
    loop = asyncio.get_running_loop()
    lead = Leading(LEASE, loop.time)
    lead.renewed(loop.time() - LEASE + 0.1)
    # It is stopped, and leads until then.
    lead.end()
    return await has_left(lead), 0.0


def test_a_question_to_a_leader_whose_lease_has_run_out_waits_for_a_word_of_the_database() -> None:
    stories = {
        _old_question(Leading.end, 0.25): (True, 0.25),
        _old_question(lambda lead: lead.renewed(lead.now()), 0.25): (False, 0.25),
        # The database is away: it may still lead.
        _old_question(Leading.end, 9.0): (False, LOOK_AGAIN_SECONDS),
        _fresh_question(): (False, 0.0),
    }
    for story, expected in stories.items():
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(0))) as runner:
            has_gone, took = runner.run(story)
        assert has_gone is expected[0]
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


class Hanging:
    """A server whose changes wait for a database until it answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lead = Leading(LEASE, lambda: self.now)
        # It does not last much longer: nobody waits for seconds in a test.
        self.lead.renewed(ANSWERED_BEFORE_SECONDS - LEASE + 0.01)
        self.answers = asyncio.Event()
        self.begun = asyncio.Event()
        self.done = 0
        changing = Changing(self.lead)

        async def change(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            if "answer" in request.query:
                await response.prepare(request)
            self.begun.set()
            await request.read()
            await self.answers.wait()
            self.done += 1
            return response

        async def endpoint(request: web.Request) -> web.StreamResponse:
            try:
                return await changing.answer(request, change(request))
            except LeaseEnds:
                return web.Response(status=503)

        app = web.Application()
        app.on_response_prepare.append(note_answer)
        app.router.add_post("/", endpoint)
        self.client: TestClient[Any, Any] = TestClient(TestServer(app))

    async def post(self, query: str = "", data: Any = b"x") -> int:
        async with self.client.post(f"/{query}", data=data) as answer:
            await answer.read()
            return answer.status


@pytest.fixture
async def hanging() -> AsyncIterator[Hanging]:
    made = Hanging()
    async with made.client:
        yield made
        made.answers.set()


async def test_a_change_whose_commit_hangs_is_answered_before_the_lease_ends(
    hanging: Hanging,
) -> None:
    asked = asyncio.create_task(hanging.post())
    await hanging.begun.wait()
    hanging.now = 0.01
    assert await asked == 503
    assert hanging.done == 0
    # It goes on: the database may have stored it, and the memory has to follow.
    hanging.answers.set()
    await eventually(lambda: hanging.done == 1)


async def _change_of(seconds: float, renewed_after: tuple[float, ...]) -> tuple[str, float]:
    """Return what became of a change that takes so long, and when. The lease is renewed then."""
    loop = asyncio.get_running_loop()
    lead = Leading(LEASE, loop.time)
    lead.renewed(began := loop.time())
    for after in renewed_after:
        loop.call_later(after, lambda: lead.renewed(loop.time()))

    async def change() -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.Response()

    changed = asyncio.create_task(change())
    became = "done"
    try:
        await Changing(lead).answer(make_mocked_request("POST", "/"), changed)
    except LeaseEnds:
        became = "not known"
    took = loop.time() - began
    # It goes on in either case.
    await changed
    return became, took


def test_a_change_that_waits_for_others_outlives_a_late_renewal_of_the_lease() -> None:
    stories: list[tuple[float, tuple[float, ...], tuple[str, float]]] = [
        (12.0, (4.7, 9.4), ("done", 12.0)),
        (12.0, (4.7,), ("not known", 4.7 + LEASE - ANSWERED_BEFORE_SECONDS)),
        (12.0, (), ("not known", LEASE - ANSWERED_BEFORE_SECONDS)),
        (4.7, (), ("done", 4.7)),
    ]
    for seconds, renewed_after, expected in stories:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(0))) as runner:
            became, took = runner.run(_change_of(seconds, renewed_after))
        assert became == expected[0]
        assert took == pytest.approx(expected[1])


async def test_a_change_goes_on_while_its_body_comes_or_its_answer_has_begun(
    hanging: Hanging,
) -> None:
    more = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        await more.wait()

    slow = asyncio.create_task(hanging.post(data=body()))
    answering = asyncio.create_task(hanging.post("?answer"))
    await hanging.begun.wait()
    hanging.now = 0.01
    assert await hanging.post() == 503
    assert not slow.done()
    assert not answering.done()
    hanging.lead.renewed(hanging.now)
    more.set()
    hanging.answers.set()
    assert (await slow, await answering) == (200, 200)
