"""A reader that is slower than its node: what waits for it here stays bounded, and comes whole."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import asyncssh
import pytest

from common.links.ssh_http import ChannelTransport

WINDOW, PIECE = 1 << 20, 1 << 15


class Channel:
    """As asyncssh's: it holds what comes while paused, and opens its whole window again at the
    first piece that it delivers after half of it was used."""

    def __init__(self) -> None:
        self.window = WINDOW
        self.held: list[bytes] = []
        self.is_paused = False
        self.transport: ChannelTransport | None = None

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        while self.held and not self.is_paused:
            self.deliver(self.held.pop(0))

    def arrives(self, data: bytes) -> None:
        self.window -= len(data)
        if self.is_paused:
            self.held.append(data)
        else:
            self.deliver(data)

    def deliver(self, data: bytes) -> None:
        if self.window < WINDOW / 2:
            self.window = WINDOW
        assert self.transport is not None
        self.transport.received(data)

    def close(self) -> None:
        self.held.clear()


class SlowReader(asyncio.Protocol):
    """Reads one piece, then nothing until it is asked for the next."""

    def __init__(self) -> None:
        self.read = bytearray()
        self.ended_at: int | None = None
        self.transport: ChannelTransport | None = None

    def data_received(self, data: bytes) -> None:
        self.read += data
        assert self.transport is not None
        self.transport.pause_reading()


def linked() -> tuple[Channel, SlowReader, ChannelTransport]:
    channel, reader = Channel(), SlowReader()
    transport = ChannelTransport(cast("asyncssh.SSHUNIXChannel[bytes]", channel), reader)
    channel.transport = reader.transport = transport
    return channel, reader, transport


def test_a_node_that_sends_all_it_may_is_held_to_twice_the_window() -> None:
    channel, reader, transport = linked()
    sent = bytearray()
    most = 0
    for number in range(2000):
        while channel.window >= PIECE:
            piece = number.to_bytes(4, "big") * (PIECE // 4)
            sent += piece
            channel.arrives(piece)
        most = max(most, len(sent) - len(reader.read))
        transport.resume_reading()
    assert len(reader.read) >= 2000 * PIECE
    assert most <= 2 * WINDOW + PIECE
    while len(reader.read) < len(sent):
        transport.resume_reading()
    assert reader.read == sent


@pytest.mark.parametrize("seed", range(50))
def test_every_byte_comes_once_and_in_order_and_the_end_after_them(seed: int) -> None:
    chance = random.Random(seed)
    channel, reader, transport = linked()
    sent = bytearray()
    for _ in range(300):
        if chance.random() < 0.5 and channel.window > 0:
            piece = chance.randbytes(min(chance.randrange(1, PIECE), channel.window))
            sent += piece
            channel.arrives(piece)
        elif chance.random() < 0.7:
            transport.resume_reading()

    def end() -> None:
        reader.ended_at = len(reader.read)

    while channel.held:
        transport.resume_reading()
    transport.ended(end)
    while reader.ended_at is None:
        transport.resume_reading()
    assert (reader.ended_at, bytes(reader.read)) == (len(sent), bytes(sent))


def test_a_lost_channel_gives_the_protocol_what_had_come() -> None:
    channel, reader, transport = linked()
    for letter in (b"a", b"b", b"c"):
        channel.arrives(letter)
    channel.resume_reading()
    transport.lost()
    assert reader.read == b"abc"
