"""Heartbeats that say nothing new wake nobody; all else arrives, however a node's words are cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from hypothesis import given
from hypothesis import strategies as st

from controller.links import heartbeats
from controller.links.base import NodeConnection, NodeLink
from controller.links.clients import LocalLink
from controller.links.heartbeats import HeartbeatHandler, use_heartbeat_handlers
from controller.links.ssh import SshLink
from shim.client import ShimClient, ShimUnavailable
from shim.schemas import Event, EventType
from tests.support.waiting import eventually
from tests.unit.links.sshd import CLIENT_KEY, Sockets, listening, sshd

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/x\r\n\r\n"
END = b"0\r\n\r\n"
BEAT, NEXT_BEAT = (Event(cursor=f"e.{at}", type=EventType.HEARTBEAT) for at in (1, 2))
GONE = Event(cursor="e.2", type=EventType.REMOVED, task_id="t1")
RESYNC = Event(cursor="e.1", type=EventType.RESYNC)
TURNS = 8
"""Of the loop, from bytes to whoever waits for them."""


def line(event: Event) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def said(*events: Event) -> list[bytes]:
    return [chunk(line(event)) for event in events]


def without_repetition(events: Sequence[Event]) -> list[Event]:
    return [
        event
        for before, event in zip((None, *events), events, strict=False)
        if event != before or event.type is not EventType.HEARTBEAT
    ]


class _Transport(asyncio.Transport):
    def __init__(self, protocol: ResponseHandler) -> None:
        super().__init__()
        self._protocol = protocol
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._protocol.connection_lost(None)


class Wire(aiohttp.BaseConnector):
    """The test is the node: its words arrive in the pieces in which they are fed."""

    def __init__(self, *, filtered: bool = True) -> None:
        super().__init__()
        self.heard = 0
        if filtered:
            use_heartbeat_handlers(self, self._hear)
        self.handler: asyncio.Future[ResponseHandler] = asyncio.get_running_loop().create_future()

    async def _create_connection(self, *_: Any) -> ResponseHandler:
        handler = self._factory()
        handler.connection_made(_Transport(handler))
        self.handler.set_result(handler)
        return handler

    def _hear(self) -> None:
        self.heard += 1

    async def feed(self, *pieces: bytes) -> None:
        handler = await self.handler
        await turns()
        for piece in pieces:
            handler.data_received(piece)
            await turns()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Followed:
    """What a client of the shim gets of it."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.got: list[Event] = []
        self.following: asyncio.Task[None]

    async def follow(self, client: ShimClient) -> None:
        async with contextlib.aclosing(client.events()) as events:
            async for event in events:
                self.got.append(event)


@contextlib.asynccontextmanager
async def followed(
    *, filtered: bool = True, silence: float | None = None
) -> AsyncIterator[Followed]:
    wire = Wire(filtered=filtered)
    async with aiohttp.ClientSession(connector=wire) as session:
        seen = Followed(wire)
        client = ShimClient(session, silence=silence, known=heartbeats.expect)
        seen.following = asyncio.create_task(seen.follow(client))
        try:
            yield seen
        finally:
            seen.following.cancel()
            await asyncio.gather(seen.following, return_exceptions=True)


async def test_the_same_heartbeat_again_is_heard_and_wakes_nobody() -> None:
    async with followed() as seen:
        await seen.wire.feed(HEAD, *said(BEAT, BEAT, BEAT, GONE, NEXT_BEAT, NEXT_BEAT))
        assert seen.got == [BEAT, GONE, NEXT_BEAT]
        assert seen.wire.heard == 3


async def test_the_stream_ends_as_any_other_after_heartbeats_that_were_kept_back() -> None:
    async with followed() as seen:
        await seen.wire.feed(HEAD, *said(BEAT, BEAT), END)
        assert seen.following.done()
        assert seen.following.exception() is None


async def test_a_connection_that_is_lost_after_them_is_an_unavailable_shim() -> None:
    async with followed() as seen:
        await seen.wire.feed(HEAD, *said(BEAT, BEAT))
        (await seen.wire.handler).connection_lost(ConnectionResetError())
        with pytest.raises(ShimUnavailable):
            await seen.following


async def test_a_heartbeat_that_is_kept_back_puts_off_the_end_by_silence() -> None:
    async with followed(silence=3600.0) as seen:
        await seen.wire.feed(HEAD, *said(BEAT))
        handler = await seen.wire.handler
        timer = handler._read_timeout_handle
        assert timer is not None
        await seen.wire.feed(*said(BEAT))
        again = handler._read_timeout_handle
        assert (seen.wire.heard, timer.cancelled()) == (1, True)
        assert again is not None
        assert not again.cancelled()


async def test_a_heartbeat_cut_at_any_byte_costs_no_event_and_adds_none() -> None:
    words = [HEAD, *said(BEAT, BEAT, BEAT, GONE, NEXT_BEAT, NEXT_BEAT), END]
    for number, word in enumerate(words):
        for at in range(1, len(word)):
            async with followed() as seen:
                pieces = [*words[:number], word[:at], word[at:], *words[number + 1 :]]
                await seen.wire.feed(*pieces)
                assert without_repetition(seen.got) == [BEAT, GONE, NEXT_BEAT], pieces
                assert seen.following.done()
                assert seen.following.exception() is None


EVENTS = st.lists(st.sampled_from([BEAT, BEAT, NEXT_BEAT, GONE, RESYNC]), max_size=12)


@given(
    events=EVENTS,
    in_a_chunk=st.lists(st.integers(1, 2), min_size=12, max_size=12),
    cuts=st.sets(st.integers(1, 800), max_size=12),
    at_chunks=st.booleans(),
)
def test_cut_and_joined_anyhow_it_gives_what_aiohttp_alone_gives(
    events: list[Event], in_a_chunk: list[int], cuts: set[int], at_chunks: bool
) -> None:
    lines, chunks = [line(event) for event in events], [HEAD]
    for count in in_a_chunk:
        taken, lines = lines[:count], lines[count:]
        chunks += [chunk(b"".join(taken))] if taken else []
    stream, ends = b"".join(chunks), {sum(map(len, chunks[:n])) for n in range(len(chunks))}
    places = sorted({0, len(stream), *cuts, *(ends if at_chunks else ())})
    pieces = [stream[a:b] for a, b in itertools.pairwise(places) if stream[a:b]]

    async def got(filtered: bool) -> tuple[list[Event], int]:
        async with followed(filtered=filtered) as seen:
            await seen.wire.feed(*pieces)
            return seen.got, seen.wire.heard

    plain, _ = asyncio.run(got(False))
    fewer, kept_back = asyncio.run(got(True))
    assert plain == events
    assert without_repetition(fewer) == without_repetition(plain)
    assert len(fewer) + kept_back == len(plain)


async def test_whoever_expects_nothing_gets_every_piece_alike_or_not() -> None:
    wire = Wire()
    async with aiohttp.ClientSession(connector=wire) as session:
        answer = asyncio.create_task(session.get("http://node/logs"))
        await wire.feed(HEAD, *(chunk(b"the same line\n") for _ in range(4)), END)
        assert await (await answer).read() == b"the same line\n" * 4
    assert wire.heard == 0


async def test_what_was_expected_of_one_answer_is_not_of_the_next() -> None:
    wire = Wire()
    client: ShimClient
    async with aiohttp.ClientSession(connector=wire) as session:
        client = ShimClient(session, known=heartbeats.expect)
        for _ in range(2):
            events = client.events()
            first = asyncio.ensure_future(anext(events))
            await wire.feed(HEAD, *said(BEAT))
            assert await first == BEAT
            await wire.feed(END)
            assert await anext(events, None) is None
    assert wire.heard == 0


async def test_a_response_of_another_connector_expects_nothing() -> None:
    async with followed(filtered=False) as seen:
        await seen.wire.feed(HEAD, *said(BEAT, BEAT))
        assert seen.got == [BEAT, BEAT]


@contextlib.asynccontextmanager
async def linked(kind: str, sockets: Sockets) -> AsyncIterator[NodeConnection]:
    async with contextlib.AsyncExitStack() as stack:
        link: NodeLink = LocalLink(sockets.path)
        if kind == "ssh":
            server = await stack.enter_async_context(sshd())
            link = SshLink(server.address(sockets.path), CLIENT_KEY)
        connection = await link.connect()
        stack.push_async_callback(connection.close)
        yield connection


@pytest.mark.parametrize("kind", ["ssh", "local"])
async def test_through_a_real_link_a_heartbeat_is_heard_and_the_next_event_arrives(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_back = 0
    received = HeartbeatHandler.data_received

    def counted(self: HeartbeatHandler, data: bytes) -> None:
        nonlocal kept_back
        kept_back += data == self._expected
        received(self, data)

    async def events(sockets: Sockets, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while not sockets.go_on.is_set():
            await response.write(line(BEAT))
            await asyncio.sleep(0.01)
        await response.write(line(GONE))
        return response

    monkeypatch.setattr(HeartbeatHandler, "data_received", counted)
    monkeypatch.setattr(Sockets, "_events", events)
    async with listening() as sockets, linked(kind, sockets) as connection:
        stream = connection.shim.events()
        assert await anext(stream) == BEAT
        first = asyncio.get_running_loop().time()
        seen: list[Event] = []

        async def follow() -> None:
            seen.extend([event async for event in stream])

        following = asyncio.create_task(follow())
        await eventually(lambda: kept_back >= 3)
        assert connection.heard_at() > first
        sockets.go_on.set()
        await following
        assert seen[-1] == GONE
        assert without_repetition([BEAT, *seen]) == [BEAT, GONE]


# -- what a connection keeps ------------------------------------------------------------------


async def test_answers_are_taken_in_the_order_in_which_they_came() -> None:
    handler: Any = HeartbeatHandler(asyncio.get_running_loop(), lambda: None)
    for answer in ("first", "second"):
        handler.feed_data(answer, 0)
    assert [await handler.read(), await handler.read()] == ["first", "second"]
    assert len(handler) == 0


async def test_a_websocket_gives_its_messages_and_keeps_no_parser_of_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[HeartbeatHandler] = []
    taken = HeartbeatHandler.set_parser

    def noted(self: HeartbeatHandler, *args: Any, **named: Any) -> None:
        made.append(self)
        taken(self, *args, **named)

    monkeypatch.setattr(HeartbeatHandler, "set_parser", noted)
    async with listening() as sockets, linked("local", sockets) as connection:
        pieces = connection.runner(sockets.runner_path).follow_logs(7)
        sizes = [len(await anext(pieces)) for _ in range(3)]
        assert sizes == [4 << 20] * 3
        assert [handler._parser for handler in made] == [None]
        sockets.go_on.set()
        assert await anext(pieces, None) is None
