"""The server's end of a WebSocket against frames of a known library, and against any bytes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame
from websockets.frames import Opcode as TheirOpcode
from websockets.streams import StreamReader

from fairlead.wire.errors import Refused
from fairlead.wire.websocket import CloseCode, Opcode, Violation, frame_head
from runner.http.websocket import MAX_MESSAGE, FrameReader, WebSocket, accept_key
from tests.unit.runner.test_http import Transport

SIZES = (0, 1, 125, 126, 65535, 65536, 70_000)


def sent(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(TheirOpcode(opcode), payload, fin).serialize(mask=mask)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_sent_is_read_by_others(size: int) -> None:
    reader = StreamReader()
    reader.feed_data(frame_head(Opcode.BINARY, size) + b"x" * size)
    parsing = Frame.parse(reader.read_exact, mask=False, max_size=None)
    with pytest.raises(StopIteration) as done:
        next(parsing)
    assert done.value.value == Frame(TheirOpcode.BINARY, b"x" * size, True)


@given(
    st.lists(
        st.sampled_from([(9, 0), (9, 125), (10, 3), (1, 5), (2, 126), (2, 70_000)]), max_size=6
    ),
    st.integers(1, 5000),
)
def test_frames_come_out_in_any_pieces(frames: list[tuple[int, int]], step: int) -> None:
    raw = b"".join(sent(opcode, b"p" * size) for opcode, size in frames)
    reader = FrameReader()
    found = [one for at in range(0, len(raw), step) for one in reader.feed(raw[at : at + step])]
    assert found == [(op, b"p" * size) for op, size in frames if op >= 8]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    reader = FrameReader()
    for piece in pieces:
        try:
            controls = reader.feed(piece)
        except Violation:
            break
        assert all(len(payload) <= 125 for _, payload in controls)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (sent(1, b"x", mask=False), CloseCode.PROTOCOL_ERROR),
        (bytes([0xC1, 0x80]), CloseCode.PROTOCOL_ERROR),
        (bytes([0x83, 0x80]), CloseCode.PROTOCOL_ERROR),
        (bytes([0x09, 0x80]), CloseCode.PROTOCOL_ERROR),
        (bytes([0x89, 0xFE]), CloseCode.PROTOCOL_ERROR),
        (sent(0, b"x"), CloseCode.PROTOCOL_ERROR),
        (sent(1, b"x", fin=False) + sent(1, b"y"), CloseCode.PROTOCOL_ERROR),
        (bytes([0x82, 0xFF]) + (MAX_MESSAGE + 1).to_bytes(8, "big") + b"mask", CloseCode.TOO_BIG),
        (sent(2, b"x" * MAX_MESSAGE, fin=False) + sent(0, b"y"), CloseCode.TOO_BIG),
    ],
)
def test_a_broken_rule_has_its_close_code(raw: bytes, code: CloseCode) -> None:
    with pytest.raises(Violation) as caught:
        FrameReader().feed(raw)
    assert caught.value.code is code


async def nothing() -> None: ...


async def test_pings_and_a_close_are_answered() -> None:
    transport = Transport()
    websocket = WebSocket(transport, nothing)
    websocket.feed(sent(9, b"hi") + sent(2, b"ignored") + sent(8, Close(1000, "bye").serialize()))
    assert transport.written == b"\x8a\x02hi" + b"\x88\x02\x03\xe8"
    assert websocket.left.done()
    with pytest.raises(ConnectionResetError):
        await websocket.send_bytes(b"more")


async def test_a_peer_that_reads_nothing_fills_no_buffer_with_pings() -> None:
    transport = Transport()
    websocket = WebSocket(transport, nothing)
    websocket.is_paused = True
    for number in range(1000):
        websocket.feed(sent(9, b"%d" % number))
    assert transport.written == b""
    websocket.resume()
    assert transport.written == b"\x8a\x03999"


async def test_a_violation_closes_with_its_code() -> None:
    transport = Transport()
    websocket = WebSocket(transport, nothing)
    websocket.feed(sent(1, b"x", mask=False))
    assert transport.written[2:4] == CloseCode.PROTOCOL_ERROR.to_bytes(2, "big")
    await asyncio.wait_for(websocket.close(1000, b""), 1)
    assert transport.written.count(b"\x88") == 1


def test_the_key_of_the_standard_is_answered_as_there() -> None:
    headers = {
        "upgrade": "websocket",
        "connection": "keep-alive, Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert accept_key(headers) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    "wrong",
    [
        {"upgrade": "h2c"},
        {"connection": "close"},
        {"sec-websocket-version": "99"},
        {"sec-websocket-key": "short"},
        {"sec-websocket-key": "not base 64 ÿ"},
        {"sec-websocket-key": ""},
    ],
)
def test_another_handshake_is_refused(wrong: dict[str, str]) -> None:
    headers = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    with pytest.raises(Refused):
        accept_key({**headers, **wrong})
