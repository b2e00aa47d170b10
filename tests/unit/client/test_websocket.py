"""The client's end of a WebSocket against a known library, and against any bytes."""

from __future__ import annotations

import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame
from websockets.frames import Opcode as TheirOpcode
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from fairlead.connections import websocket
from fairlead.connections.websocket import FrameReader, WebSocket, require_accepted
from fairlead.errors import ApiError, ConnectionLost
from fairlead.rest import ControllerClient
from fairlead.wire.frames import Frame as LogFrame
from fairlead.wire.frames import Stream, encode
from fairlead.wire.websocket import Opcode, Violation, accept_of
from tests.support.waiting import LONG

SIZES = (0, 1, 125, 126, 65535, 65536, 70_000)


def sent(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bool = False) -> bytes:
    return Frame(TheirOpcode(opcode), payload, fin).serialize(mask=mask)


@given(
    st.lists(
        st.tuples(st.sampled_from((1, 2)), st.sampled_from(SIZES))
        | st.tuples(st.sampled_from((9, 10)), st.sampled_from((0, 125))),
        max_size=6,
    ),
    st.integers(1, 5000),
)
def test_messages_come_out_in_any_pieces(frames: list[tuple[int, int]], step: int) -> None:
    raw = b"".join(sent(opcode, b"p" * size) for opcode, size in frames)
    reader = FrameReader()
    found = [one for at in range(0, len(raw), step) for one in reader.feed(raw[at : at + step])]
    controls = [(op, payload) for op, payload in found if op >= Opcode.CLOSE]
    assert controls == [(op, b"p" * size) for op, size in frames if op >= Opcode.CLOSE]
    for kind in (Opcode.TEXT, Opcode.BINARY):
        given_out = sum(len(payload) for op, payload in found if op is kind)
        assert given_out == sum(size for op, size in frames if op == kind)


def test_a_control_frame_may_come_within_a_message() -> None:
    raw = sent(2, b"a", fin=False) + sent(9, b"ping") + sent(0, b"b")
    expected = [(Opcode.BINARY, b"a"), (Opcode.PING, b"ping"), (Opcode.BINARY, b"b")]
    assert FrameReader().feed(raw) == expected


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    reader = FrameReader()
    for piece in pieces:
        try:
            found = reader.feed(piece)
        except Violation:
            break
        assert sum(len(payload) for _, payload in found) <= sum(map(len, pieces))


@pytest.mark.parametrize(
    "raw",
    [
        sent(2, b"x", mask=True),
        bytes([0xC1, 0x00]),
        bytes([0x83, 0x00]),
        bytes([0x09, 0x00]),
        bytes([0x89, 0x7E]),
        sent(0, b"x"),
        sent(1, b"x", fin=False) + sent(1, b"y"),
    ],
)
def test_a_server_that_breaks_the_protocol_is_refused(raw: bytes) -> None:
    with pytest.raises(Violation):
        FrameReader().feed(raw)


def test_the_key_of_the_standard_is_answered_as_there() -> None:
    key, accept = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert accept_of(key) == accept
    require_accepted(key, "WebSocket", "keep-alive, upgrade", accept)
    for upgrade, connection, accepted in (
        (None, None, None),
        ("websocket", "Upgrade", None),
        ("websocket", "Upgrade", key),
        ("websocket", "keep-alive", accept),
        ("websocket", None, accept),
        (None, "Upgrade", accept),
    ):
        with pytest.raises(Violation):
            require_accepted(key, upgrade, connection, accepted)


def log_frame(offset: int, payload: bytes) -> LogFrame:
    return LogFrame(offset=offset, time_ns=0, stream=Stream.STDOUT, payload=payload)


@contextmanager
def server(
    handler: Callable[[ServerConnection], None],
    process_request: Callable[[ServerConnection, Request], Response | None] | None = None,
) -> Iterator[ControllerClient]:
    with serve(handler, "127.0.0.1", 0, process_request=process_request) as running:
        serving = threading.Thread(target=running.serve_forever)
        serving.start()
        try:
            port = running.socket.getsockname()[1]
            yield ControllerClient(f"http://127.0.0.1:{port}/base", "token")
        finally:
            running.shutdown()
            serving.join()


def test_a_log_is_followed_from_a_server_of_a_known_library() -> None:
    asked: list[Request] = []
    frames = [log_frame(0, b"a"), log_frame(1, b"b" * 300_000), log_frame(300_001, b"c")]
    pongs: list[bool] = []

    def send(connection: ServerConnection) -> None:
        assert connection.request is not None
        asked.append(connection.request)
        connection.send('{"offset": 0}')
        connection.send(encode(frames[0]))
        pongs.append(connection.ping().wait(LONG))
        connection.send([encode(frames[1])[:5], encode(frames[1])[5:]])  # a message in fragments
        connection.send(encode(frames[2]))

    heard: list[bool] = []
    with server(send) as client:
        found = list(client.followed_frames("run", lambda: heard.append(True), offset=0))
    assert (found, heard, pongs) == (frames, [True], [True])
    (request,) = asked
    assert request.path == "/base/v1/runs/run/logs/ws?offset=0"
    assert request.headers["Authorization"] == "Bearer token"


def test_a_close_that_is_no_end_is_a_loss() -> None:
    def leave(connection: ServerConnection) -> None:
        connection.send('{"offset": 0}')
        connection.close(1001)

    with server(leave) as client, pytest.raises(ConnectionLost, match="the connection was cut"):
        list(client.followed_frames("run", lambda: None))


def test_a_refused_handshake_tells_why() -> None:
    def refuse(connection: ServerConnection, _: Request) -> Response:
        body = '{"error": {"code": "log_removed", "message": "it was removed"}}'
        return connection.respond(HTTPStatus.GONE, body)

    with server(lambda _: None, refuse) as client, pytest.raises(ApiError) as caught:
        list(client.followed_frames("run", lambda: None))
    assert (caught.value.status, caught.value.code) == (410, "log_removed")


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[ControllerClient]:
    """A server of one connection, which is closed once its answer is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve_answer() -> None:
            accepted, _ = listening.accept()
            with closing(accepted):
                accepted.sendall(answer(accepted.recv(1 << 16)))

        serving = threading.Thread(target=serve_answer)
        serving.start()
        try:
            yield ControllerClient(f"http://127.0.0.1:{listening.getsockname()[1]}", None)
        finally:
            serving.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: AAAA\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
def test_a_server_of_another_kind_is_told(answer: bytes) -> None:
    expected = pytest.raises(
        ConnectionLost, match=r"not like a Fairlead|not answer like a Fairlead"
    )
    with answering(lambda _: answer) as client, expected:
        list(client.followed_frames("run", lambda: None))


@pytest.mark.parametrize("options", ["Upgrade", "keep-alive, upgrade", "Upgrade, close"])
def test_a_whole_log_may_come_with_the_head_of_the_answer(options: str) -> None:
    def answer(request: bytes) -> bytes:
        (key,) = re.findall(rb"Sec-WebSocket-Key: (\S+)", request)
        head = (
            f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: {options}\r\n"
            f"Sec-WebSocket-Accept: {accept_of(key.decode())}\r\n\r\n"
        )
        frames = sent(1, b"{}") + sent(2, encode(log_frame(0, b"a")))
        return head.encode() + frames + sent(8, Close(1000, "").serialize())

    with answering(answer) as client:
        assert list(client.followed_frames("run", lambda: None)) == [log_frame(0, b"a")]


def test_a_server_that_is_gone_needs_no_answer() -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs):
        theirs.sendall(sent(9, b"there?") + sent(2, b"a") + sent(8, Close(1000, "").serialize()))
    with WebSocket(ours) as stream:
        assert list(stream.pieces()) == [(Opcode.BINARY, b"a")]


@pytest.mark.parametrize(
    ("last", "codes"),
    [(sent(8, Close(1000, "").serialize()), [1000]), (sent(0, b"x"), [1002]), (b"", [1000])],
)
def test_the_server_is_told_once_how_it_ended(last: bytes, codes: list[int]) -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs):
        with WebSocket(ours) as stream:
            theirs.sendall(sent(2, b"a") + last)
            pieces = stream.pieces()
            if last:
                with suppress(Violation):
                    list(pieces)
        found = theirs.recv(100)
    masked = [(found[at + 2 : at + 6], found[at + 6 : at + 8]) for at in range(0, len(found), 8)]
    unmasked = [
        bytes(one ^ key for one, key in zip(two, mask, strict=False)) for mask, two in masked
    ]
    assert [struct.unpack("!H", one)[0] for one in unmasked] == codes


def test_a_log_that_was_left_unread_goes_on_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waits answers no ping, and is cut."""
    monkeypatch.setattr(websocket, "UNREAD_SECONDS", -1.0)
    frames = [log_frame(0, b"a"), log_frame(1, b"b")]
    asked: list[str] = []

    def send(connection: ServerConnection) -> None:
        assert connection.request is not None
        asked.append(connection.request.path.partition("?")[2])
        connection.send("{}")
        connection.send(encode(frames[len(asked) - 1]))
        if len(asked) == 1:
            connection.socket.shutdown(socket.SHUT_RDWR)

    with server(send) as client:
        found = list(client.followed_frames("run", lambda: None, attempt="a1", offset=0))
    assert (found, asked) == (frames, ["attempt=a1&offset=0", "attempt=a1&offset=1"])


def test_the_frames_of_a_known_close_are_read() -> None:
    raw = sent(8, Close(1000, "bye").serialize())
    assert FrameReader().feed(raw) == [(Opcode.CLOSE, b"\x03\xe8bye")]


def test_a_reader_of_whole_messages_joins_their_pieces_and_frames() -> None:
    raw = b"\x02\x02ab\x89\x00\x80\x01c\x82\x00\x81\x03"
    reader = FrameReader(whole=3)
    found = [one for byte in raw for one in reader.feed(bytes([byte]))]
    assert found == [(Opcode.PING, b""), (Opcode.BINARY, b"abc"), (Opcode.BINARY, b"")]
    assert reader.feed(b"def\x82\x01g") == [(Opcode.TEXT, b"def"), (Opcode.BINARY, b"g")]


def test_empty_pieces_of_a_message_are_not_held() -> None:
    reader = FrameReader(whole=3)
    reader.feed(b"\x02\x00")
    before = sys.getsizeof(reader._pieces)
    reader.feed(b"\x00\x00" * 1000)
    assert (sys.getsizeof(reader._pieces), reader.feed(b"\x80\x01a")) == (
        before,
        [(Opcode.BINARY, b"a")],
    )


def test_small_pieces_of_a_message_are_held_together() -> None:
    payload = bytes(range(250)) * 40
    raw = b"\x82\x7e" + len(payload).to_bytes(2, "big") + payload
    reader = FrameReader(whole=len(payload))
    for byte in raw[:-1]:
        assert reader.feed(bytes([byte])) == []
    assert [len(piece) for piece in reader._pieces] == [4096, 4096, 1807]
    assert reader.feed(raw[-1:]) == [(Opcode.BINARY, payload)]


@pytest.mark.parametrize("raw", [b"\x82\x04a", b"\x02\x02ab\x80\x02c"])
def test_a_message_longer_than_asked_for_is_refused_at_its_first_byte(raw: bytes) -> None:
    with pytest.raises(Violation, match="more than 3 bytes"):
        FrameReader(whole=3).feed(raw)
