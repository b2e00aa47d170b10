"""A cut in the stream of a log is told, and so is a controller that vanishes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from fairlead.connections import requests, websocket
from fairlead.connections.websocket import WebSocket
from fairlead.errors import ConnectionLost
from fairlead.rest import ControllerClient
from fairlead.wire.websocket import CloseCode, Opcode, frame_head


def test_a_stream_that_is_cut_is_told_without_the_protocol_s_words() -> None:
    def cut(connection: ServerConnection) -> None:
        connection.send('{"offset": 0}')
        connection.socket.shutdown(socket.SHUT_RDWR)

    with serve(cut, "127.0.0.1", 0) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            port = server.socket.getsockname()[1]
            client = ControllerClient(f"http://127.0.0.1:{port}", "token")
            with pytest.raises(ConnectionLost, match=": the connection was cut; is it running"):
                list(client.followed_frames("run", lambda: None))
        finally:
            server.shutdown()
            serving.join()


class Answered(socket.socket):
    """The answers to its pings are there before it waits for them."""

    answers: list[bytes]
    theirs: socket.socket

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(data, flags)
        if data[0] & 0x0F == Opcode.PING and self.answers:
            self.theirs.sendall(self.answers.pop(0))


@contextmanager
def a_stream(monkeypatch: pytest.MonkeyPatch, *answers: bytes) -> Iterator[WebSocket]:
    """Its server says these, one after each ping."""
    monkeypatch.setattr(websocket, "QUIET_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    with closing(theirs), Answered(fileno=ours.detach()) as answered:
        answered.answers, answered.theirs = list(answers), theirs
        with WebSocket(answered) as stream:
            yield stream


PONG = frame_head(Opcode.PONG, 0)
MESSAGE = frame_head(Opcode.BINARY, 1) + b"a"
CLOSE = frame_head(Opcode.CLOSE, 2) + CloseCode.OK.to_bytes(2, "big")


def test_a_log_without_output_is_followed_on_while_pings_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with a_stream(monkeypatch, PONG, PONG, PONG + MESSAGE + CLOSE) as stream:
        assert list(stream.pieces()) == [(Opcode.BINARY, b"a")]


def test_a_message_after_a_ping_is_as_good_as_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_stream(monkeypatch, MESSAGE) as stream:
        assert next(stream.pieces()) == (Opcode.BINARY, b"a")


def test_a_controller_that_answers_no_ping_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_stream(monkeypatch) as stream, pytest.raises(TimeoutError):
        list(stream.pieces())


def test_a_paused_controller_is_left_sooner_where_another_one_can_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "QUIET_OF_SEVERAL_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    with closing(theirs), WebSocket(ours, are_several=True) as stream, pytest.raises(TimeoutError):
        list(stream.pieces())


def test_a_connection_breaks_when_its_other_end_confirms_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ControllerClient(f"http://127.0.0.1:{server.getsockname()[1]}", None)
        (address,) = tries = client.addresses.tries(repeatable=True)
        with closing(client._connected(address, 1.0, tries)) as connection:
            found = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            kept_alive = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert (found, bool(kept_alive)) == (1000 * requests.UNHEARD_SECONDS, True)
