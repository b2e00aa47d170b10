"""The stream of a log over a link: whole, cut, refused, and of a leader that leads no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from common.proxy.headers import CLIENT
from controller.api.http.streams import STREAMS, end_streams
from controller.forwarding.credentials import LinkTls, link_tls
from controller.forwarding.follower import make_app
from controller.forwarding.follower_links import (
    BY_ITSELF,
    HELD,
    LOGS_PATH,
    NOT_DONE,
    FollowerLinks,
)
from controller.forwarding.forwarder import Forwarder
from controller.forwarding.leader_links import LeaderLinks
from controller.forwarding.live_logs import RETRY_SECONDS, LeaderLogs, StreamLost
from controller.relay import leader_at
from controller.replica.alone import NeedsLeader
from tests.support.waiting import eventually

PATH = LOGS_PATH.format(run="r", attempt="a")


class ALeader:
    """Gives `piece` and what it was asked for, and goes on when `goes_on` is set."""

    def __init__(self, tls: LinkTls, *, gives: bool = True) -> None:
        self.links = FollowerLinks(tls.leader, self._follow if gives else None)
        self.goes_on = asyncio.Event()
        self.refuses = False
        self.away: dict[str, str] | None = None
        """Headers of a refusal."""
        self.asked = self.open_now = 0
        app = web.Application(middlewares=[self.links.middleware])
        app[STREAMS] = set()
        app.on_shutdown.append(end_streams)
        self.links.mount(app)
        self.app = app
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.links.serve_with(self.runner)

    async def _follow(self, run: str, attempt: str, offset: int) -> AsyncIterator[bytes]:
        self.asked += 1
        if self.refuses:
            raise web.HTTPGone
        if self.away is not None:
            raise web.HTTPServiceUnavailable(headers=self.away)
        return self._pieces(f"{run} {attempt} {offset}".encode())

    async def _pieces(self, asked: bytes) -> AsyncIterator[bytes]:
        self.open_now += 1
        try:
            yield asked
            await self.goes_on.wait()
            yield b" end"
        finally:
            self.open_now -= 1


class Bed:
    def __init__(self, tls: LinkTls) -> None:
        self.tls = tls
        self.links = LeaderLinks(tls.follower)
        self.logs = LeaderLogs(self.links)
        self.leaders: list[ALeader] = []

    async def lead(self, *, gives: bool = True) -> ALeader:
        leader = ALeader(self.tls, gives=gives)
        await leader.runner.setup()
        await web.TCPSite(leader.runner, "127.0.0.1", 0).start()
        self.leaders.append(leader)
        self.links.lead_to(leader_at(self.url_of(leader), str(len(self.leaders))))
        return leader

    @staticmethod
    def url_of(leader: ALeader) -> str:
        return "http://{}:{}".format(*leader.runner.addresses[0][:2])


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(link_tls(b"secret", tmp_path))
    yield made
    made.links.close()
    for leader in made.leaders:
        await leader.runner.cleanup()


async def test_a_stream_comes_to_its_end(bed: Bed) -> None:
    leader = await bed.lead()
    stream = bed.logs.follow("r", "a", 17)
    assert await anext(stream) == b""
    assert await anext(stream) == b"r a 17"
    leader.goes_on.set()
    assert b"".join([piece async for piece in stream]) == b" end"


async def test_a_stream_of_a_leader_that_stops_is_lost_and_not_at_its_end(bed: Bed) -> None:
    leader = await bed.lead()
    stream = bed.logs.follow("r", "a", 0)
    assert [await anext(stream), await anext(stream)] == [b"", b"r a 0"]
    await end_streams(leader.app)
    with pytest.raises(StreamLost):
        await anext(stream)


async def test_a_stream_of_a_leader_that_is_paused_ends_when_another_one_leads(bed: Bed) -> None:
    await bed.lead()
    stream = bed.logs.follow("r", "a", 0)
    assert [await anext(stream), await anext(stream)] == [b"", b"r a 0"]
    waiting = asyncio.ensure_future(anext(stream))
    successor = await bed.lead()
    with pytest.raises(StreamLost):
        await waiting
    successor.goes_on.set()
    assert b"".join([piece async for piece in bed.logs.follow("r", "a", 5)]) == b"r a 5 end"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "10"}, 10.0),
        # Its successor may lead in a moment.
        ({"Retry-After": "10", NOT_DONE: "1"}, RETRY_SECONDS),
        ({"Retry-After": "10", HELD: "1"}, RETRY_SECONDS),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, RETRY_SECONDS),
        ({}, RETRY_SECONDS),
    ],
)
async def test_a_leader_whose_bucket_is_away_says_when_to_ask_again(
    bed: Bed, headers: dict[str, str], seconds: float
) -> None:
    leader = await bed.lead()
    leader.away = headers
    with pytest.raises(StreamLost) as lost:
        await anext(bed.logs.follow("r", "a", 0))
    assert lost.value.seconds == seconds


async def test_what_a_leader_does_not_give_is_left_to_it(bed: Bed) -> None:
    leader = await bed.lead()
    leader.refuses = True
    with pytest.raises(NeedsLeader):
        await anext(bed.logs.follow("r", "a", 0))
    await bed.lead(gives=False)
    with pytest.raises(NeedsLeader):
        await anext(bed.logs.follow("r", "a", 0))
    bed.links.lead_to(None)
    with pytest.raises(NeedsLeader):
        await anext(LeaderLogs(bed.links, 0.0).follow("r", "a", 0))


async def test_the_leader_ends_a_quiet_stream_whose_follower_left(bed: Bed) -> None:
    leader = await bed.lead()
    stream = bed.logs.follow("r", "a", 0)
    assert [await anext(stream), await anext(stream)] == [b"", b"r a 0"]
    assert leader.open_now == 1
    await stream.aclose()
    await eventually(lambda: leader.open_now == 0)


async def test_no_client_gets_a_log_without_the_key_of_the_installation(bed: Bed) -> None:
    leader = await bed.lead()
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{bed.url_of(leader)}{PATH}?offset=0") as answer,
    ):
        assert answer.status == 404
    assert leader.asked == 0


@pytest.mark.parametrize("path", [PATH, PATH.replace("logs", "%6cogs")])
async def test_no_client_gets_a_log_through_a_follower(bed: Bed, path: str) -> None:
    leader = await bed.lead()
    # An earlier version's passes on what it does not know, as this one does.
    follower = make_app(Forwarder(bed.links))
    url = URL(f"{path}?offset=0", encoded=True)
    async with TestClient(TestServer(follower)) as client:
        for forged in ({}, {CLIENT: BY_ITSELF}, {CLIENT.lower(): BY_ITSELF}):
            async with client.get(url, headers=forged) as answer:
                assert answer.status == 404
    assert leader.asked == 0
