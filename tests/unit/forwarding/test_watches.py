"""Watches at a follower: the leader's lines and events, once for all, and only for who may see."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from common.proxy.headers import CLIENT
from controller.aio import Flag
from controller.forwarding import event_tail, leader_feed, watch_reads
from controller.forwarding.event_tail import KeptEvent
from controller.forwarding.feed import (
    FEED_PATH,
    Beat,
    Begun,
    Changed,
    Lines,
    Message,
    RunLine,
    encoded,
)
from controller.forwarding.follower import make_app
from controller.forwarding.follower_links import BY_ITSELF
from controller.forwarding.forwarder import Forwarder
from controller.forwarding.reads import Proof
from controller.forwarding.watch_reads import Judge, MayNotSee, Reader, may_go_on, to_send
from controller.lifecycle.model import Role
from controller.replica.alone import NeedsLeader
from controller.store import queries
from controller.store.accounts import User
from controller.store.errors import StoreUnavailable
from controller.store.peers import LEASE_SECONDS
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_reads import TO_THE_LEADER, Bed, bearer
from tests.unit.forwarding.watching import WatchBed

_PROOF = Proof("d")


async def line_of(answer: aiohttp.ClientResponse) -> Any:
    """Return the next line that is no heartbeat."""
    while line := await answer.content.readline():
        told = msgspec.json.decode(line)
        if told.get("run") or told.get("event"):
            return told
    raise AssertionError("the stream has ended")


async def status_of(answer: aiohttp.ClientResponse) -> str:
    return str((await line_of(answer))["run"]["status"])


async def all_lines(answer: aiohttp.ClientResponse) -> list[bytes]:
    return (await answer.read()).splitlines()


async def act(bed: Bed, run: str, action: str) -> None:
    headers = bearer(ADMIN_TOKEN)
    async with bed.leader.post(f"/v1/runs/{run}/{action}", json={}, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


async def test_a_watch_at_a_follower_has_the_leaders_lines(watched: WatchBed) -> None:
    bed = watched.bed
    run = await bed.submit("live")
    async with (
        watched.watch(f"/v1/runs/{run}/watch") as here,
        bed.leader.get(f"/v1/runs/{run}/watch", headers=bearer(USER_TOKEN)) as there,
    ):
        assert (here.status, here.headers["Content-Type"]) == (200, there.headers["Content-Type"])
        assert await line_of(here) == await line_of(there)
        await act(bed, run, "stop")
        assert (await all_lines(here))[-1] == (await all_lines(there))[-1]
    async with watched.watch(f"/v1/runs/{run}/watch") as ended:
        (line,) = await all_lines(ended)
    assert msgspec.json.decode(line)["run"]["status"] == "terminated"


async def test_all_watches_of_a_follower_have_one_feed(watched: WatchBed) -> None:
    runs = [await watched.bed.submit(f"run-{number}") for number in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        answers = [
            await stack.enter_async_context(watched.watch(f"/v1/runs/{run}/watch"))
            for run in (*runs, *runs)
        ]
        events = await stack.enter_async_context(watched.watch("/v1/events/watch"))
        for answer in answers:
            assert await status_of(answer) == "submitted"
        await line_of(events)
        assert watched.leading.feeds == 1
        for run in runs:
            await act(watched.bed, run, "suspend")
        for answer in answers:
            assert (await line_of(answer))["run"]["suspended"] is True


async def test_who_wrote_finds_his_write_in_the_first_line(watched: WatchBed) -> None:
    run = await watched.bed.submit("live")
    async with watched.watch(f"/v1/runs/{run}/watch") as first:
        await line_of(first)
        for action in ("suspend", "resume") * 5:
            await act(watched.bed, run, action)
            async with watched.watch(f"/v1/runs/{run}/watch") as again:
                assert (await line_of(again))["run"]["suspended"] is (action == "suspend")


async def test_a_watch_goes_on_at_the_next_leader(watched: WatchBed) -> None:
    bed = watched.bed
    run = await bed.submit("live")
    async with (
        watched.watch(f"/v1/runs/{run}/watch") as lines,
        watched.watch(f"/v1/events/watch?run={run}") as events,
    ):
        assert await status_of(lines) == "submitted"
        await line_of(events)
        await watched.leading.stop()
        await act(bed, run, "suspend")
        await watched.leading.start()
        assert (await line_of(lines))["run"]["suspended"] is True
        await act(bed, run, "stop")
        last = [msgspec.json.decode(line) for line in await all_lines(lines)]
        assert [one["run"]["status"] for one in last][-1] == "terminated"
        told = [msgspec.json.decode(line)["event"]["seq"] for line in await all_lines(events)]
    async with bed.leader.get(f"/v1/events?run={run}", headers=bearer(USER_TOKEN)) as answer:
        stored = [event["seq"] for event in (await answer.json())["events"]]
    assert told == stored[1:], "each once, and none is missing"


async def test_a_leader_feeds_nobody_beyond_its_lease(watched: WatchBed) -> None:
    leading = watched.leading
    # Not for much longer: nobody waits for seconds in a test.
    leading.lease.renewed(0.01 - LEASE_SECONDS)
    run = await watched.bed.submit("live")
    async with watched.watch(f"/v1/runs/{run}/watch") as lines:
        assert await status_of(lines) == "submitted"
        assert leading.feeds == 1
        leading.now = 0.01
        await eventually(lambda: leading.feeds == 0)
        await act(watched.bed, run, "suspend")
        # Renewed after all, or led by another one: the watch goes on without a cut.
        leading.lease.renewed(leading.now)
        assert (await line_of(lines))["run"]["suspended"] is True


async def test_events_of_all_runs_are_those_that_the_reader_may_see(watched: WatchBed) -> None:
    bed = watched.bed
    await bed.submit("mine")
    async with (
        watched.watch("/v1/events/watch") as of_user,
        watched.watch("/v1/events/watch", ADMIN_TOKEN) as of_admin,
    ):
        first = await line_of(of_user)
        other = await bed.submit("of-admin", ADMIN_TOKEN)
        mine = await bed.submit("mine-too")
        seen = {first["event"]["run_id"]}
        while mine not in seen:
            seen.add((await line_of(of_user))["event"]["run_id"])
        assert other not in seen
        by_admin: set[str] = set()
        while not {other, mine} <= by_admin:
            by_admin.add((await line_of(of_admin))["event"]["run_id"])


async def test_a_reader_far_behind_gets_each_event_once(
    watched: WatchBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "MAX_KEPT", 2)
    for module in (event_tail, watch_reads):
        monkeypatch.setattr(module, "PAGE", 3)
    runs = [await watched.bed.submit(f"run-{number}") for number in range(3)]
    async with watched.watch("/v1/events/watch?cursor=1") as events:
        told = [(await line_of(events))["event"]["seq"]]
        for run in runs:
            await act(watched.bed, run, "suspend")
        async with watched.bed.leader.get("/v1/events", headers=bearer(USER_TOKEN)) as answer:
            stored = [event["seq"] for event in (await answer.json())["events"]]
        while len(told) < len(stored) - 1:
            told.append((await line_of(events))["event"]["seq"])
    assert told == stored[1:]


async def test_watches_are_refused_as_the_leader_refuses_them(watched: WatchBed) -> None:
    run = await watched.bed.submit("of-admin", ADMIN_TOKEN)
    for path in (
        f"/v1/runs/{run}/watch",
        "/v1/runs/none/watch",
        f"/v1/events/watch?run={run}",
        "/v1/events/watch?cursor=none",
        f"/v1/runs/{run}/watch?unknown=1",
    ):
        for token in (USER_TOKEN, "unknown"):
            async with (
                watched.watch(path, token) as here,
                watched.bed.leader.get(path, headers=bearer(token)) as there,
            ):
                assert here.status == there.status >= 400
                assert await here.json() == await there.json()
    assert watched.leading.feeds == 0


async def test_a_watch_ends_when_its_token_is_revoked(
    watched: WatchBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_reads, "JUDGED_SECONDS", 0.0)
    run = await watched.bed.submit("live")
    async with (
        watched.watch(f"/v1/runs/{run}/watch") as lines,
        watched.watch("/v1/events/watch") as events,
    ):
        assert await status_of(lines) == "submitted"
        await line_of(events)
        headers = bearer(ADMIN_TOKEN)
        async with watched.bed.leader.delete("/v1/tokens/t2", headers=headers) as answer:
            assert answer.status == 200
        await act(watched.bed, run, "suspend")
        for stream in (lines, events):
            with pytest.raises(aiohttp.ClientError):
                await stream.read()


async def test_without_a_feed_the_leader_answers(watched: WatchBed) -> None:
    run = await watched.bed.submit("live")
    await watched.leading.stop()
    await watched.leading.start(feeds=False)
    for path in (f"/v1/runs/{run}/watch", "/v1/events/watch"):
        assert await watched.status(path) == TO_THE_LEADER
    await watched.leading.stop()
    await watched.leading.start()
    async with watched.watch(f"/v1/runs/{run}/watch") as lines:
        assert await status_of(lines) == "submitted"
    assert await watched.status("/v1/events/watch", Origin="https://page.example") == TO_THE_LEADER


async def test_the_leader_forgets_what_nobody_watches_any_more(watched: WatchBed) -> None:
    run = await watched.bed.submit("live")
    async with watched.watch(f"/v1/runs/{run}/watch") as lines:
        await line_of(lines)
        assert list(watched.feed._runs) == [run]
    # A follower learns that a client left when it writes to it.
    await act(watched.bed, run, "suspend")
    await act(watched.bed, run, "resume")
    await eventually(lambda: not watched.feed._runs)
    watched.feed._leave()
    await eventually(lambda: watched.leading.feeds == 0)


async def test_no_client_gets_the_feed(watched: WatchBed) -> None:
    await watched.leading.stop()
    await watched.leading.start()
    url = watched.leading.url
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {CLIENT: BY_ITSELF}):
            async with session.get(url + FEED_PATH, headers=headers) as answer:
                assert answer.status == 404
    app = make_app(Forwarder(watched.leading.links))
    async with (
        TestClient(TestServer(app)) as follower,
        follower.get(FEED_PATH, headers={CLIENT: BY_ITSELF}) as answer,
    ):
        assert answer.status == 404
    assert watched.leading.feeds == 0


def test_messages_come_whole_however_they_are_cut() -> None:
    told: list[Message] = [
        Begun("a", 3, {"Nodes": 1}),
        Changed(4, ("r",)),
        Changed(5),
        RunLine("r", msgspec.Raw(b'{"run":null}'), 2, True),
        Beat(),
    ]
    data = b"".join(encoded(one) for one in told)
    for size in (1, 7, len(data)):
        lines = Lines()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        heard = [encoded(one) for piece in pieces for one in lines.messages(piece)]
        assert b"".join(heard) == data


async def test_a_judge_asks_once_for_all_watches_of_a_token() -> None:
    ada = User(name="ada", role=Role.USER, created_at=0.0)
    answers: list[User | StoreUnavailable | None] = [ada, StoreUnavailable("away"), None]
    asked: list[Proof] = []

    async def look(token: Proof) -> User | None:
        asked.append(token)
        answer = answers[len(asked) - 1]
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    judge = Judge(look)
    assert await asyncio.gather(*(judge.user_of(_PROOF) for _ in range(5))) == [ada] * 5
    assert asked == [_PROOF]
    judge._known[_PROOF].at = -1e9
    assert await judge.user_of(_PROOF) == ada, "a database that is away takes no right at once"
    judge._known[_PROOF].known_at = -1e9
    with pytest.raises(MayNotSee):
        await judge.user_of(_PROOF)
    judge._known[_PROOF].at = -1e9
    with pytest.raises(MayNotSee):
        await judge.user_of(_PROOF)
    assert len(asked) == 3


def test_rights_that_changed_end_a_watch() -> None:
    user = User(name="ada", role=Role.USER, created_at=0.0)
    admin = User(name="ada", role=Role.ADMIN, created_at=0.0)
    assert may_go_on(Reader(_PROOF, user, "ada"), user)
    assert may_go_on(Reader(_PROOF, user, None), user)
    assert may_go_on(Reader(_PROOF, admin, "eve"), admin)
    assert not may_go_on(Reader(_PROOF, admin, "eve"), user)
    assert not may_go_on(Reader(_PROOF, user, None), admin), "he would see more, and comes again"
    assert not may_go_on(Reader(_PROOF, user, "eve"), user)


async def test_an_old_line_of_others_is_nobodys_first_one(
    watched: WatchBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await watched.bed.submit("live")
    async with watched.watch(f"/v1/runs/{run}/watch") as first:
        await line_of(first)
        async with watched.feed.used():
            await watched.leading.stop()
            await act(watched.bed, run, "suspend")
            monkeypatch.setattr(leader_feed, "BEGIN_SECONDS", 0.0)
            with pytest.raises(NeedsLeader):
                async with watched.feed.watched(run, Flag()):
                    raise AssertionError("it is older than the write")


async def test_events_that_cannot_be_read_here_are_left_to_the_leader(
    watched: WatchBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is of the next version, and has events that this one does not know."""
    run = await watched.bed.submit("live")
    async with watched.watch("/v1/events/watch") as events:
        await line_of(events)

        def unknown(*_: object) -> None:
            raise msgspec.ValidationError("Invalid enum value 'new'")

        for name in ("events", "events_with_owners"):
            monkeypatch.setattr(queries, name, unknown)
        await act(watched.bed, run, "suspend")
        with pytest.raises(aiohttp.ClientError):
            await events.read()
    for path in ("/v1/events/watch", "/v1/events"):
        assert await watched.status(path) == TO_THE_LEADER


async def test_numbers_of_events_that_a_promoted_server_gives_again_are_told(
    watched: WatchBed,
) -> None:
    run = await watched.bed.submit("live")
    async with watched.watch("/v1/events/watch?cursor=1") as events:
        await line_of(events)
        tail = watched.reads._tail
        await watched.leading.stop()
        # What the server before had.
        tail.end += 1_000
        watched.leading.service.started = "another0"
        await watched.leading.start()
        with pytest.raises(aiohttp.ClientError):
            await events.read()
    async with watched.watch("/v1/events/watch?cursor=1") as events:
        await line_of(events)
        await act(watched.bed, run, "suspend")
        assert (await line_of(events))["event"]["run_id"] == run


async def test_a_tail_that_nobody_uses_ends_without_a_cut_read(watched: WatchBed) -> None:
    await watched.bed.submit("live")
    tail, moved = watched.reads._tail, Flag()
    async with watched.feed.used(), tail.used(moved):
        moving = tail._moving
    assert moving is not None
    await asyncio.wait((moving,))
    assert not moving.cancelled()
    assert not tail.is_moving


def test_a_slow_reader_keeps_few_events_in_memory() -> None:
    user = User(name="ada", role=Role.USER, created_at=0.0)
    events = [KeptEvent(seq, "r", "ada", False, b"%d\n" % seq) for seq in range(250)]
    pieces = list(to_send(events, Reader(_PROOF, user, "ada"), "r"))
    assert [piece.count(b"\n") for piece in pieces] == [100, 100, 50]
    assert b"".join(pieces) == b"".join(event.line for event in events)


async def test_a_judge_forgets_who_watches_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_reads, "MAX_JUDGED", 2)
    ada = User(name="ada", role=Role.USER, created_at=0.0)

    async def look(_: Proof) -> User | None:
        raise StoreUnavailable("away")

    judge = Judge(look)
    for number in range(3):
        judge.knows(Proof(str(number)), ada)
    assert await judge.user_of(Proof("0")) == ada, "all three watch"
    for known in judge._known.values():
        known.at = -1e9
    judge.knows(Proof("3"), ada)
    assert list(judge._known) == [Proof("3")]
