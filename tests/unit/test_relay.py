"""Connections are carried to the controller that leads, or held until one does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from controller import relay as module
from controller.relay import Relay, address_of, leader_at
from tests.support.waiting import eventually


class Leader:
    """Answers each line with its name and the line, and the end of input with `bye`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: set[asyncio.StreamWriter] = set()
        self.talking = 0

    async def serve(self, sock: socket.socket) -> asyncio.Server:
        return await asyncio.start_server(self._talk, sock=sock)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        self.talking += 1
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                writer.write(self.name.encode() + b" " + line)
            writer.write(b"bye\n")
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self.talking -= 1


def a_socket() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def url_of(sock: socket.socket) -> str:
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextlib.asynccontextmanager
async def a_leader(
    name: str, listening: socket.socket | None = None
) -> AsyncIterator[tuple[Leader, str]]:
    leader, sock = Leader(name), listening or a_socket()
    server = await leader.serve(sock)
    yield leader, url_of(sock)
    server.close()
    for writer in leader.open:
        writer.transport.abort()
    await eventually(lambda: not leader.talking)


@contextlib.asynccontextmanager
async def a_relay(hold_seconds: float = 30.0) -> AsyncIterator[tuple[Relay, socket.socket]]:
    relay, sock = Relay(hold_seconds), a_socket()
    await relay.listen(sock)
    yield relay, sock
    await relay.close()
    sock.close()


@contextlib.asynccontextmanager
async def connected(
    sock: socket.socket,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    yield reader, writer
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def answered(sock: socket.socket, line: bytes) -> bytes:
    async with connected(sock) as (reader, writer):
        writer.write(line)
        return await reader.readline()


async def test_both_directions_are_carried_to_their_ends() -> None:
    async with a_leader("one") as (_, url), a_relay() as (relay, sock):
        relay.lead_to(leader_at(url))
        async with connected(sock) as (reader, writer):
            writer.write(b"a\n")
            assert await reader.readline() == b"one a\n"
            writer.write(b"b\n")
            writer.write_eof()
            assert await reader.read() == b"one b\nbye\n"


async def test_an_answer_comes_whole_to_a_client_that_has_said_all_and_reads_slowly() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(b"x" * (1 << 20))
        writer.close()
        await writer.wait_closed()

    sock, here = a_socket(), a_socket()
    # What the kernel does not take stays in the relay's own buffer.
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = await asyncio.start_server(answer, sock=sock)
    relay = Relay()
    await relay.listen(here)
    relay.lead_to(leader_at(url_of(sock)))
    async with connected(here) as (reader, writer):
        writer.write_eof()
        assert len(await reader.read()) == 1 << 20
    await relay.close()
    here.close()
    server.close()


async def test_a_connection_is_held_until_somebody_leads() -> None:
    async with a_relay() as (relay, sock), a_leader("one") as (_, url), connected(sock) as client:
        client[1].write(b"a\n")
        relay.lead_to(leader_at(url))
        assert await client[0].readline() == b"one a\n"


async def test_a_connection_for_a_dead_leader_goes_to_its_successor() -> None:
    async with a_relay() as (relay, sock), a_leader("two") as (_, url):
        dead = a_socket()
        relay.lead_to(leader_at(url_of(dead)))
        dead.close()
        async with connected(sock) as (reader, writer):
            writer.write(b"a\n")
            relay.lead_to(leader_at(url))
            assert await reader.readline() == b"two a\n"


async def test_a_connection_to_a_vanished_leader_is_given_up_when_another_one_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_asked, own = asyncio.Event(), module._connected

    async def never(to: module.Leader) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if to.host != "vanished":
            return await own(to)
        has_asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(module, "_connected", never)
    async with a_relay() as (relay, sock), a_leader("two") as (_, url), connected(sock) as client:
        relay.lead_to(leader_at("http://vanished:1"))
        client[1].write(b"a\n")
        await has_asked.wait()
        relay.lead_to(leader_at(url))
        assert await client[0].readline() == b"two a\n"


class Taking(asyncio.Event):
    """A leader's end that takes more once this is set; the writer to it."""

    def __init__(self) -> None:
        super().__init__()
        self.transport = self
        self.is_aborted = False

    async def drain(self) -> None:
        await self.wait()

    def abort(self) -> None:
        self.is_aborted = True


class Lead(asyncio.Event):
    """Whether a lead is over; `looks`: how often somebody asked."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return super().is_set()


async def test_a_leader_that_takes_nothing_for_a_while_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEFT_SECONDS", 0.001)
    taking, lead = Taking(), Lead()
    waiting = asyncio.create_task(module.drained(cast(asyncio.StreamWriter, taking), lead))
    await eventually(lambda: lead.looks > 2)
    taking.set()
    await waiting
    assert not taking.is_aborted


@pytest.mark.parametrize("is_over", [True, False], ids=["replaced", "for too long"])
async def test_a_leader_that_takes_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    monkeypatch.setattr(module, "LEFT_SECONDS", 0.001)
    taking, lead = Taking(), Lead()
    if is_over:
        lead.set()
    else:
        monkeypatch.setattr(module, "STALLED_SECONDS", 0.01)
    with pytest.raises(TimeoutError):
        await module.drained(cast(asyncio.StreamWriter, taking), lead)
    assert taking.is_aborted


async def test_a_connection_that_nobody_takes_is_closed() -> None:
    async with a_relay(hold_seconds=0.0) as (_, sock), connected(sock) as (reader, _writer):
        assert await ended(reader)


async def test_a_cut_of_the_leader_cuts_the_client_and_the_other_way_round() -> None:
    async with a_leader("one") as (leader, url), a_relay() as (relay, sock):
        relay.lead_to(leader_at(url))
        async with connected(sock) as (reader, writer):
            writer.write(b"a\n")
            await reader.readline()
            (there,) = leader.open
            there.transport.abort()
            assert await ended(reader)
        async with connected(sock) as (reader, writer):
            writer.write(b"b\n")
            await reader.readline()
        (last,) = leader.open - {there}
        await eventually(last.transport.is_closing)


async def test_whoever_takes_over_gets_the_connections_that_were_held_and_all_new_ones() -> None:
    async with a_relay() as (relay, sock), connected(sock) as (reader, writer):
        writer.write(b"a\n")
        async with a_leader("own", sock.dup()) as (_, url):
            relay.hand_over(url)
            assert await reader.readline() == b"own a\n"
            assert await answered(sock, b"b\n") == b"own b\n"


async def test_one_that_has_led_holds_what_comes_for_its_successor() -> None:
    async with a_relay() as (relay, sock):
        async with a_leader("own", sock.dup()) as (_, url):
            relay.hand_over(url)
            assert await answered(sock, b"a\n") == b"own a\n"
        relay.lead_to(None)
        await relay.listen(sock)
        async with connected(sock) as (reader, writer), a_leader("next") as (_, url):
            writer.write(b"b\n")
            relay.lead_to(leader_at(url))
            assert await reader.readline() == b"next b\n"


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://c1:8700", ("c1", 8700)),
        ("https://c1.example.com/", ("c1.example.com", 443)),
        ("http://[::1]:80", ("::1", 80)),
    ],
)
def test_an_address_of_a_controller(url: str, address: tuple[str, int]) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize("url", ["c1:8700", "ftp://c1", "http://", "http://c1/path", "http://c1:x"])
def test_what_is_no_address_of_a_controller_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="it is no http"):
        address_of(url)
