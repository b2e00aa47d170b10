"""A follower follows a log itself also for a reader about whom its database tells nothing in time:
the leader judges him, and gives no stream of his own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from controller.clock import SystemClock
from controller.forwarding import follower, live_logs
from controller.forwarding.credentials import link_tls
from controller.forwarding.dashboard_reads import DashboardReads
from controller.forwarding.follower_links import ONLY_FIND
from controller.forwarding.leader_feed import LeaderFeed
from controller.forwarding.leader_links import LeaderLinks
from controller.forwarding.live_logs import LeaderLogs, LiveLogs
from controller.store import schema
from controller.store.reading import StoreReader
from controller.web.app import session_key
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_dashboard_reads import Browser
from tests.unit.forwarding.test_live_logs import messages, readers_of
from tests.unit.forwarding.test_log_reads import attempt_of, write
from tests.unit.forwarding.test_reads import TO_THE_LEADER, bearer, opened_bed
from tests.unit.forwarding.watching import SECRET, Leading, WatchBed


class SlowBed(WatchBed):
    """The run `live`, whose log grows, at a leader and at a follower with links between them."""

    logs: LiveLogs
    attempt_id: str

    def end(self) -> None:
        self.bed.controller.logs.finish(self.attempt_id)


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[SlowBed]:
    tls = link_tls(b"secret", tmp_path)
    links = LeaderLinks(tls.follower)
    feed, of_leader = LeaderFeed(links), LeaderLogs(links)
    logs = LiveLogs(tmp_path / "follower", of_leader.follow, of_leader.find)
    made: list[DashboardReads] = []

    def reads(reader: StoreReader) -> DashboardReads:
        key = session_key(SECRET)
        made.append(DashboardReads(reader, SystemClock(), feed, key, live_logs=logs))
        return made[0]

    async with opened_bed(tmp_path, reads) as bed:
        leading = Leading(bed.controller.service, tls, links)
        await leading.start()
        slow = SlowBed(bed, leading, feed, made[0])
        slow.logs, slow.attempt_id = logs, await attempt_of(bed, await bed.submit("live"))
        await write(bed, slow.attempt_id)
        yield slow
        await logs.close()
        await made[0].close()
        links.close()
        await leading.stop()


def hanging(slow: SlowBed) -> None:
    slow.bed.reader.hangs = True


def crowded(slow: SlowBed) -> None:
    """Others wait for their turn, and for longer than a reader does."""
    slow.bed.reader.answer_seconds = 0.0
    slow.reads._at_once = asyncio.Semaphore(0)


@pytest.mark.parametrize("trouble", [hanging, crowded])
async def test_readers_follow_a_log_at_a_follower_whose_database_is_slow(
    slow: SlowBed, trouble: Callable[[SlowBed], None]
) -> None:
    queries = ("", "?offset=57", "?format=text&offset=13", "?format=json")
    there = [asyncio.create_task(messages(slow.bed.leader, one, USER_TOKEN)) for one in queries]
    trouble(slow)
    here = [asyncio.create_task(messages(slow.bed.follower, one, USER_TOKEN)) for one in queries]
    await eventually(lambda: readers_of(slow.logs) == len(queries))
    await eventually(
        lambda: len(slow.bed.controller.logs._follows[slow.attempt_id].readers) == len(queries) + 1
    )
    await write(slow.bed, slow.attempt_id, 10)
    slow.end()
    assert await asyncio.gather(*here) == await asyncio.gather(*there)
    assert slow.leading.logs == 1


async def test_a_browser_follows_a_log_at_a_follower_whose_database_is_slow(slow: SlowBed) -> None:
    jar = aiohttp.CookieJar(unsafe=True)  # else it keeps none of an address
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        browser = Browser(slow, session)
        await browser.log_in(USER_TOKEN)
        hanging(slow)
        url = f"{browser.follower}/dashboard/api/v1/runs/live/logs/ws?format=text"
        async with session.ws_connect(url, headers=browser.page) as stream:
            assert (await stream.receive_str()).startswith("line 0 ")
            assert readers_of(slow.logs) == 1
    assert slow.leading.logs == 1


async def test_readers_whom_the_leader_refuses_hear_its_words(slow: SlowBed) -> None:
    of_admin = await slow.bed.submit("of-admin", ADMIN_TOKEN)
    await slow.bed.submit("ended")
    await slow.bed.stop("ended")
    hanging(slow)
    for path, token in (
        ("live/logs/ws", "unknown"),
        (f"{of_admin}/logs/ws", USER_TOKEN),
        ("none/logs/ws", ADMIN_TOKEN),
        ("live/logs/ws?offset=none", USER_TOKEN),
        # Its end comes soon at the leader.
        ("ended/logs/ws", USER_TOKEN),
    ):
        assert await slow.status(f"/v1/runs/{path}", token) == TO_THE_LEADER
    assert slow.leading.logs == 0


async def test_a_leader_that_finds_no_log_gives_its_stream(
    slow: SlowBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging(slow)
    with monkeypatch.context() as patched:
        # One of an earlier version doesn't know the question.
        patched.setattr(live_logs, "ONLY_FIND", "Fairlead-Unknown")
        assert await messages(slow.bed.follower, "", USER_TOKEN) == TO_THE_LEADER
    monkeypatch.setattr(live_logs, "FIND_SECONDS", 0.0)
    assert await messages(slow.bed.follower, "", USER_TOKEN) == TO_THE_LEADER
    assert slow.leading.logs == 0


async def test_the_leader_of_another_schema_gives_its_streams(
    slow: SlowBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a rolling upgrade is over, nobody could look up the rights of readers here."""
    monkeypatch.setattr(schema, "SCHEMA_VERSION", "another")
    assert await messages(slow.bed.follower, "", USER_TOKEN) == TO_THE_LEADER
    assert slow.leading.logs == 0


@pytest.mark.parametrize("forged", [{}, {ONLY_FIND: "1"}])
async def test_no_client_asks_which_log_it_is(slow: SlowBed, forged: Mapping[str, str]) -> None:
    headers = {**bearer(USER_TOKEN), **forged}
    async with (
        aiohttp.ClientSession(slow.leading.url) as session,
        session.get("/v1/runs/live/logs/ws", headers=headers) as answer,
    ):
        assert answer.status == 400


async def test_a_watch_comes_back_from_the_leader_and_an_answer_ends_there(
    slow: SlowBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = asyncio.Event()

    async def forward(request: web.Request, _: float | None = None) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun ")
        await goes_on.wait()
        await response.write(b"ended")
        return response

    monkeypatch.setattr(slow.bed.forwarder, "forward", forward)
    monkeypatch.setattr(follower, "LENT_SECONDS", 0.0)
    hanging(slow)
    async with slow.watch("/v1/runs") as listed:
        for path in ("/v1/runs/live/watch", "/v1/events/watch"):
            with pytest.raises(aiohttp.ClientError):
                async with slow.watch(path) as watched:
                    await watched.read()
        goes_on.set()
        assert await listed.read() == b"begun ended"
