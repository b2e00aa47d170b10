"""A log that grows comes once from the leader to a follower, and from there to all its readers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from controller.clock import SystemClock
from controller.forwarding import live_logs, reader_rights
from controller.forwarding.live_logs import LiveLogs, StreamLost
from controller.forwarding.log_reads import LogReads
from controller.forwarding.reads import Proof
from controller.logs.store import LogStore
from controller.replica.alone import NeedsLeader
from controller.store.reading import MAX_WAITING
from fairlead.wire.frames import Decoder, Frame, Stream, encode
from tests.support.waiting import LONG, eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.test_log_reads import attempt_of, write
from tests.unit.forwarding.test_reads import TO_THE_LEADER, Bed, bearer, opened_bed

ATTEMPT = "attempt1"


class ALeader:
    """The log of one attempt at a leader, and the streams of it that were opened."""

    def __init__(self, folder: Path) -> None:
        self.store = LogStore(folder)
        self.opened: list[int] = []
        self.open_now = 0
        self.refuses = False
        self.is_away = False
        self.again_seconds: float | None = None
        """When it wants to be asked again, while it is away."""
        self.lost = asyncio.Event()
        """Ends the streams that are open, in the middle of a frame."""

    async def stream(self, _run: str, attempt: str, offset: int) -> AsyncGenerator[bytes, None]:
        self.opened.append(offset)
        if self.refuses:
            raise NeedsLeader
        if self.is_away:
            raise StreamLost(self.again_seconds)
        self.open_now += 1
        try:
            yield b""
            lost = asyncio.create_task(self.lost.wait())
            async with contextlib.aclosing(self.store.follow(attempt, offset)) as pieces:
                while True:
                    piece = asyncio.ensure_future(anext(pieces, None))
                    try:
                        await asyncio.wait((piece, lost), return_when=asyncio.FIRST_COMPLETED)
                        if lost.done():
                            yield encode(Frame(offset, 0, Stream.STDOUT, b"torn"))[:-1]
                            raise StreamLost
                        if (data := piece.result()) is None:
                            return
                    finally:
                        piece.cancel()
                        await asyncio.wait((piece,))
                    yield data
        finally:
            lost.cancel()
            self.open_now -= 1

    async def write(self, *lines: bytes) -> None:
        writer = await self.store.writer(ATTEMPT)
        for line in lines:
            await writer.append(encode(Frame(writer.end, 7, Stream.STDOUT, line)))
        await writer.close()


class AReader:
    """Takes the place of a request; `is_cut`: its connection was."""

    def __init__(self) -> None:
        self.is_cut = False
        self.transport = self
        self.got = b""

    def abort(self) -> None:
        self.is_cut = True

    async def read(self, logs: LiveLogs, offset: int = 0) -> bytes:
        decoder, at = Decoder(), offset
        async with logs.held("run", ATTEMPT, offset, cast(web.Request, self)) as pieces:
            async for piece in pieces:
                for frame in decoder.feed(piece):
                    assert frame.offset == at
                    at = frame.end
                    self.got += frame.payload
        return self.got


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[ALeader]:
    made = ALeader(tmp_path / "leader")
    yield made
    await asyncio.to_thread(made.store.close)


@pytest.fixture
async def logs(
    leader: ALeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LiveLogs]:
    monkeypatch.setattr(live_logs, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(live_logs, "LOST_SECONDS", 3600.0)
    made = LiveLogs(tmp_path / "follower", leader.stream)
    await made.start()
    yield made
    await made.close()
    assert leader.open_now == 0
    assert not list((tmp_path / "follower").glob("*/*"))


def readers_of(logs: LiveLogs) -> int:
    return sum(len(copy.readers) for copy in logs._copies.values())


async def test_a_hundred_readers_cost_the_leader_one_stream(
    leader: ALeader, logs: LiveLogs
) -> None:
    lines = [b"line %d\n" % number for number in range(300)]
    whole = b"".join(lines)
    await leader.write(*lines[:100])
    offsets = [13 * number for number in range(100)]
    reading = [asyncio.create_task(AReader().read(logs, offset)) for offset in offsets]
    await eventually(lambda: readers_of(logs) == 100)
    await leader.write(*lines[100:])
    leader.store.finish(ATTEMPT)
    for offset, read in zip(offsets, await asyncio.gather(*reading), strict=True):
        assert read == whole[offset:]
    assert leader.opened == [0]


async def test_a_stream_that_is_lost_goes_on_where_it_ended(
    leader: ALeader, logs: LiveLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long it was quiet before.
    monkeypatch.setattr(live_logs, "LOST_SECONDS", 1e-9)
    await leader.write(b"first\n")
    reader = AReader()
    reading = asyncio.create_task(reader.read(logs))
    await eventually(lambda: reader.got == b"first\n")
    leader.lost.set()
    await eventually(lambda: len(leader.opened) > 1)
    leader.lost.clear()
    await leader.write(b"second\n")
    leader.store.finish(ATTEMPT)
    assert await reading == b"first\nsecond\n"
    assert leader.opened[:2] == [0, 6]
    assert not reader.is_cut


async def test_a_stream_that_no_leader_gives_for_long_cuts_its_readers(
    leader: ALeader, logs: LiveLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_logs, "LOST_SECONDS", 0.0)
    reader = AReader()
    reading = asyncio.create_task(reader.read(logs))
    await eventually(lambda: leader.open_now == 1)
    leader.is_away = True
    leader.lost.set()
    await eventually(lambda: reader.is_cut)
    reading.cancel()
    await asyncio.wait((reading,))
    assert (reader.got, readers_of(logs)) == (b"", 0)


async def test_a_log_for_which_there_is_no_room_cuts_its_readers(
    leader: ALeader, logs: LiveLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_logs, "MAX_BYTES", 100)
    await leader.write(b"x")
    reader = AReader()
    reading = asyncio.create_task(reader.read(logs))
    await eventually(lambda: reader.got == b"x")
    await leader.write(b"y" * 100)
    await eventually(lambda: reader.is_cut)
    reading.cancel()
    await asyncio.wait((reading,))
    assert reader.got == b"x"


async def test_who_begins_before_the_others_is_left_to_the_leader(
    leader: ALeader, logs: LiveLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_logs, "FROM_BEGIN_BYTES", 3)
    await leader.write(b"012345")
    first = AReader()
    reading = asyncio.create_task(first.read(logs, 4))
    await eventually(lambda: first.got == b"45")
    with pytest.raises(NeedsLeader):
        await AReader().read(logs, 3)
    leader.store.finish(ATTEMPT)
    assert await reading == b"45"
    assert leader.opened == [4]


async def test_a_leader_that_gives_no_stream_is_asked_by_each_reader(
    leader: ALeader, logs: LiveLogs
) -> None:
    leader.refuses = True
    for _ in range(2):
        with pytest.raises(NeedsLeader):
            await AReader().read(logs)
    assert leader.opened == [0, 0]
    assert logs._copies == {}


async def test_readers_wait_for_a_stream_while_a_leader_is_replaced(
    leader: ALeader, logs: LiveLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_logs, "BEGIN_SECONDS", 3600.0)
    leader.is_away = True
    reading = asyncio.create_task(AReader().read(logs))
    await eventually(lambda: len(leader.opened) >= 2)
    leader.is_away = False
    await leader.write(b"line\n")
    leader.store.finish(ATTEMPT)
    assert await reading == b"line\n"


async def test_a_reader_who_has_nothing_yet_is_left_to_a_leader_that_gives_no_stream_for_long(
    leader: ALeader, logs: LiveLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_logs, "BEGIN_SECONDS", 0.0)
    leader.is_away = True
    with pytest.raises(NeedsLeader):
        await AReader().read(logs)
    assert leader.opened == [0]


async def test_a_leader_that_wants_to_be_asked_later_is_asked_once(
    leader: ALeader, logs: LiveLogs
) -> None:
    """Its bucket is away: its reader hears so at once, and comes again when he was told to."""
    leader.is_away, leader.again_seconds = True, live_logs.BEGIN_SECONDS
    with pytest.raises(NeedsLeader):
        await AReader().read(logs)
    assert leader.opened == [0]


async def test_a_full_disk_and_too_many_logs_are_left_to_the_leader(
    leader: ALeader, logs: LiveLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_logs, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(NeedsLeader):
        await AReader().read(logs)
    monkeypatch.setattr(live_logs, "MAX_COPIES", 0)
    with pytest.raises(NeedsLeader):
        await AReader().read(logs)
    assert leader.opened == []


async def test_a_reader_who_takes_nothing_holds_up_nobody(leader: ALeader, logs: LiveLogs) -> None:
    stalled = cast(web.Request, AReader())
    async with logs.held("run", ATTEMPT, 0, stalled) as pieces:
        reading = asyncio.create_task(AReader().read(logs))
        await leader.write(*[b"x" * 1000] * 100)
        leader.store.finish(ATTEMPT)
        assert len(await reading) == 100_000
        # Nothing is lost for the other one.
        taken = [frame for piece in [p async for p in pieces] for frame in Decoder().feed(piece)]
        assert sum(len(frame.payload) for frame in taken) == 100_000
    assert leader.opened == [0]


async def test_the_stream_ends_with_its_last_reader(
    leader: ALeader, logs: LiveLogs, tmp_path: Path
) -> None:
    await leader.write(b"line\n")
    readers = [AReader(), AReader()]
    reading = [asyncio.create_task(reader.read(logs)) for reader in readers]
    await eventually(lambda: all(reader.got for reader in readers))
    reading[0].cancel()
    await asyncio.wait(reading[:1])
    assert leader.open_now == 1
    reading[1].cancel()
    await eventually(lambda: leader.open_now == 0)
    await eventually(lambda: not list((tmp_path / "follower").glob("*/*")))
    assert not any(reader.is_cut for reader in readers)


# -- over HTTP ------------------------------------------------------------------------------


class _OfLogins(LogReads):
    """Knows logins of the dashboard by a header, which names their token."""

    def _proof(self, request: web.Request) -> Proof:
        token_id = request.headers.get("Login")
        return super()._proof(request) if token_id is None else Proof(None, token_id, "login")


class LiveBed:
    """A run whose log grows, at a leader and a follower."""

    def __init__(self, bed: Bed, logs: LiveLogs, attempt_id: str) -> None:
        self.bed = bed
        self.logs = logs
        self.attempt_id = attempt_id
        self.opened = 0


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveBed]:
    made: LiveBed

    async def stream(_run: str, attempt: str, offset: int) -> AsyncGenerator[bytes, None]:
        made.opened += 1
        yield b""
        async for piece in made.bed.controller.logs.follow(attempt, offset):
            yield piece

    logs = LiveLogs(tmp_path / "follower", stream)
    async with opened_bed(
        tmp_path, lambda reader: _OfLogins(reader, SystemClock(), None, logs)
    ) as bed:
        attempt_id = await attempt_of(bed, await bed.submit("live"))
        await write(bed, attempt_id)
        made = LiveBed(bed, logs, attempt_id)
        yield made
    await logs.close()


async def messages(client: TestClient[Any, Any], query: str, token: str) -> object:
    path = f"/v1/runs/live/logs/ws{query}"
    try:
        socket = await client.ws_connect(path, headers=bearer(token))
    except aiohttp.WSServerHandshakeError as error:
        return error.status
    came = b"".join(
        [one.data if isinstance(one.data, bytes) else one.data.encode() async for one in socket]
    )
    return came, socket.close_code


@pytest.mark.parametrize("token", [ADMIN_TOKEN, USER_TOKEN])
async def test_a_follower_streams_a_log_that_grows_as_the_leader_does(
    live: LiveBed, token: str
) -> None:
    bed, queries = live.bed, ("", "?offset=57", "?format=text&offset=13", "?format=json")
    there = [asyncio.create_task(messages(bed.leader, query, token)) for query in queries]
    here = [asyncio.create_task(messages(bed.follower, query, token)) for query in queries]
    await eventually(lambda: readers_of(live.logs) == len(queries))
    # One reader of the leader's store for each of its own, and one for the follower.
    follows = bed.controller.logs._follows
    await eventually(
        lambda: live.attempt_id in follows and len(follows[live.attempt_id].readers) == 5
    )
    await write(bed, live.attempt_id, 10)
    bed.controller.logs.finish(live.attempt_id)
    assert await asyncio.gather(*here) == await asyncio.gather(*there)
    assert live.opened == 1


async def test_readers_who_come_all_at_once_follow_the_log_at_the_follower(live: LiveBed) -> None:
    """As those of a follower that was stopped: more than may wait for the database at once."""
    bed, count = live.bed, 3 * MAX_WAITING
    coming = [asyncio.create_task(messages(bed.follower, "", USER_TOKEN)) for _ in range(count)]
    await eventually(lambda: readers_of(live.logs) == count or any(one.done() for one in coming))
    bed.controller.logs.finish(live.attempt_id)
    assert len(set(await asyncio.gather(*coming))) == 1
    assert coming[0].result() != TO_THE_LEADER
    assert live.opened == 1


async def test_a_follower_streams_to_nobody_without_the_right(live: LiveBed) -> None:
    assert await messages(live.bed.follower, "", "unknown") == 401
    of_admin = await live.bed.submit("of-admin", ADMIN_TOKEN)
    for client in (live.bed.leader, live.bed.follower):
        path = f"/v1/runs/{of_admin}/logs/ws"
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.ws_connect(path, headers=bearer(USER_TOKEN))
        assert caught.value.status == 404
    assert live.opened == 0


async def test_without_a_bucket_a_final_log_is_left_to_the_leader(live: LiveBed) -> None:
    await live.bed.stop("live")
    assert await messages(live.bed.follower, "", USER_TOKEN) == TO_THE_LEADER
    assert live.opened == 0


async def test_who_loses_the_right_to_a_quiet_log_is_cut_at_a_follower(
    live: LiveBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is written to the log."""
    looks = Looks(monkeypatch)
    own, again, other = (
        asyncio.create_task(messages(live.bed.follower, "", token))
        for token in (USER_TOKEN, USER_TOKEN, ADMIN_TOKEN)
    )
    await eventually(lambda: readers_of(live.logs) == 3)
    await looks.once()
    assert readers_of(live.logs) == 3
    async with live.bed.leader.delete("/v1/tokens/t2", headers=bearer(ADMIN_TOKEN)) as answer:
        assert answer.status == 200
    await looks.once()
    for cut in (own, again):
        _, code = cast(tuple[bytes, int | None], await cut)
        assert code != aiohttp.WSCloseCode.OK
    await eventually(lambda: readers_of(live.logs) == 1)
    live.bed.controller.logs.finish(live.attempt_id)
    _, code = cast(tuple[bytes, int | None], await other)
    assert code == aiohttp.WSCloseCode.OK


async def test_logins_of_the_dashboard_are_judged_one_by_one(
    live: LiveBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They send no token, so they can't be told apart by it."""
    looks = Looks(monkeypatch)
    path = "/v1/runs/live/logs/ws"
    async with (
        live.bed.follower.ws_connect(path, headers={"Login": "t1"}) as of_admin,
        live.bed.follower.ws_connect(path, headers={"Login": "t2"}) as of_owner,
    ):
        await eventually(lambda: readers_of(live.logs) == 2)
        async with live.bed.leader.delete("/v1/tokens/t2", headers=bearer(ADMIN_TOKEN)) as answer:
            assert answer.status == 200
        await looks.once()
        await eventually(lambda: readers_of(live.logs) == 1)
        assert [one async for one in of_owner], "what came before"
        assert of_owner.close_code != aiohttp.WSCloseCode.OK
        live.bed.controller.logs.finish(live.attempt_id)
        assert [one async for one in of_admin]
        assert of_admin.close_code == aiohttp.WSCloseCode.OK


class FakeRequest:
    """A reader's request, whose connection may be cut."""

    def __init__(self) -> None:
        self.is_cut = False

    @property
    def transport(self) -> FakeRequest:
        return self

    def abort(self) -> None:
        self.is_cut = True


async def test_the_rights_of_a_token_are_looked_up_once_and_unknown_ones_hold_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, asked = Looks(monkeypatch), list[str]()
    told: dict[str, bool | None] = {"a": True, "b": None}

    async def is_allowed(_: object, run_id: str) -> bool | None:
        asked.append(run_id)
        return told[run_id]

    rights = reader_rights.ReaderRights(is_allowed)
    one, two, three = FakeRequest(), FakeRequest(), FakeRequest()
    with contextlib.ExitStack() as reading:
        for request, run_id in ((one, "a"), (two, "a"), (three, "b")):
            reading.enter_context(rights.watched(cast(web.Request, request), Proof("t"), run_id))
        await looks.once()
        assert asked == ["a", "b"]
        assert [request.is_cut for request in (one, two, three)] == [False] * 3
        monkeypatch.setattr(reader_rights, "UNKNOWN_SECONDS", 0.0)
        told["a"] = False
        await looks.once()
        assert [request.is_cut for request in (one, two, three)] == [True] * 3
    assert rights._looking is None


class Looks:
    """Lets followers look at rights only when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = asyncio.Semaphore(0)
        self._waits = asyncio.Semaphore(0)
        monkeypatch.setattr(reader_rights, "_pause", self._pause)

    async def _pause(self) -> None:
        self._waits.release()
        await self._turn.acquire()

    async def once(self) -> None:
        """Return when it has looked at all."""
        async with asyncio.timeout(LONG):
            await self._waits.acquire()
            self._turn.release()
            await self._waits.acquire()
        self._waits.release()
